"""Convert and check the arguments of `fit`, `evaluate` and `predict`, once, before any step."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import as_indices, flat_int64, positions_in, raise_bad_index
from caffelite.core.function import Function
from caffelite.core.sparse import is_sparse
from caffelite.core.tensor import Tensor
from caffelite.data.conversion import (
    ClassWeights,
    as_inputs,
    as_targets,
    as_weights,
    count_rows,
    name_targets,
    read_array,
    tuple_hint,
)
from caffelite.data.frames import ColumnNames, check_names, open_frame
from caffelite.data.generator import Batch, DataGenerator, Prefetch, is_replayed, merge_single_rows, unpack_single
from caffelite.data.lengths import as_lengths, cut_batch
from caffelite.data.out_of_core import Source
from caffelite.data.split import split_data
from caffelite.data.windows import WindowRows, Windows
from caffelite.files.state import BaseModel
from caffelite.functions import Losses
from caffelite.functions.losses.base import Loss, unwrap_penalized
from caffelite.functions.losses.function_loss import as_loss
from caffelite.optimizers import Optimizer
from caffelite.program.ir import get_owner
from caffelite.program.recording import is_internal
from caffelite.training.objective import check_takes_weights
from caffelite.training.options import FitOptions

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
EVAL_OPTIONS: Mapping[str, Any] = MappingProxyType({"batch_size": 1024, "shuffle": False})  # batches of an evaluation
UNLIMITED = np.uint64(2**64 - 1)  # as unsigned numbers, negative indices are larger than all others


class UserData(NamedTuple):
    """Rows x with targets, weights and lengths, as a user gives them. Without y, x makes its own batches.

    `name` is the name of x in messages. Frames must have the columns `column_names`.
    """

    x: Any
    y: Any
    weights: Any = None
    lengths: Any = None
    name: str = "x"
    column_names: ColumnNames = None

    def are_rows(self) -> bool:
        """Return whether x and y are rows and their targets."""
        return self.y is not None and not isinstance(self.x, DataGenerator)


# ---- batches ---------------------------------------------------------------------------------------------------------


def make_training_batches(
    model: BaseModel, options: FitOptions, x: Any, y: Any, rng: np.random.Generator
) -> tuple[Iterable[Any], Iterable[Any] | None, ColumnNames]:
    """Return the training batches, the validation batches (or None) and the column names of frames."""
    loss, validation_data = options.loss, options.validation_data
    given = UserData(x, open_frame(y, "targets"), options.sample_weight, options.lengths)
    if options.validation_split != 0 and validation_data is not None:
        raise ValueError("fit takes validation_data or validation_split, not both")
    if given.are_rows():
        data, held_out, column_names = _prepare_rows(model, options, given, rng)
        training: Any = DataGenerator.from_batch(data, seed=rng, **_drop_none(options.batch_options()))
    else:
        if options.class_weight is not None:
            raise ValueError("class_weight needs x and y as arrays; a DataGenerator or batches have their own weights")
        check_batches(model, given, loss, options.batch_options())
        if options.validation_split != 0:
            raise ValueError("validation_split needs x and y as arrays; give validation_data instead")
        column_names, training, held_out = x.column_names if isinstance(x, DataGenerator) else None, x, None
    if trains_batch_norm(model):
        training = merge_single_rows(training)
    if held_out is not None:
        return training, make_batches(held_out, EVAL_OPTIONS), column_names
    validation = (
        None if validation_data is None else make_validation_batches(model, validation_data, loss, column_names)
    )
    return training, validation, column_names


def _prepare_rows(
    model: BaseModel, options: FitOptions, given: UserData, rng: np.random.Generator
) -> tuple[Batch, Batch | None, ColumnNames]:
    """Return the training rows, the held-out validation rows (or None) and the column names of frames.

    Class weights count only in training.
    """
    loss, class_weights = options.loss, None
    if options.class_weight is not None:
        (_, y), *rest = name_targets(given.y)
        if rest:
            raise ValueError(
                f"class_weight needs a single target, got {1 + len(rest)}: give the weights of rows as sample_weight"
            )
        label_loss = loss.losses[0] if isinstance(loss, Losses) else loss
        class_weights = ClassWeights(options.class_weight, y, getattr(label_loss, "ignore", None))
    has_split = options.validation_split != 0
    if class_weights is not None and not has_split:
        given = given._replace(weights=class_weights.multiply(given.weights, y))
    data, column_names = prepare_data(model, given, loss)
    if not has_split:
        return data, None, column_names
    if any(isinstance(x, WindowRows) and x.overlap() for x in (given.x if isinstance(given.x, tuple) else (given.x,))):
        warn(
            "validation_split draws windows at random, and windows overlap: what it evaluates is in the training, too. "
            "Take training, validation = windows.split(0.2) and validation_data=(validation.x, validation.y)"
        )
    split_rng = model._model_state.find_split_rng(data.rows, rng, reseed=options.seed is not None)
    data, held_out = split_data(data, options.validation_split, split_rng)
    if class_weights is not None:
        weights = class_weights.multiply(data.weights, data.targets[0])
        data = data._replace(weights=as_weights(weights, len(weights), model.dtype))
    for subset in (data, held_out):
        check_weights(loss, subset.weights)
    return data, held_out, column_names


def make_validation_batches(
    model: BaseModel, data: Any, loss: Function, column_names: ColumnNames = None
) -> Iterable[Any]:
    """Return the validation data as batches. Frames must have the columns of the training."""
    if isinstance(data, DataGenerator):
        check_columns(model, "validation_data", data.column_names, column_names)
        return as_batches(model, UserData(data, None, name="validation_data"), loss)
    x, y, weights = unpack_validation_data(data, "(x, y), (x, y, weights) or a DataGenerator")
    given = UserData(x, y, weights, name="validation_data's x", column_names=column_names)
    return as_batches(model, given, loss, **EVAL_OPTIONS)


def unpack_validation_data(data: Any, expected: str) -> tuple[Any, Any, Any]:
    """Return x, y and weights (or None) of `validation_data`. Raise TypeError, saying what is expected, for others."""
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise TypeError(
            f"validation_data: expected {expected}, got {type(data).__name__}"
            + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
        )
    x, y, weights = data if len(data) == 3 else (*data, None)
    if y is None:
        raise TypeError("validation_data: expected (x, y), got None for y")
    return x, y, weights


def as_batches(
    model: BaseModel, given: UserData, loss: Function, user_options: Mapping[str, Any] = NO_OPTIONS, **options: Any
) -> Iterable[Any]:
    """Return any data that `fit` and `evaluate` take as batches. Data in memory is checked as a whole.

    `options` are for rows in memory. `user_options` replace them if they are not None. Raise ValueError if x is batches
    that do not follow `user_options`.
    """
    if given.are_rows():
        data, _ = prepare_data(model, given, loss)
        return make_batches(data, {**options, **_drop_none(user_options)})
    check_batches(model, given, loss, user_options)
    batches: Iterable[Any] = given.x
    return batches


def make_batches(data: Batch, options: Mapping[str, Any]) -> DataGenerator:
    """Return batches of all these rows, sorted by their lengths if they have any. They have been checked."""
    return DataGenerator.from_batch(data, **options).sort_by_length()


def check_batches(model: BaseModel, given: UserData, loss: Function, options: Mapping[str, Any]) -> None:
    """Raise ValueError unless the model and loss take the DataGenerator or batches x, and x follows `options`."""
    x, name = given.x, given.name
    if given.weights is not None:
        raise ValueError("sample_weight needs x and y as arrays; a DataGenerator or batches have their own weights")
    if given.lengths is not None:
        raise ValueError("lengths need x and y as arrays; give them to the DataGenerator, or cut the batches")
    generator = x.batches if isinstance(x, Prefetch) else x
    if isinstance(generator, DataGenerator):
        check_columns(model, name, generator.column_names)
    if isinstance(x, DataGenerator):
        if given.y is not None:
            raise ValueError(f"{name} is a DataGenerator, which has its own targets; leave out y")
        if x.y is None:
            raise ValueError(f"{name} is a DataGenerator without targets")
        if is_replayed(x):  # otherwise, each batch is checked later
            data = cut_batch(Batch(x._inputs(), x._targets()), x.lengths)
            shape = check_rows(model, name, data.inputs)
            check_indices(model, name, data.inputs)
            check_targets(loss, shape, data.targets)
            check_weights(loss, x._weights(model.dtype))
    elif isinstance(x, np.ndarray) or is_sparse(x) or not isinstance(x, Iterable):
        got = f"an array of shape {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
        if isinstance(x, Windows):
            got += ": give windows.x and windows.y; training, validation = windows.split(0.2) makes validation_data"
        elif inspect.isgeneratorfunction(x):
            got += ": call it, because it returns such an iterable"
        elif hasattr(x, "__getitem__") and hasattr(x, "__len__"):
            got += (
                ": if x[i] is a row, as in PyTorch, give cl.DataGenerator(x); if x[i] is a batch, give it __iter__, "
                "such as (self[i] for i in range(len(self)))"
            )
        raise ValueError(f"{name} without y has to be a DataGenerator or an iterable of (x, y) batches, got {got}")
    for option, value in _drop_none(options).items():
        if getattr(generator, option, None) != value:
            raise ValueError(
                f"{option}={value!r} needs x and y as arrays, and {name} is a {type(x).__name__}, which makes its "
                f"own batches: leave out {option}"
            )


def _drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {option: value for option, value in options.items() if value is not None}


# ---- rows ------------------------------------------------------------------------------------------------------------


def prepare_data(model: BaseModel, given: UserData, loss: Function) -> tuple[Batch, ColumnNames]:
    """Return all rows as arrays, or Sources, that the model and the loss take, and the names of `model_inputs`."""
    x, y, weights, lengths, name, expected = given
    inputs, column_names = model_inputs(model, name, x, expected)
    targets = {target_name: read_array(a, target_name) for target_name, a in loss_targets(loss, y)}
    lengths = None if lengths is None else as_lengths(lengths, [*inputs, *targets.values()])
    cut_data = cut_batch(Batch(inputs, tuple(targets.values())), lengths)
    try:
        shape, rows = check_rows(model, name, cut_data.inputs), len(inputs[0])
    except ValueError as error:
        hint = "; unpack a data set as (x, y), (x_test, y_test)"
        if isinstance(x, Mapping):
            hint = f"; {name} is a dict, whose values are columns: {', '.join(map(repr, x))}"
        elif not (isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y) == 2):
            raise
        raise ValueError(f"{error}{hint}") from None
    check_indices(model, name, cut_data.inputs)
    for target_name, a in targets.items():
        if a.shape[:1] != (rows,):
            hint = tuple_hint(x) if isinstance(x, list) and np.ndim(x[0]) > 1 else ""
            y_name = target_name if len(targets) > 1 else "y"
            raise ValueError(f"{name} has {rows} rows, {y_name} has shape {a.shape}{hint}")
    weights = None if weights is None else as_weights(weights, rows, model.dtype)
    check_targets(loss, shape, cut_data.targets)
    check_weights(loss, weights)
    converted = tuple([as_targets(a, model.dtype, target_name) for target_name, a in targets.items()])
    return Batch(inputs, converted, weights, lengths), column_names


def prepare_batch(model: BaseModel, batch: Any, loss: Function) -> tuple[Batch, ColumnNames]:
    """Return a batch (x, y) or (x, y, weights) of an iterable as `prepare_data` returns all rows."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        kind = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise TypeError(f"without y, x must give batches (x, y) or (x, y, weights), got a batch that is {kind}")
    inputs, column_names = model_inputs(model, "a batch's x", batch[0])
    if len(batch) == 3 and len(inputs) < (min_inputs := model.min_inputs()):
        raise ValueError(
            f"the model takes {min_inputs} inputs, and a batch of 3 arrays is (x, y, weights): give ((x1, x2), y)"
        )
    y = tuple([as_targets(a, model.dtype, name) for name, a in loss_targets(loss, batch[1])])
    rows = len(y[0]) if y[0].ndim > 0 else 0
    if rows == 0 or any(a.shape[:1] != (rows,) for a in (*inputs, *y)):
        shapes = [" and ".join([str(a.shape) for a in arrays]) for arrays in (inputs, y)]
        raise ValueError(
            f"expected batches with as many rows in x as in y, got one with x of shape {shapes[0]} and y of shape "
            f"{shapes[1]}"
        )
    check_batch_values(model, loss, Batch(inputs, y))
    if len(batch) == 2:
        return Batch(inputs, y), column_names
    check_takes_weights(loss)
    return Batch(inputs, y, as_weights(batch[2], rows, model.dtype, "a batch's weights")), column_names


def check_batch_values(model: BaseModel, loss: Function, batch: Batch) -> None:
    """Raise IndexError or ValueError for a bad index or target in a batch. In a recorded step, each replay does so."""
    check_indices(model, "a batch's x", batch.inputs)
    check_targets(loss, model.shape_for(batch.inputs, batch.rows), batch.targets)


def convert_generator(model: BaseModel, data: DataGenerator) -> Batch:
    """Return all rows of a DataGenerator as arrays, or Sources, of the model's dtype. They have been checked."""
    if data.has_model_dtype:
        return Batch(data._inputs(), data._targets(), data.sample_weight)
    inputs, _ = as_inputs(data.x, model.input_dtype, model.takes_indices, "x")
    targets = tuple([as_targets(y, model.dtype, name) for name, y in name_targets(data.y)])
    return Batch(inputs, targets, data._weights(model.dtype))


def loss_targets(loss: Function, y: Any) -> list[tuple[str, Any]]:
    """Return the targets in y with their names in messages. Raise ValueError for a list if the loss takes several."""
    if isinstance(loss, Losses) and len(loss.losses) > 1 and (hint := tuple_hint(y, "targets")):
        raise ValueError(f"y: expected a target for each of {len(loss.losses)} losses{hint}")
    return name_targets(y)


def model_inputs(
    model: BaseModel, name: str, x: Any, expected: ColumnNames = None
) -> tuple[tuple[np.ndarray, ...], ColumnNames]:
    """Return x as arrays that the model takes, and the column names of its frames, unless a `frame_reader` reads them.

    Raise ValueError if the columns differ from the model's known columns, or from `expected` if it knows none. Raise
    ValueError for rows without names if the `frame_reader` has numbers and categories.
    """
    if isinstance(x, list) and (min_inputs := model.min_inputs()) > 1:
        raise ValueError(f"{name}: the model takes {min_inputs} inputs, got 1{tuple_hint(x)}")
    takes_indices, reader, known = model.takes_indices, None, None
    if takes_indices or type(x) is not np.ndarray:  # in the usual case there are no names to look up
        reader, known = model.frame_reader, known_columns(model, expected)
    return as_inputs(x, model.input_dtype, takes_indices, name, reader, known)


def check_rows(model: BaseModel, name: str, inputs: tuple[np.ndarray, ...]) -> Any:
    """Return the shape of the outputs, or None if only a batch shows it.

    Raise ValueError if there are no rows, or if it is known that the model does not take them.
    """
    rows = count_rows(name, inputs)
    if model.is_sequence() and not model.functions:
        raise ValueError(f"{type(model).__name__} has no Functions: add some, or write a `call`")
    if is_sparse(inputs[0]) and model.is_sequence():
        model._convert_first_input(inputs[0])
    try:
        return model.shape_for(inputs, rows)
    except ValueError:  # raised again below, if possible with a message for any number of rows
        pass
    model.shape_for(inputs)
    return model.shape_for(inputs, rows)


def check_indices(model: BaseModel, name: str, inputs: tuple[np.ndarray, ...]) -> None:
    """Raise IndexError naming the first row with an index that a Function in the model does not take.

    A run on zeros shows the Functions that get the input or a view of it. If users' Python decides, the first batch
    shows them. If an index reaches a Function in another way, only that Function checks it.
    """
    takes_indices = model.takes_indices
    if not (any(takes_indices) if isinstance(takes_indices, tuple) else takes_indices):
        return
    check_index_limits(name, inputs, model.index_limits(inputs))


def check_index_limits(name: str, inputs: tuple[np.ndarray, ...], limits: list[np.ndarray | None]) -> None:
    """Raise IndexError naming the first row with an index above the largest at its place of a row; None: no limit."""
    names = [f"{name}[{i}]" for i in range(len(inputs))] if len(inputs) > 1 else [name]
    for x, input_name, max_index in zip(inputs, names, limits, strict=True):
        if max_index is not None and not isinstance(x, Source):  # a Source is checked when it is read
            _check_limit(input_name, x, as_indices(x, input_name), max_index)


def _check_limit(name: str, x: np.ndarray, indices: np.ndarray, max_index: np.ndarray) -> None:
    """Raise IndexError naming the first row with an index above the largest at its place. Kernels look for it."""

    def raise_error(_: np.ndarray) -> None:
        raise_bad_index(name, max_index, x.shape, x.dtype, indices.view(np.ndarray))

    rows, limits = indices.reshape(len(x), -1), max_index.reshape(-1)
    starts = [0, *(np.flatnonzero(limits[1:] != limits[:-1]) + 1), len(limits)]  # of places with the same limit
    for first, stop in itertools.pairwise(starts):
        if limits[first] < UNLIMITED:
            kernels.check_labels(flat_int64(rows[:, first:stop]), int(limits[first]) + 1, raise_error)


def largest_indices(lookups: Iterable[tuple[Function, Sequence[Any]]], array: np.ndarray) -> np.ndarray | None:
    """Return the largest index at each place of a row of an input, uint64; None if there is no limit.

    `lookups` are Functions with their inputs. Those that got the input, or views of it, give the limits.
    """
    limits = np.full(array[0].size, UNLIMITED)
    for function, function_inputs in lookups:
        count = function.index_count
        x = None if count is None else function_inputs[0]
        x = x._data if isinstance(x, Tensor) else x
        if isinstance(x, np.ndarray) and get_owner(x) is array and array.size:
            places = positions_in(array, x) % limits.size
            limits[places] = np.minimum(limits[places], np.uint64(count - 1))  # type: ignore[operator]
    return limits.reshape(array.shape[1:]) if (limits < UNLIMITED).any() else None


def check_targets(loss: Function, outputs_shape: Any, targets: tuple[Any, ...]) -> None:
    """Raise ValueError for targets that the loss does not take with outputs of this shape; None: not known.

    A Source is checked when it is read.
    """
    if outputs_shape is None:
        return
    arrays = tuple([None if isinstance(y, Source) else y for y in targets])
    outputs = len(outputs_shape) if any(isinstance(shape, tuple) for shape in outputs_shape) else 1
    check_counts(loss, outputs, len(arrays))
    if hasattr(loss, "check_targets") and (isinstance(loss, Losses) or all(y is not None for y in arrays)):
        loss.check_targets(unpack_single(arrays), outputs_shape)


def has_internal_check(loss: Function) -> bool:
    """Return whether caffelite checks the targets of a loss, by kernels, and not a user's `check_targets`."""
    losses = loss.losses if isinstance(loss, Losses) else (loss,)
    checks = [getattr(unwrap_penalized(part), "check_targets", None) for part in losses]
    return all(check is None or is_internal(check) for check in checks)


def check_counts(loss: Function, outputs: int, targets: int) -> None:
    """Raise ValueError if the loss takes one output and one target, and there are more."""
    if type(unwrap_penalized(loss)).forward is Loss.forward and (outputs > 1 or targets > 1):
        raise ValueError(
            f"{loss!r} takes one output and one target, got {outputs} and {targets} in y: give a loss for each "
            "output, loss=(l1, l2)"
        )


def check_weights(loss: Function, weights: np.ndarray | None) -> None:
    """Raise TypeError if there are weights but the loss takes none, and ValueError if all weights are 0."""
    if weights is not None:
        check_takes_weights(loss)
        if not weights.any():
            raise ValueError(f"sample_weight: all of {len(weights)} weights are 0 in {weights.dtype}")


# ---- columns of frames -----------------------------------------------------------------------------------------------


def check_columns(model: BaseModel, name: str, column_names: ColumnNames, expected: ColumnNames = None) -> None:
    """Raise ValueError unless these are the columns that the model was fitted on, or else the expected ones."""
    known = known_columns(model, expected)
    if known is not None:
        check_names(known, column_names, name)


def known_columns(model: BaseModel, expected: ColumnNames = None) -> ColumnNames:
    """Return the column names that frames must have, for each input: the model's, or else the expected ones."""
    reader = model.frame_reader
    return (model._model_state.column_names or expected) if reader is None else reader.names


def remember_columns(model: BaseModel, names: ColumnNames) -> None:
    """Let the model expect frames with these columns, unless it, or its `frame_reader`, has column names already."""
    if names is not None and model._model_state.column_names is None and model.frame_reader is None:
        model._model_state.column_names = names


# ---- loss, optimizer, model ------------------------------------------------------------------------------------------


def as_losses(loss: Any) -> Function:
    """Return a loss, or a tuple or list with a loss for each output, as a Function.

    Raise TypeError for a class, and for anything that cannot be called.
    """
    return Losses.get_cached(loss) if isinstance(loss, tuple | list) else as_loss(loss)


def check_optimizer(model: BaseModel, optimizer: Any) -> None:
    """Raise TypeError unless it is an Optimizer, and ValueError if it cannot train the model.

    It has to have all parameters of the model that require a gradient, and one of its own has to require a gradient.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}")
    known = set(optimizer.parameters)
    if not any(p.requires_grad for p in known):
        raise ValueError("there is nothing to train: all parameters are frozen, requires_grad is False")
    if all([p in known or not p.requires_grad for p in model.parameters()]):  # noqa: C419 (faster than a generator)
        return
    for name, p in model.named_parameters().items():
        if p.requires_grad and p not in known:
            raise ValueError(
                f"the optimizer does not have the model's parameter {name} {p.shape}; make it after the last "
                "add, or freeze the parameter with requires_grad = False"
            )


def trains_batch_norm(model: BaseModel) -> bool:
    """Return whether a training uses the mean and variance of each batch, which needs more than one row.

    Call `check_optimizer` before: it looks for new Functions.
    """
    return any(function.requires_grad for function in model._model_state.batch_norms)


def warn_of_overflow(model: BaseModel) -> None:
    """Warn of a BatchNorm if its running variance is too large for its dtype: `predict` then uses a smaller one."""
    for function in model._model_state.batch_norms:
        overflows = function.variance == np.finfo(function.variance.dtype).max
        if overflows.any():
            warn(
                f"{function!r}: the variance of feature {int(overflows.argmax())} is beyond {model.dtype}, and "
                "predictions differ from the training: divide that feature by a constant, or take "
                "Model(dtype=np.float64)"
            )
