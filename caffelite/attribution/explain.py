"""`explain`: the contributions of columns to any model's outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite.attribution.explanation import Explanation
from caffelite.attribution.shapley import Game, Inputs, shapley_values
from caffelite.core.sparse import is_sparse
from caffelite.data import frames
from caffelite.data.conversion import count_rows, read_all
from caffelite.functions import Linear, Parallel
from caffelite.model.model import Model
from caffelite.training.inputs import model_inputs


def explain(model: Model, x: Any, background: Any, output: Any = None, *, seed: int = 0) -> Explanation:
    """Return how much each column of x contributes to the model's outputs.

    A row's contributions and the mean output of the background rows add up to the model's output for the row. The
    contributions are Shapley values. They are exact for up to six columns, and if no three columns interact. Otherwise
    they are estimated from random orders of the columns, and `errors` has the standard errors. The time grows with the
    rows, the background rows and the square of the columns: 100 background rows are a good choice.

    Parameters
    ----------
    model : Model
        Its rows must not depend on each other. If it is a mean of nets (a `Parallel` of Models and a `Linear`), the
        same accuracy takes a fifth of the time.
    x, background : array-like (n, …) or frame
        As for `model.predict`. In an array, each element of a row is a column.
    output : int or tuple of int, optional
        The index, in a row of the outputs, of the output to explain. If the model has several outputs, the first index
        chooses one. By default, all outputs (n, k) are explained.
    seed : int
        The seed of the orders. A row gets the same contributions alone or among others, with any number of threads.

    Raise ValueError if x and background differ in shape, or an output is not finite. Raise TypeError for sparse
    matrices. The model does not change.
    """
    x = frames.open_frame(x, "x")
    game, names = make_game(model, x, background, output)
    data = frames.select(x, names, "x") if frames.is_frame(x) else dict(zip(names, game.column_values(), strict=True))
    return explain_game(game, seed, names, data)


def make_game(model: Model, x: Any, background: Any, output: Any = None) -> tuple[Game, list[Any]]:
    """Return the Game of `explain`, and the names of the columns."""
    (rows, names), (background_rows, _) = read_inputs(model, "x", x), read_inputs(model, "background", background)
    shapes, background_shapes = ([a.shape[1:] for a in inputs] for inputs in (rows, background_rows))
    if shapes != background_shapes:
        raise ValueError(f"explain: x has rows of shape {shapes}, and background has rows of shape {background_shapes}")
    reader = model.frame_reader
    if reader is None:
        features = np.split(np.arange(sum(a[0].size for a in rows)), np.cumsum([a[0].size for a in rows])[:-1])
        owners = tuple(features)
        names = [f"x{i}" for i in range(1 + owners[-1][-1])] if names is None else names
    else:
        owners, names = reader.feature_columns(), [column.name for column in reader.columns]

    def flatten(inputs: Inputs) -> Inputs:
        return tuple([a.reshape(len(a), -1) for a in inputs])

    def unflatten(inputs: Inputs) -> Any:
        arrays = tuple([a.reshape(len(a), *shape) for a, shape in zip(inputs, shapes, strict=True)])
        return arrays if len(arrays) > 1 else arrays[0]

    def make_function(predict: Callable[[Any], Any]) -> Callable[[Inputs], np.ndarray]:
        def function(inputs: Inputs) -> np.ndarray:
            y = select_output(predict(unflatten(inputs)), output, "explain")
            return y.reshape(len(y), -1).astype(np.float64)

        return function

    example = unflatten(tuple([a[:1] for a in rows]))
    functions = [make_function(predict) for predict in split_average(model, example)]
    return Game(functions, flatten(rows), flatten(background_rows), owners), names


def explain_game(
    game: Game,
    seed: Any,
    names: list[Any],
    data: Any,
    classes: Sequence[Any] | None = None,
    target: str | None = None,
) -> Explanation:
    """Return the Explanation of a Game with these columns. ValueError if an output is not finite."""
    for what, outputs in (("row", game.row_outputs), ("background row", game.background_outputs)):
        if not np.isfinite(outputs).all():
            row = np.argwhere(~np.isfinite(np.sum(outputs, axis=0)))[0, 0]
            raise ValueError(f"explain: the output for {what} {row} is not finite; expected finite outputs")
    result = shapley_values(game, seed)
    if not np.isfinite(result.values).all():
        row = np.argwhere(~np.isfinite(result.values))[0, 0]
        raise ValueError(f"explain: an output for a mix of row {row} and a background row is not finite")
    if len(result.base) > 1:
        return Explanation(*result, names, data, None if classes is None else list(classes), target)
    values, errors, base = result.values[..., 0], result.errors[..., 0], float(result.base[0])
    return Explanation(values, errors, base, result.outputs[:, 0], names, data, target=target)


def read_inputs(model: Model, name: str, x: Any) -> tuple[Inputs, list[Any] | None]:
    """Return x as the arrays that the model takes, and the names of the columns if it is a frame of numbers.

    Raise TypeError for sparse rows, and the errors of `predict` for other data.
    """
    inputs, column_names = model_inputs(model, name, x)
    if any(map(is_sparse, inputs)):
        raise TypeError(f"{name} is a sparse matrix; expected an array or a frame: give its .toarray()")
    arrays = tuple([np.asarray(read_all(a)) for a in inputs])
    count_rows(name, arrays)
    return arrays, column_names[0] if column_names and len(arrays) == 1 else None


def select_output(outputs: Any, output: Any, name: str) -> Any:
    """Select outputs (n,) or (n, k) from a model's outputs by an index. ValueError if there is no such output.

    They are arrays or Tensors.
    """
    index = () if output is None else output if isinstance(output, tuple) else (output,)
    index = tuple([operator.index(i) for i in index])
    if isinstance(outputs, tuple):
        if not index or not -len(outputs) <= index[0] < len(outputs):
            raise ValueError(f"{name}: the model has {len(outputs)} outputs; expected output=0, 1 …, got {output}")
        outputs, index = outputs[index[0]], index[1:]
    if len(index) >= outputs.ndim or any(
        not -size <= i < size for i, size in zip(index, outputs.shape[1:], strict=False)
    ):
        raise ValueError(f"{name}: there is no output {output} in outputs of shape {outputs.shape}")
    y = outputs[(slice(None), *index)] if index else outputs
    if y.ndim not in (1, 2):
        raise ValueError(
            f"{name}: expected outputs (n,) or (n, k), got shape {y.shape}: choose some, such as output=(0, 1)"
        )
    return y


def split_average(model: Model, example: Any) -> list[Callable[[Any], Any]]:
    """Return functions of the inputs whose mean is the model: one per net if it averages nets, otherwise `predict`.

    `example` holds the inputs of one row, which show the sizes of the nets' outputs.
    """
    if not (model.is_rowwise() and model.is_sequence() and len(model.functions) == 2):
        return [model.predict]
    parallel, average = model.functions
    nets = [f for f in getattr(parallel, "functions", ()) if isinstance(f, Model)]
    if type(parallel) is not Parallel or type(average) is not Linear or len(nets) < len(parallel.functions):
        return [model.predict]
    shapes = [net.predict(example).shape for net in nets]
    if any(len(shape) != 2 for shape in shapes) or parallel.concatenate.axis not in (1, -1):
        return [model.predict]
    weight = len(shapes) * average.weight.data.astype(np.float64)
    weights = np.split(weight, np.cumsum([size for _, size in shapes])[:-1])
    bias = 0.0 if average.bias is None else average.bias.data.astype(np.float64)

    def make_predict(net: Model, weight: np.ndarray) -> Callable[[Any], Any]:
        return lambda x: net.predict(x) @ weight + bias

    return [make_predict(net, weight) for net, weight in zip(nets, weights, strict=True)]
