"""`export`: a model as a file of ONNX.

`graph_of` finds which Function is applied to what, and a rule of `RULES` says which nodes that becomes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx

from caffelite.files import safetensors as files
from caffelite.model.dataflow import graph_of
from caffelite.model.model import Model
from caffelite.model.shapes import row_shapes
from caffelite.onnx import pipelines
from caffelite.onnx.checking import check
from caffelite.onnx.estimators import Estimator
from caffelite.onnx.rules import rule_of
from caffelite.onnx.writing import Writer
from caffelite.training import door


def export(model: Any, path: str | os.PathLike, input_shape: Any = None, *, example: Any = None) -> None:
    """Write a model, as it is used and not trained, as a file of ONNX (opset 17), which many programs run.

    Inputs and outputs have any number of rows, an axis named `batch`. `input_shape` is the shape of one row, or a tuple
    of such shapes for several inputs. It is needed if the first Function takes rows of any shape. Inputs are float32 or
    float64 like the model, int64 if they are indices, bool if they are masks. Parameters and buffers have the model's
    names, `f.0.weight`. A `call` is written as the Functions and Tensor's operators that it applies. A Function for
    which there are no nodes is written by its `formula`. An estimator of `caffelite.sklearn` has the outputs `label`
    and `probabilities`, or `output`. If skl2onnx is installed, the model may be a Pipeline of scikit-learn that ends in
    such an estimator. If it takes a frame, `example` has rows of one, X[:1], for the names and types of its columns.

    onnx's checker checks the graph. If onnxruntime is installed, it computes random rows, and the outputs are compared
    with the model's. (It does not have all operators in float64; then it computes in float32.)

    Raises TypeError naming a Function that computes in Python, or another one that ONNX can't express; ValueError for a
    shape that is missing or does not fit, and if the model depends on the number of rows; RuntimeError if the outputs
    differ: all before anything is written. Raises OSError naming the path if it can't be written. The file replaces an
    older one when it is complete.
    """
    found = pipelines.written(model, example) if pipelines.is_pipeline(model) else written(model, input_shape)
    files.replace(path, [found.SerializeToString()])


def written(model: Any, input_shape: Any = None) -> onnx.ModelProto:
    """The graph of a model or an estimator, checked; see `export`."""
    estimator = Estimator(model) if hasattr(model, "model_") else None
    net = model if estimator is None else estimator.model
    if not isinstance(net, Model):
        hint = ": its last step, pipeline[-1], for rows as the steps before make them" * hasattr(model, "named_steps")
        raise TypeError(f"export takes a Model, or an estimator that was fitted, got {model!r}{hint}")
    if input_shape is None and door.columns_of(net) is None:
        features = getattr(model, "n_features_in_", None)
        input_shape = getattr(model, "row_shape_", None if features is None else (features,))
    rows = row_shapes(net, input_shape)
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
