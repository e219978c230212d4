"""What the passes drop, fuse and place, and that they change no bit."""

import functools
import itertools
import math

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program import PASSES
from caffelite.program import program as programs
from caffelite.program.ir import RecordedStep
from caffelite.program.passes.place_temporaries import ALIGNMENT
from tests.conftest import training_step
from tests.program.steps import batch, small_net
from tests.reference import assert_same_bits


def test_the_passes_drop_the_gradient_of_the_data_and_fuse_relu():
    model = small_net()
    program = cl.capture(training_step(model, cl.SGD(model.parameters(), lr=0.1)), *batch(0))
    names = [line.split()[0] for line in str(program).splitlines()[2:]]
    assert names.count("matmul_relu") == names.count("matmul_relu_grad") == 2
    assert "relu" not in names
    assert "relu_grad" not in names
    # Three products forward, three for weights, two for activations, none for the data.
    assert sum(name.startswith("matmul") for name in names) == 8


def test_relu_is_not_fused_if_the_product_is_used_elsewhere(passes):
    linear, kept = cl.Linear(3, 4), []

    def step(x):
        h = linear.forward(x)
        kept[:] = [h]
        return kernels.relu(h)

    program = cl.capture(step, batch(0)[0])
    x = batch(1)[0]
    program(x)
    y = program(x)  # the first replay
    h = kept[0].copy()
    assert h.tobytes() == linear.forward(x).tobytes()
    assert y.tobytes() == kernels.relu(h).tobytes()


def test_temporaries_lie_aligned_in_one_block():
    model = small_net()
    program = cl.capture(lambda x: model(x), batch(0)[0])
    temporaries = {operand.buffer for _, operand in program.optimize().operands() if operand.buffer.is_temporary}
    assert len(temporaries) == 2  # the hidden layers; the result is seen from outside
    assert all(buffer.address % ALIGNMENT == 0 for buffer in temporaries)


def test_a_pass_that_forgets_a_write_is_seen_as_nan(monkeypatch):
    """The block of temporaries holds NaN before the first replay."""
    model = small_net()

    def forgetful(step):
        return RecordedStep(step.instructions[1:], step.memory)

    monkeypatch.setattr(programs, "PASSES", [forgetful, *PASSES])
    program = cl.capture(lambda x: model(x), batch(0)[0])
    assert not np.isnan(program(batch(1)[0])).any()  # in Python
    assert np.isnan(program(batch(1)[0])).all()


def test_a_pass_that_is_appended_runs(monkeypatch):
    seen = []

    def look(step):
        seen.append(len(step.instructions))
        return step

    monkeypatch.setattr(programs, "PASSES", [*PASSES, look])
    program = cl.capture(lambda x: cl.relu(cl.Tensor(x)), np.ones(3, np.float32))
    assert len(program) == 1
    assert seen == [1]


EPILOGUES = {
    "relu": lambda y, z, turned: kernels.relu(y),
    "relu in place": lambda y, z, turned: kernels.relu(y, y),
    "tanh": lambda y, z, turned: kernels.tanh(y),
    "its gradient": lambda y, z, turned: kernels.tanh_grad(y, z),
    "masked": lambda y, z, turned: kernels.relu_grad(y, z),
    "masked by a row": lambda y, z, turned: kernels.relu_grad(y, z[0]),
    "masked by a column": lambda y, z, turned: kernels.relu_grad(y, z[:, :1]),
    "as a mask": lambda y, z, turned: kernels.relu_grad(z, y),
    "masked by a view": lambda y, z, turned: kernels.relu_grad(y, turned),
    "a row added": lambda y, z, turned: kernels.add(y, z[0]),
    "added to a row": lambda y, z, turned: kernels.add(z[:1], y),
    "a row added, then relu": lambda y, z, turned: kernels.relu(kernels.add(y, z[0])),
    "a strided row added": lambda y, z, turned: kernels.add(y, turned[0]),
    "a column added": lambda y, z, turned: kernels.add(y, z[:, :1]),
    "a number subtracted from": lambda y, z, turned: kernels.subtract(0.5, y),
    "squared": lambda y, z, turned: kernels.multiply(y, y),
    "gelu": lambda y, z, turned: kernels.gelu(y)[0],
    "the slope of gelu": lambda y, z, turned: kernels.gelu(y)[1],
    "clipped": lambda y, z, turned: kernels.clip(y, -0.5, 0.25),
    "three inputs": lambda y, z, turned: kernels.where(z, y, -1.0),
    "three inputs, all the product": lambda y, z, turned: kernels.where(y, y, y),
    "a chain": lambda y, z, turned: kernels.multiply(kernels.tanh(kernels.add(y, z[0])), z),
}
SEVERAL = {"a chain", "a row added, then relu"}  # one is done in the product, or two where nobody sees it
TURNED = {"masked by a view", "a strided row added"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5, 7, 3), (40, 300, 3), (3, 20, 100), (130, 40, 50), (1, 9, 9), (100, 3, 1)])
@pytest.mark.parametrize("kept", [False, True], ids=["nobody sees the product", "somebody sees it"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_elementwise_steps_after_a_product_are_fused_to_the_bit(epilogue, kept, shape, dtype):
    m, k, n = shape

    def step(a, b, z):
        turned = kernels.copy(z.T).T
        y = kernels.matmul(a, b)
        after = EPILOGUES[epilogue](y, z, turned)
        return (y, after) if kept else after

    def data(seed):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n))]

    program = cl.capture(step, *data(0))
    products = [line.split()[0] for line in str(program).splitlines()[2:]]
    if epilogue not in SEVERAL:
        assert products == ["copy"] * (epilogue in TURNED) + [products[-1]]
        assert products[-1].startswith("matmul")
    for seed in (1, 2):
        results, expected = program(*data(seed)), step(*data(seed))
        for result, same in zip(results, expected, strict=True):
            assert result.tobytes() == same.tobytes()


OF_MORE_AXES = {  # and whether it is done in the product
    "gelu": (lambda y, z: kernels.gelu(y), True),
    "gelu in place": (lambda y, z: kernels.gelu(y, y), True),
    "gelu, of which nobody sees the slope": (lambda y, z: kernels.gelu(y)[0], True),
    "gelu and a product with its slope": (lambda y, z: kernels.multiply(z, kernels.gelu(y)[1]), True),
    "added": (lambda y, z: kernels.add(z, y), True),
    "masked by a copy in another order": (lambda y, z: kernels.relu_grad(y, kernels.copy(z.T).T), False),
    "a row added": (lambda y, z: kernels.add(y, z[0, 0, 0]), True),
    "a number for each row added": (lambda y, z: kernels.add(y, z[..., :1]), True),
    "rows added, the same to each matrix": (lambda y, z: kernels.add(y, z[0, 0]), False),
    "a row to each matrix added": (lambda y, z: kernels.add(y, z[:, :, :1]), False),
}


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 4, 5), (2, 1, 1, 5)])
@pytest.mark.parametrize("epilogue", OF_MORE_AXES)
def test_elementwise_steps_after_a_product_of_more_axes_are_fused_to_the_bit(epilogue, shape):
    after, fused = OF_MORE_AXES[epilogue]

    def step(a, b, z):
        return after(kernels.matmul(a, b).reshape(z.shape), z)

    def data(seed):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(s).astype(np.float32) for s in ((math.prod(shape[:3]), 7), (7, 5), shape)]

    program = cl.capture(step, *data(0))
    if shape == (2, 3, 4, 5):
        assert ("\nmatmul_" in str(program) or (epilogue == "a row added" and len(program) == 1)) == fused
    for seed in (1, 2):
        for result, same in zip(several(program(*data(seed))), several(step(*data(seed))), strict=True):
            assert_same_bits(result, same)


def several(results):
    return results if isinstance(results, tuple) else (results,)


def convolution(x, w, shape):
    return kernels.convolution(x, w, shape, w[:, 0, 0, 0], stride=(1, 1), padding=(1, 1), dilation=(1, 1))


def transposed_convolution(x, w, shape):
    return kernels.transposed_convolution(x, w, shape, stride=(1, 1), padding=(1, 1), dilation=(1, 1))


def convolved_depthwise(x, w, shape, of=kernels.convolution):
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": w.shape[0]}
    return of(x, w[:, :1], shape, w[:, 0, 0, 0], **window)


def pool_back(x, w, shape):
    pooled, places = kernels.max_pool(x, (2, 2), (2, 2), (0, 0))
    return kernels.max_pool_grad(pooled, places, x, (2, 2), (2, 2), (0, 0))


MAKERS = {
    "convolution": convolution,
    "transposed_convolution": transposed_convolution,
    "depthwise": convolved_depthwise,
    "transposed_depthwise": functools.partial(convolved_depthwise, of=kernels.transposed_convolution),
    "max_pool_grad": pool_back,
    "batch_norm": lambda x, w, shape: kernels.batch_norm(x, w[:, 0, 0, 0], w[:, 1, 0, 0], 0.1)[0],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize("kept", [False, True], ids=["nobody sees the result", "somebody sees it"])
@pytest.mark.parametrize("epilogue", [name for name in EPILOGUES if not {"row", "column", "view"} & set(name.split())])
@pytest.mark.parametrize("maker", MAKERS)
def test_elementwise_steps_after_a_kernel_on_images_are_fused_to_the_bit(maker, epilogue, kept, channels, dtype):
    if maker.endswith("depthwise") and channels < 32:
        pytest.skip("these are convolutions of images last")

    def data(seed):
        rng = np.random.default_rng(seed)
        shapes = (5, channels, 6, 7), (channels, channels, 3, 3), (5, channels, 6, 7)
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def step(x, w, z):
        x, z = kernels.to_conv_layout(x, w, 1), kernels.to_conv_layout(z, w, 1)
        y = MAKERS[maker](x, w, (6, 7))
        after = EPILOGUES[epilogue](y, z, z)
        return (y, after) if kept else after

    program = cl.capture(step, *data(0))
    names = [line.split()[0] for line in str(program).splitlines()[2:]]
    assert epilogue in SEVERAL or any(name.startswith((f"{maker}_", "winograd_convolution_")) for name in names), names
    for seed in (1, 2):
        results, expected = program(*data(seed)), step(*data(seed))
        for result, same in zip(results, expected, strict=True):
            assert result.tobytes() == same.tobytes()


def test_a_step_whose_operand_changes_in_between_is_not_fused(passes):
    z = np.ones((4, 4), np.float32)

    def changed_mask(a, b):
        mask = kernels.copy(z)
        y = kernels.matmul(a, b)
        kernels.copy(a, mask)
        return kernels.relu_grad(y, mask)

    def changed_product(a, b):
        y = kernels.matmul(a, b)
        kernels.add(y, 1.0, y)
        return kernels.tanh(y)

    def read_before(a, b):
        y, out = kernels.matmul(a, b), kernels.copy(a)
        total = kernels.sum(out)
        return kernels.relu(y, out), total

    for step in (changed_mask, changed_product, read_before):
        rng = np.random.default_rng(0)
        first, second = rng.standard_normal((2, 2, 4, 4)).astype(np.float32)
        results = cl.capture(step, *first)(*second)
        for result, same in zip(results, step(*second), strict=True):
            assert result.tobytes() == same.tobytes()


def test_memory_that_nobody_reads_any_more_serves_again():
    """Twelve layers: no more than a tenth above the largest sum of what is alive at once."""
    sizes = [64, 200, 180, 30, 500, 128, 64, 96, 300, 24, 128, 80, 10]
    model = cl.Model([f for a, b in itertools.pairwise(sizes) for f in (cl.Linear(a, b), cl.Tanh())])
    step = training_step(model, cl.SGD(model.parameters(), lr=0.1))
    program = cl.capture(step, np.ones((50, 64), np.float32), np.arange(50) % 10)
    lives = {}
    for i, operand in program.optimize().operands():
        if operand.buffer.is_temporary:
            lives.setdefault(operand.buffer, [i, i])[1] = i
    largest = max(sum(b.nbytes for b, (begin, end) in lives.items() if begin <= i <= end) for i in range(len(program)))
    block = program.optimize().memory[-1].nbytes
    assert largest < block <= 1.1 * largest
    assert block < 0.8 * sum(b.nbytes for b in lives)
    for one, (begin, end) in lives.items():
        for other, (other_begin, other_end) in lives.items():
            if one is not other and begin <= other_end and other_begin <= end:
                assert one.address + one.nbytes <= other.address or other.address + other.nbytes <= one.address


def test_the_kernel_that_relu_is_fused_into_does_not_write_what_it_reads():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((600, 600)).astype(np.float32)

    def step(x):
        h = kernels.copy(x)
        return kernels.relu(kernels.matmul(h, w), out=h)

    x = rng.standard_normal((600, 600)).astype(np.float32)
    assert cl.capture(step, x)(x).tobytes() == kernels.relu(kernels.matmul(x, w)).tobytes()


@pytest.mark.parametrize("k", [30, 300])
def test_the_kernel_that_a_mask_is_fused_into_does_not_write_its_mask(k):
    rng = np.random.default_rng(0)
    a, b, mask = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, k), (k, 20), (20, 20)))
    kept = mask.copy()
    program = cl.capture(lambda a, b: kernels.relu_grad(kernels.matmul(a, b), kept, kept), a, b)
    kept[...] = mask
    assert program(a, b).tobytes() == kernels.relu_grad(kernels.matmul(a, b), mask).tobytes()


def test_a_buffer_is_temporary_only_when_all_that_is_read_was_written():
    def halves(x):
        both = np.empty(4, np.float32)
        kernels.copy(x, both[:2])
        first = kernels.sum(both[:2])
        kernels.copy(x, both[2:])
        return kernels.add(kernels.sum(both), first)

    def one_half_twice(x):
        both = np.zeros(4, np.float32)
        kernels.copy(x, both[:2])
        kernels.copy(x, both[:2])
        return kernels.sum(both)

    x = np.array([1, 2], np.float32)
    assert cl.capture(halves, x)(2 * x) == 18
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(one_half_twice, x)


def test_a_buffer_is_written_when_parts_with_gaps_make_up_all_of_it():
    def columns(x):
        both = np.empty((2, 2), np.float32)
        kernels.copy(x, both[:, 0])
        kernels.copy(x, both[::-1, 1])
        return kernels.sum(both)

    def one_column_twice(x):
        both = np.zeros((2, 2), np.float32)
        kernels.copy(x, both[:, 0])
        kernels.copy(x, both[::-1, 0])
        return kernels.sum(both)

    x = np.array([1, 2], np.float32)
    assert cl.capture(columns, x)(2 * x) == 12
    with pytest.raises(TypeError, match="NumPy made inside"):
        cl.capture(one_column_twice, x)
