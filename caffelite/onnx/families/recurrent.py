"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from caffelite import functions
from caffelite.core.modes import without_values
from caffelite.core.tensor import Tensor
from caffelite.model.dataflow import Application
from caffelite.model.model import Model
from caffelite.onnx.attributes import is_refused
from caffelite.onnx.nodes import Find, Kept, Node, Nodes, integers
from caffelite.onnx.writing import Rule, Value, Writer

#: The layer of an operator, and its gates in the operator's order.
RECURRENT: dict[str, tuple[Any, list[int]]] = {
    "RNN": (functions.RNN, [0]),
    "GRU": (functions.GRU, [1, 0, 2]),
    "LSTM": (functions.LSTM, [0, 3, 1, 2]),
}


# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_recurrent(operator: str, **attributes: int) -> Rule:
    """The rule for a layer that is this operator."""
    _, order = RECURRENT[operator]

    def rule(g: Writer, a: Application, x: Value, *given: Value | None) -> Any:
        f: Any = a.function
        count = len(f.state_names)
        padded: list[Any] = [*given, *[None] * (count + 1 - len(given))]
        states, lengths = [h and g.node("Unsqueeze", h, g.integers((0,))) for h in padded[:-1]], padded[-1]
        rows = np.concatenate([np.arange(f.hidden) + gate * f.hidden for gate in order])

        def ordered(p: Any) -> str:
            name = g.stored(p).name
            return name if len(order) == 1 else g.node("Gather", name, g.constant(rows), axis=0)

        biases = g.node("Concat", ordered(f.bias_ih), ordered(f.bias_hh), axis=0)
        of_direction = [
            g.node("Unsqueeze", y, g.integers((0,))) for y in (ordered(f.weight_ih), ordered(f.weight_hh), biases)
        ]
        by_hand = operator == "RNN" and lengths is not None  # of its lengths onnxruntime makes other numbers
        counts = None if lengths is None or by_hand else g.node("Cast", lengths, to=TensorProto.INT32)
        steps_first = g.node("Transpose", x, perm=[1, 0, 2])
        inputs = [steps_first, *of_direction, counts, *states]
        all_steps, *last = g.node(operator, *inputs, outputs=1 + count, hidden_size=f.hidden, **attributes)
        all_steps = g.node("Transpose", g.node("Squeeze", all_steps, g.integers((1,))), perm=[1, 0, 2])
        last = [g.node("Squeeze", h, g.integers((0,))) for h in last]
        if by_hand:
            all_steps, *last = _until(g, all_steps, lengths, f.shape[1])
        y = all_steps if f.sequences else last[0]
        return (y, *last) if len(a.shapes) > 1 else y

    return rule


def _until(g: Writer, y: str, lengths: Any, steps: int) -> tuple[str, str]:
    """Sequences, 0 behind their lengths, and their last steps."""
    lengths = g.node("Unsqueeze", lengths, g.integers((1,)))
    step = g.constant(np.arange(1, 1 + steps)[None])

    def those(operator: str) -> str:
        places = g.node("Unsqueeze", g.node(operator, step, lengths), g.integers((2,)))
        return g.node("Where", places, y, g.number(0))

    return those("LessOrEqual"), g.node("ReduceSum", those("Equal"), g.integers((1,)), keepdims=0)


RULES: dict[type, Rule] = {
    functions.RNN: write_recurrent("RNN"),
    functions.GRU: write_recurrent("GRU", linear_before_reset=1),
    functions.LSTM: write_recurrent("LSTM"),
}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


class Recurrence(Model):
    """A recurrent layer as ONNX has it: x (length, n, features) → y (length, directions, n, hidden), and last states
    (directions, n, hidden); lengths and states may be given. The second of two directions, or the only one where
    `backward`, goes from the last step to the first.
    """

    def __init__(self, layers: list[Any], backward: bool, dtype: Any) -> None:
        super().__init__(dtype=dtype)
        self.layers, self.backward_alone, self.kept = layers, backward, Kept()

    def arguments(self) -> dict[str, Any]:
        return {"layers": self.layers, "backward": self.backward_alone, "dtype": self.dtype}

    def call(self, x: Any, lengths: Any = None, *states: Any) -> Any:
        x = x.transpose(1, 0, 2)
        found = []
        for i, layer in enumerate(self.layers):
            turned = self.backward_alone or i == 1
            zero = self.kept(np.zeros((len(x), layer.hidden), x.dtype))
            given = [h[i] for h in states] or [zero for _ in layer.state_names]
            y, last = layer(x[:, ::-1] if turned else x, *given, lengths=lengths)
            found.append((y[:, ::-1] if turned else y, *(last if isinstance(last, tuple) else (last,))))
        y, *last = [functions.stack(parts) for parts in zip(*found, strict=True)]
        return (y.transpose(2, 0, 1, 3), *last)


def find_recurrence(g: Nodes, node: Node) -> Node | None:
    """A recurrent layer in ONNX's order of axes."""
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        raise node.refuse("resets before the product (linear_before_reset = 0), which caffelite has not")
    layers = _layers_of(g, node)
    if layers is None:
        raise node.refuse("has weights that are no constants, or peepholes")
    lengths, *states = [*node.inputs[4:], *[""] * 3][:3]
    states = states[: len(layers[0].state_names)]
    if lengths and node.get("direction", "forward") != "forward":
        raise node.refuse("goes backward through sequences of different lengths")
    if all(_is_zero(g, h) for h in states):
        states = []
    if not all(states):
        raise node.refuse("has one state, and not the other")
    turned = node.get("direction") == "reverse"
    inputs = [node.inputs[0], lengths, *states] if states or lengths else node.inputs[:1]
    return g.layer(node, lambda: Recurrence(layers, turned, g.reader.dtype), inputs)


def find_recurrent_sequences(g: Nodes, node: Node) -> Node | None:
    """All states of a recurrent layer, in caffelite's order of axes."""
    squeeze = g.maker(node.inputs[0], "Squeeze")
    if node.get("perm") != [1, 0, 2] or squeeze is None or integers(g, squeeze, "axes") != [1]:
        return None
    found = _alone(g, squeeze.inputs[0], 0)
    return found and g.layer(node, found[1][0], found[0].inputs)


def find_recurrent_last(g: Nodes, node: Node) -> Node | None:
    """The last state of a recurrent layer."""
    found = _alone(g, node.inputs[0], 1) if integers(g, node, "axes") == [0] else None
    if found is None:
        return None
    (layer,) = found[1]
    layer.sequences = False
    return g.layer(node, layer, found[0].inputs)


def _alone(g: Nodes, name: str, output: int) -> tuple[Node, list[Any]] | None:
    """Find a recurrent layer as caffelite has it, for one output of a node. Returns the node before it, and the layers.

    Nothing else of the node may be used. It goes forward, from states of 0, through sequences of one length. The node
    before it puts the steps first.
    """
    node = g.makers.get(name)
    if node is None or node.operator not in RECURRENT or is_refused(node) or not g.is_used_once(name):
        return None
    if node.operator == "GRU" and not node.get("linear_before_reset", 0):
        return None
    used = [i for i, y in enumerate(node.outputs) if y and g.uses[y]]
    before = g.maker(node.inputs[0], "Transpose")
    if used != [output] or before is None or before.get("perm") != [1, 0, 2] or any(node.inputs[4:5]):
        return None
    if node.get("direction", "forward") != "forward" or not all(_is_zero(g, h) for h in node.inputs[5:7]):
        return None
    layers = _layers_of(g, node)
    return None if layers is None else (before, layers)


def _layers_of(g: Nodes, node: Node) -> list[Any] | None:
    """The recurrent layers that a node is, one for each direction; None if its weights are not constants."""
    kind, order = RECURRENT[node.operator]
    w, r = (g.array(name, 3) for name in node.inputs[1:3])
    if w is None or r is None or any(node.inputs[7:8]) or any(node.outputs[3:]):
        return None
    directions, rows, features = w.shape
    hidden = r.shape[2]
    given = g.array(node.inputs[3], 2) if len(node.inputs) > 3 and node.inputs[3] else None
    if len(node.inputs) > 3 and node.inputs[3] and given is None:
        return None
    biases = np.zeros((directions, 2 * rows), w.dtype) if given is None else given
    if (
        r.shape != (directions, len(order) * hidden, hidden)
        or rows != len(order) * hidden
        or biases.shape != (directions, 2 * rows)
    ):
        raise node.refuse(f"has weights of shapes {w.shape}, {r.shape} and {biases.shape}")
    direction = node.get("direction", "forward")
    if directions != (2 if direction == "bidirectional" else 1):
        raise node.refuse(f"goes {direction}, and has weights for {directions} directions")
    if node.get("hidden_size", hidden) != hidden:
        raise node.refuse(f"has hidden_size {node.get('hidden_size')}, and weights of shape {r.shape}")
    layers = []
    for i in range(directions):
        with without_values(), node.blamed():
            layer = kind(features, hidden, sequences=True)
        parts = {"weight_ih": w[i], "weight_hh": r[i], "bias_ih": biases[i, :rows], "bias_hh": biases[i, rows:]}
        for name, a in parts.items():
            gates = np.split(a, len(order))
            ordered = np.concatenate([gates[order.index(gate)] for gate in range(len(order))])
            setattr(layer, name, Tensor(ordered.astype(g.reader.dtype), True, name=name))
        layers.append(layer)
    return layers


def _is_zero(g: Nodes, name: str) -> bool:
    """Whether a value is known to be 0."""
    maker = g.makers.get(name)
    while maker is not None and maker.operator in ("Expand", "Slice", "Unsqueeze", "Reshape"):
        name = maker.inputs[0]
        maker = g.makers.get(name)
    if maker is not None and maker.operator == "ConstantOfShape":
        return not np.any(maker.get("value", 0))
    return not name or (name in g.constants and not g.constants[name].any())


GROUPS: dict[str, list[Find]] = {
    "Transpose": [find_recurrent_sequences],
    "Squeeze": [find_recurrent_last],
}


SINGLE: dict[str, list[Find]] = {
    "RNN": [find_recurrence],
    "GRU": [find_recurrence],
    "LSTM": [find_recurrence],
}
