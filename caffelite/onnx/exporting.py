"""`export`: a model as a file of ONNX.

`graph_of` finds which Function is applied to what, and a rule of `RULES` says which nodes that becomes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx

from caffelite.core.function import shape_text
from caffelite.files import safetensors as files
from caffelite.model.dataflow import graph_of
from caffelite.model.model import Model
from caffelite.model.shapes import axes_that_fit
from caffelite.onnx.checking import check
from caffelite.onnx.estimators import Estimator
from caffelite.onnx.rules import rule_of
from caffelite.onnx.writing import Writer


def export(model: Any, path: str | os.PathLike, input_shape: Any = None) -> None:
    """Write a model, as it is used and not trained, as a file of ONNX (opset 17), which many programs run.

    Inputs and outputs have any number of rows, an axis named `batch`. `input_shape` is the shape of one row, or a tuple
    of such shapes for several inputs. It is needed if the first Function takes rows of any shape. Inputs are float32 or
    float64 like the model, int64 if they are indices, bool if they are masks. Parameters and buffers have the model's
    names, `f.0.weight`. A `call` is written as the Functions and Tensor's operators that it applies. A Function for
    which there are no nodes is written by its `formula`. An estimator of `caffelite.sklearn` has the outputs `label`
    and `probabilities`, or `output`.

    onnx's checker checks the graph. If onnxruntime is installed, it computes random rows, and the outputs are compared
    with the model's. (It does not have all operators in float64; then it computes in float32.)

    Raises TypeError naming a Function that computes in Python, or another one that ONNX can't express; ValueError for a
    shape that is missing or does not fit, and if the model depends on the number of rows; RuntimeError if the outputs
    differ: all before anything is written. Raises OSError naming the path if it can't be written. The file replaces an
    older one when it is complete.
    """
    files.replace(path, [written(model, input_shape).SerializeToString()])


def written(model: Any, input_shape: Any = None) -> onnx.ModelProto:
    """The graph of a model or an estimator, checked; see `export`."""
    estimator = Estimator(model) if hasattr(model, "model_") else None
    net = model if estimator is None else estimator.model
    if not isinstance(net, Model):
        hint = ": its last step, pipeline[-1], for rows as the steps before make them" * hasattr(model, "named_steps")
        raise TypeError(f"export takes a Model, or an estimator that was fitted, got {model!r}{hint}")
    if input_shape is None:
        features = getattr(model, "n_features_in_", None)
        input_shape = getattr(model, "row_shape_", None if features is None else (features,))
    rows = _rows(net, input_shape)
    finish = (lambda y: y) if estimator is None else estimator.finish

    def proto(dtype: np.dtype) -> onnx.ModelProto:
        writer = Writer(graph, dtype, rule_of)
        if estimator is not None:
            writer.add_labels(estimator)
        return writer.model()

    try:
        net.output_shape(*[(None, *row) for row in rows])  # which says what does not fit
        graph = graph_of(net, rows, lambda kind: rule_of(kind) is not None, finish)
        found = proto(net.dtype)
    except (TypeError, ValueError, IndexError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{type(net).__name__} can't be exported: {error}") from error
    try:
        onnx.checker.check_model(found, full_check=True)
    except Exception as error:
        raise RuntimeError(f"what was made of {net!r} is no ONNX: {error}") from error
    check(proto, graph, finish)
    return found


def _rows(model: Model, input_shape: Any) -> list[tuple[int, ...]]:
    """Return the shape of a row of each input; ValueError or TypeError if a length is missing, or is not one."""
    if input_shape is None:
        model.all_functions()
        more = axes_that_fit(model.functions) if model.is_sequence() else None
        required: Any = model.required_input_shape
        shapes = required if required and isinstance(required[0], tuple) else (required,)
        found = [
            shape and tuple(n for m in shape for n in ((None,) * (more or 0) if m is ... else (m,))) for shape in shapes
        ]
        for shape in found:
            if shape is None:
                for_two = "" if model.is_sequence() else ", or ((64,), (3,)) for two inputs"
                raise ValueError(f"export has to know the shape of a row: give input_shape, such as (64,){for_two}")
            if None in shape[1:]:
                example = tuple([28 if n is None else n for n in shape[1:]])
                raise ValueError(
                    f"export has to know the shape of a row, of which is known only {shape_text(shape)}: give "
                    f"input_shape, such as {example}"
                )
        return [shape[1:] for shape in found]
    if not isinstance(input_shape, tuple | list):
        raise TypeError(f"export: expected the shape of a row, such as (64,), got {input_shape!r}")
    several = bool(input_shape) and all(isinstance(row, tuple | list) for row in input_shape)
    rows = [tuple(row) for row in input_shape] if several else [tuple(input_shape)]
    for n in [n for row in rows for n in row]:
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise TypeError(
                f"export: expected the shape of a row, without the axis of the rows, such as (64,), got {input_shape!r}"
            )
        if n < 1:
            raise ValueError(f"export: lengths are 1 or more, got {input_shape!r}")
    return rows
