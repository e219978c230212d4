"""More elements before and after an array, along its axes."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family

MODES = {"zero": "constant", "reflect": "reflect", "replicate": "edge"}  # of the layer, as NumPy calls them


def pad(x, pairs, mode, value):
    """Which element of x each element of y is, −1 for none, by NumPy's own padding of their numbers."""
    options = {"constant_values": -1} if mode == "constant" else {}
    places = np.pad(np.arange(x.size).reshape(x.shape), pairs, mode, **options).ravel()
    options = {"constant_values": value} if mode == "constant" else {}

    def backward(dy):
        return (np.bincount(places[places >= 0], dy.ravel()[places >= 0], minlength=x.size).reshape(x.shape),)

    return np.pad(x, pairs, mode, **options), backward


def pytorchs(torch, x, pairs, mode, value):
    """PyTorch pads some axes in some modes: constants by its `pad`, the others by the places of elements."""
    if mode == "constant":
        return torch.nn.functional.pad(x, [width for pair in reversed(pairs) for width in pair], value=value)
    for axis, pair in enumerate(pairs):
        if any(pair):
            x = x.index_select(axis, torch.tensor(np.pad(np.arange(x.shape[axis]), pair, mode)))
    return x


def padding(shape, widths, mode, value):
    pairs = np.broadcast_to(widths, (len(shape), 2)).tolist()
    return Case(
        lambda: functions.PadAxes(widths, mode, value),
        (shape,),
        lambda x: pad(x, pairs, mode, value),
        lambda torch, x: pytorchs(torch, x, pairs, mode, value),
    )


def layer_padding(shape, widths, mode):
    of_axes = [(widths, widths)] * (len(shape) - 2) if isinstance(widths, int) else widths
    pairs = [(0, 0), (0, 0), *of_axes]
    return Case(
        lambda: functions.Pad(widths, mode),
        (shape,),
        lambda x: pad(x, pairs, MODES[mode], 0),
        lambda torch, x: pytorchs(torch, x, pairs, MODES[mode], 0),
    )


@st.composite
def random_padding(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    pair = st.tuples(st.integers(0, 5), st.integers(0, 5))
    widths = st.lists(pair, min_size=len(shape), max_size=len(shape)).map(tuple)
    widths = draw(st.integers(0, 3) | pair | widths)
    return shape, widths, draw(st.sampled_from(["constant", "reflect", "edge"])), draw(st.sampled_from([0.0, -1.5]))


@st.composite
def random_layer_padding(draw):
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=4, max_side=4))
    pair = st.tuples(st.integers(0, 5), st.integers(0, 5))
    widths = st.integers(0, 3)
    if len(shape) > 2:
        widths |= st.lists(pair, min_size=len(shape) - 2, max_size=len(shape) - 2).map(tuple)
    return shape, draw(widths), draw(st.sampled_from(list(MODES)))


CASES = [
    Family(
        padding,
        listed=[
            *[((3,), 1, "constant", 0.0), ((2, 3), ((1, 0), (0, 2)), "constant", 1.5)],
            *[((3,), (2, 1), "reflect", 0.0), ((2, 3), ((5, 3), (2, 7)), "reflect", 0.0), ((1, 3), 2, "reflect", 0.0)],
            *[((3, 2), (2, 0), "edge", 0.0), ((1, 2, 3), ((1,), (2,), (3,)), "edge", 0.0), ((2, 2), 0, "edge", 0.0)],
        ],
        empty=[
            *[((0, 2), 1, "constant", 2.0), ((3, 0), ((1, 1), (0, 0)), "reflect", 0.0)],
            ((0, 3), ((0, 0), (2, 1)), "edge", 0.0),
        ],
        random=random_padding(),
        refused=[
            (lambda: functions.PadAxes(((1, 2), (3, 4))), (2, 3, 4), "3 axes"),
            (lambda: functions.PadAxes(1, "edge"), (2, 0), "length 0"),
        ],
    ),
    Family(
        layer_padding,
        listed=[
            *[((2, 3, 4, 5), 1, "zero"), ((2, 3, 4), ((2, 1),), "zero"), ((2, 1, 3, 4), ((0, 1), (2, 0)), "reflect")],
            *[((1, 2, 2, 3), ((1, 5), (4, 2)), "reflect"), ((2, 2, 3, 3), 2, "replicate"), ((2, 3), 1, "zero")],
            ((1, 2, 1, 1), 1, "reflect"),
        ],
        empty=[((0, 2, 3), 1, "replicate"), ((2, 0, 3, 3), ((1, 0), (0, 1)), "reflect"), ((2, 1, 0), 2, "zero")],
        random=random_layer_padding(),
    ),
]
