"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from caffelite import functions
from caffelite.core.modes import meta_init
from caffelite.core.tensor import Tensor
from caffelite.model.model import Model
from caffelite.onnx.constraints import find_unsupported_attribute
from caffelite.onnx.nodes import ConstantCache, Finder, Node, NodeGraph, constant_integers
from caffelite.onnx.writing import Rule, Value, Writer

#: The layer of an operator, and its gates in the operator's order.
RECURRENT: dict[str, tuple[Any, list[int]]] = {
    "RNN": (functions.RNN, [0]),
    "GRU": (functions.GRU, [1, 0, 2]),
    "LSTM": (functions.LSTM, [0, 3, 1, 2]),
}


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def recurrent_rule(operator: str, **attributes: int) -> Rule:
    """Return the rule for a layer that is this operator: a node for each layer of a stack."""

    def rule(g: Writer, f: Any, x: Value, *optional: Value | None) -> Any:
        count = len(f.state_names)
        padded: list[Any] = [*optional, *[None] * (count + 1 - len(optional))]
        states, lengths = padded[:-1], padded[-1]
        is_masked = operator == "RNN" and lengths is not None  # of its lengths onnxruntime makes other numbers
        counts = None if lengths is None or is_masked else g.node("Cast", lengths, to=TensorProto.INT32)
        y, ends = g.node("Transpose", x, perm=[1, 0, 2]), []  # the steps first
        for layer in range(f.layers):
            first = [h and _layer_states(g, f, h, layer) for h in states]
            if is_masked:
                y, last = _write_masked_rnn(g, f, layer, y, lengths, first[0])
            else:
                options = {"hidden_size": f.hidden, **attributes}
                if f.bidirectional:
                    options["direction"] = "bidirectional"
                weights = _write_weights(g, f, operator, f._suffixes(layer))
                y, *last = g.node(operator, y, *weights, counts, *first, outputs=1 + count, **options)
                y = _join_directions(g, f, y, [0, 2, 1, 3], (0, 0, -1))
            ends.append(last)
        if f.sequences:
            y = g.node("Transpose", y, perm=[1, 0, 2])
        else:
            y = _join_directions(g, f, ends[-1][0], [1, 0, 2], (0, -1))
        last = [g.node("Concat", *parts, axis=0) if f.layers > 1 else parts[0] for parts in zip(*ends, strict=True)]
        if f.layers * f.directions == 1:
            last = [g.node("Squeeze", h, g.integers((0,))) for h in last]
        return (y, *last) if len(g.application.shapes) > 1 else y

    return rule


def _write_weights(g: Writer, f: Any, operator: str, suffixes: list[str]) -> list[str]:
    """Weights, recurrent weights and biases, each of the directions whose parameters have these suffixes."""
    order = RECURRENT[operator][1]
    rows = np.concatenate([np.arange(f.hidden) + gate * f.hidden for gate in order])

    def order_gates(name: str) -> str:
        weight = g.initializer(getattr(f, name)).name
        return weight if len(order) == 1 else g.node("Gather", weight, g.constant(rows), axis=0)

    def stack_directions(names: list[str]) -> str:
        parts = [g.node("Unsqueeze", name, g.integers((0,))) for name in names]
        return parts[0] if len(parts) == 1 else g.node("Concat", *parts, axis=0)

    biases = [g.node("Concat", order_gates(f"bias_ih{end}"), order_gates(f"bias_hh{end}"), axis=0) for end in suffixes]
    weights = [[order_gates(name + end) for end in suffixes] for name in ("weight_ih", "weight_hh")]
    return [*map(stack_directions, weights), stack_directions(biases)]


def _layer_states(g: Writer, f: Any, h: Value, layer: int) -> Any:
    """Return the first states (directions, n, hidden) of one layer of a stack."""
    if f.layers * f.directions == 1:
        return g.node("Unsqueeze", h, g.integers((0,)))
    if f.layers == 1:
        return h
    begin, end = layer * f.directions, (layer + 1) * f.directions
    return g.node("Slice", h, g.integers((begin,)), g.integers((end,)), g.integers((0,)))


def _join_directions(g: Writer, f: Any, y: str, perm: list[int], shape: tuple[int, ...]) -> str:
    """Return the features of both directions in one axis, the last. The axis before the rows has the directions."""
    if f.directions == 1:
        return g.node("Squeeze", y, g.integers((len(perm) - 3,)))
    return g.node("Reshape", g.node("Transpose", y, perm=perm), g.integers(shape))


def _write_masked_rnn(g: Writer, f: Any, layer: int, x: str, lengths: Any, first: Any) -> tuple[str, list[str]]:
    """One layer of an RNN, of sequences of these lengths: its states (length, n, …), and the last ones."""
    results, last = [], []
    for direction, suffix in enumerate(f._suffixes(layer)):

        def reverse(y: str, is_reversed: bool = direction == 1) -> str:
            return g.node("ReverseSequence", y, lengths, time_axis=0, batch_axis=1) if is_reversed else y

        h = first
        if h is not None and f.directions == 2:
            h = g.node("Slice", h, *[g.integers((n,)) for n in (direction, direction + 1, 0)])
        weights = _write_weights(g, f, "RNN", [suffix])
        y, _ = g.node("RNN", reverse(x), *weights, None, h, outputs=2, hidden_size=f.hidden)
        y = g.node("Transpose", g.node("Squeeze", y, g.integers((1,))), perm=[1, 0, 2])
        y, end = _mask_steps(g, y, lengths, f.shape[1])
        results.append(reverse(g.node("Transpose", y, perm=[1, 0, 2])))
        last.append(g.node("Unsqueeze", end, g.integers((0,))))
    if f.directions == 1:
        return results[0], last
    return g.node("Concat", *results, axis=2), [g.node("Concat", *last, axis=0)]


def _mask_steps(g: Writer, y: str, lengths: Any, steps: int) -> tuple[str, str]:
    """Sequences, 0 behind their lengths, and their last steps."""
    lengths = g.node("Unsqueeze", lengths, g.integers((1,)))
    step = g.constant(np.arange(1, 1 + steps)[None])

    def mask_by(operator: str) -> str:
        places = g.node("Unsqueeze", g.node(operator, step, lengths), g.integers((2,)))
        return g.node("Where", places, y, g.number(0))

    return mask_by("LessOrEqual"), g.node("ReduceSum", mask_by("Equal"), g.integers((1,)), keepdims=0)


RULES: dict[type, Rule] = {
    functions.RNN: recurrent_rule("RNN"),
    functions.GRU: recurrent_rule("GRU", linear_before_reset=1),
    functions.LSTM: recurrent_rule("LSTM"),
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


class Recurrence(Model):
    """A recurrent layer as ONNX has it: x (length, n, features) → y (length, directions, n, hidden), and last states
    (directions, n, hidden); lengths and states may be given. If `backward`, its only direction is from the last step to
    the first.
    """

    def __init__(self, layer: Any, backward: bool, dtype: Any) -> None:
        super().__init__(dtype=dtype)
        self.layer, self.is_backward, self.cache = layer, backward, ConstantCache()

    def arguments(self) -> dict[str, Any]:
        return {"layer": self.layer, "backward": self.is_backward, "dtype": self.dtype}

    def call(self, x: Any, lengths: Any = None, *states: Any) -> Any:
        x, layer = x.transpose(1, 0, 2), self.layer
        n, length, _ = x.shape
        if not states:
            zero = self.cache(np.zeros((layer.directions, n, layer.hidden), x.dtype))
            states = (zero,) * len(layer.state_names)
        first = states if layer.bidirectional else [h[0] for h in states]
        y, last = layer(x[:, ::-1] if self.is_backward else x, *first, lengths=lengths)
        y = (y[:, ::-1] if self.is_backward else y).reshape(n, length, layer.directions, layer.hidden)
        last = last if isinstance(last, tuple) else (last,)
        last = last if layer.bidirectional else [functions.stack([h]) for h in last]
        return (y.transpose(1, 2, 0, 3), *last)


def find_recurrence(g: NodeGraph, node: Node) -> Node | None:
    """Return a recurrent layer in ONNX's order of axes."""
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        raise node.error("resets before the product (linear_before_reset = 0), which caffelite does not have")
    layer = _make_layer(g, node)
    if layer is None:
        raise node.error("has weights that are not constants, or has peepholes")
    lengths, *states = [*node.inputs[4:], *[""] * 3][:3]
    states = states[: len(layer.state_names)]
    is_reversed = node.get("direction") == "reverse"
    if lengths and is_reversed:
        raise node.error("only goes backward through sequences of different lengths")
    if all(_is_zero(g, h) for h in states):
        states = []
    if not all(states):
        raise node.error("has one state, and not the other")
    inputs = [node.inputs[0], lengths, *states] if states or lengths else node.inputs[:1]
    return g.layer(node, lambda: Recurrence(layer, is_reversed, g.reader.dtype), inputs)


def find_all_states(g: NodeGraph, node: Node) -> Node | None:
    """All states of a recurrent layer, in caffelite's order of axes."""
    squeeze = g.producer(node.inputs[0], "Squeeze")
    if node.get("perm") != [1, 0, 2] or squeeze is None or constant_integers(g, squeeze, "axes") != [1]:
        return None
    match = _find_forward_layer(g, squeeze.inputs[0], 0)
    return match and g.layer(node, match[1], match[0].inputs)


def find_last_state(g: NodeGraph, node: Node) -> Node | None:
    """Return the last state of a recurrent layer."""
    match = _find_forward_layer(g, node.inputs[0], 1) if constant_integers(g, node, "axes") == [0] else None
    if match is None:
        return None
    before, layer = match
    layer.sequences = False
    return g.layer(node, layer, before.inputs)


def _find_forward_layer(g: NodeGraph, name: str, output: int) -> tuple[Node, Any] | None:
    """Find a recurrent layer as caffelite has it, for one output of a node. Returns the node before it, and the layer.

    Nothing else of the node may be used. It goes forward, from states of 0, through sequences of one length. The node
    before it puts the steps first.
    """
    node = g.producers.get(name)
    if node is None or node.operator not in RECURRENT or find_unsupported_attribute(node) or not g.is_used_once(name):
        return None
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        return None
    used = [i for i, y in enumerate(node.outputs) if y and g.uses[y]]
    before = g.producer(node.inputs[0], "Transpose")
    if used != [output] or before is None or before.get("perm") != [1, 0, 2] or any(node.inputs[4:5]):
        return None
    if node.get("direction", "forward") != "forward" or not all(_is_zero(g, h) for h in node.inputs[5:7]):
        return None
    layer = _make_layer(g, node)
    return None if layer is None else (before, layer)


def _make_layer(g: NodeGraph, node: Node) -> Any:
    """Return the recurrent layer that a node is, of one direction or both; None if its weights are not constants."""
    kind, order = RECURRENT[node.operator]
    w, r = (g.array(name, 3) for name in node.inputs[1:3])
    if w is None or r is None or any(node.inputs[7:8]) or any(node.outputs[3:]):
        return None
    directions, rows, features = w.shape
    hidden = r.shape[2]
    biases = g.array(node.inputs[3], 2) if any(node.inputs[3:4]) else np.zeros((directions, 2 * rows), w.dtype)
    if biases is None:
        return None
    expected = (directions, rows, hidden), (directions, 2 * rows)
    if rows != len(order) * hidden or (r.shape, biases.shape) != expected:
        raise node.error(f"has weights of shapes {w.shape}, {r.shape} and {biases.shape}")
    direction = node.get("direction", "forward")
    if directions != (2 if direction == "bidirectional" else 1):
        raise node.error(f"goes {direction}, and has weights for {directions} directions")
    if node.get("hidden_size", hidden) != hidden:
        raise node.error(f"has hidden_size {node.get('hidden_size')}, and weights of shape {r.shape}")
    with meta_init(), node.translate_errors():
        layer = kind(features, hidden, sequences=True, bidirectional=directions == 2)
    for i, suffix in enumerate(layer._suffixes(0)):
        parts = {"weight_ih": w[i], "weight_hh": r[i], "bias_ih": biases[i, :rows], "bias_hh": biases[i, rows:]}
        for name, a in parts.items():
            gates = np.split(a, len(order))
            ordered = np.concatenate([gates[order.index(gate)] for gate in range(len(order))])
            setattr(layer, name + suffix, Tensor(ordered.astype(g.reader.dtype), True, name=name + suffix))
    return layer


def _is_zero(g: NodeGraph, name: str) -> bool:
    """Return whether a value is known to be 0."""
    producer = g.producers.get(name)
    while producer is not None and producer.operator in ("Expand", "Slice", "Unsqueeze", "Reshape"):
        name = producer.inputs[0]
        producer = g.producers.get(name)
    if producer is not None and producer.operator == "ConstantOfShape":
        return not np.any(producer.get("value", 0))
    return not name or (name in g.constants and not g.constants[name].any())


GROUPS: dict[str, list[Finder]] = {"Transpose": [find_all_states], "Squeeze": [find_last_state]}

SINGLE_NODES: dict[str, list[Finder]] = {operator: [find_recurrence] for operator in RECURRENT}
