"""Groups of parameters, each with hyper-parameters of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from caffelite.core.tensor import Tensor


class Parameters(tuple):
    """An optimizer's parameters, which cannot be changed: what would change a list raises TypeError."""

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("an optimizer's parameters cannot be changed; make another optimizer")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


class Group(Mapping):
    """Parameters with hyper-parameters of their own, by name: `group["lr"]`, and `group["parameters"]`.

    Hyper-parameters may be set at any time, and are checked as the optimizer's. `group["lr"]` is the next step's rate.
    Setting it, to a number or a schedule, ends the schedule that the group has followed.
    """

    def __init__(self, optimizer: Any, index: int) -> None:
        self._optimizer, self._index = optimizer, index

    def __getitem__(self, name: str) -> Any:
        if name == "parameters":
            members = zip(self._optimizer.parameters, self._optimizer._group_of, strict=True)
            return Parameters(p for p, group in members if group == self._index)
        return self._optimizer._hyper_of(self._index)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "parameters":
            self._optimizer.parameters = value
        self._optimizer._set(self._index, name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(("parameters", *self._optimizer.hyper_names))

    def __len__(self) -> int:
        return 1 + len(self._optimizer.hyper_names)

    def __repr__(self) -> str:
        return f"Group({self.text()})"

    def text(self) -> str:
        """How many parameters there are, and the hyper-parameters."""
        hyper = ", ".join(f"{name}={self[name]:g}" for name in self._optimizer.hyper_names)
        return f"{len(self['parameters'])} parameters, {hyper}"


def as_groups(rule: str, parameters: Any, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups that an optimizer is given, as dicts with all hyper-parameters, and lists of parameters."""
    if not isinstance(parameters, Iterable) or isinstance(parameters, Tensor | Mapping):
        raise TypeError(f"{rule} takes a list of Tensors, model.parameters() say, got {parameters!r}")
    given = list(parameters)
    if not given:
        raise ValueError(f"{rule} got no parameters; add the layers to the model first")
    if not isinstance(given[0], Mapping):
        given = [{"parameters": given}]
    groups = []
    for i, group in enumerate(given):
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
    """Raise unless these are Tensors that a rule can update, each once."""
    for p in parameters:
        if not isinstance(p, Tensor):
            raise TypeError(f"{rule} takes Tensors, got {type(p).__name__}")
        if p.function is not None:
            raise ValueError(f"{rule} takes leaves, got {p!r}")
    if len(set(parameters)) < len(parameters):
        raise ValueError(f"{rule} got a parameter twice")
