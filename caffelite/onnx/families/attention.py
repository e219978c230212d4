"""Attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.model.dataflow import Application
from caffelite.onnx.families.dense import linear_nodes
from caffelite.onnx.families.elementwise import as_bool
from caffelite.onnx.writing import Rule, Value, Writer, known_lengths


def write_attention(g: Writer, a: Application, x: Value, mask: Value | None = None) -> str:
    """Softmax(q kᵀ / √d) v in every head; what a position does not see has the least score, and then no part."""
    f: Any = a.function
    length, d = known_lengths(x.shape)[1], f.size // f.heads

    def heads(part: Any) -> str:
        part = g.node("Reshape", linear_nodes(g, part, x), g.integers((0, 0, f.heads, d)))
        return g.node("Transpose", part, perm=[0, 2, 1, 3])

    q, k, v = heads(f.query), heads(f.key), heads(f.value)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(d)))
    seen = g.constant(np.tri(length or 0, dtype=np.bool_)) if f.causal else None
    if mask is not None:
        of_keys = g.node("Unsqueeze", as_bool(g, mask), g.integers((1, 2)))
        seen = of_keys if seen is None else g.node("And", of_keys, seen)
    if seen is not None:
        scores = g.node("Where", seen, scores, g.number(np.finfo(g.dtype).min))
    p = g.node("Softmax", scores, axis=-1)
    if mask is not None:  # a position may see none
        p = g.node("Where", seen, p, g.number(0))
    h = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    h = g.node("Reshape", h, g.integers((0, 0, f.size)))
    return linear_nodes(g, f.output, Value(h, x.shape, x.dtype))


RULES: dict[type, Rule] = {
    functions.MultiHeadAttention: write_attention,
}
