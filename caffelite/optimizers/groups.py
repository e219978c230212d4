"""Groups of parameters, each with its own hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from caffelite.core.function import Function
from caffelite.core.tensor import Tensor


class Parameters(tuple[Tensor, ...]):
    """An optimizer's parameters, a tuple: the methods of a list that would change it raise TypeError."""

    def _raise_immutable(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("an optimizer's parameters cannot be changed; make another optimizer")

    append = extend = insert = remove = pop = clear = sort = reverse = _raise_immutable
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _raise_immutable


class Group(Mapping[str, Any]):
    """Parameters with their own hyper-parameters, by name: `group["lr"]` and `group["parameters"]`.

    You may set hyper-parameters at any time; they are checked like the optimizer's. `group["lr"]` is the rate of the
    next step. If you set it, to a number or a schedule, the group's old schedule ends.
    """

    def __init__(self, optimizer: Any, index: int) -> None:
        self._optimizer, self._index = optimizer, index

    def __getitem__(self, name: str) -> Any:
        if name == "parameters":
            members = zip(self._optimizer.parameters, self._optimizer._group_indices, strict=True)
            return Parameters(p for p, group in members if group == self._index)
        return self._optimizer._hyper_values(self._index)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "parameters":
            self._optimizer.parameters = value
        self._optimizer._set_hyper(self._index, name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(("parameters", *self._optimizer.hyper_names))

    def __len__(self) -> int:
        return 1 + len(self._optimizer.hyper_names)

    def __repr__(self) -> str:
        return f"Group({self.text()})"

    def text(self) -> str:
        """Return the number of parameters, and the hyper-parameters, as text."""
        hyper = ", ".join(f"{name}={self[name]:g}" for name in self._optimizer.hyper_names)
        return f"{len(self['parameters'])} parameters, {hyper}"


def as_groups(rule: str, parameters: Any, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert the optimizer's argument to groups: dicts with a list of parameters and all hyper-parameters."""
    if not isinstance(parameters, Iterable) or isinstance(parameters, Tensor | Function | Mapping):
        raise TypeError(f"{rule} takes a list of Tensors, such as model.parameters(), got {parameters!r}")
    items = list(parameters)
    if not items:
        raise ValueError(f"{rule} got no parameters; add the layers to the model first")
    if not isinstance(items[0], Mapping):
        items = [{"parameters": items}]
    groups = []
    for i, group in enumerate(items):
        members = group.get("parameters", ()) if isinstance(group, Mapping) else None
        if not isinstance(members, Iterable) or isinstance(members, Tensor):
            raise TypeError(f'{rule} takes groups such as {{"parameters": ps, "lr": 0.1}}, got {group!r}')
        if unknown := [key for key in group if key != "parameters" and key not in defaults]:
            raise TypeError(f"{rule}: group {i} has {unknown}; expected some of {['parameters', *defaults]}")
        members = list(members)
        if not members:
            raise ValueError(f"{rule}: group {i} has no parameters")
        groups.append({**defaults, **group, "parameters": members})
    check_parameters(rule, [p for group in groups for p in group["parameters"]])
    return groups


def check_parameters(rule: str, parameters: list[Any]) -> None:
    """Raise TypeError or ValueError unless these are different Tensors that a rule can update."""
    for p in parameters:
        if not isinstance(p, Tensor):
            raise TypeError(f"{rule} takes Tensors, got {type(p).__name__}")
        if p.function is not None:
            raise ValueError(f"{rule} takes leaves, got {p!r}")
    if len(set(parameters)) < len(parameters):
        raise ValueError(f"{rule} got a parameter twice")
