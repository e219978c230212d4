"""The facts of recorded calls: all that a call says, as data with names."""

import numpy as np

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite._kernels.operations import OPS

F32 = np.float32


class Calls(kernels.Recorder):
    """A recorder that only lists calls."""

    def __init__(self):
        self.entries = []


def record(function, *arrays):
    """Return the facts of the calls that a function makes, as they are recorded, before any pass."""
    recorder = Calls()
    with recorder:
        function(*[np.array(x).view(kernels.RecordedArray) for x in arrays])
    return [call.facts for call in recorder.entries]


def test_a_product_says_its_sizes_strides_and_whether_it_accumulates():
    out = np.zeros((2, 3), F32)
    a, b = np.ones((4, 2), F32), np.ones((4, 3), F32)
    (facts,) = record(lambda: kernels.matmul(a.T, b, out, accumulate=True))
    assert (facts.kernel, facts.op, facts.sizes[:3]) == ("matmul", "nothing", (2, 3, 4))
    assert [strides[:2] for strides in facts.strides[:3]] == [(3, 1), (1, 2), (3, 1)]
    assert facts.accumulates
    assert not facts.rounds


def test_an_elementwise_call_says_its_operation_scalars_and_numbers():
    x = np.ones((2, 3), F32)
    product, clip = record(lambda x: kernels.clip(kernels.multiply(x, 2.5), -1.0, 3.0), x)
    assert (product.kernel, product.op, product.sizes[:4], product.parts) == ("multiply", "multiply", (1, 1, 1, 6), 6)
    assert {i: float(x) for i, x in product.numbers.items()} == {2: 2.5}
    assert (clip.op, clip.scalars, clip.numbers) == ("clip", (-1.0, 3.0), {})


def test_a_convolution_says_its_windows():
    x, w = np.ones((2, 1, 5, 7), F32), np.ones((3, 1, 3, 2), F32)
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    *_, facts = record(lambda: kernels.convolution(x, w, (3, 5), **options))
    assert facts.windows[0]._asdict() == {
        "length": 5,
        "count": 3,
        "kernel": 3,
        "stride": 2,
        "padding": 1,
        "dilation": 1,
    }
    assert facts.windows[1]._asdict() == {
        "length": 7,
        "count": 5,
        "kernel": 2,
        "stride": 1,
        "padding": 0,
        "dilation": 2,
    }


def test_a_conversion_says_what_it_reads():
    (facts,) = record(lambda: kernels.convert(np.ones(3, np.uint8), F32))
    assert (facts.kernel, facts.source) == ("convert", "uint8")


def test_a_fused_call_has_the_operation_and_the_numbers_of_its_epilogue():
    w = cl.Tensor(np.ones((3, 2), F32))
    program = cl.capture(lambda x: ((cl.Tensor(x) @ w) * 0.5, (cl.Tensor(x) @ w).clip(-1, 2)), np.ones((4, 3), F32))
    program.optimize()
    half, clip = [call.call.facts for call in program.optimize().instructions]
    assert (half.kernel, half.op) == (clip.kernel, "multiply")
    assert [float(x) for x in half.numbers.values()] == [0.5]
    assert (clip.op, clip.epilogue_scalars) == ("clip", (-1.0, 2.0))


def test_every_operation_has_the_name_of_its_kernel():
    elementwise = {name for name, kernel in kernels.KERNELS.items() if kernel.loops == "elementwise"}
    assert elementwise - set(OPS) == {"full"}  # a copy of a number


def test_portable_kernels_convolve_as_the_definition_says_on_every_processor():
    x, w = np.random.default_rng(0).normal(size=(2, 32, 6, 6)).astype(F32), np.ones((32, 32, 3, 3), F32)
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    y = kernels.convolution(x, w, (6, 6), **options)
    assert "winograd_convolution" in [f.kernel for f in record(lambda: kernels.convolution(x, w, (6, 6), **options))]
    with kernels.portable_kernels():
        plain = kernels.convolution(x, w, (6, 6), **options)
        calls = record(lambda: kernels.convolution(x, w, (6, 6), **options))
    assert [f.kernel for f in calls] == ["copy", "convolution"]
    np.testing.assert_allclose(plain, y, 1e-4, 1e-4)
    assert kernels.convolution(x, w, (6, 6), **options).strides == y.strides
