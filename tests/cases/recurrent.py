"""Recurrent layers: sequences of different lengths, first states, the last state or all."""

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from cases.case import Case, Family


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn_step(a, u, state):
    """One row's gates' inputs from x, and from the state h: the new state, and the way back from its gradient."""
    (h,) = state
    y = np.tanh(a + u)

    def back(dh):
        da = dh * (1 - y**2)
        return da, da, (np.zeros_like(h),)

    return (y,), back


def gru_step(a, u, state):
    (h,) = state
    ar, az, an = np.split(a, 3)
    ur, uz, un = np.split(u, 3)
    r, z = sigmoid(ar + ur), sigmoid(az + uz)
    n = np.tanh(an + r * un)

    def back(dh):
        dn = dh * (1 - z) * (1 - n**2)
        dr, dz = dn * un * r * (1 - r), dh * (h - n) * z * (1 - z)
        return np.concatenate([dr, dz, dn]), np.concatenate([dr, dz, dn * r]), (dh * z,)

    return ((1 - z) * n + z * h,), back


def lstm_step(a, u, state):
    h, c = state
    ai, af, ag, ao = np.split(a + u, 4)
    i, f, g, o = sigmoid(ai), sigmoid(af), np.tanh(ag), sigmoid(ao)
    cell = f * c + i * g
    t = np.tanh(cell)

    def back(dh, dcell):
        dcell = dcell + dh * o * (1 - t**2)
        parts = dcell * g * i * (1 - i), dcell * c * f * (1 - f), dcell * i * (1 - g**2), dh * t * o * (1 - o)
        return np.concatenate(parts), np.concatenate(parts), (np.zeros_like(h), dcell * f)

    return (o * t, cell), back


LAYERS = {
    "RNN": (functions.RNN, rnn_step, 1),
    "GRU": (functions.GRU, gru_step, 1),
    "LSTM": (functions.LSTM, lstm_step, 2),
}


def judged(step, kinds, sequences, x, states, lengths, w, u, b, c):
    """y and the last states, row by row and step by step; and from their gradients to all others."""
    n, steps, _ = x.shape
    hidden = u.shape[1]
    first = states or [np.zeros((n, hidden)) for _ in range(kinds)]
    last = [state.copy() for state in first]
    y, ways = np.zeros((n, steps, hidden)), {}
    for i in range(n):
        for t in range(steps if lengths is None else int(lengths[i])):
            state = tuple(s[i].copy() for s in last)
            new, back = step(w @ x[i, t] + b, u @ state[0] + c, state)
            ways[i, t] = back, state[0]
            for s, value in zip(last, new, strict=True):
                s[i] = value
            y[i, t] = new[0]
    out = y if sequences else last[0]

    def backward(dout, *dlast):
        dstates = [np.array(d) for d in dlast] or [np.zeros((n, hidden)) for _ in range(kinds)]
        if not sequences:
            dstates[0] = dstates[0] + dout
        dx, dw, du, db, dc = (np.zeros_like(array) for array in (x, w, u, b, c))
        for (i, t), (back, h) in reversed(ways.items()):
            here = [d[i] for d in dstates]
            if sequences:
                here[0] = here[0] + dout[i, t]
            da, dgates, before = back(*here)
            dx[i, t] = w.T @ da
            dw += np.outer(da, x[i, t])
            du += np.outer(dgates, h)
            db += da
            dc += dgates
            dstates[0][i] = before[0] + u.T @ dgates
            for d, value in zip(dstates[1:], before[1:], strict=True):
                d[i] = value
        return dx, *(dstates if states else ()), dw, du, db, dc

    return (out, *last) if states else out, backward


def recurrent(name):
    layer, step, kinds = LAYERS[name]

    def build(n, steps, features, hidden, sequences=False, with_state=False, with_lengths=False):
        """With lengths there are states, too: these stand before them."""
        with_state |= with_lengths

        def split(inputs):
            x, *rest = inputs
            states = [rest.pop(0) for _ in range(kinds * with_state)]
            return x, states, rest.pop(0) if with_lengths else None, *rest

        def judge(*inputs):
            return judged(step, kinds, sequences, *split(inputs))

        def pytorch(torch, *inputs):
            x, states, lengths, *weights = split(inputs)
            module = getattr(torch.nn, name)(features, hidden, batch_first=True)
            given = dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True))
            first = [state[None] for state in states]
            if lengths is not None:
                x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            arguments = (x, first[0] if kinds == 1 else tuple(first)) if states else (x,)
            y, last = torch.func.functional_call(module, given, arguments)
            if lengths is not None:
                y = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=steps)[0]
            last = [state[0] for state in (last if kinds == 2 else (last,))]
            out = y if sequences else last[0].clone()
            return (out, *last) if states else out

        return Case(
            lambda: layer(features, hidden, sequences),
            ((n, steps, features), *[(n, hidden)] * (kinds * with_state)),
            judge,
            pytorch,
            held=lambda rng: [rng.integers(1, steps + 1, n)] if with_lengths else [],
            scale=10.0,
        )

    size = st.integers(1, 6)
    return Family(
        build,
        listed=[
            *[(3, 4, 2, 5), (1, 1, 1, 1, True), (2, 3, 4, 9, True, True), (4, 3, 2, 3, False, True)],
            *[(5, 4, 3, 2, True, True, True), (3, 5, 1, 4, False, True, True)],
        ],
        empty=[(0, 3, 2, 4, True), (0, 2, 1, 3, False)],
        random=st.tuples(size, size, size, st.integers(1, 20), st.booleans(), st.booleans(), st.booleans()),
    )


CASES = [recurrent(name) for name in LAYERS]
