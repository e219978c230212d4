"""Estimators of scikit-learn, as its converter writes them: operators of the domain ai.onnx.ml."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.function import Function
from caffelite.functions.arithmetic import as_tensor
from caffelite.onnx.nodes import Finder, Node, NodeGraph, Operator

#: The Functions of a classifier after its scores.
LINKS: dict[str, Callable[[], Function]] = {"LOGISTIC": functions.Sigmoid, "SOFTMAX": lambda: functions.Softmax(1)}


# ---- nodes, as layers -----------------------------------------------------------------------------------------------


def find_classifier(g: NodeGraph, node: Node) -> Node | None:
    """Find a Linear and a link. Of the outputs, labels and probabilities, nothing may use the labels."""
    labels, *probabilities = node.outputs
    if g.uses[labels] or not probabilities:
        raise node.error("makes labels, and other nodes compute with them, which caffelite does not have")
    names = node.get("classlabels_ints") or node.get("classlabels_strings") or []
    link, scores = node.get("post_transform", "NONE"), f"{node.name} scores"
    weight, bias = _read_weights(node, len(node.get("intercepts") or []) or len(names))
    if weight.shape[1] == 1 and len(names) == 2:  # the score of the second class
        if link != "LOGISTIC":  # onnxruntime and onnx's reference compute different numbers
            raise node.error(f"has one score for two classes, and post_transform = {link!r}")
        weight, bias = (np.concatenate([-a, a], axis=-1) for a in (weight, bias))
    if link == "NONE":
        return _make_linear(g, dataclasses.replace(node, outputs=probabilities), weight, bias)
    g.append(_make_linear(g, dataclasses.replace(node, outputs=[scores]), weight, bias))
    return g.layer(dataclasses.replace(node, outputs=probabilities), LINKS[link], [scores])


def _read_weights(node: Node, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (features, count) and biases (count,) of a node that has them as attributes."""
    weight, bias = (np.array(node.get(name) or [], node.dtype) for name in ("coefficients", "intercepts"))
    bias = bias if bias.size else np.zeros(count, node.dtype)
    if count < 1 or len(weight) % count or not len(weight) or len(bias) != count:
        raise node.error(f"has {len(weight)} coefficients and {len(bias)} intercepts for {count} scores")
    return weight.reshape(count, -1).T, bias


def _make_linear(g: NodeGraph, node: Node, weight: np.ndarray, bias: np.ndarray) -> Node:
    """Return a Linear in the place of a node, with these as its parameters."""
    weights: dict[str, Any] = {name: f"{node.name}.{name}" for name in ("weight", "bias")}
    for name, a in zip(weights.values(), (weight, bias), strict=True):
        if name in g.constants or name in g.producers:
            raise node.error(f"has the name {name!r}, which another value has, too")
        g.constants[name] = a
    return g.layer(node, lambda: functions.Linear(*weight.shape), node.inputs, weights)


SINGLE_NODES: dict[str, list[Finder]] = {
    "LinearClassifier": [find_classifier],
    "LinearRegressor": [lambda g, node: _make_linear(g, node, *_read_weights(node, node.get("targets", 1)))],
}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_scaler(node: Node, x: Any) -> Any:
    x = as_tensor(x)
    offset, scale = (np.array(node.get(name, default), x.dtype) for name, default in (("offset", 0.0), ("scale", 1.0)))
    return (x - node.cache(offset)) * node.cache(scale)


OPERATORS: dict[str, Operator] = {
    "Scaler": compute_scaler,
    "ZipMap": lambda node, x: x,  # to words, of what are probabilities
}
