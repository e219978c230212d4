"""The graph of a model or an estimator, checked.

`trace_graph` finds the Functions and their inputs. A rule of `RULES` makes nodes of each Function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from caffelite.core.function import Function
from caffelite.model.export_graph import trace_graph
from caffelite.model.model import Model
from caffelite.model.shapes import row_shapes
from caffelite.onnx.estimators import FittedEstimator
from caffelite.onnx.families import RULES
from caffelite.onnx.verify import check
from caffelite.onnx.writing import Rule, Writer


def to_proto(model: Any, input_shape: Any = None) -> onnx.ModelProto:
    """Return the graph of a model or an estimator, checked; see `export`."""
    estimator = FittedEstimator(model) if hasattr(model, "model_") else None
    net = model if estimator is None else estimator.model
    if not isinstance(net, Model):
        hint = ": its last step, pipeline[-1], for rows as the steps before make them" * hasattr(model, "named_steps")
        raise TypeError(f"export takes a Model, or an estimator that was fitted, got {model!r}{hint}")
    if input_shape is None and net.frame_reader is None:
        features = getattr(model, "n_features_in_", None)
        input_shape = getattr(model, "row_shape_", None if features is None else (features,))
    rows = row_shapes(net, input_shape)
    finish = (lambda y: y) if estimator is None else estimator.finish

    def make_proto(dtype: np.dtype) -> onnx.ModelProto:
        writer = Writer(graph, dtype, find_rule)
        if estimator is not None:
            writer.add_labels(estimator)
        return writer.model()

    try:
        net.output_shape(*[(None, *row) for row in rows])  # which says what does not fit
        graph = trace_graph(net, rows, lambda kind: find_rule(kind) is not None, finish)
        proto = make_proto(net.dtype)
    except (TypeError, ValueError, IndexError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{type(net).__name__} can't be exported: {error}") from error
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:
        raise RuntimeError(f"the file made of {net!r} is not valid ONNX: {error}") from error
    check(make_proto, graph, finish)
    return proto


def find_rule(kind: type[Function]) -> Rule | None:
    """Return the rule for a Function of a class; None if there is none, or if the class computes something else."""
    base: Any
    for base in kind.__mro__:
        if base in RULES and base.forward is kind.forward and base.__call__ is kind.__call__:
            return RULES[base]
    return None
