"""Recurrent layers: sequences of different lengths, first states, the last state or all."""

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn_step(a, u, state):
    """One row's gates' inputs from x, and from the state h: the new state, and the way back from its gradient."""
    (h,) = state
    y = np.tanh(a + u)

    def backward(dh):
        da = dh * (1 - y**2)
        return da, da, (np.zeros_like(h),)

    return (y,), backward


def gru_step(a, u, state):
    (h,) = state
    ar, az, an = np.split(a, 3)
    ur, uz, un = np.split(u, 3)
    r, z = sigmoid(ar + ur), sigmoid(az + uz)
    n = np.tanh(an + r * un)

    def backward(dh):
        dn = dh * (1 - z) * (1 - n**2)
        dr, dz = dn * un * r * (1 - r), dh * (h - n) * z * (1 - z)
        return np.concatenate([dr, dz, dn]), np.concatenate([dr, dz, dn * r]), (dh * z,)

    return ((1 - z) * n + z * h,), backward


def lstm_step(a, u, state):
    h, c = state
    ai, af, ag, ao = np.split(a + u, 4)
    i, f, g, o = sigmoid(ai), sigmoid(af), np.tanh(ag), sigmoid(ao)
    cell = f * c + i * g
    t = np.tanh(cell)

    def backward(dh, dcell):
        dcell = dcell + dh * o * (1 - t**2)
        parts = dcell * g * i * (1 - i), dcell * c * f * (1 - f), dcell * i * (1 - g**2), dh * t * o * (1 - o)
        return np.concatenate(parts), np.concatenate(parts), (np.zeros_like(h), dcell * f)

    return (o * t, cell), backward


LAYERS = {
    "RNN": (functions.RNN, rnn_step, 1),
    "GRU": (functions.GRU, gru_step, 1),
    "LSTM": (functions.LSTM, lstm_step, 2),
}


def run_sequences(step, kinds, sequences, x, states, lengths, w, u, b, c):
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


def reversed_rows(x, lengths):
    """x (n, steps, …) with the first `lengths` steps of each row in reverse order."""
    x = x.copy()
    for row, length in zip(x, [x.shape[1]] * len(x) if lengths is None else lengths, strict=True):
        row[: int(length)] = row[: int(length)][::-1].copy()
    return x


def judged_stack(step, kinds, sequences, layers, directions, x, states, lengths, weights):
    """Return what `run_sequences` gives, of a stack of both directions: `weights` has four arrays of each pass."""
    passes, hidden = layers * directions, weights[1].shape[1]
    each = [weights[4 * i : 4 * i + 4] for i in range(passes)]
    given = [np.reshape(state, (passes, len(x), hidden)) for state in states]
    first = given or [np.zeros((passes, len(x), hidden))] * kinds
    ways, last, below, ys = [], [], x, []
    for i in range(passes):
        if i % directions == 0 and i > 0:
            below, ys = np.concatenate(ys, -1), []
        turn = i % directions == 1
        into = reversed_rows(below, lengths) if turn else below
        (y, *ends), back = run_sequences(step, kinds, True, into, [state[i] for state in first], lengths, *each[i])
        ys.append(reversed_rows(y, lengths) if turn else y)
        last.append(ends)
        ways.append(back)
    out = np.concatenate(ys if sequences else [ends[0] for ends in last[-directions:]], -1)

    def backward(dout, *dlast):
        dends = [np.reshape(d, (passes, len(x), hidden)).copy() for d in dlast] or [np.zeros_like(s) for s in first]
        dy = dout if sequences else np.zeros((*x.shape[:2], directions * hidden))
        if not sequences:
            dends[0][-directions:] += np.split(dout, directions, -1)
        dstates, dweights = [np.zeros_like(d) for d in dends], [None] * passes
        for i in reversed(range(passes)):
            if i % directions == directions - 1:
                dys, dbelow = np.split(dy, directions, -1), 0
            turn = i % directions == 1
            d = reversed_rows(dys[i % directions], lengths) if turn else dys[i % directions]
            dx, *rest = ways[i](d, *[end[i] for end in dends])
            dbelow = dbelow + (reversed_rows(dx, lengths) if turn else dx)
            for k in range(kinds):
                dstates[k][i] = rest[k]
            dweights[i] = rest[kinds:]
            if i % directions == 0 and i > 0:
                dy = dbelow
        of_states = [np.reshape(d, state.shape) for d, state in zip(dstates, states, strict=True)] if states else []
        return dbelow, *of_states, *[d for of_pass in dweights for d in of_pass]

    ends = [np.reshape(np.stack(end), states[0].shape) for end in zip(*last, strict=True)] if states else []
    return (out, *ends) if states else out, backward


def recurrent(name):
    layer, step, kinds = LAYERS[name]

    def build(
        n, steps, features, hidden, sequences=False, with_state=False, with_lengths=False, layers=1, bidirectional=False
    ):
        """With lengths there are states, too: these stand before them."""
        with_state |= with_lengths
        directions = 1 + bidirectional
        passes = layers * directions
        state = (n, hidden) if passes == 1 else (passes, n, hidden)

        def split(inputs):
            x, *rest = inputs
            states = [rest.pop(0) for _ in range(kinds * with_state)]
            return x, states, rest.pop(0) if with_lengths else None, rest

        def judge(*inputs):
            return judged_stack(step, kinds, sequences, layers, directions, *split(inputs))

        def pytorch(torch, *inputs):
            x, states, lengths, weights = split(inputs)
            module = getattr(torch.nn, name)(
                features, hidden, layers, batch_first=True, bidirectional=bidirectional, dtype=x.dtype
            )
            given = dict(zip([name for name, _ in module.named_parameters()], weights, strict=True))
            first = [s.reshape(passes, n, hidden) for s in states]
            if lengths is not None:
                x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            arguments = (x, first[0] if kinds == 1 else tuple(first)) if states else (x,)
            y, last = torch.func.functional_call(module, given, arguments)
            if lengths is not None:
                y = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=steps)[0]
            last = last if kinds == 2 else (last,)
            out = y if sequences else torch.cat(list(last[0][-directions:]), -1)
            return (out, *[s.reshape(state) for s in last]) if states else out

        return Case(
            lambda: layer(features, hidden, sequences, layers, bidirectional=bidirectional),
            ((n, steps, features), *[state] * (kinds * with_state)),
            judge,
            pytorch,
            held=lambda rng: [rng.integers(1, steps + 1, n)] if with_lengths else [],
            scale=10.0,
        )

    size, few, flag = st.integers(1, 6), st.integers(1, 3), st.booleans()
    flags = st.tuples(flag, flag, flag)
    single = st.tuples(st.tuples(size, size, size, st.integers(1, 20)), flags, st.just((1, False)))
    stacks = st.tuples(st.tuples(few, few, few, few), flags, st.tuples(few, flag))
    return Family(
        build,
        listed=[
            *[(3, 4, 2, 5), (1, 1, 1, 1, True), (2, 3, 4, 9, True, True), (4, 3, 2, 3, False, True)],
            *[(5, 4, 3, 2, True, True, True), (3, 5, 1, 4, False, True, True)],
            *[(3, 4, 2, 5, False, False, False, 1, True), (4, 3, 2, 3, True, False, False, 2)],
            *[(5, 4, 3, 2, True, True, True, 3, True), (3, 5, 1, 4, False, True, True, 2, True)],
        ],
        empty=[(0, 3, 2, 4, True), (0, 2, 1, 3, False), (0, 3, 2, 4, True, True, False, 2, True)],
        random=(single | stacks).map(lambda drawn: (*drawn[0], *drawn[1], *drawn[2])),
    )


CASES = [recurrent(name) for name in LAYERS]
