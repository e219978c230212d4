"""What `fit` and `evaluate` are given: checked before the first step, and turned into batches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from caffelite.core.arrays import as_array
from caffelite.core.forks import renew_in_children
from caffelite.core.function import Function
from caffelite.core.sparse import is_sparse
from caffelite.data.frames import names_of_inputs
from caffelite.data.generator import Batch, DataGenerator, is_replayed
from caffelite.data.inputs import ClassWeights, as_targets, as_weights, plain
from caffelite.data.prefetch import Prefetch, without_single_rows
from caffelite.data.sources import Blocks, Source, part
from caffelite.optimizers import Optimizer
from caffelite.training import door
from caffelite.training.objective import check_takes_weights
from caffelite.training.own_loss import OwnLoss

NOTHING: Mapping[str, Any] = MappingProxyType({})


def batches(
    model: Any,
    name: str,
    x: Any,
    y: Any,
    weights: Any,
    loss: Function,
    given: Mapping[str, Any] = NOTHING,
    **options: Any,
) -> Iterable:
    """Anything that `fit` and `evaluate` take, as batches; checked as a whole where it is in memory.

    `options` are for rows in memory. The user's own, `given`, replace them if they are not None. ValueError if x is
    batches that do not follow what is given.
    """
    if y is not None and not isinstance(x, DataGenerator):
        data = checked(model, name, x, y, weights, loss)
        x = data.inputs[0] if len(data.inputs) == 1 else data.inputs
        return DataGenerator(
            x, data.targets, sample_weight=data.weights, **{"seed": _unused().stream, **options, **_set(given)}
        )
    if weights is not None:
        raise ValueError("sample_weight goes with x and y as arrays; a DataGenerator or batches bring their own")
    generator = x.batches if isinstance(x, Prefetch) else x
    if isinstance(generator, DataGenerator):
        door.check_columns(model, name, generator.columns)
    if isinstance(x, DataGenerator):
        if y is not None:
            raise ValueError(f"{name} is a DataGenerator, which brings its own targets; leave out y")
        if x.y is None:
            raise ValueError(f"{name} is a DataGenerator without targets")
        if is_replayed(x):  # else each batch is checked
            inputs = x.x if isinstance(x.x, tuple) else (x.x,)
            door.check_rows(model, name, inputs)
            door.check_indices(model, name, inputs)
            _check_targets(model, loss, inputs, x.y, x.sample_weight)
    elif isinstance(x, np.ndarray) or is_sparse(x) or not isinstance(x, Iterable):
        got = f"an array of shape {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        raise ValueError(f"{name} without y has to be a DataGenerator or an iterable of (x, y) batches, got {got}")
    for option, value in _set(given).items():
        if getattr(generator, option, None) != value:
            raise ValueError(
                f"{option}={value!r} goes with x and y as arrays, and {name} is a {type(x).__name__}, which makes its "
                f"own batches: leave out {option}"
            )
    return x


def _set(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None."""
    return {option: value for option, value in given.items() if value is not None}


class _Unused:
    """A stream for rows that stay in order: to make one takes longer than all other checks."""

    def __init__(self) -> None:
        self._after_fork()
        renew_in_children(self)

    def _after_fork(self) -> None:
        self.stream = np.random.default_rng(0)


@functools.cache
def _unused() -> _Unused:
    return _Unused()


def checked(model: Any, name: str, x: Any, y: Any, weights: Any, loss: Function) -> Batch:
    """All rows as arrays, or Sources, that the model and the loss can take."""
    inputs, targets = door.model_inputs(model, name, x), plain(y, "targets")
    targets = targets if isinstance(targets, Source) else as_array(targets, "targets")
    rows = door.check_rows(model, name, inputs)
    door.check_indices(model, name, inputs)
    if targets.shape[:1] != (rows,):
        raise ValueError(f"{name} has {rows} rows, y has shape {targets.shape}")
    weights = None if weights is None else as_weights(weights, rows, model.dtype)
    _check_targets(model, loss, inputs, targets, weights)
    return Batch(inputs, as_targets(targets, model.dtype), weights)


def training_batches(
    model: Any,
    loss: Function,
    x: Any,
    y: Any,
    weights: Any,
    class_weight: Any,
    given: Mapping[str, Any],
    rng: np.random.Generator,
    validation_data: Any,
    validation_split: float,
    is_seeded: bool,
) -> tuple[Iterable, Iterable | None, Any]:
    """The batches to train on, those to evaluate after each epoch, if there are any, and the columns of frames."""
    columns, of_classes = x.columns if isinstance(x, DataGenerator) else names_of_inputs(x), None
    if class_weight is not None:
        if y is None or isinstance(x, DataGenerator):
            raise ValueError("class_weight goes with x and y as arrays; a DataGenerator or batches bring weights")
        of_classes = ClassWeights(class_weight, y, getattr(loss, "ignore", None))
    if validation_split != 0:
        if validation_data is not None:
            raise ValueError("fit takes validation_data or validation_split, not both")
        if y is None or isinstance(x, DataGenerator):
            raise ValueError("validation_split needs x and y as arrays; give validation_data instead")
        data = checked(model, "x", x, y, weights, loss)
        drawn_from = model._own.stream_of_split(len(data.targets), rng, drawn_anew=is_seeded)
        (x, y, weights), validation_data = split(data, validation_split, drawn_from)
    if of_classes is not None:
        weights = of_classes.times(weights, y)
    training = batches(model, "x", x, y, weights, loss, given, seed=rng)
    if door.trains_batch_norm(model):
        training = without_single_rows(training)
    validation = None if validation_data is None else validation_batches(model, validation_data, loss, columns)
    return training, validation, columns


def validation_batches(model: Any, data: Any, loss: Function, columns: Any = None) -> Iterable:
    """What is evaluated after each epoch, as batches; frames with columns as those of the training."""
    if isinstance(data, DataGenerator):
        door.check_columns(model, "validation_data", data.columns, columns)
        return batches(model, "validation_data", data, None, None, loss)
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise TypeError(
            f"validation_data: expected (x, y), (x, y, weights) or a DataGenerator, got {type(data).__name__}"
            + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
        )
    x, y, weights = data if len(data) == 3 else (*data, None)
    if y is None:
        raise TypeError("validation_data: expected (x, y), got None for y")
    door.check_frames(model, "validation_data's x", x, columns)
    return batches(model, "validation_data's x", x, y, weights, loss, batch_size=1024, shuffle=False)


def _check_targets(model: Any, loss: Function, inputs: tuple[Any, ...], y: Any, weights: Any) -> None:
    """ValueError for targets and weights that the loss does not take; targets that are read are checked then."""
    if hasattr(loss, "check_targets") and not isinstance(y, Source):
        loss.check_targets(y, model.shape_for(inputs, len(inputs[0])))
    if weights is not None:
        check_takes_weights(loss)
        if not as_weights(weights, len(inputs[0]), model.dtype).any():
            raise ValueError(f"sample_weight: all of {len(weights)} weights are 0 in {model.dtype}")


def as_loss(loss: Any) -> Function:
    """A loss as a Function; TypeError for anything that can't be called, and for a class."""
    if isinstance(loss, Function):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise TypeError(f"loss: expected a Function such as SoftmaxLoss(), or a function, got {loss!r}")
    return OwnLoss.of(loss)


def check_optimizer(model: Any, optimizer: Any) -> None:
    """TypeError unless it is an Optimizer; ValueError unless it has every parameter that requires a gradient."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}")
    known = set(optimizer.parameters)
    if all([p in known or not p.requires_grad for p in model.parameters()]):  # noqa: C419 (faster than a generator)
        return
    for name, p in model.named_parameters().items():
        if p.requires_grad and p not in known:
            raise ValueError(
                f"the optimizer does not have the model's parameter {name} {p.shape}; make it after the last "
                "add, or freeze the parameter with requires_grad = False"
            )


def split(data: Batch, share: float, rng: np.random.Generator) -> tuple[Batch, Batch]:
    """The rows to train on, in their order, and the rows to evaluate, drawn block by block from a source."""
    if isinstance(share, bool) or not isinstance(share, int | float | np.integer | np.floating):
        raise TypeError(f"validation_split must be a number, got {share!r}")
    if not 0 <= share < 1:
        raise ValueError(f"validation_split must be in [0, 1), got {share}")
    rows = len(data.targets)
    count = int(rows * share)
    if count == 0:
        raise ValueError(f"validation_split {share} of {rows} rows leaves no row to evaluate")
    weighted, columns = data.weights is not None, data.columns()
    if Source in map(type, columns):
        ranges = Blocks(columns, rows).held_out(count, rng)
        return tuple([Batch.of([part(a, those) for a in columns], weighted) for those in ranges])  # type: ignore
    held_out = np.zeros(rows, dtype=bool)
    held_out[rng.permutation(rows)[:count]] = True
    return tuple([Batch.of([a[which] for a in columns], weighted) for which in (~held_out, held_out)])  # type: ignore
