"""Attention and the block of a transformer: their judges keep the whole matrix of probabilities."""

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family
from tests.cases.dropout import philox_mask
from tests.cases.normalization import normalize
from tests.reference import linear, normal


def ones_where_seen(shape, causal, mask):
    """1 where a query (n, heads, length, keys) sees a key, else 0; the queries are the last of the keys' positions."""
    seen = np.tri(*shape[2:], shape[3] - shape[2]) if causal else np.ones(shape[2:])
    return np.broadcast_to(seen if mask is None else seen * mask[for_heads(mask, shape[0])], shape)


def for_heads(mask, n):
    """Return the index with which a mask broadcasts to (n, heads, length, keys): it is of keys, of pairs, or of each
    row's.
    """
    if mask.ndim == 3:
        return (slice(None), None)
    return (slice(None), None, None) if len(mask) == n else (None, None)


def rotate(x, heads, sign=1):
    """x (n, length, size) with the pairs of each head's numbers turned as complex numbers, by ± the positions."""
    pairs = x.reshape(*x.shape[:2], heads, x.shape[2] // heads // 2, 2)
    z = pairs[..., 0] + 1j * pairs[..., 1]
    waves = 10_000.0 ** -(np.arange(z.shape[3]) / z.shape[3])
    z = z * np.exp(sign * 1j * np.arange(x.shape[1])[:, np.newaxis, np.newaxis] * waves)
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def attention(q, k, v, heads, causal=False, mask=None, kept=1.0):
    """y of q (n, length, size), k and v (n, keys, size), and the function from dy to dq, dk and dv."""

    def cut(x):
        return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)

    def join_heads(x):
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
        return join_heads(dq), join_heads(dk), join_heads(np.einsum("nhij,nhid->nhjd", kept * p, dy))

    return join_heads(np.einsum("nhij,nhjd->nhid", kept * p, v)), backward


def linear_over_positions(x, weight, bias=None):
    """`linear` of x (n, length, size)."""
    y, backward = linear(x.reshape(-1, x.shape[2]), weight, bias)

    def backward_of_positions(dy):
        dx, *others = backward(dy.reshape(-1, dy.shape[2]))
        return dx.reshape(x.shape), *others

    return y.reshape(*x.shape[:2], weight.shape[1]), backward_of_positions


def in_pairs(parameters, bias):
    """Return the parameters of each layer: its weight, and its bias if it has one."""
    each = 2 if bias else 1
    return [parameters[i : i + each] for i in range(0, len(parameters), each)]


def layer_of_heads(x, context, parameters, heads, causal, mask, kept, rotary=False):
    """y of x (n, length, size), what it sees, and the parameters of four Linears.

    Backward gives dx, the gradient of what it sees, and a list of those of the parameters.
    """
    (q, back_q), (k, back_k), (v, back_v) = (
        linear_over_positions(of, *pair) for of, pair in zip((x, context, context), parameters[:3], strict=True)
    )
    if rotary:
        q, k = rotate(q, heads), rotate(k, heads)
    h, back = attention(q, k, v, heads, causal, mask, kept)
    y, back_y = linear_over_positions(h, *parameters[3])

    def backward(dy):
        dh, *of_output = back_y(dy)
        dq, dk, dv = back(dh)
        if rotary:
            dq, dk = rotate(dq, heads, -1), rotate(dk, heads, -1)
        (dx, *of_q), (of_key, *of_k), (of_value, *of_v) = back_q(dq), back_k(dk), back_v(dv)
        return dx, of_key + of_value, [*of_q, *of_k, *of_v, *of_output]

    return y, backward


def attention_mask_in_use(layer, shape, keys=None):
    """Return what MultiHeadAttention multiplied its probabilities by, the layer having been applied to x of
    this shape.
    """
    heads = (shape[0], layer.heads, shape[1], shape[1] if keys is None else keys)
    return np.ones(heads) if layer.rng_state is None else attention_mask(heads, layer.rng_state, layer.dropout)


def attention_mask(shape, drawn, p):
    """0 or 1 / (1 − p) for each head, query and key: in tiles of 16 keys × 8 queries, which are drawn one by one."""
    *heads, queries, keys = shape
    across, down = -(-queries // 8), -(-keys // 16)
    tiles = philox_mask((*heads, down, across, 16, 8), drawn, p)
    whole = tiles.swapaxes(-3, -2).reshape(*heads, 16 * down, 8 * across)
    return whole[..., :keys, :queries].swapaxes(-1, -2)


def masks(shape, masked, keys=None):
    """For `held`: a mask in which the first key is always seen, if there is to be one.

    `masked` is True for one of keys, "pairs" for the same pairs in all rows, "rows" for the pairs of each row.
    """
    n, length, keys = *shape[:2], shape[1] if keys is None else keys
    of_pairs = {"pairs": (1, length, keys) if n == length else (length, keys), "rows": (n, length, keys)}
    mask_shape = of_pairs.get(masked, (n, keys))
    return lambda rng: [(rng.random(mask_shape) < 0.6) | (np.arange(keys) == 0)] if masked else []


def seed_function(function):
    """Return the Function with the same seeds each time."""
    function.initialize(0)
    return function


def torchs_attention(torch, x, context, parameters, heads, causal, mask, kept, rotary=False):
    def cut(x):
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    def rotate(x):
        z = torch.view_as_complex(x.unflatten(3, (-1, 2)).contiguous())
        waves = 10_000.0 ** -(torch.arange(z.shape[3], dtype=x.dtype) / z.shape[3])
        angles = torch.arange(z.shape[2], dtype=x.dtype)[:, None] * waves
        return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(3)

    q, k, v = (
        cut(torch.nn.functional.linear(of, w.T, *bias))
        for of, (w, *bias) in zip((x, context, context), parameters[:3], strict=True)
    )
    if rotary:
        q, k = rotate(q), rotate(k)
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    seen = torch.ones(s.shape[2:], dtype=bool)
    seen = seen.tril(s.shape[3] - s.shape[2]) if causal else seen
    seen = seen if mask is None else seen & mask[for_heads(mask, len(x))].bool()
    h = (torch.where(seen, s, -torch.inf).softmax(3) * kept) @ v
    w, *bias = parameters[3]
    return torch.nn.functional.linear(h.transpose(1, 2).flatten(2), w.T, *bias)


def multi_head(
    shape,
    heads,
    causal=False,
    masked=False,
    dropout=0.0,
    bias=True,
    training=True,
    keys=None,
    rotary=False,
    key_dim=None,
):
    """With `keys`, of a context of so many positions; a causal layer gets as many as x has, at least."""
    keys = max(keys, shape[1]) if causal and keys is not None else keys

    def parts(x, *arrays):
        arrays = list(arrays)
        context = x if keys is None else arrays.pop(0)
        mask = arrays.pop(0) if masked else None
        return x, context, in_pairs(arrays, bias), heads, causal, mask

    def judge(*arrays, kept):
        y, backward = layer_of_heads(*parts(*arrays), kept, rotary)

        def gradients(dy):
            dx, dcontext, others = backward(dy)
            return *((dx + dcontext,) if keys is None else (dx, dcontext)), *others

        return y, gradients

    def pytorch(torch, *arrays, kept):
        return torchs_attention(torch, *parts(*arrays), kept, rotary)

    return Case(
        lambda: seed_function(
            functions.MultiHeadAttention(shape[2], heads, causal, dropout, bias, rotary, key_dim=key_dim)
        ),
        (shape,) if keys is None else (shape, (shape[0], keys, shape[2])),
        judge,
        pytorch,
        held=masks(shape, masked, keys),
        saved=lambda layer: {"kept": attention_mask_in_use(layer, shape, keys)},
        training=training,
        scale=10.0 / (1 - dropout),
    )


def gelu(x):
    y = x * normal(x)
    return y, lambda dy: dy * (normal(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def block(shape, heads, hidden, causal=False, masked=False, dropout=0.0, bias=True, training=True, rotary=False):
    """Norm, attention, norm, two Linears, each with as many parameters as it has with bias or without."""

    def parts(arrays):
        mask, parameters = (arrays[0], arrays[1:]) if masked else (None, arrays)
        first, *attention, second, widen, narrow = in_pairs(parameters, bias)
        return mask, first, attention, second, widen, narrow

    def layer_norm(x, scale, *shift):
        y, backward = normalize(x, -1, 1e-5)

        def gradients(dy):
            return backward(dy * scale), [(dy * y).sum((0, 1)), dy.sum((0, 1))][: 1 + len(shift)]

        return (y * scale + shift[0] if shift else y * scale), gradients

    def judge(x, *arrays, kept, first_mask, second_mask):
        mask, first, attention, second, widen, narrow = parts(arrays)
        normed, back_first = layer_norm(x, *first)
        branch, back_attention = layer_of_heads(normed, normed, attention, heads, causal, mask, kept, rotary)
        h = x + branch * first_mask
        normed_h, back_second = layer_norm(h, *second)
        wide, back_widen = linear_over_positions(normed_h, *widen)
        activated, back_gelu = gelu(wide)
        branch, back_narrow = linear_over_positions(activated, *narrow)

        def gradients(dy):
            d, *of_narrow = back_narrow(dy * second_mask)
            d, *of_widen = back_widen(back_gelu(d))
            d, of_second = back_second(d)
            dh = dy + d
            d, of_keys, of_attention = back_attention(dh * first_mask)
            d, of_first = back_first(d + of_keys)
            return dh + d, *of_first, *of_attention, *of_second, *of_widen, *of_narrow

        return h + branch * second_mask, gradients

    def pytorch(torch, x, *arrays, kept, first_mask, second_mask):
        mask, first, attention, second, widen, narrow = parts(arrays)
        f = torch.nn.functional
        normed = f.layer_norm(x, shape[2:], *first)
        h = x + torchs_attention(torch, normed, normed, attention, heads, causal, mask, kept, rotary) * first_mask
        wide = f.linear(f.layer_norm(h, shape[2:], *second), widen[0].T, *widen[1:])
        return h + f.linear(f.gelu(wide), narrow[0].T, *narrow[1:]) * second_mask

    def drawn_masks(layer):
        def drawn_mask(branch):
            return np.ones(shape) if branch.rng_state is None else philox_mask(shape, branch.rng_state, dropout)

        masks = {"first_mask": drawn_mask(layer.attention_dropout), "second_mask": drawn_mask(layer.mlp_dropout)}
        return {"kept": attention_mask_in_use(layer.attention, shape), **masks}

    return Case(
        lambda: seed_function(functions.TransformerBlock(shape[2], heads, hidden, causal, dropout, bias, rotary)),
        (shape,),
        judge,
        pytorch,
        held=masks(shape, masked),
        saved=drawn_masks,
        training=training,
        scale=30.0 / (1 - dropout),
    )


def random_shapes(*between, fewest=1, behind=()):
    """n, length and heads of d numbers, few of them but for `fewest`, and what else a case is made with.

    `between` and `behind` are drawn for the places after the heads, and before the last: whether it is rotary.
    """
    shape = st.tuples(*[st.integers(1, most) for most in (3, 9, 3, 4)]).filter(lambda s: s[2] * s[3] >= fewest)
    flag, masked = st.booleans(), st.sampled_from([False, True, "pairs", "rows"])
    options = st.tuples(flag, masked, st.sampled_from([0.0, 0.2]), flag, flag, *behind, flag)

    def arguments(drawn):
        (n, length, heads, d), *others, options = drawn
        return ((n, length, heads * d * (2 if options[-1] else 1)), heads, *others, *options)

    return st.tuples(shape, *between, options).map(arguments)


OPTIONS = (False, False, 0.0, True, True)  # the defaults of the arguments between heads and keys

CASES = [
    Family(
        multi_head,
        listed=[
            *[((2, 5, 6), 2), ((2, 5, 6), 3, True), ((2, 7, 4), 1, False, True), ((1, 1, 1), 1)],
            *[((3, 4, 4), 2, True, True, 0.2), ((2, 3, 4), 4, False, False, 0.5, False), ((1, 70, 6), 2, True)],
            *[((2, 3, 4), 2, True, False, 0.5, True, False), ((2, 5, 8), 2, False, False, 0.0, True, True, None, True)],
            *[((2, 5, 6), 3, False, "pairs"), ((5, 5, 6), 3, True, "pairs"), ((2, 3, 4), 2, True, "rows", 0.2)],
            *[((2, 5, 6), 2, False, masked, 0.0, True, True, 7) for masked in (False, True, "pairs", "rows")],
            *[((2, 3, 4), 1, True, True, 0.2, False, True, 70, True), ((2, 2, 2), 1, False, "pairs")],
            *[((2, 5, 3), 2, True, True, 0.2, True, True, None, False, 5), ((3, 4, 6), 2, *OPTIONS, None, False, 1)],
            ((2, 3, 5), 3, *OPTIONS, 7, True, 4),
        ],
        empty=[
            *[((0, 3, 4), 2), ((2, 0, 4), 2, True), ((0, 3, 4), 2, False, True)],
            *[((0, 3, 4), 2, False, "rows", 0.0, True, True, 5, True), ((2, 0, 4), 2, False, True, 0.0, True, True, 5)],
            ((2, 3, 4), 2, False, False, 0.0, True, True, 0, True),
        ],
        random=random_shapes(behind=[st.none() | st.integers(1, 9)]),
        special=lambda dtype: [(((3, 2, 2), 1), [[[[np.nan, 1], [1, 2]], [[np.inf, 1], [1, 2]], [[0, 1], [3, 2]]]])],
    ),
    Family(
        block,
        listed=[
            *[((2, 5, 6), 2, 9), ((2, 5, 6), 3, 24, True), ((2, 7, 4), 1, 16, False, True)],
            *[((3, 4, 4), 2, 16, True, True, 0.2), ((2, 3, 4), 4, 5, False, False, 0.5, False)],
            ((2, 3, 4), 2, 16, True, False, 0.5, True, False),
            *[((2, 5, 6), 3, 9, False, "pairs"), ((2, 3, 8), 2, 16, True, "rows", 0.2, True, True, True)],
        ],
        empty=[((0, 3, 4), 2, 16), ((2, 0, 4), 2, 5, True)],
        random=random_shapes(st.integers(1, 9), fewest=4),  # of two numbers, close ones, a norm makes -1 and 1
    ),
]
