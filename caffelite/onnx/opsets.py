"""Opsets: the versions of ONNX's operators. onnx's own converter converts files of the first ones."""

from __future__ import annotations

import re

import onnx
from onnx import helper, shape_inference, version_converter

from caffelite.onnx.nodes import UnsupportedGraph

OLDEST_OPSET = 1  # opset of a file
OLDEST_READABLE = 7  # the first opset whose operators broadcast as NumPy


def opset_version(proto: onnx.ModelProto) -> int:
    """Return the opset of a file; ValueError if onnx does not know it."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx", OLDEST_READABLE))
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= version <= newest:
        raise UnsupportedGraph(f"its opset is {version}; caffelite reads opsets from {OLDEST_OPSET} to {newest}")
    return version


def convert_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same graph in an opset that caffelite reads; ValueError with what onnx says if onnx can't convert it.

    The converter needs the shapes of all values. It infers them at its start, and operators before opset 6 infer none,
    so the graph is first converted to opset 6. The converter trusts its input, so onnx's checker comes before it.
    """
    version = opset_version(proto)
    if version >= OLDEST_READABLE:
        return proto
    try:
        onnx.checker.check_model(proto)
        proto = version_converter.convert_version(proto, OLDEST_READABLE - 1)
        _align_axes(proto)
        proto = version_converter.convert_version(proto, OLDEST_READABLE)
    except Exception as error:  # each part of onnx has its own
        why = re.sub(r"^.*Assertion .* failed: ", "", str(error))  # without the place in onnx's code
        raise UnsupportedGraph(
            f"its opset is {version}, and onnx can't convert it to {OLDEST_READABLE}: {why}"
        ) from error
    return proto


def _align_axes(proto: onnx.ModelProto) -> None:
    """Unsqueeze second inputs that begin at an axis of the first one. Then both end at the last axis, as in NumPy.

    The converter treats `axis` as 0. It treats the slopes of a PRelu as slopes of the last axis, but they belong to
    channels.
    """
    graph = proto.graph
    begins = {node.output[0]: axis for node in graph.node if (axis := _broadcast_axis(node)) is not None}
    if not begins:
        return
    inferred = shape_inference.infer_shapes(proto, strict_mode=True).graph
    ndims = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        if info.type.tensor_type.HasField("shape"):
            ndims[info.name] = len(info.type.tensor_type.shape.dim)
    nodes, unsqueezed = [], set()
    for node in graph.node:
        if node.output[0] in begins:
            a, b = node.input
            if not {a, b} <= ndims.keys():
                raise ValueError(f"node {node.name!r} ({node.op_type}) has inputs of unknown shapes")
            if axes := list(range(ndims[b], ndims[a] - begins[node.output[0]] % max(1, ndims[a]))):
                node.input[1] = f"{b} with {len(axes)} axes behind"  # one for all nodes, since b may be learned
                if node.input[1] not in unsqueezed:
                    nodes.append(helper.make_node("Unsqueeze", [b], node.input[1:], axes=axes))
                    unsqueezed.add(node.input[1])
            attributes = [attribute for attribute in node.attribute if attribute.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(attributes)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _broadcast_axis(node: onnx.NodeProto) -> int | None:
    """Return the axis of the first input at which the second's axes begin; None if both end at the last one."""
    if node.op_type == "PRelu":
        return 1
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return attributes.get("axis") if attributes.get("broadcast") else None
