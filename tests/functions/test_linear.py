"""Linear and MatMul: what their cases do not say."""

import math

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.cases import DTYPES
from tests.reference import assert_same_bits


@pytest.mark.parametrize("shape", [(2, 4), (3,), (2, 3, 4), ()])
def test_linear_names_both_shapes_if_they_do_not_fit(shape):
    linear = cl.Linear(3, 2)
    for raises in (lambda: linear.forward(np.zeros(shape, np.float32)), lambda: linear.output_shape(shape)):
        with pytest.raises(ValueError, match="Linear") as raised:
            raises()
        assert str(shape) in str(raised.value)
        assert "3" in str(raised.value).replace(str(shape), "")


def test_linear_says_which_rows_it_got():
    with pytest.raises(ValueError, match=r"Linear\(64 → 10\) got rows of 100 features, shape \(32, 100\)"):
        cl.Linear(64, 10).forward(np.zeros((32, 100), np.float32))


def test_linear_says_that_a_flatten_is_missing():
    images = np.zeros((5, 3, 4, 6), np.float32)
    linear = cl.Linear(72, 10)
    with pytest.raises(
        ValueError, match=r"shape \(5, 3, 4, 6\); expected \(n, …, 72\), which Flatten\(\) makes of it$"
    ):
        linear.forward(images)
    assert cl.Model([cl.Flatten(), linear]).predict(images).shape == (5, 10)
    with pytest.raises(ValueError, match=r"expected \(n, …, 71\)$"):
        cl.Linear(71, 10).forward(images)


def test_lengths_that_are_not_known_are_n_for_rows_and_a_question_mark_otherwise():
    with pytest.raises(ValueError, match=r"shape \(n, \?, 64\); expected"):
        cl.Linear(63, 10).output_shape((None, None, 64))


def test_linear_refuses_a_weight_of_another_shape_and_says_how_to_tie_it():
    embedding, linear = cl.Embedding(9, 4), cl.Linear(4, 9)
    linear.weight = embedding.weight
    with pytest.raises(
        ValueError, match=r"Linear\(4 → 9\) has a weight of shape \(9, 4\), expected \(4, 9\): .*T in a"
    ):
        cl.Model([embedding, linear], seed=0).predict(np.zeros((2, 3), int))


def test_linear_refuses_another_dtype_than_its_weights():
    with pytest.raises(TypeError, match="float32") as raised:
        cl.Linear(3, 2).forward(np.zeros((1, 3)))
    assert "float64" in str(raised.value)


def test_linear_by_hand_takes_a_list_and_another_byte_order():
    linear = cl.Linear(2, 3)
    y = linear.forward(np.ones((1, 2), np.float32))
    assert_same_bits(linear.forward([[1, 1]]), y)
    assert_same_bits(linear.forward(np.ones((1, 2), ">f4")), y)
    assert linear.backward(np.ones((1, 3), np.float32)).dtype == np.float32


def test_linear_refuses_a_gradient_of_another_shape():
    linear = cl.Linear(3, 2)
    linear.forward(np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        linear.backward(np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("features", [0, -1])
def test_features_are_counted_from_1(features):
    with pytest.raises(ValueError, match=f"in_features.*{features}"):
        cl.Linear(features, 2)
    with pytest.raises(ValueError, match=f"out_features.*{features}"):
        cl.Linear(2, features)


@pytest.mark.parametrize("features", [1.0, "3", None, True])
def test_features_are_integers(features):
    with pytest.raises(TypeError, match="in_features"):
        cl.Linear(features, 2)
    with pytest.raises(TypeError, match="out_features"):
        cl.Linear(2, features)


def test_a_new_linear_is_uniform_within_one_over_the_root_of_its_inputs():
    linear = cl.Linear(100, 200)
    for p in linear.parameters():
        assert p.dtype == np.float32
        assert 0.095 < np.abs(p.data).max() <= 0.1
    assert abs(linear.weight.data.mean()) < 0.002
    assert linear.weight.data.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)


def test_initialize_draws_the_same_from_the_same_seed():
    a, b = cl.Linear(5, 4), cl.Linear(5, 4)
    assert (a.weight != b.weight).any()
    a.initialize(3)
    b.initialize(np.random.default_rng(3))
    assert_same_bits(a.weight.data, b.weight.data)
    assert_same_bits(a.bias.data, b.bias.data)


def ones(shape, rng):
    return np.ones(shape)


def test_an_initializer_draws_the_weight_and_leaves_the_bias_0():
    shapes = []

    def note_shape(shape, rng):
        shapes.append(shape)
        return ones(shape, rng)

    linear = cl.Linear(2, 3, initializer=note_shape)
    assert shapes == [(2, 3)]
    assert (linear.weight == 1).all()
    assert (linear.bias == 0).all()


def test_parameters_come_weight_first_and_a_bias_may_be_left_out():
    linear = cl.Linear(2, 3)
    assert [p.shape for p in linear.parameters()] == [(2, 3), (3,)]
    assert [p.shape for p in cl.Linear(2, 3, bias=False).parameters()] == [(2, 3)]
    assert cl.Linear(2, 3, bias=False).bias is None


def test_a_frozen_parameter_gets_no_gradient():
    linear = cl.Linear(2, 3)
    linear.weight.requires_grad = False
    linear.forward(np.ones((1, 2), np.float32))
    linear.backward(np.ones((1, 3), np.float32))
    assert linear.weight.grad is None
    assert linear.bias.grad is not None


def test_a_rows_output_does_not_depend_on_the_rows_beside_it():
    linear, x = cl.Linear(300, 7), np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    batch = linear.forward(x)
    for i in range(50):
        assert_same_bits(linear.forward(x[i : i + 1])[0], batch[i])


def test_parameters_gradients_overwrite_what_lay_in_their_memory_and_then_add():
    linear = cl.Linear(3, 2)
    x, dy = np.ones((4, 3), np.float32), np.full((4, 2), 0.5, np.float32)
    for p in linear.parameters():
        p.add_grad(np.full(p.shape, np.nan))
        p.zero_grad()
    linear.forward(x)
    linear.backward(dy)
    assert_same_bits(linear.weight.grad, np.full((3, 2), 2.0, np.float32))
    linear.backward(dy)
    assert_same_bits(linear.weight.grad, np.full((3, 2), 4.0, np.float32))
    assert_same_bits(linear.bias.grad, np.full(2, 4.0, np.float32))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (2,)), ((2, 3), (2,)), ((), (2,)), ((2,), ())])
def test_matrices_that_dont_fit_raise_with_both_shapes(shapes):
    with pytest.raises(ValueError, match="matmul") as raised:
        functions.MatMul().forward(*map(np.ones, shapes))
    assert all(str(shape) in str(raised.value) for shape in shapes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_product_adapts_lists_and_integers_on_either_side(dtype):
    t = cl.Tensor(np.array([[1, 2], [3, 4]], dtype), requires_grad=True)
    for other in ([[1, 2], [0, 1]], np.array([[1, 2], [0, 1]]), np.array([[True, True], [False, True]])):
        assert_same_bits(cl.matmul(other, t).data, (other @ t).data)
        assert_same_bits(cl.matmul(t, other).data, (t @ other).data)
        assert cl.matmul(other, t).dtype == dtype
    assert cl.matmul([[1, 2]], [3, 4]).data.tolist() == [11]
