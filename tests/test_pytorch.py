"""Every Function against its counterpart in PyTorch, where that is installed."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from test_functions import FAMILIES, every_function, forward_and_backward, named, seeds

from caffelite import functions

torch = pytest.importorskip("torch")


def reduced(reduce, x, function):
    """x reduced along the axes of a reduction; to PyTorch no axes are all of them."""
    axes = tuple(range(x.ndim)) if function.axis is None else function.axis
    return x.clone() if axes == () else reduce(x, axes, function.keepdims)


def indexed(x, index):
    """x[index]; PyTorch has no negative steps, so NumPy says which of all elements are meant."""
    return x.reshape(-1)[torch.tensor(np.array(np.arange(x.numel()).reshape(x.shape)[index]))]


# A counterpart takes the Function, which knows its arguments, and then what its judge takes: inputs, parameters last.
COUNTERPARTS = {
    functions.Add: lambda f, a, b: a + b,
    functions.Subtract: lambda f, a, b: a - b,
    functions.Multiply: lambda f, a, b: a * b,
    functions.Divide: lambda f, a, b: a / b,
    functions.Power: lambda f, a, b: a**b,
    functions.Negative: lambda f, x: -x,
    functions.ReLU: lambda f, x: x.relu(),
    functions.Exp: lambda f, x: x.exp(),
    functions.Log: lambda f, x: x.log(),
    functions.Sqrt: lambda f, x: x.sqrt(),
    functions.Abs: lambda f, x: x.abs(),
    functions.Clip: lambda f, x: x.clip(-np.inf if f.low is None else f.low, np.inf if f.high is None else f.high),
    functions.Where: lambda f, a, b, condition: torch.where(condition, a, b),
    functions.Softmax: lambda f, x: x.softmax(f.axis),
    functions.LogSoftmax: lambda f, x: x.log_softmax(f.axis),
    functions.Tanh: lambda f, x: x.tanh(),
    functions.Sigmoid: lambda f, x: x.sigmoid(),
    functions.Sum: lambda f, x: reduced(torch.sum, x, f),
    functions.Max: lambda f, x: reduced(torch.amax, x, f),
    functions.Min: lambda f, x: reduced(torch.amin, x, f),
    functions.Mean: lambda f, x: reduced(torch.mean, x, f),
    functions.Linear: lambda f, x, weight, bias=None: torch.nn.functional.linear(x, weight.T, bias),
    functions.MatMul: lambda f, a, b: a @ b,
    functions.SoftmaxLoss: lambda f, scores, labels: torch.nn.functional.cross_entropy(scores, labels),
    functions.Index: lambda f, x: indexed(x, f.index),
    functions.Concatenate: lambda f, *arrays: torch.cat(arrays, f.axis),
    functions.Stack: lambda f, *arrays: torch.stack(arrays, f.axis),
    functions.Reshape: lambda f, x: x.reshape(len(x), *f.shape),
    functions.Flatten: lambda f, x: x.flatten(1) if x.ndim > 1 else x[:, None],
    functions.Residual: lambda f, x, weight, bias: x + torch.nn.functional.linear(x, weight.T, bias),
    functions.Parallel: lambda f, x, weight, bias: torch.cat([torch.nn.functional.linear(x, weight.T, bias), x], 1),
    functions.ToShape: lambda f, x: x.reshape(f.shape),
    functions.Transpose: lambda f, x: x.permute(f.axes or tuple(range(x.ndim))[::-1]),
}


def check_against_pytorch(case, seed=0):
    function, inputs = case.function(), case.inputs(seed=seed)
    y, dy, gradients = forward_and_backward(function, inputs)
    arrays = [*inputs, *[p.data for p in function.parameters()]]
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    expected = COUNTERPARTS[type(function)](function, *tensors)
    expected.backward(torch.tensor(dy))
    leaves = [t for t in tensors if t.requires_grad]
    for mine, theirs in zip([y, *gradients], [expected.detach(), *[t.grad for t in leaves]], strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs.numpy(), 1e-9, 1e-9)


@pytest.mark.parametrize("case", named("listed") + named("empty"))
def test_values_and_gradients_are_pytorchs(case):
    check_against_pytorch(case)


@every_function
@given(data=st.data(), seed=seeds)
def test_values_and_gradients_are_pytorchs_for_random_shapes(function, data, seed):
    check_against_pytorch(FAMILIES[function].build(*data.draw(FAMILIES[function].random)), seed)
