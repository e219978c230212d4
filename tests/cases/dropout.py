"""Dropout: the judges get the mask, which `philox_mask` draws by itself."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family, side
from tests.reference import linear

WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10: the four words of a counter, four words, under a key, two; as published, one step at a time."""
    c, (key0, key1) = list(counter), key
    for _ in range(10):
        first, third = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [third >> 32 ^ c[1] ^ key0, third & WORD, first >> 32 ^ c[3] ^ key1, first & WORD]
        key0, key1 = key0 + 0x9E3779B9 & WORD, key1 + 0xBB67AE85 & WORD
    return c


def philox_mask(shape, drawn, p):
    """0 or 1 / (1 − p) for each element, in C order.

    Half h, the lower one first, of word w of counter 16 g + i is for element 128 g + 64 h + 16 w + i.
    """
    seed, step = (int(number) for number in drawn)
    mask = np.zeros(-(-np.prod(shape, dtype=int) // 128) * 128)
    for counter in range(len(mask) // 8):
        words = philox((counter & WORD, counter >> 32, step & WORD, step >> 32), (seed & WORD, seed >> 32))
        for w, word in enumerate(words):
            for h, half in enumerate((word & 0xFFFF, word >> 16)):
                mask[128 * (counter // 16) + 64 * h + 16 * w + counter % 16] = half >= round(2**16 * p)
    return mask[: np.prod(shape, dtype=int)].reshape(shape) / (1 - p)


def seed_function(function):
    """Return the Function with the same seed each time."""
    function.initialize(0)
    return function


def dropout_case(shape, p, training=True):
    def drawn_mask(function):
        return {"mask": np.ones(shape) if function.rng_state is None else philox_mask(shape, function.rng_state, p)}

    return Case(
        lambda: seed_function(functions.Dropout(p)),
        (shape,),
        lambda x, mask: (x * mask, lambda dy: (dy * mask,)),
        lambda torch, x, mask: x * mask,
        saved=drawn_mask,
        training=training,
    )


def drop_connect_case(shape, out_features, p, training=True):
    def judge(x, weight, bias, mask):
        y, backward = linear(x.reshape(-1, shape[-1]), weight * mask, bias)

        def gradients(dy):
            dx, dw, db = backward(dy.reshape(-1, out_features))
            return dx.reshape(shape), dw * mask, db

        return y.reshape(*shape[:-1], out_features), gradients

    def drawn_mask(function):
        weight = function.weight.shape
        return {"mask": np.ones(weight) if function.rng_state is None else philox_mask(weight, function.rng_state, p)}

    return Case(
        lambda: functions.DropConnect(shape[-1], out_features, p),
        (shape,),
        judge,
        lambda torch, x, weight, bias, mask: x @ (weight * mask) + bias,
        saved=drawn_mask,
        training=training,
        scale=10.0 / (1 - p),  # of up to 343 rows, each enlarged so much
    )


p = st.sampled_from([0.0, 0.1, 0.5, 0.9])

CASES = [
    Family(
        dropout_case,
        listed=[((4, 3), 0.5), ((), 0.5), ((70, 13), 0.2), ((2, 1, 65), 0.9), ((5,), 0.0), ((3, 4), 0.5, False)],
        empty=[((0,), 0.5), ((2, 0, 3), 0.5)],
        random=st.tuples(hnp.array_shapes(min_dims=0, max_dims=4, max_side=7), p, st.booleans()),
        special=lambda dtype: [(((3, 40), 0.5), [np.tile([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 2], (3, 5))])],
    ),
    Family(
        drop_connect_case,
        listed=[((4, 3), 2, 0.5), ((1, 1), 1, 0.5), ((2, 3, 5), 70, 0.2), ((2, 3), 4, 0.0), ((2, 3), 4, 0.5, False)],
        empty=[((0, 3), 2, 0.5), ((2, 0, 3), 2, 0.5)],
        random=st.tuples(hnp.array_shapes(min_dims=2, max_dims=4, max_side=7), side, p, st.booleans()),
    ),
]
