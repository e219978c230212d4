"""Attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.functions.arithmetic import as_tensor
from caffelite.model.export_graph import N
from caffelite.onnx.families.dense import write_linear
from caffelite.onnx.families.elementwise import as_bool, numpy_op
from caffelite.onnx.families.indexing import take
from caffelite.onnx.families.shape import concatenate, pad_axis
from caffelite.onnx.nodes import Node, Operator, is_plain
from caffelite.onnx.writing import Rule, Value, Writer, known_lengths

# ---- Functions, as nodes --------------------------------------------------------------------------------------------


def write_attention(
    g: Writer, f: Any, x: Value, context: Value | None = None, mask: Value | None = None, cache: None = None
) -> str:
    """Softmax(q kᵀ / √d) v in every head. A key that a position does not see has the least score, and the weight 0."""
    if not f.has_context:
        context, mask = None, mask or context
    source, d = context or x, f.head_size
    length, keys = (known_lengths(value.shape)[1] for value in (x, source))

    def heads(part: Any, value: Value) -> str:
        part = g.node("Reshape", write_linear(g, part, value), g.integers((0, 0, f.heads, d)))
        return g.node("Transpose", part, perm=[0, 2, 1, 3])

    q, k, v = heads(f.query, x), heads(f.key, source), heads(f.value, source)
    if f.rotary:
        q, k = _rotate(g, f, q, length), _rotate(g, f, k, keys)
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(d)))
    visible = None
    if f.causal:
        visible = g.constant(np.tri(length or 0, keys or 0, (keys or 0) - (length or 0), dtype=np.bool_))
    if mask is not None:
        head_mask = _expand_mask(g, mask)
        visible = head_mask if visible is None else g.node("And", head_mask, visible)
    if visible is not None:
        scores = g.node("Where", visible, scores, g.number(np.finfo(g.dtype).min))
    p = g.node("Softmax", scores, axis=-1)
    if mask is not None:  # a position may see none
        p = g.node("Where", visible, p, g.number(0))
    h = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    h = g.node("Reshape", h, g.integers((0, 0, f.heads * d)))
    return write_linear(g, f.output, Value(h, (*x.shape[:2], f.heads * d), x.dtype))


def _expand_mask(g: Writer, mask: Value) -> str:
    """Return a mask of keys, of pairs, or of pairs in each row, which broadcasts to (n, heads, length, keys)."""
    name = as_bool(g, mask)
    if mask.ndim == 3:
        return g.node("Unsqueeze", name, g.integers((1,)))
    return g.node("Unsqueeze", name, g.integers((1, 2))) if mask.shape[0] == N else name


def _rotate(g: Writer, f: Any, x: str, length: int | None) -> str:
    """Return queries or keys (n, heads, length, d), with their pairs of numbers turned by rotary positions."""
    if length is None:
        raise TypeError(f"{f!r}: rotary=True can be exported for one length only, and it follows the number of rows")
    d = f.head_size
    angles = np.arange(length)[:, np.newaxis] / 10_000 ** (np.arange(d) // 2 * 2 / d)
    signs = np.where(np.arange(d) % 2 == 0, -1, 1)
    partners = g.node("Gather", x, g.constant(np.arange(d) ^ 1), axis=3)
    rotated = g.node("Mul", partners, g.constant((signs * np.sin(angles)).astype(g.dtype)))
    return g.node("Add", g.node("Mul", x, g.constant(np.cos(angles).astype(g.dtype))), rotated)


RULES: dict[type, Rule] = {functions.MultiHeadAttention: write_attention}


# ---- what nodes compute ---------------------------------------------------------------------------------------------


def compute_attention(
    node: Node, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, lengths: Any = None
) -> Any:
    """Softmax(q kᵀ scale + mask) v in every head, and 0 for a query that sees no key.

    q (n, heads, length, d), or (n, length, heads · d); k and v as many axes, and as many heads or fewer, each for a
    group of q's. The mask is True or a number to add for each pair, and broadcast. Also returns all keys and values,
    and the scores or probabilities, if the node has outputs for them.
    """
    ndim, n, cached = q.ndim, len(q), 0 if past_k is None else past_k.shape[2]
    if (past_k is None) != (past_v is None) or (past_k is not None and lengths is not None):
        raise node.error("has past keys without past values, or nonpad_kv_seqlen beside them")
    q = _split_heads(node, q, "q_num_heads")
    k, v = (_split_heads(node, x, "kv_num_heads") for x in (k, v))
    if past_k is not None:
        k, v = concatenate([past_k, k], 2), concatenate([past_v, v], 2)
    all_k, all_v, groups = k, v, q.shape[1] // max(1, k.shape[1])
    if groups * k.shape[1] != q.shape[1] or k.shape[1] != v.shape[1]:
        raise node.error(f"has {q.shape[1]} heads of queries, {k.shape[1]} of keys and {v.shape[1]} of values")
    if groups > 1:
        places = np.repeat(np.arange(k.shape[1]), groups).tolist()
        k, v = (take(x, 1, places) for x in (k, v))

    scores = capped = q @ k.transpose(0, 1, 3, 2) * node.get("scale", 1 / math.sqrt(q.shape[3]))
    if cap := node.get("softcap", 0.0):
        capped = functions.tanh(scores / cap) * cap
    visible, bias = _attention_mask(node, scores.shape[2:], cached, mask, lengths)
    biased = capped if bias is None else capped + bias
    biased = biased if visible is None else functions.where(visible, biased, -math.inf)
    p = functions.softmax(biased)
    p = p if visible is None else functions.where(visible, p, 0.0)  # a query that sees no key has NaN
    y = p @ v
    y = y if ndim == 4 else y.transpose(0, 2, 1, 3).reshape(n, y.shape[2], -1)
    if len(node.outputs) < 4:
        return y, all_k, all_v
    return y, all_k, all_v, (scores, capped, biased, p)[node.get("qk_matmul_output_mode", 0)]


def _split_heads(node: Node, x: Any, attribute: str) -> Any:
    """Return an array (n, heads, length, d); one of three axes is cut into heads."""
    x, heads = as_tensor(x), node.get(attribute, 0)
    if x.ndim == 4:
        return x
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise node.error(f"cuts an array of shape {x.shape} into {attribute} = {heads}")
    return x.reshape(len(x), x.shape[1], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


_less_equal = numpy_op(np.less_equal, operator="LessOrEqual")


def _attention_mask(node: Node, shape: Sequence[int], cached: int, mask: Any, lengths: Any) -> tuple[Any, Any]:
    """Return the keys that each query sees (None: all), and the numbers to add to its scores (None: none).

    Query i is at position i + cached; with `lengths` of the rows, the queries are at the last positions of each row.
    """
    queries, keys = shape
    distance = np.arange(keys) - np.arange(queries)[:, np.newaxis]  # of a key from a query, if the first one is at 0
    first: Any = np.array(cached)
    parts, bias = [], None
    if lengths is not None:
        first, distance = lengths.reshape((len(lengths), 1, 1, 1)), distance + queries
        parts.append(_less_equal(node, node.cache(np.arange(1, keys + 1)), first))
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal", 0):
        parts.append(_less_equal(node, node.cache(distance), first))
    if right >= 0:
        parts.append(_less_equal(node, node.cache(distance - right), first))
    if left >= 0:
        parts.append(_less_equal(node, first, node.cache(distance + left)))
    if mask is not None:
        if mask.dtype not in (np.bool_, node.dtype) or mask.shape[-1] > keys:
            raise node.error(f"has a mask of {mask.dtype}, of shape {mask.shape}, for {keys} keys")
        is_bool = mask.dtype == np.bool_
        mask = pad_axis(node, mask, -1, 0, keys - mask.shape[-1], value=0.0 if is_bool else -math.inf)
        bias, lowest = None if is_bool else mask, node.cache(np.array(-math.inf, node.dtype))
        parts.append(mask if is_bool else numpy_op(np.greater, operator="Greater")(node, mask, lowest))
    if not parts:
        return None, bias
    visible = functools.reduce(functools.partial(numpy_op(np.logical_and, operator="And"), node), parts)
    return node.cache(visible) if is_plain(visible) else visible, bias


OPERATORS: dict[str, Operator] = {"Attention": compute_attention}
