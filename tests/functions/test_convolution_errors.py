"""Convolutions: sizes, shapes and dtypes that are refused, by layers and by kernels."""

import itertools
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.functions.convolutions import GOOD, TRANSPOSED, every_convolution, uniform
from tests.reference import assert_same_bits, byte_swapped, read_only, unaligned_view

# ---- what is refused ----
NOT_SIZES = [(True, TypeError), (2.0, TypeError), ("2", TypeError), (None, TypeError), (np.float32(2), TypeError)]
NOT_SIZES += [(-1, ValueError), (2**31, ValueError), (10**30, ValueError), ((), ValueError), ((1, 2, 3), ValueError)]
NOT_SIZES += [((2, -1), ValueError), ((2, 2.0), TypeError), ((2, True), TypeError), (np.array([2, 2]), TypeError)]


@every_convolution
@pytest.mark.parametrize("argument", ["kernel_size", "stride", "padding", "dilation"])
@pytest.mark.parametrize(("bad", "error"), NOT_SIZES, ids=lambda value: repr(value))
def test_windows_are_integers_or_one_for_each_axis(layer, argument, bad, error):
    of_a_word = isinstance(bad, str) and argument == "padding" and layer not in TRANSPOSED
    if of_a_word or (layer.axes == 1 and isinstance(bad, tuple) and len(bad) == 2):
        error = ValueError
    with pytest.raises(error, match=f"{layer.__name__}: {argument}"):
        layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: bad})


@every_convolution
@pytest.mark.parametrize("argument", ["kernel_size", "stride", "dilation"])
def test_windows_strides_and_dilations_are_at_least_1(layer, argument):
    with pytest.raises(ValueError, match=f"{layer.__name__}: {argument} takes 1 to"):
        layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: 0})


@every_convolution
@pytest.mark.parametrize("argument", ["in_channels", "out_channels", "groups"])
def test_channels_and_groups_are_positive_integers(layer, argument):
    for bad, error in [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)]:
        with pytest.raises(error, match=f"{layer.__name__}: {argument}"):
            layer(**{"in_channels": 1, "out_channels": 1, "kernel_size": 3, argument: bad})


@every_convolution
def test_groups_divide_the_channels(layer):
    for channels in ((4, 6), (6, 4), (3, 3)):
        with pytest.raises(ValueError, match=f"{layer.__name__}: {channels[0]} and {channels[1]} channels.*4 groups"):
            layer(*channels, 3, groups=4)


@pytest.mark.parametrize("layer", [cl.Conv1d, cl.Conv2d])
def test_no_other_words_than_valid_same_and_causal_are_known(layer):
    words = '"valid", "same", "causal"' if layer is cl.Conv1d else '"valid", "same"'
    for word in ("SAME", "", "full", *(["causal"] if layer is cl.Conv2d else [])):
        with pytest.raises(
            ValueError, match=f"{layer.__name__}: padding takes integers or one of {words}, got '{word}'"
        ):
            layer(1, 1, 3, padding=word)
    with pytest.raises(TypeError, match=f"{layer.__name__}: padding"):
        layer(1, 1, 3, padding=b"same")


def test_a_transposed_convolution_refuses_other_words_and_large_output_padding():
    for word in ("SAME", "valid"):
        with pytest.raises(TypeError, match="ConvTranspose2d: padding takes integers, got"):
            cl.ConvTranspose2d(1, 1, 3, padding=word)
    cl.ConvTranspose2d(1, 1, 3, 2, output_padding=1)
    cl.ConvTranspose2d(1, 1, 3, 1, output_padding=1, dilation=2)
    for stride, dilation, more in ((1, 1, 1), (2, 1, 2), ((2, 1), 1, (0, 1)), (2, 3, (3, 0))):
        with pytest.raises(ValueError, match=r"output_padding must be less than stride or dilation, got") as raised:
            cl.ConvTranspose2d(1, 1, 3, stride, 0, more, dilation=dilation)
        assert str(more) in str(raised.value)
    for bad in (-1, True, 1.0, "1", (1,)):
        with pytest.raises((TypeError, ValueError), match="ConvTranspose2d: output_padding"):
            cl.ConvTranspose2d(1, 1, 3, 2, output_padding=bad)


@pytest.mark.parametrize(
    ("layer", "shape", "named"),
    [
        (cl.Conv2d(2, 3, 3), (4, 3, 8, 8), [r"Conv2d\(2, 3, 3\)", r"\(4, 3, 8, 8\)", r"expected \(n, 2, H, W\)"]),
        (cl.Conv2d(2, 3, 3), (4, 2, 8), [r"\(4, 2, 8\)", r"expected \(n, 2, H, W\)"]),
        (cl.Conv2d(2, 3, 3), (2, 8, 8), [r"\(2, 8, 8\)"]),
        (cl.Conv2d(2, 3, 3), (), [r"\(\)"]),
        (cl.Conv2d(2, 3, 3), (1, 1, 2, 8, 8), [r"\(1, 1, 2, 8, 8\)"]),
        (cl.Conv1d(2, 3, 3), (4, 2, 8, 8), [r"Conv1d\(2, 3, 3\)", r"\(4, 2, 8, 8\)", r"expected \(n, 2, L\)"]),
        (
            cl.Conv2d(1, 1, (3, 5), padding=(0, 1)),
            (1, 1, 3, 2),
            [r"\(3, 5\), padding=\(0, 1\)", "5 pixels", "into 2 and 2"],
        ),
        (cl.Conv2d(1, 1, 3, dilation=4), (1, 1, 8, 9), ["dilation=4", "9 pixels", "into 8 and 0"]),
        (cl.Conv1d(1, 1, 2), (1, 1, 1), [r"Conv1d\(1, 1, 2\)", "2 pixels", "into 1 and 0"]),
        (cl.Conv1d(1, 1, 1), (1, 1, 0), ["1 pixels", "into 0 and 0"]),
        (cl.ConvTranspose2d(2, 3, 3), (4, 3, 8, 8), [r"ConvTranspose2d\(2, 3, 3\)", r"\(4, 3, 8, 8\)"]),
        (
            cl.ConvTranspose2d(1, 1, 3, padding=2),
            (1, 1, 2, 9),
            [r"padding=2\)", r"\(1, 1, 2, 9\)", "padding leaves no pixel"],
        ),
        (cl.ConvTranspose2d(1, 1, 1), (1, 1, 0, 3), [r"\(1, 1, 0, 3\)"]),
        (cl.ConvTranspose1d(2, 3, 3), (4, 2, 8, 8), [r"ConvTranspose1d\(2, 3, 3\)", r"expected \(n, 2, L\)"]),
    ],
    ids=repr,
)
def test_shapes_that_dont_fit_raise_naming_shapes_and_parameters(layer, shape, named):
    for attempt in (lambda: layer.output_shape(shape), lambda: layer.forward(np.zeros(shape, np.float32))):
        for text in named:
            with pytest.raises(ValueError, match=text):
                attempt()


@every_convolution
def test_a_dtype_other_than_the_weights_raises(layer):
    function = layer(2, 3, 3)
    x = np.zeros((1, 2, *[5] * function.axes), np.float32)
    for wrong in (np.float64, np.int64, np.float16, bool, np.complex64, object):
        with pytest.raises(TypeError, match=layer.__name__) as raised:
            function.forward(x.astype(wrong))
        assert "float32" in str(raised.value)
        assert np.dtype(wrong).name in str(raised.value)
    function.forward(x)
    with pytest.raises(TypeError, match="float64"):
        function.backward(np.zeros(function.output_shape(x.shape)))
    assert all(p.grad is None for p in function.parameters())


@every_convolution
def test_a_gradient_of_another_shape_than_the_output_raises(layer):
    for channels in (2, 40):
        function = layer(channels, channels, 3)
        shape = function.forward(uniform(4, channels, *[6] * function.axes)).shape
        for axis, by in itertools.product(range(len(shape)), (-1, 1)):
            wrong = tuple([m + by if d == axis else m for d, m in enumerate(shape)])
            with pytest.raises(ValueError, match=layer.__name__) as raised:
                function.backward(np.ones(wrong, np.float32))
            assert str(wrong) in str(raised.value)
            assert str(shape) in str(raised.value)
        with pytest.raises(ValueError, match=layer.__name__):
            function.backward(np.ones(shape[:-1], np.float32))
        assert all(p.grad is None for p in function.parameters())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on memory as Linux has them")
def test_huge_sizes_raise_at_once_and_without_memory():
    """64 MiB more than the process has, and a few seconds, are enough to say so."""
    program = """
        import resource, signal, sys
        import numpy as np
        import caffelite as cl

        x, series = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 4), np.float32)
        small = cl.Conv2d(1, 1, 3)
        before = small.forward(x)
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[0])
        limit = pages * resource.getpagesize() + 64 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if resource.getrlimit(resource.RLIMIT_AS)[0] != limit:
            sys.exit("no limit")
        signal.alarm(20)
        far = 2**31 - 1

        def enlarged(x):
            return cl.Conv2d(1, 1, 1, padding=2**30)(x)

        attempts = {
            "kernel": (lambda: cl.Conv2d(1, 1, 10**9), ["1000000000"]),
            "long": (lambda: cl.Conv1d(1, 1, 10**9), ["1000000000"]),
            "row": (lambda: cl.Conv2d(1, 1, (1, 10**9)), ["1000000000"]),
            "transposed kernel": (lambda: cl.ConvTranspose2d(1, 1, 10**9), ["1000000000"]),
            "channels": (lambda: cl.Conv2d(10**9, 10**9, 1), ["1000000000"]),
            "many channels": (lambda: cl.Conv2d(10**18, 10**18, 1), ["10**18"]),
            "all channels": (lambda: cl.Conv2d(10**30, 1, 1), ["10**30"]),
            "pads": (lambda: cl.Conv2d(1, 1, 3, padding=2**30).forward(x), ["2**30", "(1, 1, 4, 4)"]),
            "10**15": (lambda: cl.Conv2d(1, 1, 1, padding=16 * 10**6).forward(x), ["16000000", "(1, 1, 4, 4)"]),
            "row of pads": (lambda: cl.Conv1d(1, 1, 1, padding=far).forward(series), ["2147483647", "(1, 1, 4)"]),
            "no images": (lambda: cl.Conv2d(1, 1, 1, padding=2**30).forward(x[:0]), ["2**30", "(0, 1, 4, 4)"]),
            "window": (lambda: cl.Conv2d(1, 1, 2, dilation=far).forward(x), ["2147483648", "(1, 1, 4, 4)"]),
            "dilation": (lambda: cl.Conv2d(1, 1, 2, 1, far, far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "stride": (lambda: cl.ConvTranspose2d(1, 1, 1, far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "spread": (lambda: cl.ConvTranspose2d(1, 1, 2, dilation=far).forward(x), ["2147483647", "(1, 1, 4, 4)"]),
            "recorded": (lambda: cl.capture(enlarged, x), ["2**30"]),
            "gradient": (lambda: small.backward(np.broadcast_to(x[:, :, :1, :1], (1, 1, 2**29, 2**29))), ["2**29"]),
        }
        for name, (attempt, texts) in attempts.items():
            try:
                attempt()
            except ValueError as error:
                for text in texts:
                    assert str(eval(text)) in str(error), (name, str(error))
            else:
                raise AssertionError(name)
        assert (small.forward(x) == before).all()
        assert small.weight.grad is None
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    if done.stderr.strip() == "no limit":
        pytest.skip("memory has no limit here, as under QEMU")
    assert done.returncode == 0, done.stderr


# ---- the kernels' borders ----


@pytest.mark.parametrize("channels", [2, 40])
@pytest.mark.parametrize(
    "bad",
    [
        {"x": (3, 5, 5)},
        {"x": (4, 1, 5, 5)},
        {"x": (5, 5)},
        {"w": (6, 3, 3, 3)},
        {"w": (6, 3, 3)},
        {"w": (6,)},
        {"w": ()},
        {"x": ()},
        {"groups": 0},
        {"groups": -1},
        {"groups": 4},
        {"stride": (1,)},
        {"stride": (0, 1)},
        {"stride": (1, -1)},
        {"padding": (0, -1)},
        {"padding": ()},
        {"dilation": (1, 0)},
        {"dilation": (1, 1, 1)},
        {"shape": (3,)},
        {"shape": (3, 3, 3)},
        {"shape": (3, -1)},
        {"bias": (5,)},
        {"bias": (1, 6)},
    ],
    ids=str,
)
def test_convolutions_of_shapes_that_dont_fit_raise(bad, channels):
    arguments = {"x": (4, channels, 5, 5), "w": (6, channels, 3, 3), "shape": (3, 3), "groups": 1, **GOOD, **bad}
    for name in ("x", "w", "bias"):
        if name in arguments:
            arguments[name] = np.ones(arguments[name], np.float32)
    with pytest.raises(ValueError, match="convolution"):
        kernels.convolution(**arguments)
    if "x" not in bad and "bias" not in bad:
        arguments["x"], arguments["shape"] = np.ones((4, 6, 3, 3), np.float32), bad.get("shape", (5, 5))
        if "w" in bad and len(bad["w"]) == 4:  # the number of channels that it makes follows from w
            return
        with pytest.raises(ValueError, match="convolution"):
            kernels.transposed_convolution(**arguments)


@pytest.mark.parametrize("channels", [2, 40])
def test_gradients_of_weights_that_dont_fit_raise_before_anything_is_written(channels):
    good = {"x": (4, channels, 5, 5), "dy": (4, 6, 3, 3), "out": (6, channels, 3, 3)}
    for name, shape in [
        ("x", (3, channels, 5, 5)),
        ("x", (4, channels + 1, 5, 5)),
        ("x", (4, channels, 5)),
        ("dy", (4, 5, 3, 3)),
        ("dy", (3, 6, 3, 3)),
        ("dy", (4, 6, 3)),
        ("dy", ()),
        ("out", (5, channels, 3, 3)),
        ("out", (6, channels, 3)),
    ]:
        arrays = {key: np.ones(value, np.float32) for key, value in {**good, name: shape}.items()}
        with pytest.raises(ValueError, match="convolution"):
            kernels.convolution_weight_grad(**arrays, **GOOD)
        assert (arrays["out"] == 1).all()


@pytest.mark.parametrize("layout", [read_only, unaligned_view, byte_swapped])
def test_a_gradient_in_memory_that_cannot_be_written_raises(layout):
    out = layout(np.ones((6, 2, 3, 3), np.float32))
    with pytest.raises(ValueError, match="out"):
        kernels.convolution_weight_grad(uniform(4, 2, 5, 5), uniform(4, 6, 3, 3), out, **GOOD)
    assert (out == 1).all()


@pytest.mark.parametrize(("channels", "order"), [(1, (1, 2, 3, 0)), (33, (0, 2, 3, 1))])
def test_a_gradient_into_one_of_its_operands_raises_unless_copied(channels, order):
    shape, dy = (4, channels, 4, 4), uniform(4, 1, 2, 2)
    memory = uniform(math.prod(shape))
    x, out = memory.reshape([shape[axis] for axis in order]), memory[: channels * 9].reshape(1, channels, 3, 3)
    before = memory.copy()
    with pytest.raises(ValueError, match="into one of its operands"):
        kernels.convolution_weight_grad(x.transpose(np.argsort(order)), dy, out, **GOOD)
    assert_same_bits(memory, before)
    expected = kernels.convolution_weight_grad(before.reshape(shape), dy, np.empty_like(out), **GOOD)
    assert_same_bits(kernels.convolution_weight_grad(memory.reshape(shape), dy, out, **GOOD), expected)


def test_convolutions_of_float32_and_float64_do_not_mix():
    x, w, y = np.ones((1, 2, 3, 3), np.float32), np.ones((1, 2, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    for call in [
        lambda: kernels.convolution(x, w.astype(np.float64), (1, 1), **GOOD),
        lambda: kernels.convolution(x, w, (1, 1), np.ones(1), **GOOD),
        lambda: kernels.transposed_convolution(y.astype(np.float64), w, (3, 3), **GOOD),
        lambda: kernels.convolution_weight_grad(x, y.astype(np.float64), w, **GOOD),
        lambda: kernels.convolution_weight_grad(x, y, w.astype(np.float64), **GOOD),
    ]:
        with pytest.raises(TypeError, match=r"convolution.*float32.*float64|convolution.*float64.*float32"):
            call()
    assert (w == 1).all()


# ---- what layers say of the usual mistakes ----
ONE_CHANNEL = ": x[:, None] has an axis for the one channel"
FIRST = ": channels come first, x.transpose"


@pytest.mark.parametrize(
    ("layer", "shape", "expected", "right"),
    [
        (cl.Conv2d(1, 8, 3), (5, 28, 28), f"(n, 1, H, W){ONE_CHANNEL}", lambda x: x[:, None]),
        (cl.Conv1d(1, 8, 3), (5, 128), f"(n, 1, L){ONE_CHANNEL}", lambda x: x[:, None]),
        (cl.Conv2d(3, 8, 3), (5, 8, 9, 3), f"(n, 3, H, W){FIRST}(0, 3, 1, 2)", lambda x: x.transpose(0, 3, 1, 2)),
        (cl.Conv1d(9, 8, 3), (5, 128, 9), f"(n, 9, L){FIRST}(0, 2, 1)", lambda x: x.transpose(0, 2, 1)),
        (cl.Conv2d(3, 8, 3), (5, 28, 28), "(n, 3, H, W)", None),
        (cl.Conv2d(3, 8, 3), (5, 4, 8, 9), "(n, 3, H, W)", None),
    ],
)
def test_a_wrong_input_shape_raises_with_a_hint_for_usual_mistakes(layer, shape, expected, right):
    x = np.ones(shape, np.float32)
    for f, rows in ((layer.forward, "5"), (cl.Model([layer]).predict, "n")):
        with pytest.raises(ValueError, match="expected") as raised:
            f(x)
        said = f"{layer!r} got shape ({rows}, {str(shape)[4:]}; expected {expected}"
        assert str(raised.value) == said
    if right is not None:
        assert layer.forward(right(x)).shape[:2] == (5, 8)
