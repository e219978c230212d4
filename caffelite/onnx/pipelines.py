"""Pipelines of scikit-learn that end in an estimator of caffelite: skl2onnx converts the steps before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, version_converter

from caffelite._support.extras import pip_command
from caffelite.data import frames
from caffelite.onnx import model_proto
from caffelite.onnx.writing import OPSET


def is_pipeline(model: Any) -> bool:
    """Return whether it is a Pipeline of scikit-learn, with steps before the last one."""
    return hasattr(model, "named_steps") and len(model.steps) > 1


def register() -> None:
    """Make skl2onnx know the estimators of `caffelite.sklearn`.

    Then `skl2onnx.to_onnx` converts what they are in, such as a Pipeline or a VotingClassifier. Raise ImportError if
    skl2onnx is not installed.
    """
    from caffelite import sklearn

    convert = _skl2onnx()
    for name in sklearn.__all__:
        kind = getattr(sklearn, name)
        is_classifier = hasattr(kind, "predict_proba")
        options = {"zipmap": [True, False, "columns"], "nocl": [True, False], "output_class_labels": [True, False]}
        alias, set_types = f"Caffelite{name}", _set_classifier_types if is_classifier else _set_regressor_types
        convert.update_registered_converter(
            kind, alias, set_types, _convert_estimator, options=options if is_classifier else None
        )


def to_proto(pipeline: Any, example: Any) -> onnx.ModelProto:
    """Return the graph of a fitted pipeline. `example` has rows of what it takes, for their names and types."""
    convert, last = _skl2onnx(), pipeline[-1]
    register()
    if example is None:
        if hasattr(pipeline, "feature_names_in_"):
            raise ValueError("export: the Pipeline takes a frame: give rows of one, example=X[:1]")
        example = np.zeros((1, pipeline.n_features_in_), np.float32)
    options = {id(last): {"zipmap": False}} if hasattr(last, "predict_proba") else None
    example = frames.open_frame(example, "export: example")
    if hasattr(example, "iter_columns"):  # skl2onnx finds the types of columns in pandas only
        guess = convert.common.data_types.guess_data_type
        types = {x.name: type(guess(x[:1].to_numpy()[:, np.newaxis])[0][1]) for x in example.iter_columns()}
        example = [(name, kind([None, 1])) for name, kind in types.items()]
    return convert.to_onnx(pipeline, example, options=options, target_opset={"": OPSET, "ai.onnx.ml": 3})


def _skl2onnx() -> Any:
    try:
        import skl2onnx
    except ImportError as error:
        raise ImportError(f"the export of a Pipeline needs skl2onnx: {pip_command('skl2onnx')}") from error
    return skl2onnx


# ---- what skl2onnx asks of a converter -------------------------------------------------------------------------------


def _set_classifier_types(operator: Any) -> None:
    """Set the types of the labels and the probabilities."""
    from skl2onnx.common import data_types as types

    rows, classes = operator.inputs[0].get_first_dimension(), operator.raw_operator.classes_
    label = types.StringTensorType if np.asarray(classes).dtype.kind in "OU" else types.Int64TensorType
    is_multilabel = len(model_proto.to_proto(operator.raw_operator).graph.output[0].type.tensor_type.shape.dim) > 1
    operator.outputs[0].type = label([rows, len(classes)] if is_multilabel else [rows])
    operator.outputs[1].type = types.FloatTensorType([rows, len(classes)])


def _set_regressor_types(operator: Any) -> None:
    from skl2onnx.common import data_types as types

    rows, values = operator.inputs[0].get_first_dimension(), model_proto.to_proto(operator.raw_operator).graph.output[0]
    lengths = [dim.dim_value for dim in values.type.tensor_type.shape.dim]
    operator.outputs[0].type = types.FloatTensorType([rows, *lengths[1:]])


def _convert_estimator(scope: Any, operator: Any, container: Any) -> None:
    """Add the graph of an estimator to the one that skl2onnx makes."""
    proto = model_proto.to_proto(operator.raw_operator)
    if container.target_opset_any_domain("") > OPSET:
        proto = version_converter.convert_version(proto, container.target_opset_any_domain(""))
    graph, opset = proto.graph, proto.opset_import[0].version
    if len(graph.input) > 1:
        raise ValueError(f"export: {operator.raw_operator!r} takes words, and gets numbers in a Pipeline")
    names, graph_input = {"": ""}, graph.input[0]
    inputs = [x.full_name for x in operator.inputs]
    rows = scope.get_unique_variable_name("row") if len(inputs) > 1 else inputs[0]
    if len(inputs) > 1:
        container.add_node("Concat", inputs, rows, op_version=13, axis=1, name=scope.get_unique_operator_name("Concat"))
    names[graph_input.name] = scope.get_unique_variable_name("x")
    _cast(scope, container, rows, names[graph_input.name], graph_input.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        names[tensor.name] = scope.get_unique_variable_name(tensor.name)
        renamed = TensorProto()
        renamed.CopyFrom(tensor)
        renamed.name = names[tensor.name]
        container.initializers.append(renamed)
    for node in graph.node:
        for name in node.output:
            names.setdefault(name, scope.get_unique_variable_name(name))
        renamed = helper.make_node(
            node.op_type,
            [names[name] for name in node.input],
            [names[name] for name in node.output],
            name=scope.get_unique_operator_name(node.op_type),
            domain=node.domain,
        )
        renamed.attribute.extend(node.attribute)
        container.nodes.append(renamed)
        container.node_domain_version_pair_sets.add((node.domain, opset if node.domain == "" else 1))
    for output, expected in zip(graph.output, operator.outputs, strict=True):
        is_word = output.type.tensor_type.elem_type == TensorProto.STRING
        kind = TensorProto.STRING if is_word else expected.type.to_onnx_type().tensor_type.elem_type
        _cast(scope, container, names[output.name], expected.full_name, kind)


def _cast(scope: Any, container: Any, source: str, target: str, kind: int) -> None:
    """Add a node that makes an array of another type, or the same one."""
    operator = "Identity" if kind == TensorProto.STRING else "Cast"
    options = {} if kind == TensorProto.STRING else {"to": kind}
    container.add_node(
        operator, source, target, op_version=13, name=scope.get_unique_operator_name(operator), **options
    )
