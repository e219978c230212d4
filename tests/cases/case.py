"""Case and Family, and the families that several files have."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

import caffelite as cl
from tests.reference import SPECIAL, assert_close, plain_copy, special_values, to_float64

side = st.integers(1, 20)


@dataclass(frozen=True)
class Case:
    """A Function, the shapes of its inputs, its judge, and its counterpart in PyTorch.

    Inputs are ± numbers of `low` to `high`, away from kinks and from each other, so that no maximum is nearly tied.
    """

    make: Callable[[], cl.Function]
    shapes: tuple[tuple[int, ...], ...]  # of the inputs that have a gradient
    judge: Callable
    pytorch: Callable
    low: float = 0.1
    high: float = 2.0
    signed: bool = True
    kinks: tuple[float, ...] = ()  # and 0
    # Further inputs, without a gradient: labels, indices, a mask, weights (floats take the case's dtype).
    held: Callable[[np.random.Generator], Sequence[np.ndarray]] = lambda rng: ()
    # Draws the parameters, where the Function's own draw would be all ones or zeros.
    draw: Callable[[tuple[int, ...], np.random.Generator], np.ndarray] | None = None
    # The keywords of judge and counterpart that come from a Function after forward: the mask that it drew.
    saved: Callable[[cl.Function], dict[str, np.ndarray]] = lambda function: {}
    training: bool = True  # or as in `cl.inference()`
    step: float = 1e-6  # of difference quotients; where f is linear in each number, a large one rounds less
    scale: float = 0.0  # of the terms of a long sum, whose rounding errors add up: `assert_close` allows for them

    def function(self, dtype=np.float64):
        function = self.make()
        if function.parameters():
            cl.Model([function], seed=0, dtype=dtype)
        if self.draw is not None:
            rng = np.random.default_rng(0)
            for p in function.parameters():
                p.data = self.draw(p.shape, rng)
        return function

    def inputs(self, dtype=np.float64, seed=0):
        rng = np.random.default_rng(seed)
        sizes = [math.prod(shape) for shape in self.shapes]
        numbers = np.split(self.numbers(rng, sum(sizes)), np.cumsum(sizes)[:-1]) if sizes else []
        arrays = [x.reshape(shape).astype(dtype) for x, shape in zip(numbers, self.shapes, strict=True)]
        return arrays + [x.astype(dtype) if x.dtype.kind == "f" else x for x in map(np.asarray, self.held(rng))]

    def numbers(self, rng, n):
        # One number in the middle half of each of n equal parts of the interval.
        parts = rng.permutation(n) + rng.uniform(0.25, 0.75, n)
        x = self.low + (self.high - self.low) * parts / max(n, 1)
        x *= rng.choice([-1.0, 1.0], n) if self.signed else 1.0
        for kink in self.kinks:
            x = kink + np.copysign(np.maximum(abs(x - kink), 0.01), x - kink)
        return x

    def mode(self):
        """Return the context in which the Function is applied."""
        return contextlib.nullcontext() if self.training else cl.inference()

    def forward_and_backward(self, function, inputs, dys=None, *, layout=plain_copy):
        """All outputs, a random dy for each, and the gradients of inputs and parameters, by hand."""
        with self.mode():
            y = function.forward(*inputs)
            ys = as_tuple(y)
            dys = tuple(map(layout, random_dys(ys) if dys is None else dys))
            gradients = as_tuple(function.backward(dys if isinstance(y, tuple) else dys[0]))
        gradients = [gradient for gradient in gradients if gradient is not None]
        return ys, dys, [*gradients, *[p.grad for p in function.parameters()]]

    def reference(self, function, inputs):
        """Return the true outputs, and the function from their dy to the true gradients of inputs and parameters.

        Of a Function after forward, with these inputs.
        """
        arrays = [*map(to_float64, inputs), *[to_float64(p.data) for p in function.parameters()]]
        y, backward = self.judge(*arrays, **{name: to_float64(x) for name, x in self.saved(function).items()})
        return as_tuple(y), backward

    def check_against_judge(self, dtype, seed=0):
        """Check that the outputs and all gradients are the judge's, for random inputs and a random dy."""
        function, inputs = self.function(dtype), self.inputs(dtype, seed)
        ys, dys, gradients = self.forward_and_backward(function, inputs)
        truths, backward = self.reference(function, inputs)
        for mine, truth in zip([*ys, *gradients], [*truths, *backward(*map(to_float64, dys))], strict=True):
            assert_close(mine, truth, dtype, self.scale)

    def check_against_pytorch(self, torch, seed=0):
        """Check that the outputs and all gradients are PyTorch's, in float64."""
        function, inputs = self.function(), self.inputs(seed=seed)
        ys, dys, gradients = self.forward_and_backward(function, inputs)
        for mine, theirs in zip([*ys, *gradients], self.pytorchs(torch, function, inputs, dys), strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, 1e-9, 1e-9)

    def pytorchs(self, torch, function, inputs, dys):
        """PyTorch's outputs and then its gradients, for a Function after forward with these inputs."""
        mine = [torch.tensor(x, requires_grad=i < len(self.shapes)) for i, x in enumerate(inputs)]
        parameters = [torch.tensor(p.data, requires_grad=True) for p in function.parameters()]
        saved = {name: torch.tensor(x) for name, x in self.saved(function).items()}
        ys = as_tuple(self.pytorch(torch, *mine, *parameters, **saved))
        torch.autograd.backward(ys, [torch.tensor(dy) for dy in dys])
        leaves = [*mine[: len(self.shapes)], *parameters]
        return [*[y.detach().numpy() for y in ys], *[leaf.grad.numpy() for leaf in leaves]]


def as_tuple(value):
    """Return the value, or what is in a tuple and in the tuples in it."""
    return tuple([leaf for part in value for leaf in as_tuple(part)]) if isinstance(value, tuple) else (value,)


def random_dys(ys):
    rng = np.random.default_rng(1)
    return [np.asarray(rng.uniform(-1, 1, np.shape(y))).astype(y.dtype) for y in ys]


class Family(NamedTuple):
    """The cases of one Function: `build` makes one of its arguments, listed ones or random ones.

    `special` and `special_gradients` give, for a dtype, arguments and inputs with NaN and infinities: y, and the
    gradients for a dy of ones, have them where the judge's have. `refused` has Functions, the shape of an input that
    does not fit, and what the ValueError about it matches.
    """

    build: Callable[..., Case]
    listed: list[tuple]  # size-1 axes and 0-d among them
    empty: list[tuple]  # with axes of size 0
    random: st.SearchStrategy[tuple]
    special: Callable[[Any], list[tuple[tuple, list]]] | None = None
    special_gradients: Callable[[Any], list[tuple[tuple, list]]] | None = None
    refused: Sequence[tuple[Callable[[], cl.Function], tuple[int, ...], str]] = ()

    @property
    def function(self):
        """The class of the Function."""
        return type(self.build(*self.listed[0]).make())


def pairs(values):
    """Two arrays that have every pair of these values."""
    return [np.repeat(values, len(values)), np.tile(values, len(values))]


def elementwise(make, judge, pytorch, special=special_values, **interval):
    """Return a family of a Function of one input, which knows nothing of shapes; `special` gives a dtype's special
    values.
    """

    def build(*shapes):
        return Case(make, shapes, judge, pytorch, **interval)

    def at_special_values(dtype):
        return [(((4,),), [special(dtype)])]

    return Family(
        build,
        listed=[((),), ((4,),), ((2, 3),), ((1, 3, 1),)],
        empty=[((0,),), ((2, 0, 3),)],
        random=st.tuples(hnp.array_shapes(min_dims=0, max_dims=5, max_side=4)),
        special=at_special_values,
        special_gradients=at_special_values,
    )


def broadcast(make, judge, pytorch, **interval):
    """Return a family of a Function of two inputs that broadcast to each other."""

    def build(*shapes):
        return Case(make, shapes, judge, pytorch, **interval)

    shapes = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=5, max_side=4)
    return Family(
        build,
        listed=[
            *[((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3, 1), (1, 4))],
            *[((2, 1, 3), (4, 1)), ((1, 1), (1,)), ((3,), ())],
        ],
        empty=[((0,), (0,)), ((0,), (1,)), ((2, 0, 3), (3,)), ((0,), ()), ((1, 3), (0, 3))],
        random=shapes.map(lambda drawn: drawn.input_shapes),
        special=lambda dtype: [(((3,), (3,)), pairs(special_values(dtype)))],
        special_gradients=lambda dtype: [(((3,), (3,)), pairs(np.array(SPECIAL, dtype)))],
    )
