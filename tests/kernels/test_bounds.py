"""No kernel reads or writes past the end of an array."""

import sys

import pytest

from tests.kernels.arguments import BEST, OTHERS, run_python

every_instruction_set_the_others_slow = pytest.mark.parametrize(
    "isa", [BEST, *[pytest.param(isa, marks=pytest.mark.slow) for isa in OTHERS]]
)


@every_instruction_set_the_others_slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect through the C library")
def test_no_kernel_reads_or_writes_past_the_end_of_an_array(isa):
    """Arrays that end where the next page may not be touched; a stray access ends the process."""
    run_python(
        """
        import ctypes, itertools, mmap
        import numpy as np
        from caffelite import _kernels as k
        from caffelite.program.recording import Recording
        from caffelite.core.sparse import Nonzeros, make_sparse_rows

        PAGE = mmap.PAGESIZE
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        kept = []

        def guarded(values):
            # A copy of the values right before a page that may not be touched, or right behind one.
            values = np.ascontiguousarray(values)
            pages = -(-max(values.nbytes, 1) // PAGE)
            memory = mmap.mmap(-1, (pages + 2) * PAGE)
            kept.append(memory)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for page in (start, start + (pages + 1) * PAGE):
                assert libc.mprotect(page, PAGE, 0) == 0
            first = (pages + 1) * PAGE - values.nbytes if at_end else PAGE
            array = np.frombuffer(memory, values.dtype, values.size, first)
            array = array.reshape(values.shape)
            array[...] = values
            return array

        def fused(product, after, mask):
            # The product again, with what only passes over a recording ask it to do at its end.
            strides = tuple(s // mask.itemsize for s in mask.strides)
            call = product.with_epilogue(after, strides, [None, None, strides])
            call.place(6, k.address(mask))
            k.Replay([call], mask).run()

        def memory_of(array):
            upwards = array[tuple([slice(None, None, -1 if step < 0 else 1) for step in array.strides])]
            return np.lib.stride_tricks.as_strided(upwards, (array.size,), (array.itemsize,))

        at_end = True
        regions = [guarded(np.zeros(2**20, np.uint8)) for _ in range(4)]

        def images_again(recording):
            # The same, between guards whatever it is bound to: y and the room for its sums, too.
            names = "convolution", "depthwise", "winograd", "pool"
            calls = [call for call in recording.entries if any(name in call.name for name in names)]
            for call in calls:
                for i, (array, region) in enumerate(zip(call.arrays, regions)):
                    if array is not None:
                        values = memory_of(array).view(np.uint8)
                        part = region[region.size - values.size :] if at_end else region[: values.size]
                        part[...] = values if i else 255
                        call.place(i, k.address(part) + k.address(array) - k.address(memory_of(array)))
                        result = part if i == 0 else result
                k.Replay([call], regions).run()
            assert result.tobytes() == memory_of(calls[-1].arrays[0]).tobytes()

        def recurrences_again(recording):
            # The same, between guards whatever they are bound to.
            for call in recording.entries:
                if call.name in ("pack", "rnn", "gru", "lstm", "rnn_grad", "gru_grad", "lstm_grad"):
                    placed = [None if array is None else guarded(array.view(np.ndarray)) for array in call.arrays]
                    for i, array in enumerate(placed):
                        if array is not None:
                            call.place(i, k.address(array))
                    k.Replay([call], placed).run()

        rng = np.random.default_rng(0)
        for at_end, n, dtype in itertools.product((True, False), range(68), (np.float32, np.float64)):
            hyper, state = guarded(np.array([0.1, 0.9, 0.01, 1.0])), guarded(np.arange(1, 5, dtype=np.uint64))
            x, y, one = (guarded(rng.uniform(1, 2, shape).astype(dtype)) for shape in (n, n, ()))
            for kernel in (k.add, k.subtract, k.multiply, k.divide, k.power, k.relu_grad, k.tanh_grad, k.sigmoid_grad,
                           k.maximum, k.minimum, k.equal, k.abs_grad, k.sqrt_grad):
                kernel(x, y, guarded(np.empty(n, dtype)))
            for kernel in (k.copy, k.negative, k.relu, k.abs, k.sqrt, k.exp, k.log, k.tanh, k.sigmoid, k.sin, k.cos):
                kernel(x, guarded(np.empty(n, dtype)))
            for kernel in (k.prod, k.logsumexp):
                kernel(x)
            for kernel in (k.prod_grad, k.logsumexp_grad):
                kernel(one, x)
            k.cumsum(x, 0)
            k.variance(x, scale=0.5)
            k.variance_grad(one, x, scale=0.5)
            k.where(x, y, one)
            k.clip_grad(x, y, 0.5, 1.5)
            k.power_grad_base(x, y, one)
            for kind in ("b1", "u1", "i2", "u4", "i8", "f4", "f8"):
                k.convert(guarded(np.ones(n, kind)), dtype)
            k.softmax(x)
            k.log_softmax_grad(x, y)
            k.add(x, one)
            k.sum(x)
            k.dropout_grad(x, k.next_draw(guarded(np.array([7, 3]))), 0.5)
            images = guarded(np.ones((2, 3, n), dtype))
            for pixels in (1, 9, 99):
                k.shift(images, guarded(np.array([7, n, pixels])), pixels)
                k.cutout(images, guarded(np.array([7, n, pixels])), pixels)
                k.crop(images, guarded(np.array([7, n, pixels])), pixels, n // 2, pixels)
            k.affine(images, guarded(np.tile([[0.8, 0.5], [-0.4, 1.1]], (2, 1, 1))))
            k.flip(images, guarded(np.array([7, n, 0])))
            k.all_finite(x)
            k.ema(x, guarded(np.ones(x.shape, dtype)), 0.9)
            k.limit_norm(x, guarded(k.norm(x, guarded(np.ones(1)))), 2.0)
            steps, of_nadam = guarded(np.array([[n, 0.0]])), guarded(np.array([[n, 0.0, 1.0]]))
            k.count_steps(steps)
            k.count_steps(of_nadam, guarded(np.full(6, 0.1)))
            for name, rule in k.bindings.RULES.items():
                for rows in range(rule.least_state, rule.most_state + 1):
                    own = guarded(np.full(rule.hyper, 0.1)), {0: None, 2: steps, 3: of_nadam}[rule.steps]
                    k.update(name, x, y, guarded(np.ones((rows, n), dtype)) if rows > 0 else None, *own)
                    k.update(name, x, y, guarded(np.ones((rows, n), dtype))[::-1] if rows > 0 else None, *own)
            k.follow(hyper, guarded(np.ones(n + 1)), guarded(np.array([n])))
            # Depthwise, channels last: lines of x that are shorter than a window.
            narrow, dy = (guarded(np.ones((1, 2, m, 32), dtype)).transpose(0, 3, 1, 2) for m in (1, 5))
            window = {"stride": (1, 1), "padding": (1, 3), "dilation": (1, 1), "groups": 32}
            k.convolution(narrow, guarded(np.ones((32, 1, 3, 3), dtype)), (2, 5), **window)
            k.convolution_weight_grad(narrow, dy, guarded(np.empty((32, 1, 3, 3), dtype)), **window)
            for m in (1, 3, 7, 17):
                a, b = guarded(rng.uniform(1, 2, (m, n)).astype(dtype)), guarded(np.ones((n, m), dtype))
                k.matmul(a, b, guarded(np.empty((m, m), dtype)), bias=guarded(np.ones(m, dtype)))
                out, mask = (guarded(rng.uniform(-1, 1, (n, n)).astype(dtype)) for _ in range(2))
                with Recording() as recording:
                    k.matmul(b, a, out, bias=guarded(np.ones(n, dtype)), accumulate=True)
                    k.relu_grad(out, mask, out)
                    k.tanh_grad(out, mask, out)
                for after in recording.entries[1:]:
                    fused(recording.entries[0], after, mask)
                for left in (a, guarded(a.T).T):
                    for right in (b, guarded(b.T).T):
                        k.matmul(left, right)
                        k.matmul(right, left)
                k.matmul(a.T, a)
                k.matmul(guarded(np.ones((m, 5), dtype)), guarded(np.ones((5, n), dtype)))
                if n:
                    x = rng.uniform(1, 2, (1, m, m, n)).astype(dtype).transpose(0, 3, 1, 2)
                    for width, ceil in itertools.product({1, 2, min(m, 3)} - {m + 1}, (False, True)):
                        window = (width, width), (width, width), (0, 0), ceil
                        y, places = k.max_pool(x, *window)
                        with Recording() as recording:
                            k.max_pool_grad(y, places, x, *window)
                        images_again(recording)
                k.matmul_stack(guarded(a[None]), guarded(b[None]), guarded(np.empty((1, m, m), dtype)))
                for axis in (0, 1):
                    k.sum(a, axis)
                    k.softmax(a, axis)
                    k.log_softmax(a, axis)
                    k.softmax_grad(a, a, axis)
                    k.log_softmax_grad(a, a, axis)
                    if n or axis == 0:
                        y, first = k.largest(a, axis)
                        k.extreme_grad(guarded(y), guarded(first), a.shape, axis)
                for heads in (heads for heads in (1, 3) if n and n % heads == 0):
                    q, hidden = guarded(a[None]), guarded(rng.random((1, m)) < 0.7)
                    h, norms, drawn = k.attention(q, q, q, heads, True, hidden, guarded(np.array([7, 3])), 0.2)
                    others = q, guarded(h), guarded(norms), heads, True, hidden, guarded(drawn), 0.2
                    k.attention_grad(q, q, q, *others)
                for heads, d in ((3, 4), (5, 8), (5, 16)) if n == 1 else ():  # short sequences
                    q, hidden = guarded(np.ones((2, m, heads * d), dtype)), guarded(rng.random((2, m)) < 0.7)
                    h, norms, drawn = k.attention(q, q, q, heads, True, hidden, guarded(np.array([7, 3])), 0.2)
                    others = q, guarded(h), guarded(norms), heads, True, hidden, guarded(drawn), 0.2
                    k.attention_grad(q, q, q, *others)
                k.take(a, guarded(np.arange(m)), guarded(np.empty((m, n), dtype)))
                k.take_grad(a, guarded(np.arange(m)), m)
                gapped = guarded(np.ones((m, n + 3), dtype))
                used = guarded(np.zeros(2 * m + 1, np.int64))
                if n:
                    for order in (np.arange(m)[::-1], np.arange(m)[:1].repeat(3)):
                        k.use_rows(used, guarded(order), a, True)
                    own = guarded(np.ones((m, n), dtype)).reshape(-1), guarded(np.ones((2, m * n), dtype))
                    steps = guarded(np.array([[m * n, 1.0]]))
                    k.update("adam", a.reshape(-1), *own, guarded(np.full(5, 0.1)), steps, used)
                    k.limit_norm(own[0], k.norm(own[0], None, None, used), 0.5, used)
                    k.all_finite(own[0], None, used)
                    k.use_rows(used, guarded(np.arange(m)), guarded(np.ones((m, n), dtype)), False)
                k.use_all_rows(used)
                if m == 3:
                    counts, w = np.array([9, 0, 4]), guarded(np.ones((5, n), dtype))
                    numbers = guarded(np.ones(13, dtype)), guarded(np.arange(13, dtype=np.int32) % 5)
                    sparse = make_sparse_rows(Nonzeros(*numbers, None), np.array([0, 9, 9]), counts, 5)
                    assert [k.address(a) for a in sparse.numbers[:2]] == [k.address(a) for a in numbers]
                    rows = guarded(sparse.rows)
                    k.sparse_matmul(rows, w, guarded(np.empty((m, n), dtype)), bias=guarded(np.ones(n, dtype)))
                    k.sparse_matmul_grad(rows, guarded(np.ones((m, n), dtype)), w)
                    k.sparse_matmul_grad(rows, gapped[:, 3:], w, accumulate=True)
                    k.sparse_to_dense(rows)
                    if n:
                        k.use_columns(guarded(np.zeros(11, np.int64)), rows, w, False)
                for part in (gapped[:, 3:], gapped[:, :n]):
                    k.take_grad(part, guarded(np.arange(m)[::-1]), m, guarded(np.ones((m, n), dtype)), accumulate=True)
                k.ravel_index((m, n + 1), guarded(np.arange(m)[:, None]), guarded(np.arange(n)))
                if n in (1, 5, 8, 17, 40) and m < 17:
                    lengths, h = guarded(np.arange(m) % 3 + 1), guarded(np.ones((m, n), dtype))
                    k.cut(guarded(np.ones((m, 3, n), dtype)), lengths)
                    k.pack(guarded(np.ones((m, n), dtype)))
                    layers = (1, k.rnn, k.rnn_grad), (3, k.gru, k.gru_grad), (4, k.lstm, k.lstm_grad)
                    for count, layer, back in layers:
                        gates, w = guarded(np.ones((m, 3, count * n), dtype)), guarded(np.ones((count * n, n), dtype))
                        states = [h] * (1 + (count == 4))
                        of_bias = guarded(np.ones(count * n, dtype))
                        with Recording() as recording:
                            found = layer(gates, w, of_bias, *states, lengths, *[True] * (count > 1))
                            kept = [] if count == 1 else [found[0], found[2]] if count == 3 else [found[2], h]
                            back(gates, w, *kept, guarded(np.ones((m, 3, n), dtype)), *states, lengths)
                        recurrences_again(recording)
                if n:
                    scale = guarded(np.ones(n, dtype))
                    y, of_rows = k.layer_norm(a, scale, scale, 1e-5)
                    k.layer_norm_grad(guarded(y), a, scale, guarded(of_rows))
                    k.layer_norm_sums(guarded(y), a, guarded(of_rows))
                    images = [
                        *(a, guarded(a.reshape(m, n, 1).repeat(2, 2)), guarded(np.ones((2, n, m), dtype))),
                        guarded(np.ones((m, 3, n), dtype)).transpose(0, 2, 1),
                        guarded(np.ones((n, 3, m), dtype)).transpose(2, 0, 1),
                    ]
                    for x, after in itertools.product(images[2:], ((0, 1, 2), (0, 2, 1), (1, 2, 0))):
                        out = guarded(np.empty([x.shape[d] for d in after], dtype))
                        k.copy(x, out.transpose(np.argsort(after)))
                    for x in images:
                        mean, variance = guarded(np.zeros(n, dtype)), guarded(np.ones(n, dtype))
                        moments = k.running_moments(mean, variance, 1e-5)
                        y = k.batch_norm_fixed(x, scale, scale, guarded(moments))
                        k.batch_norm_grad(guarded(y), x, scale, guarded(moments), True)
                        if x.size > n:
                            y, moments = k.batch_norm(x, scale, scale, 1e-5)
                            k.batch_norm_grad(guarded(y), x, scale, guarded(moments))
                            k.update_moments(mean, variance, guarded(moments), x.size // n, 0.1)
                    labels = guarded(rng.integers(0, n, m))
                    _, p = k.softmax_loss(a, labels)
                    k.softmax_loss_grad(guarded(p), labels, one)
                    k.check_labels(labels, n)
                    share = guarded(np.ones(m, dtype))
                    k.hinge_loss(a, labels, 1.0)
                    k.hinge_loss_grad(a, labels, one, 1.0, share)
                    k.softmax_loss_grad(guarded(p), labels, one, share, 0.1, 0)
                    k.soft_loss_grad(k.soft_loss(a, a)[1], a, one, share)
                    for loss, gradient, *number in [
                        (k.mse_loss, k.mse_loss_grad),
                        (k.mae_loss, k.mae_loss_grad),
                        (k.huber_loss, k.huber_loss_grad, 1.0),
                        (k.sigmoid_loss, k.sigmoid_loss_grad, guarded(np.ones(n))),
                        (k.quantile_loss, k.quantile_loss_grad, guarded(np.full(1, 0.5))),
                        (k.poisson_loss, k.poisson_loss_grad),
                    ]:
                        loss(a, a, *number)
                        gradient(a, a, one, *number, share)
                    pairs = guarded(np.ones((m, 2 * n), dtype))
                    k.gaussian_loss(pairs, a)
                    k.gaussian_loss_grad(pairs, a, one, share)
                    k.focal(a, 2.0)
                    k.weighted_mean(share, share, labels, n)
                    k.check_probabilities(a, 9.0, 1e9)
            k.shuffle(guarded(np.arange(n)), state)
            m, window = max(n, 1), {"stride": (1 + n % 2, 1 + n // 2 % 2), "padding": (n % 3, 1)}
            window["dilation"] = 1, 1 + n % 2
            slides = {"stride": (1, 1), "padding": (n % 3, n % 2), "dilation": (1, 1)}
            for images, into, of, groups, kernel, window in [
                *((n, 2, 3, 1, (3, 2), window), (n, 1, 1, 3, (3, 2), window), (n, 33, 2, 1, (3, 2), window)),
                *((n, 1, 1, 33, (3, 2), window), (3, m, 2, 1, (3, 2), window), (3, 2, m, 1, (3, 2), window)),
                *((3, 1, 1, m, (3, 2), window), (17, 33, m, 1, (3, 2), window), (17, m, 33, 1, (3, 2), window)),
                *((2, m, 3, 3, (3, 2), window), (2, 1, 1, 31 + m, (3, 3), slides)),
            ]:
                x = rng.uniform(1, 2, (images, into * groups, 5, 7)).astype(dtype)
                w = rng.uniform(1, 2, (of * groups, into, *kernel)).astype(dtype)
                y = (images, of * groups, *[(l + 2 * p - d * (f - 1) - 1) // s + 1 for l, f, s, p, d in zip(
                    (5, 7), kernel, *window.values(), strict=True)])
                dy = rng.uniform(1, 2, y).astype(dtype)
                for compute, *arguments in [
                    (k.convolution, x, w, y[2:], np.ones(of * groups, dtype)),
                    (k.transposed_convolution, dy, w, (5, 7), np.ones(into * groups, dtype)),
                    (k.convolution_weight_grad, x, dy, np.empty_like(w)),
                ]:
                    with Recording() as recording:
                        result = compute(*arguments, groups=groups, **window)
                    if result.size:
                        images_again(recording)
            window = {"stride": (1, 1), "padding": (n % 3, n % 2), "dilation": (1, 1)}
            into, of, size = 16 + n % 17, 16 + n // 2 % 18, (1 + n % 7, 4 + n % 5)
            kernel = [(3, 3), (1, 3), (1, 5), (5, 1), (3, 1)][n % 5 if min(size) > 4 else 0]
            y = [l + 2 * p - f + 1 for l, p, f in zip(size, window["padding"], kernel)]
            if min(y) > 0:
                x, dy = (rng.uniform(1, 2, (2, c, *s)).astype(dtype) for c, s in ((into, size), (of, y)))
                w, bias = rng.uniform(1, 2, (of, into, *kernel)).astype(dtype), np.ones(of, dtype)
                for kernel, *arguments in [
                    (k.convolution, x, w, tuple(y), bias),
                    (k.transposed_convolution, dy, w, size, np.ones(into, dtype)),
                    (k.convolution_weight_grad, x, dy, np.empty_like(w)),
                ]:
                    with Recording() as recording:
                        kernel(*arguments, **window)
                    images_again(recording)
            kept.clear()
        """,
        CAFFELITE_ISA=isa,
    )
