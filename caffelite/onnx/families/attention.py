"""Attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.model.dataflow import Application, N
from caffelite.onnx.families.dense import linear_nodes
from caffelite.onnx.families.elementwise import as_bool
from caffelite.onnx.writing import Rule, Value, Writer, known_lengths


def write_attention(
    g: Writer,
    a: Application,
    x: Value,
    context: Value | None = None,
    mask: Value | None = None,
    cache: None = None,
) -> str:
    """Softmax(q kᵀ / √d) v in every head; what a position does not see has the least score, and then no part."""
    f: Any = a.function
    if not f.has_context:
        context, mask = None, mask or context
    source, d = context or x, f.size // f.heads
    length, keys = (known_lengths(of.shape)[1] for of in (x, source))

    def heads(part: Any, of: Value) -> str:
        part = g.node("Reshape", linear_nodes(g, part, of), g.integers((0, 0, f.heads, d)))
        return g.node("Transpose", part, perm=[0, 2, 1, 3])

    q, k, v = heads(f.query, x), heads(f.key, source), heads(f.value, source)
    if f.rotary:
        q, k = _turned(g, f, q, length), _turned(g, f, k, keys)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(d)))
    seen = None
    if f.causal:
        seen = g.constant(np.tri(length or 0, keys or 0, (keys or 0) - (length or 0), dtype=np.bool_))
    if mask is not None:
        of_mask = _for_heads(g, mask)
        seen = of_mask if seen is None else g.node("And", of_mask, seen)
    if seen is not None:
        scores = g.node("Where", seen, scores, g.number(np.finfo(g.dtype).min))
    p = g.node("Softmax", scores, axis=-1)
    if mask is not None:  # a position may see none
        p = g.node("Where", seen, p, g.number(0))
    h = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    h = g.node("Reshape", h, g.integers((0, 0, f.size)))
    return linear_nodes(g, f.output, Value(h, x.shape, x.dtype))


def _for_heads(g: Writer, mask: Value) -> str:
    """A mask of keys, of pairs, or of pairs in each row, in a shape that broadcasts to (n, heads, length, keys)."""
    name = as_bool(g, mask)
    if mask.ndim == 3:
        return g.node("Unsqueeze", name, g.integers((1,)))
    return g.node("Unsqueeze", name, g.integers((1, 2))) if mask.shape[0] == N else name


def _turned(g: Writer, f: Any, x: str, length: int | None) -> str:
    """Queries or keys (n, heads, length, d), with their pairs of numbers turned by rotary positions."""
    if length is None:
        raise TypeError(f"{f!r}: rotary=True can be exported for one length only, and it follows the number of rows")
    d = f.size // f.heads
    angles = np.arange(length)[:, np.newaxis] / 10_000 ** (np.arange(d) // 2 * 2 / d)
    signs = np.where(np.arange(d) % 2 == 0, -1, 1)
    others = g.node("Gather", x, g.constant(np.arange(d) ^ 1), axis=3)
    turned = g.node("Mul", others, g.constant((signs * np.sin(angles)).astype(g.dtype)))
    return g.node("Add", g.node("Mul", x, g.constant(np.cos(angles).astype(g.dtype))), turned)


RULES: dict[type, Rule] = {
    functions.MultiHeadAttention: write_attention,
}
