"""check_gradients: what it accepts, what it catches, what it leaves alone. `test_functions` checks all Functions."""

import re
from contextlib import nullcontext

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.reference import LAYOUTS, WIDE, assert_same_bits


class Square(cl.Function):
    """y = x², with a slope that a test may spoil."""

    def __init__(self, slope=lambda x: 2 * x):
        self.slope = slope

    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return dy * self.slope(self.x)


class Scale(cl.Function):
    """y = factor · x, whose gradient of the factor a test may spoil."""

    def __init__(self, spoil=lambda g: g):
        self.factor = cl.Tensor([2.0, 3.0, 4.0], requires_grad=True, name="factor")
        self.spoil = spoil

    def parameters(self):
        return [self.factor]

    def forward(self, x):
        self.x = x
        return self.factor.data * x

    def backward(self, dy):
        g = self.spoil((dy * self.x).sum(axis=0))
        if g is not None:
            self.factor.add_grad(g)
        return dy * self.factor.data


X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_a_right_backward_passes_with_the_largest_error():
    error = cl.check_gradients(Square(), X)
    assert type(error) is float
    assert 0 < error < 1e-7
    assert cl.check_gradients(Scale(), X) < 1e-7


def test_the_largest_error_is_absolute_and_over_everything():
    assert cl.check_gradients(Square(lambda x: 2 * x + 0.1), X, atol=1) == pytest.approx(0.15, rel=0.1)
    # The sum over two rows of a dy between 0.5 and 1.5, so the factor's own gradient is off by what was added to it.
    assert cl.check_gradients(Scale(lambda g: g + 0.25), X, atol=1) == pytest.approx(0.25, rel=1e-6)


def test_the_step_is_as_long_as_the_rounded_numbers_lie_apart():
    """x ± eps are rounded, to some 1e-10 of eps: a gradient that a thousand outputs add up to would be 1e-7 off."""
    assert cl.check_gradients(lambda x: x + np.zeros(1000), [2.7]) < 1e-9


def test_numbers_too_large_to_be_varied_pass_if_the_gradient_is_0():
    assert cl.check_gradients(lambda x: x.clip(-1, 1), [1e12, -1e300, np.inf, 0.5]) < 1e-7


def test_it_is_the_same_every_time():
    assert cl.check_gradients(Square(), X) == cl.check_gradients(Square(), X)
    assert cl.check_gradients(cl.SoftmaxLoss(), X, [0, 2]) == cl.check_gradients(cl.SoftmaxLoss(), X, [0, 2])


def spoil_gradient(index, amount):
    def slope(x):
        right = 2 * x
        right[index] += amount
        return right

    return slope


@pytest.mark.parametrize("index", [(0, 0), (0, 2), (1, 1)])
def test_one_wrong_element_is_named_with_both_numbers(index):
    with pytest.raises(AssertionError) as raised:
        cl.check_gradients(Square(spoil_gradient(index, 1e-3)), X)
    message = str(raised.value)
    assert "Square()" in message
    assert "input 0" in message
    assert str(index) in message
    analytic, numeric = map(float, re.findall(r"-?\d+\.\d+", message))
    assert 0.5e-3 < analytic - numeric < 1.5e-3


def test_the_worst_element_is_the_one_named():
    def slope(x):
        right = 2 * x
        right[0, 1] += 0.01
        right[1, 2] += 0.1
        return right

    with pytest.raises(AssertionError, match=r"\(1, 2\)"):
        cl.check_gradients(Square(slope), X)


def test_a_wrong_gradient_of_a_parameter_is_named():
    def spoil(g):
        return g + np.array([0, 0, 1e-3])

    with pytest.raises(AssertionError, match=r"factor.*\(2,\)"):
        cl.check_gradients(Scale(spoil), X)


def test_a_missing_gradient_is_wrong():
    with pytest.raises(AssertionError, match="factor"):
        cl.check_gradients(Scale(lambda g: None), X)

    class Forgetful(Square):
        def backward(self, dy):
            return None

    with pytest.raises(AssertionError, match="no gradient for its first input"):
        cl.check_gradients(Forgetful(), X)
    with pytest.raises(TypeError, match=r"Forgetful.*returned None"):
        cl.check_gradients(lambda x: Forgetful()(x), X)


def test_an_input_that_backward_has_no_gradient_for_is_held_fixed():
    class SquaredError(cl.Function):
        def forward(self, scores, targets):
            self.difference = scores - targets
            return np.mean(self.difference**2)

        def backward(self, dy=1.0):
            return dy * 2 * self.difference / self.difference.size

    assert cl.check_gradients(SquaredError(), X, X[::-1]) < 1e-7


def test_a_gradient_of_0_has_to_be_returned_too():
    class Constant(cl.Function):
        def forward(self, x):
            return np.ones_like(x)

        def backward(self, dy):
            return np.zeros_like(dy)

    assert cl.check_gradients(Constant(), X) == 0


def test_nothing_to_check_is_an_error():
    with pytest.raises(TypeError, match="no float input"):
        cl.check_gradients(Square(), [1, 2])


def test_the_gradient_of_the_output_is_not_constant():
    """A backward that puts dy in the wrong places would pass with ones."""

    class Reversed(cl.Function):
        def forward(self, x):
            return x * 2

        def backward(self, dy):
            return 2 * dy[::-1]

    with pytest.raises(AssertionError, match="input 0"):
        cl.check_gradients(Reversed(), X)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_fails(bad):
    with pytest.raises(AssertionError, match=r"\(0, 1\)"):
        cl.check_gradients(Square(spoil_gradient((0, 1), bad)), X)


def test_a_function_that_is_not_finite_around_the_point_fails():
    for function, x in [(lambda t: t**0.5, -1.0), (lambda t: t**0.5, 0.0)]:
        with pytest.raises(AssertionError, match="input 0"):
            cl.check_gradients(function, np.array([1.0, x]))


def test_tolerances_and_eps_are_used():
    wrong = Square(spoil_gradient((0, 0), 1e-3))
    with pytest.raises(AssertionError):
        cl.check_gradients(wrong, X)
    assert cl.check_gradients(wrong, X, atol=1e-2) > 1e-4
    assert cl.check_gradients(wrong, X, rtol=1e-1) > 1e-4

    class Cube(Square):
        def forward(self, x):
            self.x = x
            return x**3

    cube = Cube(lambda x: 3 * x**2)
    assert cl.check_gradients(cube, X, eps=1e-2, atol=1e-3) == pytest.approx(1e-4, rel=0.6)  # dy · eps²
    assert cl.check_gradients(cube, X) < 1e-7


def test_functions_that_return_views_pass():
    """The output must not follow the input while the input is moved."""
    assert cl.check_gradients(functions.ToShape(3, 2), X) < 1e-7
    assert cl.check_gradients(lambda t: t.T, X) < 1e-7

    class Identity(cl.Function):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

    assert cl.check_gradients(Identity(), X) < 1e-7


def test_integer_inputs_are_held_fixed():
    seen = []

    class Gather(cl.Function):
        def forward(self, x, rows):
            seen.append(rows)
            self.shape, self.rows = x.shape, rows
            return x[rows]

        def backward(self, dy):
            dx = np.zeros(self.shape)
            np.add.at(dx, self.rows, dy)
            return dx

    rows = np.array([1, 0, 1, 1])
    assert cl.check_gradients(Gather(), X, rows) < 1e-7
    assert all(np.asarray(r).dtype.kind == "i" for r in seen)
    assert rows.tolist() == [1, 0, 1, 1]


def test_a_function_gets_arrays_and_a_callable_gets_tensors():
    class Arrays(Square):
        def forward(self, x):
            assert type(x) is np.ndarray
            assert x.dtype == np.float64
            return super().forward(x)

    def tensors(a, b):
        assert type(a) is type(b) is cl.Tensor
        assert a.dtype == np.float64
        return (a * b).sum()

    assert cl.check_gradients(Arrays(), X.astype(np.float32)) < 1e-7
    assert cl.check_gradients(tensors, X, X.tolist()) < 1e-7


def test_models_and_calls_of_layers_are_checked_too():
    model = cl.Model([cl.Linear(3, 4), Square(), cl.Linear(4, 2)], seed=0)
    assert cl.check_gradients(model, X) < 1e-7

    class SpoiledLinear(cl.Linear):
        def backward(self, dy):
            dx = super().backward(dy)
            self.bias.add_grad(np.full(self.bias.shape, 1e-3))
            return dx

    with pytest.raises(AssertionError, match="bias"):
        cl.check_gradients(cl.Model([cl.Linear(3, 4), SpoiledLinear(4, 2)], seed=0), X)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_inputs_are_left_alone(layout):
    for dtype in (np.float32, np.float64):
        x = layout(X.astype(dtype))
        cl.check_gradients(Square(), x)
        assert_same_bits(x, layout(X.astype(dtype)))
    t = cl.Tensor(X, requires_grad=True)
    t.add_grad(np.ones(X.shape))
    cl.check_gradients(Square(), t)
    assert_same_bits(t.data, X)
    assert_same_bits(t.grad, np.ones(X.shape))


@pytest.mark.parametrize("before", [None, [7.0, 8.0, 9.0]])
@pytest.mark.parametrize("error", [None, AssertionError, ZeroDivisionError])
def test_parameters_and_their_gradients_are_left_alone(error, before):
    def spoil(g):
        return g + 1 if error is AssertionError else g if error is None else g + 1 // 0

    scale = Scale(spoil)
    if before is not None:
        scale.factor.add_grad(before)
    memory, gradient = scale.factor.data, scale.factor.grad
    with nullcontext() if error is None else pytest.raises(error):
        cl.check_gradients(scale, X)
    assert scale.factor.data is memory
    assert scale.factor.grad is gradient
    assert memory.dtype == np.float32
    assert memory.tolist() == [2, 3, 4]
    assert before is None or gradient.tolist() == before


def test_gradients_of_what_a_callable_uses_are_left_alone():
    w = cl.Tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    w.add_grad([7, 8, 9])
    assert cl.check_gradients(lambda x: x * w, X) < 1e-7
    assert w.grad.tolist() == [7, 8, 9]


def test_a_graph_made_before_can_still_go_back():
    scale = Scale()
    x = cl.Tensor(X.astype(np.float32), requires_grad=True)
    y = scale(x)
    cl.check_gradients(scale, x)
    y.sum().backward()
    assert scale.factor.grad.tolist() == [2, -0.75, 1.25]


def test_the_function_itself_keeps_nothing():
    square = Square()
    before = vars(square).copy()
    cl.check_gradients(square, X)
    assert vars(square) == before


def test_a_function_that_computes_in_float32_cannot_be_checked():
    with pytest.raises(TypeError, match="float32 from float64"):
        cl.check_gradients(lambda t: cl.Tensor(t.data.astype(np.float32), requires_grad=True), X)


def test_odd_inputs_raise():
    for x in (X.astype(complex), X.astype(WIDE)):
        with pytest.raises(TypeError):
            cl.check_gradients(Square(), x)


def test_arrays_without_elements_have_no_error():
    assert cl.check_gradients(Square(), np.zeros((0, 3))) == 0


@pytest.mark.parametrize("options", [{"rtol": np.nan}, {"atol": np.nan}, {"eps": np.nan}, {"eps": 0}, {"rtol": -1}])
def test_tolerances_that_compare_with_nothing_raise(options):
    with pytest.raises(ValueError, match="eps > 0"):
        cl.check_gradients(Square(lambda x: 3 * x), X, **options)


def test_a_constant_has_gradient_0_and_a_detached_result_a_wrong_one():
    assert cl.check_gradients(lambda x: cl.Tensor(np.ones(2)), X) == 0
    with pytest.raises(AssertionError, match="is 0, numerically"):
        cl.check_gradients(lambda x: (x * x).detach(), X)


@pytest.mark.parametrize("returned", [np.ones(2), None, 1.0])
def test_a_callable_has_to_return_a_tensor(returned):
    with pytest.raises(TypeError, match=f"returned {type(returned).__name__}; it has to return a Tensor"):
        cl.check_gradients(lambda x: returned, X)


def test_inside_no_grad_gradients_are_checked_all_the_same():
    with cl.no_grad():
        assert cl.check_gradients(lambda x: x * x, X) < 1e-7
        with pytest.raises(AssertionError):
            cl.check_gradients(lambda x: Square(lambda x: x)(x), X)
        assert not (cl.Tensor(X, requires_grad=True) * 2).requires_grad


# ---- several outputs, buffers, children -----------------------------------------------------------------------------


class SumAndProduct(cl.Function):
    """a + b and a b, whose gradients a test may spoil."""

    def __init__(self, spoil=lambda da, db: (da, db)):
        self.spoil = spoil

    def forward(self, a, b):
        self.a, self.b = a, b
        return a + b, a * b

    def backward(self, dy):
        assert isinstance(dy, tuple)
        d_sum, d_product = dy
        return self.spoil(d_sum + d_product * self.b, d_sum + d_product * self.a)


def test_a_function_with_several_outputs_gets_a_gradient_of_each():
    assert cl.check_gradients(SumAndProduct(), X, X[::-1]) < 1e-7


@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_gradient_of_a_function_with_several_outputs_is_found(which):
    def spoil(*gradients):
        gradients[which][1, 2] += 1e-3
        return gradients

    with pytest.raises(AssertionError, match=rf"input {which} at \(1, 2\)"):
        cl.check_gradients(SumAndProduct(spoil), X, X[::-1])


def test_each_output_has_a_gradient_of_its_own():
    """A backward that takes one output's gradient for the other's would pass if both were the same."""

    class Twice(cl.Function):
        def forward(self, x):
            return 2 * x, 3 * x

        def backward(self, dy):
            return 3 * dy[0] + 2 * dy[1]

    with pytest.raises(AssertionError, match="input 0"):
        cl.check_gradients(Twice(), X)


def test_a_callable_may_return_several_tensors():
    w = cl.Tensor(np.full((3, 2), 0.5), requires_grad=True)
    assert cl.check_gradients(lambda a, b: (a * b, cl.tanh(a @ w), b.sum()), X, X + 1) < 1e-7
    assert w.grad is None
    with pytest.raises(AssertionError, match="input 0"):
        cl.check_gradients(lambda x: (x.exp(), Square(spoil_gradient((0, 1), 1e-3))(x)), X)
    with pytest.raises(TypeError, match="returned float; it has to return a Tensor"):
        cl.check_gradients(lambda x: (x.exp(), 1.0), X)


def test_outputs_are_all_float64():
    class Half(SumAndProduct):
        def forward(self, a, b):
            return a + b, (a * b).astype(np.float32)

    with pytest.raises(TypeError, match="float32 from float64"):
        cl.check_gradients(Half(), X, X)


class RandomMask(cl.Function):
    """y = m x, m drawn anew in each forward, as many times as a counter says."""

    def __init__(self):
        self.counter = np.array([7])

    def buffers(self):
        return {"counter": self.counter}

    def forward(self, x):
        self.mask = np.random.default_rng(self.counter).uniform(1, 2, x.shape)
        self.counter += 1
        return x * self.mask

    def backward(self, dy):
        return dy * self.mask


def test_random_draws_repeat_and_their_counter_stays():
    function = RandomMask()
    assert cl.check_gradients(function, X) < 1e-7
    assert function.counter.tolist() == [7]


def test_a_function_of_functions_is_checked_with_their_parameters():
    class Block(cl.Function):
        def __init__(self):
            self.first, self.second = cl.Linear(3, 4), cl.Linear(4, 2)

        def parameters(self):
            return [*self.first.parameters(), *self.second.parameters()]

        def forward(self, x):
            return self.second.forward(np.tanh(self.first.forward(x)))

        def backward(self, dy):
            return self.first.backward(self.second.backward(dy) * (1 - self.second.x**2))

    assert cl.check_gradients(Block(), X) < 1e-7

    class Wrong(Block):
        def backward(self, dy):
            return self.first.backward(self.second.backward(dy))

    with pytest.raises(AssertionError, match="the gradient of"):
        cl.check_gradients(Wrong(), X)


class SquareInPlace(cl.Function):
    """y = 4 x², by writing into x; or, backward, into dy."""

    def __init__(self, where):
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            x *= 2
            self.x = x.copy()
            return x * x
        self.x = 2 * x
        return self.x**2

    def backward(self, dy):
        if self.where == "backward":
            dy *= 4 * self.x
            return dy
        return 4 * dy * self.x


@pytest.mark.parametrize(("where", "what"), [("forward", "input 0"), ("backward", "dy 0")])
def test_a_function_that_writes_into_its_input_fails_the_check_by_name(where, what):
    with pytest.raises(AssertionError, match=rf"SquareInPlace\(\).{where} has changed its {what}"):
        cl.check_gradients(SquareInPlace(where), np.ones((2, 3)))
    assert cl.check_gradients(SquareInPlace("nowhere"), np.ones((2, 3))) < 1e-6


def test_a_forward_that_computes_with_a_parameters_tensor_gets_a_hint_at_data():
    class TensorScale(cl.Function):
        def __init__(self):
            self.w = cl.Tensor(np.ones(3), requires_grad=True)

        def parameters(self):
            return [self.w]

        def forward(self, x):
            return x * self.w

        def backward(self, dy):
            return dy * self.w.data

    with pytest.raises(TypeError, match=r"forward returned a Tensor, expected an array: .* self.w.data"):
        cl.check_gradients(TensorScale(), np.ones((2, 3), np.float32))
