"""Attention and the block of a transformer: their judges keep the whole matrix of probabilities."""

import hypothesis.strategies as st
import numpy as np
from reference import linear, normal

from caffelite import functions
from cases.case import Case, Family
from cases.dropout import philox_mask
from cases.normalization import normalized


def ones_where_seen(shape, causal, mask):
    """1 where a query (n, heads, length, keys) sees a key, else 0; the queries are the last of the keys' positions."""
    seen = np.tri(*shape[2:], shape[3] - shape[2]) if causal else np.ones(shape[2:])
    return np.broadcast_to(seen if mask is None else seen * mask[:, np.newaxis, np.newaxis, :], shape)


def attention(q, k, v, heads, causal=False, mask=None, kept=1.0):
    """y of q (n, length, size), k and v (n, keys, size), and the function from dy to dq, dk and dv."""

    def cut(x):
        return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)

    def joined(x):
        return x.transpose(0, 2, 1, 3).reshape(like.shape[0], x.shape[2], like.shape[2])

    like, (q, k, v) = q, map(cut, (q, k, v))
    scale = q.shape[3] ** -0.5
    s = scale * np.einsum("nhid,nhjd->nhij", q, k)
    seen = ones_where_seen(s.shape, causal, mask)
    s = np.where(seen > 0, s, -np.inf)
    e = np.exp(s - s.max(3, keepdims=True, initial=-1e300))
    total = e.sum(3, keepdims=True)
    p = np.where(total == 0, 0, e / np.where(total == 0, 1, total))

    def backward(dy):
        dy = cut(dy)
        dp = kept * np.einsum("nhid,nhjd->nhij", dy, v)
        ds = scale * p * (dp - (p * dp).sum(3, keepdims=True))
        dq, dk = np.einsum("nhij,nhjd->nhid", ds, k), np.einsum("nhij,nhid->nhjd", ds, q)
        return joined(dq), joined(dk), joined(np.einsum("nhij,nhid->nhjd", kept * p, dy))

    return joined(np.einsum("nhij,nhjd->nhid", kept * p, v)), backward


def of_positions(x, weight, bias=None):
    """`linear` of x (n, length, size)."""
    y, backward = linear(x.reshape(-1, x.shape[2]), weight, bias)

    def backward_of_positions(dy):
        dx, *others = backward(dy.reshape(-1, dy.shape[2]))
        return dx.reshape(x.shape), *others

    return y.reshape(*x.shape[:2], weight.shape[1]), backward_of_positions


def in_pairs(parameters, bias):
    """The parameters of each layer: its weight, and its bias if it has one."""
    each = 2 if bias else 1
    return [parameters[i : i + each] for i in range(0, len(parameters), each)]


def self_attention(x, parameters, heads, causal, mask, kept):
    """y of x (n, length, size) and the parameters of four Linears; backward gives dx and a list of theirs."""
    (q, back_q), (k, back_k), (v, back_v) = (of_positions(x, *pair) for pair in parameters[:3])
    h, back = attention(q, k, v, heads, causal, mask, kept)
    y, back_y = of_positions(h, *parameters[3])

    def backward(dy):
        dh, *of_output = back_y(dy)
        back_to_x = [f(d) for f, d in zip((back_q, back_k, back_v), back(dh), strict=True)]
        dx = sum(d for d, *_ in back_to_x)
        return dx, [g for _, *gradients in back_to_x for g in gradients] + of_output

    return y, backward


def kept_by(layer, shape):
    """What MultiHeadAttention multiplied its probabilities by, the layer having been applied to x of this shape."""
    heads = (shape[0], layer.heads, shape[1], shape[1])
    return np.ones(heads) if layer.drawn is None else philox_mask(heads, layer.drawn, layer.dropout)


def padding(shape, masked):
    """For `held`: a mask in which each row has a first position that is no padding, if there is to be one."""
    return lambda rng: [(rng.random(shape[:2]) < 0.6) | (np.arange(shape[1]) == 0)] if masked else []


def seeded(function):
    """The Function with the same seeds each time."""
    function.initialize(0)
    return function


def torchs_attention(torch, x, parameters, heads, causal, mask, kept):
    def cut(x):
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    q, k, v = (cut(torch.nn.functional.linear(x, w.T, *bias)) for w, *bias in parameters[:3])
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    seen = torch.ones(s.shape[2:], dtype=bool).tril() if causal else torch.ones(s.shape[2:], dtype=bool)
    seen = seen if mask is None else seen & mask[:, None, None, :].bool()
    h = (torch.where(seen, s, -torch.inf).softmax(3) * kept) @ v
    w, *bias = parameters[3]
    return torch.nn.functional.linear(h.transpose(1, 2).flatten(2), w.T, *bias)


def multi_head(shape, heads, causal=False, masked=False, dropout=0.0, bias=True, training=True):
    def parts(arrays):
        mask, parameters = (arrays[0], arrays[1:]) if masked else (None, arrays)
        return mask, in_pairs(parameters, bias)

    def judge(x, *arrays, kept):
        mask, parameters = parts(arrays)
        y, backward = self_attention(x, parameters, heads, causal, mask, kept)

        def gradients(dy):
            dx, others = backward(dy)
            return dx, *others

        return y, gradients

    def pytorch(torch, x, *arrays, kept):
        mask, parameters = parts(arrays)
        return torchs_attention(torch, x, parameters, heads, causal, mask, kept)

    return Case(
        lambda: seeded(functions.MultiHeadAttention(shape[2], heads, causal, dropout, bias)),
        (shape,),
        judge,
        pytorch,
        held=padding(shape, masked),
        saved=lambda layer: {"kept": kept_by(layer, shape)},
        training=training,
        scale=10.0 / (1 - dropout),
    )


def gelu(x):
    y = x * normal(x)
    return y, lambda dy: dy * (normal(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def block(shape, heads, hidden, causal=False, masked=False, dropout=0.0, bias=True, training=True):
    """Norm, attention, norm, two Linears, each with as many parameters as it has with bias or without."""

    def parts(arrays):
        mask, parameters = (arrays[0], arrays[1:]) if masked else (None, arrays)
        first, *attention, second, widen, narrow = in_pairs(parameters, bias)
        return mask, first, attention, second, widen, narrow

    def layer_norm(x, scale, *shift):
        y, backward = normalized(x, -1, 1e-5)

        def gradients(dy):
            return backward(dy * scale), [(dy * y).sum((0, 1)), dy.sum((0, 1))][: 1 + len(shift)]

        return (y * scale + shift[0] if shift else y * scale), gradients

    def judge(x, *arrays, kept, first_mask, second_mask):
        mask, first, attention, second, widen, narrow = parts(arrays)
        normed, back_first = layer_norm(x, *first)
        branch, back_attention = self_attention(normed, attention, heads, causal, mask, kept)
        h = x + branch * first_mask
        normed_h, back_second = layer_norm(h, *second)
        wide, back_widen = of_positions(normed_h, *widen)
        activated, back_gelu = gelu(wide)
        branch, back_narrow = of_positions(activated, *narrow)

        def gradients(dy):
            d, *of_narrow = back_narrow(dy * second_mask)
            d, *of_widen = back_widen(back_gelu(d))
            d, of_second = back_second(d)
            dh = dy + d
            d, of_attention = back_attention(dh * first_mask)
            d, of_first = back_first(d)
            return dh + d, *of_first, *of_attention, *of_second, *of_widen, *of_narrow

        return h + branch * second_mask, gradients

    def pytorch(torch, x, *arrays, kept, first_mask, second_mask):
        mask, first, attention, second, widen, narrow = parts(arrays)
        f = torch.nn.functional
        normed = f.layer_norm(x, shape[2:], *first)
        h = x + torchs_attention(torch, normed, attention, heads, causal, mask, kept) * first_mask
        wide = f.linear(f.layer_norm(h, shape[2:], *second), widen[0].T, *widen[1:])
        return h + f.linear(f.gelu(wide), narrow[0].T, *narrow[1:]) * second_mask

    def masks_of(layer):
        def of_branch(branch):
            return np.ones(shape) if branch.drawn is None else philox_mask(shape, branch.drawn, dropout)

        masks = {"first_mask": of_branch(layer.attention_dropout), "second_mask": of_branch(layer.mlp_dropout)}
        return {"kept": kept_by(layer.attention, shape), **masks}

    return Case(
        lambda: seeded(functions.TransformerBlock(shape[2], heads, hidden, causal, dropout, bias)),
        (shape,),
        judge,
        pytorch,
        held=padding(shape, masked),
        saved=masks_of,
        training=training,
        scale=30.0 / (1 - dropout),
    )


def random_shapes(*between, fewest=1):
    """n, length and heads of d numbers, few of them but for `fewest`, and what else a case is made with."""
    shape = st.tuples(*[st.integers(1, most) for most in (3, 9, 3, 4)]).filter(lambda s: s[2] * s[3] >= fewest)
    options = st.tuples(st.booleans(), st.booleans(), st.sampled_from([0.0, 0.2]), st.booleans(), st.booleans())
    return st.tuples(shape, *between, options).map(
        lambda drawn: ((*drawn[0][:2], drawn[0][2] * drawn[0][3]), drawn[0][2], *drawn[1:-1], *drawn[-1])
    )


CASES = [
    Family(
        multi_head,
        listed=[
            *[((2, 5, 6), 2), ((2, 5, 6), 3, True), ((2, 7, 4), 1, False, True), ((1, 1, 1), 1)],
            *[((3, 4, 4), 2, True, True, 0.2), ((2, 3, 4), 4, False, False, 0.5, False), ((1, 70, 6), 2, True)],
            ((2, 3, 4), 2, True, False, 0.5, True, False),
        ],
        empty=[((0, 3, 4), 2), ((2, 0, 4), 2, True), ((0, 3, 4), 2, False, True)],
        random=random_shapes(),
        special=lambda dtype: [(((3, 2, 2), 1), [[[[np.nan, 1], [1, 2]], [[np.inf, 1], [1, 2]], [[0, 1], [3, 2]]]])],
    ),
    Family(
        block,
        listed=[
            *[((2, 5, 6), 2, 9), ((2, 5, 6), 3, 24, True), ((2, 7, 4), 1, 16, False, True)],
            *[((3, 4, 4), 2, 16, True, True, 0.2), ((2, 3, 4), 4, 5, False, False, 0.5, False)],
            ((2, 3, 4), 2, 16, True, False, 0.5, True, False),
        ],
        empty=[((0, 3, 4), 2, 16), ((2, 0, 4), 2, 5, True)],
        random=random_shapes(st.integers(1, 9), fewest=4),  # of two numbers, close ones, a norm makes -1 and 1
    ),
]
