"""Every Function of the package against the properties that all have, and its values and gradients against its judge.

What a Function is given here and who judges it is said in `cases/`.
"""

import contextlib
import importlib
import inspect
import pkgutil

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import functions
from caffelite.core.modes import mode
from caffelite.functions.losses.function_loss import FunctionLoss
from tests.cases import DTYPES, FAMILIES, MODULES, both_dtypes, every_function, make_params
from tests.cases.case import as_tuple, random_dys
from tests.reference import (
    LAYOUTS,
    ODD_DTYPES,
    assert_close,
    assert_same_bits,
    assert_same_values,
    name_failure,
    odd_array,
    plain_copy,
)

every_case = pytest.mark.parametrize("case", make_params("listed"))
every_empty_case = pytest.mark.parametrize("case", make_params("empty"))


def find_functions(package):
    """Return the Functions that the modules of a package define, exported or not, but for abstract ones."""
    names = [name for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    found = [x for name in names for x in vars(importlib.import_module(name)).values()]
    classes = {x for x in found if issubclass(type(x), type) and issubclass(x, cl.Function)}
    return {c for c in classes if c.__module__ in names and not inspect.isabstract(c)}


# ---- the cases ----


def test_every_function_of_the_package_has_cases():
    assert set(FAMILIES) == find_functions(functions) - {FunctionLoss} | {cl.Columns, cl.Splines}
    assert all(family.listed for family in FAMILIES.values())


def test_a_function_has_its_cases_once_and_in_the_file_that_is_named_like_its_own():
    places = [(name, family.function) for name, module in MODULES.items() for family in getattr(module, "CASES", [])]
    assert len(places) == len(FAMILIES)
    for name, function in places:
        assert name in function.__module__.split(".")


# ---- values and gradients ----


@every_case
@both_dtypes
def test_values_and_gradients_are_the_judges(case, dtype):
    case.check_against_judge(dtype)


@pytest.mark.parametrize(
    "kind", [kind for kind in FAMILIES if kind.formula is not None], ids=lambda kind: kind.__name__
)
@both_dtypes
def test_a_function_computes_what_its_formula_says(kind, dtype):
    for arguments in FAMILIES[kind].listed:
        case = FAMILIES[kind].build(*arguments)
        function, inputs, results = case.function(dtype), case.inputs(dtype), []
        for apply in (function, function.formula):
            tensors = [cl.Tensor(x, requires_grad=True) if x.dtype.kind == "f" else x for x in inputs]
            with cl.inference():  # which drops nothing
                mode.records_graph = True
                y = apply(*tensors)
                loss = (y * y).sum()
            loss.backward()
            results.append([y.data, *[x.grad for x in tensors if isinstance(x, cl.Tensor)]])
        for found, expected in zip(*results, strict=True):
            np.testing.assert_allclose(found, expected, 1e-4 if dtype == np.float32 else 1e-12, 1e-5)


@every_empty_case
@both_dtypes
def test_arrays_without_elements_have_values_and_gradients(case, dtype):
    case.check_against_judge(dtype)


@every_function
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_values_and_gradients_are_right_for_random_shapes(function, data, seed):
    """The judge's, in both dtypes, and the gradients also central differences."""
    case = FAMILIES[function].build(*data.draw(FAMILIES[function].random))
    for dtype in DTYPES:
        case.check_against_judge(dtype, seed)
    with case.mode():
        assert cl.check_gradients(case.function(), *case.inputs(seed=seed), eps=case.step) < 1e-7


@every_case
def test_gradients_pass_the_numerical_check(case):
    with case.mode():
        assert cl.check_gradients(case.function(), *case.inputs(), eps=case.step) < 1e-7


@every_case
@both_dtypes
def test_a_call_on_tensors_gives_what_forward_and_backward_give(case, dtype):
    function, inputs = case.function(dtype), case.inputs(dtype)
    ys, dys, gradients = case.forward_and_backward(case.function(dtype), inputs)
    leaves = [cl.Tensor(x, requires_grad=True) for x in inputs[: len(case.shapes)]]
    with case.mode():
        results = as_tuple(function(*leaves, *inputs[len(case.shapes) :]))
    for result, y in zip(results, ys, strict=True):
        assert_same_bits(result.data, y)
    if case.training:
        if len(results) == 1:
            results[0].backward(dys[0])
        else:
            sum((result * dy).sum() for result, dy in zip(results, dys, strict=True)).backward()
        for leaf, gradient in zip([*leaves, *function.parameters()], gradients, strict=True):
            assert_same_bits(leaf.grad, gradient)


@every_case
def test_the_second_of_two_backwards_gives_what_the_first_gave(case):
    function, inputs = case.function(), case.inputs()
    ys, dys, gradients = case.forward_and_backward(function, inputs)
    for p in function.parameters():
        p.zero_grad()
    again = [g for g in as_tuple(function.backward(dys if len(ys) > 1 else dys[0])) if g is not None]
    for gradient, same in zip(gradients, [*again, *[p.grad for p in function.parameters()]], strict=True):
        assert_same_bits(gradient, same)


@every_case
@both_dtypes
def test_a_function_writes_into_nothing_that_it_is_given(case, dtype):
    function, inputs = case.function(dtype), case.inputs(dtype)
    before = [x.copy() for x in inputs]
    ys, dys, _ = case.forward_and_backward(function, inputs)
    for given_, same in zip([*inputs, *dys], [*before, *random_dys(ys)], strict=True):
        assert_same_bits(given_, same)


# ---- layouts and dtypes ----


@every_case
@both_dtypes
def test_odd_layouts_give_the_plain_copys_bits_and_stay_unchanged(case, dtype):
    for layout in LAYOUTS:
        with name_failure(layout.__name__):
            odd = [layout(x) for x in case.inputs(dtype)]
            before = [plain_copy(x) for x in odd]
            ys, dys, gradients = case.forward_and_backward(case.function(dtype), odd, layout=layout)
            plain_dys = [plain_copy(dy) for dy in dys]
            plain_ys, _, plain_gradients = case.forward_and_backward(case.function(dtype), before, plain_dys)
            for mine, plain in zip([*ys, *gradients, *odd], [*plain_ys, *plain_gradients, *before], strict=True):
                assert_same_bits(mine, plain)


@every_case
def test_a_call_makes_a_plain_dtype_of_odd_layouts(case):
    for layout in LAYOUTS:
        with name_failure(layout.__name__), case.mode():
            odd = [layout(x) for x in case.inputs(np.float32)]
            ys = as_tuple(case.function(np.float32)(*odd))
            expected = as_tuple(case.function(np.float32).forward(*[plain_copy(x) for x in odd]))
            for y, plain_y in zip(ys, expected, strict=True):
                assert y.dtype == np.float32
                assert_same_bits(y.data, plain_y)


@every_function
def test_odd_dtypes_give_float32_or_float64_or_a_type_error(function):
    family = FAMILIES[function]
    case = family.build(*family.listed[0])
    for dtype in ODD_DTYPES:
        native = np.dtype(dtype).newbyteorder("=")
        model_dtype = native if native in DTYPES else np.float32
        floats = [odd_array(dtype, shape) for shape in case.shapes]
        held = case.inputs(model_dtype)[len(case.shapes) :]
        with name_failure(dtype):
            try:
                with case.mode():
                    ys = as_tuple(case.function(model_dtype)(*floats, *held))
            except TypeError:
                assert native not in DTYPES
                continue
            assert all(y.dtype in DTYPES for y in ys)
            inputs = [*[x.astype(ys[0].dtype) for x in floats], *held]
            applied = case.function(ys[0].dtype)
            case.forward_and_backward(applied, inputs)
            for y, truth in zip(ys, case.reference(applied, inputs)[0], strict=True):
                assert_close(y.data, truth, y.dtype, case.scale)


@every_function
def test_an_argument_that_is_not_an_array_is_a_type_or_value_error(function):
    """A list may be as good as an array, and numbers may be no index."""
    family = FAMILIES[function]
    for case in [family.build(*arguments) for arguments in family.listed]:
        inputs = case.inputs(np.float32)
        for i in range(len(inputs)):
            for thing in ({}, "text", slice(1), [1.0, 2.0], [["text"]]):
                with case.mode(), contextlib.suppress(TypeError, ValueError, IndexError):
                    ys = case.function(np.float32)(*inputs[:i], thing, *inputs[i + 1 :])
                    assert all(isinstance(y, cl.Tensor) for y in as_tuple(ys))


@pytest.mark.parametrize("function", [f for f, family in FAMILIES.items() if len(family.listed[0]) == 2])
def test_float32_and_float64_do_not_mix(function):
    family = FAMILIES[function]
    case = family.build(*family.listed[0])
    if len(case.shapes) == 2:
        a, b = case.inputs()
        with pytest.raises(TypeError, match=r"float(32|64) and float(32|64)"):
            case.function().forward(a.astype(np.float32), b)


# ---- NaN, infinity, signed zero ----


def special_cases(kind):
    """Return the Functions whose families have special inputs of this kind."""
    with_them = [function for function, family in FAMILIES.items() if getattr(family, kind) is not None]
    return pytest.mark.parametrize("function", with_them, ids=lambda function: function.__name__)


@special_cases("special")
@both_dtypes
def test_nan_and_infinity_are_the_judges(function, dtype):
    for arguments, inputs in FAMILIES[function].special(dtype):
        case, inputs = FAMILIES[function].build(*arguments), [np.asarray(x, dtype) for x in inputs]
        applied = case.function(dtype)
        with case.mode():
            ys = as_tuple(applied.forward(*inputs))
        with np.errstate(all="ignore"):
            truths, _ = case.reference(applied, inputs)
        for y, truth in zip(ys, truths, strict=True):
            assert_same_values(y, truth)


@special_cases("special_gradients")
@both_dtypes
def test_nan_and_infinity_of_gradients_are_the_judges(function, dtype):
    for arguments, inputs in FAMILIES[function].special_gradients(dtype):
        case, inputs = FAMILIES[function].build(*arguments), [np.asarray(x, dtype) for x in inputs]
        applied = case.function(dtype)
        with np.errstate(all="ignore"):
            ones = [np.ones_like(y) for y in as_tuple(applied.forward(*inputs))]
            _, _, gradients = case.forward_and_backward(applied, inputs, ones)
            _, backward = case.reference(applied, inputs)
            truth = backward(*[dy.astype(float) for dy in ones])
        for gradient, true_gradient in zip(gradients, truth, strict=True):
            assert_same_values(gradient, true_gradient)


# ---- the shape of the output, and what a Function says and declares ----


def check_output_shape(case):
    """Check that it is the shape of forward's result; with lengths unknown, those that are known are right."""
    function, inputs = case.function(), case.inputs()
    with case.mode():
        y, shapes = function.forward(*inputs), [x.shape for x in inputs]
    several = isinstance(y, tuple)
    true_shapes = tuple([one.shape for one in y]) if several else (y.shape,)
    assert function.output_shape(*shapes) == (true_shapes if several else y.shape)
    for hidden in [lambda i: i == 0, lambda i: i > 0, lambda i: True]:
        unknown = [tuple(None if hidden(i) else n for i, n in enumerate(shape)) for shape in shapes]
        found = function.output_shape(*unknown)
        for shape, true_shape in zip(found if several else (found,), true_shapes, strict=True):
            assert len(shape) == len(true_shape)
            assert all(n in (None, true) for n, true in zip(shape, true_shape, strict=True))


@pytest.mark.parametrize("case", make_params("listed") + make_params("empty"))
def test_the_output_shape_is_the_shape_that_forward_returns(case):
    check_output_shape(case)


@every_function
@given(data=st.data())
def test_the_output_shape_is_right_for_random_shapes(function, data):
    check_output_shape(FAMILIES[function].build(*data.draw(FAMILIES[function].random)))


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        pytest.param(*refused, id=f"{function.__name__}-{refused[1]}")
        for function, family in FAMILIES.items()
        for refused in family.refused
    ],
)
def test_a_shape_that_does_not_fit_raises(make, shape, says):
    function = make()
    with pytest.raises(ValueError, match=says):
        function.forward(np.zeros(shape, np.float32))
    for known in (shape, (None, *shape[1:])) if shape else (shape,):
        with pytest.raises(ValueError, match=says):
            function.output_shape(known)
    if function.required_input_shape is not None:
        with pytest.raises(ValueError, match=says):
            cl.Model([function])


unwritten = functions.Index | functions.Penalized | cl.Columns
written = [case for case in make_params("listed") if not isinstance(case.values[0].make(), unwritten)]


@pytest.mark.parametrize("case", written)
def test_a_function_is_written_as_it_is_made(case):
    function = case.function()
    again = eval(repr(function), vars(functions))
    assert type(again) is type(function)
    assert repr(again) == repr(function)
    assert [p.shape for p in again.parameters()] == [p.shape for p in function.parameters()]


@every_function
def test_the_packages_functions_compute_with_kernels_alone_and_report_it(function):
    assert function.recordable

    class Child(function):
        pass

    assert not Child.recordable
