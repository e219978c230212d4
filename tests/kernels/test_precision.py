"""Products with operands rounded to bfloat16: which bits they have, on every processor, and where they are computed."""

import os
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.core.python_callback import call_python
from tests.conftest import bits, classifier, train

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(103, 20)).astype(np.float32), rng.integers(0, 3, 103)


# ---- the judge: loops/bfloat16.h, said once more in NumPy ----


def flush_denormals(x):
    """Denormal numbers become 0."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def round_to_bfloat16(x):
    """To the nearest bfloat16, as float32."""
    words = flush_denormals(x).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def multiply_add(a, b, c):
    """Return a b + c, rounded once: a b is exact in float64, and rounding to 53 bits before that to 24
    changes nothing.
    """
    with np.errstate(all="ignore"):
        return flush_denormals((a.astype(np.float64) * b + c).astype(np.float32))


def product(a, b, start=0):
    """start + a b, of operands rounded to bfloat16, 32 terms at a time: the even and the odd ones, then both."""
    rows, depth, columns = *a.shape, b.shape[1]
    more = -depth % 32
    a, b = np.pad(round_to_bfloat16(a), ((0, 0), (0, more))), np.pad(round_to_bfloat16(b), ((0, more), (0, 0)))
    total = np.zeros((rows, columns), np.float32) + flush_denormals(np.float32(start))
    for block in range(0, depth + more, 32):
        chains = np.zeros((2, rows, columns), np.float32)
        for k in range(block, block + 32):
            chains[k % 2] = multiply_add(a[:, k : k + 1], b[k : k + 1], chains[k % 2])
        total = flush_denormals(total + flush_denormals(chains[0] + chains[1]))
    return total


def test_the_judge_multiplies():
    a, b = rng.normal(size=(9, 77)).astype(np.float32), rng.normal(size=(77, 5)).astype(np.float32)
    np.testing.assert_allclose(product(a, b), a.astype(np.float64) @ b, atol=0.2)
    np.testing.assert_allclose(product(a, b), round_to_bfloat16(a).astype(np.float64) @ round_to_bfloat16(b), atol=1e-4)


# ---- every way on every instruction set ----


def ways():
    """Return the instruction sets here, each with the ways to compute that the processor can."""
    found, before = [], kernels.ISA
    for isa in kernels.available_instruction_sets():
        kernels.use_instruction_set(isa)
        for way in kernels.BFLOAT16_METHODS[1:]:
            with suppress(ValueError):
                kernels.use_bfloat16(way)
                found.append((isa, way))
        kernels.use_bfloat16("fastest")
    kernels.use_instruction_set(before)
    return found


WAYS = ways()


@pytest.fixture(params=WAYS, ids=", ".join)
def way(request):
    before = kernels.ISA
    kernels.use_instruction_set(request.param[0])
    kernels.use_bfloat16(request.param[1])
    yield request.param
    kernels.use_bfloat16("fastest")
    kernels.use_instruction_set(before)


LAYOUTS = {
    "C": lambda x: x,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


def matmul(a, b, out=None, **options):
    with cl.precision("bfloat16"):
        return kernels.matmul(a, b, out, **options)


def same(y, expected):
    assert np.ascontiguousarray(y).tobytes() == expected.tobytes()


DEPTHS = [0, 1, 2, 3, 15, 16, 29, 30, 31, 32, 33, 62, 63, 64, 97, 255, 256, 257, 511, 512, 513, 1030]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_products_of_any_depth_have_the_judges_bits(depth, layout, way):
    a, b = rng.normal(size=(19, depth)).astype(np.float32), rng.normal(size=(depth, 37)).astype(np.float32)
    same(matmul(LAYOUTS[layout](a), LAYOUTS[layout](b)), product(a, b))


SIZES = [1, 2, 6, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 97, 130]


def test_products_of_any_size_and_layout_have_the_judges_bits(way):
    draw = np.random.default_rng(1)
    for rows, columns in [*draw.choice(SIZES, (150, 2)), (3, 511), (5, 513), (40, 1100), (600, 3)]:
        a, b = draw.normal(size=(rows, 45)).astype(np.float32), draw.normal(size=(45, columns)).astype(np.float32)
        of_a, of_b, of_y = draw.choice(list(LAYOUTS), 3)
        y = LAYOUTS[of_y](np.full((rows, columns), np.nan, np.float32))
        same(matmul(LAYOUTS[of_a](a), LAYOUTS[of_b](b), y), product(a, b))


@pytest.mark.parametrize(("scale", "other"), [(1e-18, 1e-19), (1e-19, 1e-19), (1e-38, 1.0), (1e-39, 1e3), (1e19, 3e17)])
def test_products_near_the_ends_of_the_range_have_the_judges_bits(scale, other, way):
    if way[0] == "x86-64-v2":
        pytest.skip("without fused multiply-adds a product is rounded by itself, which tells here")
    for depth in (1, 14, 31, 45, 300):
        a = (scale * rng.normal(size=(40, depth))).astype(np.float32)
        b = (other * rng.normal(size=(depth, 50))).astype(np.float32)
        same(matmul(a, b), product(a, b))


def test_rounding_is_to_the_nearest_and_to_even(way):
    words = np.array([0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000, 0x007FFFFF, 0x80012345, 0x7F7F0000])
    words = np.concatenate([words, rng.integers(0, 0x7F7F0000, 5000)]).astype(np.uint32)
    numbers = words.view(np.float32)[:, None]
    same(matmul(numbers, np.ones((1, 1), np.float32)), round_to_bfloat16(numbers) + np.float32(0))
    assert round_to_bfloat16(numbers)[:6, 0].tolist() == [1, 1, 1, 1.0078125, 1.015625, 0]


def test_infinity_and_nan_stay_at_their_places(way):
    a, b = rng.normal(size=(33, 70)).astype(np.float32), rng.normal(size=(70, 35)).astype(np.float32)
    a[3, 5], a[7, 69], b[11, 2], b[8, 30] = np.inf, np.nan, -np.inf, 3.4e38  # the last one is rounded to infinity
    y = matmul(a, b)
    b[8, 30] = np.inf
    with np.errstate(all="ignore"):
        expected = a.astype(np.float64) @ b
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(expected))
    np.testing.assert_array_equal(np.sign(y[np.isinf(y)]), np.sign(expected[np.isinf(expected)]))


@pytest.mark.parametrize("depth", [5, 300, 700])
def test_bias_and_accumulation_come_after_the_sum(depth, way):
    a, b = rng.normal(size=(40, depth)).astype(np.float32), rng.normal(size=(depth, 50)).astype(np.float32)
    bias, y = rng.normal(size=50).astype(np.float32), rng.normal(size=(40, 50)).astype(np.float32)
    same(matmul(a, b, bias=bias), product(a, b) + bias)
    same(matmul(a, b, y.copy(), accumulate=True, bias=bias), y + (product(a, b) + bias))
    small = np.full(50, 1e-40, np.float32)
    same(matmul(0 * a, b, bias=small), np.tile(small, (40, 1)))  # only the sum knows no denormal numbers


def test_stacks_are_products_one_by_one(way):
    a, b = rng.normal(size=(3, 21, 40)).astype(np.float32), rng.normal(size=(3, 40, 17)).astype(np.float32)
    with cl.precision("bfloat16"):
        stack = kernels.matmul_stack(a, b)
        turned = kernels.matmul_stack(a, np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1))
    same(stack, np.stack([product(*pair) for pair in zip(a, b, strict=True)]))
    same(turned, stack)


@pytest.mark.parametrize("hidden", [1, 17, 40, 530])
def test_recurrent_steps_are_products_with_the_judges_bits(hidden, way):
    draw = np.random.default_rng(2)
    inputs, dy = draw.normal(size=(2, 27, 3, hidden)).astype(np.float32)
    w = (draw.normal(size=(hidden, hidden)) / hidden**0.5).astype(np.float32)
    bias, h = draw.normal(size=hidden).astype(np.float32), draw.normal(size=(27, hidden)).astype(np.float32)
    gates = inputs.copy()
    with cl.precision("bfloat16"):
        before, last = kernels.rnn(gates, w, bias, h)
        dgates, dh = kernels.rnn_grad(gates, w, dy)
    same(before[:, 0], h)
    for t in range(3):
        h = kernels.tanh(kernels.add(inputs[:, t], product(h, w.T) + bias))
        same(gates[:, t], h)
    same(last, h)
    expected = np.zeros_like(h)
    for t in reversed(range(3)):
        d = (expected + dy[:, t]) * (1 - gates[:, t] * gates[:, t])
        np.testing.assert_allclose(dgates[:, t], d, rtol=1e-5, atol=1e-6)  # the kernel may round less often
        expected = product(dgates[:, t], w)
    same(dh, expected)


@pytest.mark.parametrize("layer", [cl.RNN, cl.GRU, cl.LSTM])
def test_a_recurrent_net_has_the_same_bits_in_every_way_and_by_hand(layer):
    x, y = np.random.default_rng(3).normal(size=(37, 5, 20)).astype(np.float32), np.arange(37) % 3
    found = {}
    for isa, way in WAYS:
        kernels.use_instruction_set(isa)
        kernels.use_bfloat16(way)
        model = cl.Model([layer(20, 33), cl.Linear(33, 3)], seed=0)
        train(model, x, y, epochs=2, batch_size=37, shuffle=False, precision="bfloat16")
        by_hand = cl.Model([layer(20, 33), cl.Linear(33, 3)], seed=0)
        optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
        for _ in range(2):
            with cl.precision("bfloat16"):
                optimizer.zero_grad()
                loss(by_hand(x), y).backward()
                optimizer.step()
        found.setdefault(isa, set()).update([bits(model), bits(by_hand)])
        kernels.use_bfloat16("fastest")
    kernels.use_instruction_set(WAYS[0][0])
    assert all(len(different) == 1 for different in found.values())


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("shape", [(300, 200, 190), (190, 200, 300)])
def test_any_number_of_threads_has_the_same_bits(shape, way, monkeypatch):
    rows, depth, columns = shape
    a, b = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, columns)).astype(np.float32)
    assert 2 * rows * depth * columns / 4 > kernels.PARALLEL_WORK
    expected = product(a, b)
    for threads in (1, 2, 3, 8):
        cl.set_num_threads(threads)
        same(matmul(a, b), expected)


def test_a_row_does_not_depend_on_the_rows_beside_it(way):
    a, b = rng.normal(size=(70, 45)).astype(np.float32), rng.normal(size=(45, 37)).astype(np.float32)
    whole = matmul(a, b)
    for rows in (slice(0, 1), slice(3, 4), slice(60, 70), slice(5, 38)):
        same(matmul(a[rows], b), np.ascontiguousarray(whole[rows]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect through the C library")
@pytest.mark.parametrize(("isa", "way"), WAYS, ids=", ".join)
def test_products_read_and_write_nothing_outside_of_their_arrays(isa, way):
    program = """
        import ctypes, mmap
        import numpy as np
        from caffelite import _kernels as k

        PAGE, libc, kept = mmap.PAGESIZE, ctypes.CDLL(None), []
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

        def guarded(values, at_end):
            pages = -(-values.nbytes // PAGE)
            memory = mmap.mmap(-1, (pages + 2) * PAGE)
            kept.append(memory)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            for page in (start, start + (pages + 1) * PAGE):
                assert libc.mprotect(page, PAGE, 0) == 0
            first = (pages + 1) * PAGE - values.nbytes if at_end else PAGE
            array = np.frombuffer(memory, values.dtype, values.size, first).reshape(values.shape)
            array[...] = values
            return array

        for M, K, N in [(1, 1, 1), (5, 33, 7), (33, 17, 35), (16, 32, 16), (97, 31, 49), (3, 515, 47)]:
            for at_end in (False, True):
                for order in range(8):
                    a, b, y = [
                        guarded(np.ones(shape[::-1] if order >> i & 1 else shape, np.float32), at_end)
                        for i, shape in enumerate([(M, K), (K, N), (M, N)])
                    ]
                    a, b, y = [x.T if order >> i & 1 else x for i, x in enumerate([a, b, y])]
                    with k.precision("bfloat16"):
                        k.matmul(a, b, y, bias=guarded(np.ones(N, np.float32), at_end))
                    assert (y == K + 1).all()
    """
    environment = os.environ | {"CAFFELITE_ISA": isa, "CAFFELITE_BFLOAT16": way}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_way_that_does_not_exist_raises():
    with pytest.raises(ValueError, match="'quickly'"):
        kernels.use_bfloat16("quickly")


# ---- the processor's modes ----


@pytest.mark.usefixtures("restored_threads")
def test_denormal_numbers_are_left_to_everybody_else(way):
    cl.set_num_threads(4)
    a = rng.normal(size=(400, 400)).astype(np.float32)
    matmul(a, a)
    small = np.full(2_000_000, 1e-38, np.float32)
    assert (kernels.multiply(small, 0.125) == small[0] * np.float32(0.125)).all()
    assert small[0] * np.float32(0.125) > 0


@pytest.mark.usefixtures("way")
def test_the_gradient_of_relu_passes_where_its_result_is_denormal():
    model = classifier(20, 30, 3)
    first = model.functions[0]
    first.weight.data[...], first.bias.data[...] = 0, 1e-40
    before = first.bias.data.copy()
    train(model, X, Y, epochs=1, batch_size=103, shuffle=False, precision="bfloat16")
    assert (first.bias.data != before).all()


@pytest.mark.parametrize("function", [cl.LeakyReLU(0.01), cl.ReLU(), cl.GELU(), cl.Sigmoid()], ids=repr)
def test_an_epilogue_has_the_bits_of_its_kernel(function, way):
    """Also where its numbers are denormal: the sum is 2e-38, and a hundredth of it is not taken as 0."""
    w = cl.Tensor(rng.normal(size=(30, 40)).astype(np.float32))
    x = rng.normal(size=(33, 30)).astype(np.float32)
    x[:5] *= np.float32(1e-38)
    with cl.precision("bfloat16"):
        step = lambda x: function(cl.Tensor(x) @ w)  # noqa: E731
        expected = step(x).data
        program = cl.capture(step, x)
        same(program(x), expected)
        same(program(x), expected)
    assert "matmul_bfloat16_" in str(program)
    if isinstance(function, cl.LeakyReLU):
        assert (0 < np.abs(expected)[np.abs(expected) > 0].min() < np.finfo(np.float32).tiny).all()


# ---- where it holds ----


def test_the_context_holds_inside_and_ends():
    a = rng.normal(size=(5, 40)).astype(np.float32)
    plain = kernels.matmul(a, a.T)
    short = product(a, a.T)
    assert plain.tobytes() != short.tobytes()
    with cl.precision("bfloat16"):
        same((cl.Tensor(a) @ cl.Tensor(a.T)).data, short)
        with cl.precision("float32"):
            same(kernels.matmul(a, a.T), plain)
        same(kernels.matmul(a, a.T), short)
    same(kernels.matmul(a, a.T), plain)
    with cl.precision("bfloat16"), cl.precision(None):
        same(kernels.matmul(a, a.T), short)
    with pytest.raises(ZeroDivisionError), cl.precision("bfloat16"):
        raise ZeroDivisionError
    same(kernels.matmul(a, a.T), plain)


def test_the_context_is_a_threads_own():
    a, found = rng.normal(size=(5, 40)).astype(np.float32), []
    plain = kernels.matmul(a, a.T)
    with cl.precision("bfloat16"):
        thread = threading.Thread(target=lambda: found.append(kernels.matmul(a, a.T)))
        thread.start()
        thread.join()
    same(found[0], plain)


def test_float64_stays_float64():
    a = rng.normal(size=(5, 40))
    plain = kernels.matmul(a, a.T)
    with cl.precision("bfloat16"):
        same(kernels.matmul(a, a.T), plain)
        same(kernels.matmul_stack(a[None], a.T[None]), plain[None])


@pytest.mark.parametrize("name", ["float16", "float64", "", 16])
def test_another_precision_raises(name):
    with pytest.raises(ValueError, match=r'precision: expected "float32" or "bfloat16", got'):
        cl.precision(name)
    model = classifier(20, 3)
    before = bits(model)
    for use in (lambda: train(model, X, Y, precision=name), lambda: model.predict(X, precision=name)):
        with pytest.raises(ValueError, match=r"precision: expected"):
            use()
    assert bits(model) == before


def test_a_float64_model_raises_before_anything_changes():
    model = classifier(20, 3, dtype=np.float64)
    before = bits(model)
    for use in (
        lambda: train(model, X, Y, precision="bfloat16"),
        lambda: model.predict(X, precision="bfloat16"),
        lambda: model.evaluate(X, Y, loss=cl.SoftmaxLoss(), precision="bfloat16"),
    ):
        with pytest.raises(TypeError, match="for models of float32; this one has dtype float64"):
            use()
    assert bits(model) == before
    model.predict(X, precision="float32")


def net():
    return classifier(20, 40, 40, 3)


def test_fit_has_the_bits_of_steps_by_hand():
    fitted, by_hand = net(), net()
    train(fitted, X, Y, epochs=3, batch_size=32, shuffle=False, precision="bfloat16")
    optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(3):
        for i in range(0, len(X), 32):
            with cl.precision("bfloat16"):
                optimizer.zero_grad()
                loss(by_hand(X[i : i + 32]), Y[i : i + 32]).backward()
                optimizer.step()
    assert bits(fitted) == bits(by_hand)
    plain = net()
    train(plain, X, Y, epochs=3, batch_size=32, shuffle=False)
    assert bits(fitted) != bits(plain)


def test_a_training_has_the_same_bits_in_every_way_of_an_instruction_set():
    found = {}
    for isa, way in WAYS:
        kernels.use_instruction_set(isa)
        kernels.use_bfloat16(way)
        model = net()
        train(model, X, Y, epochs=3, precision="bfloat16")
        found.setdefault(isa, set()).add(bits(model))
        kernels.use_bfloat16("fastest")
    kernels.use_instruction_set(WAYS[0][0])
    assert all(len(different) == 1 for different in found.values())


def test_parameters_and_results_are_not_rounded():
    model = net()
    train(model, X, Y, epochs=2, precision="bfloat16")
    for array in (*[p.data for p in model.parameters()], *[p.grad for p in model.parameters()]):
        assert array.dtype == np.float32
        assert (round_to_bfloat16(array) != array).any()
    assert (round_to_bfloat16(model.predict(X, precision="bfloat16")) != model.predict(X, precision="bfloat16")).any()


def test_predict_and_evaluate_take_a_precision_and_restore_the_one_before():
    model, loss = net(), cl.SoftmaxLoss()
    plain, value = model.predict(X), model.evaluate(X, Y, loss=loss)
    with cl.precision("bfloat16"):
        short, of_short = model.predict(X), model.evaluate(X, Y, loss=loss)
        same(model.predict(X, precision="float32"), plain)
        assert model.evaluate(X, Y, loss=loss, precision="float32") == value
        same(model.predict(X), short)
    assert (plain != short).any()
    for _ in range(2):
        same(model.predict(X, precision="bfloat16"), short)
        same(model.predict(X), plain)
        assert model.evaluate(X, Y, loss=loss, precision="bfloat16") == of_short
        assert model.evaluate(X, Y, loss=loss) == value
    h = X
    for i in (0, 2, 4):
        layer = model.functions[i]
        h = product(h, layer.weight.data) + layer.bias.data
        h = np.maximum(h, 0) if i < 4 else h
    same(short, h)


def test_fit_restores_the_precision_however_it_ends():
    def fail(epoch, history):
        raise ZeroDivisionError

    train(net(), X, Y, precision="bfloat16")
    assert kernels.current_precision() == "float32"
    with pytest.raises(ZeroDivisionError):
        train(net(), X, Y, precision="bfloat16", callbacks=[fail])
    assert kernels.current_precision() == "float32"


def test_validation_has_the_precision_of_the_training():
    model = net()
    history = train(model, X, Y, precision="bfloat16", validation_data=(X, Y))
    value = model.evaluate(X, Y, loss=cl.SoftmaxLoss(), precision="bfloat16")["loss"]
    assert history["val_loss"] == [value]
    assert value != model.evaluate(X, Y, loss=cl.SoftmaxLoss())["loss"]


def test_alternating_precisions_record_no_step_twice():
    model = net()
    for _ in range(3):
        for precision in ("float32", "bfloat16"):
            model.predict(X, precision=precision)
    programs = [
        program for kept in model._model_state.programs._programs.values() for program in kept.programs.values()
    ]
    assert ["bfloat16" in str(program) for program in programs] == [False, True]


def test_a_recorded_program_follows_the_precision():
    w = cl.Tensor(rng.normal(size=(20, 30)).astype(np.float32))
    program = cl.capture(lambda x: cl.Tensor(x) @ w, X)
    plain, short = kernels.matmul(X, w.data), product(X, w.data)
    for _ in range(2):
        same(program(X), plain)
        with cl.precision("bfloat16"):
            same(program(X), short)
            same(program(X), short)


def test_python_between_kernels_computes_in_the_precision_of_its_place():
    w = rng.normal(size=(20, 30)).astype(np.float32)

    class UserProduct(cl.Function):
        def forward(self, x):
            return kernels.matmul(x, w)

        def backward(self, dy):
            return kernels.matmul(dy, w.T)

    model = cl.Model([UserProduct(), cl.ReLU()])
    expected = np.maximum(product(X, w), 0)
    for _ in range(3):
        same(model.predict(X, precision="bfloat16"), expected)
    assert kernels.current_precision() == "float32"

    def step(x):
        with cl.precision("bfloat16"):
            return call_python("own", lambda x: kernels.matmul(x, w), x)

    program = cl.capture(step, X)
    for _ in range(2):
        same(program(X), product(X, w))


def test_many_models_are_trained_in_the_precision_of_the_context():
    def make_training(seed):
        model = classifier(20, 30, 3, seed=seed)
        return model, cl.SGD(model.parameters(), lr=0.1)

    together, alone = [make_training(seed) for seed in range(3)], [make_training(seed) for seed in range(3)]
    with cl.precision("bfloat16"):
        models, optimizers = zip(*together, strict=True)
        cl.fit_many(models, X, Y, loss=cl.SoftmaxLoss(), optimizers=optimizers, shuffle=False, epochs=2)
    for model, optimizer in alone:
        model.fit(
            X, Y, loss=cl.SoftmaxLoss(), optimizer=optimizer, shuffle=False, epochs=2, verbose=0, precision="bfloat16"
        )
    assert [bits(model) for model, _ in together] == [bits(model) for model, _ in alone]


# ---- checkpoints ----


def test_a_training_goes_on_in_its_precision_and_in_no_other(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    whole, model = net(), net()
    train(whole, X, Y, epochs=4, precision="bfloat16")
    train(model, X, Y, epochs=2, precision="bfloat16", callbacks=[cl.callbacks.Checkpoint(path)])
    before = bits(model)
    with pytest.raises(ValueError, match="of a training with another precision: bfloat16, now float32"):
        train(model, X, Y, epochs=4, resume=path)
    assert bits(model) == before
    resumed = net()
    with cl.precision("bfloat16"):
        train(resumed, X, Y, epochs=4, resume=path)
    assert bits(resumed) == bits(whole)


# ---- what it costs ----


def test_a_net_of_digits_learns_as_well():
    (x, y), (tx, ty) = cl.datasets.digits()
    x, tx = x.reshape(len(x), -1), tx.reshape(len(tx), -1)
    accuracy = {}
    for precision in ("float32", "bfloat16"):
        model = classifier(64, 100, 10)
        train(model, x, y, optimizer=cl.Adam(model.parameters()), epochs=15, precision=precision)
        accuracy[precision] = (model.predict(tx, precision=precision).argmax(1) == ty).mean()
    assert abs(accuracy["bfloat16"] - accuracy["float32"]) < 0.02
    assert accuracy["bfloat16"] > 0.93
