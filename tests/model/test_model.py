"""Model: building, parameters, dtypes, nesting."""

import copy

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.reference import WIDE
from tests.training.numpy_parts import DTYPES, Scale, Through, X, Y, by_hand


def test_add_returns_the_model_and_keeps_the_order():
    model, functions = cl.Model(), [cl.Linear(2, 4), cl.ReLU(), cl.Linear(4, 3)]
    for function in functions:
        assert model.add(function) is model
    assert model.functions == functions
    first, _, last = functions
    expected = [first.weight, first.bias, last.weight, last.bias]
    assert all(a is b for a, b in zip(model.parameters(), expected, strict=True))
    assert repr(model) == "Model([Linear(2, 4), ReLU(), Linear(4, 3)])"


def test_shapes_that_cannot_fit_raise_value_error_and_add_nothing():
    model = classifier(2, 100).add(cl.ReLU())
    before = bits(model)
    with pytest.raises(ValueError, match=r"64.*100|100.*64"):
        model.add(cl.Linear(64, 10))
    assert len(model.functions) == 2
    assert bits(model) == before
    with pytest.raises(ValueError, match=r"64.*3|3.*64"):
        cl.Model([cl.Linear(2, 3), cl.Model([cl.ReLU(), cl.Linear(64, 10)])])


@pytest.mark.parametrize("function", [np.tanh, cl.ReLU, None, "relu"])
def test_only_functions_can_be_added(function):
    with pytest.raises(TypeError, match="Function"):
        cl.Model().add(function)


@pytest.mark.parametrize("dtype", [np.float16, np.int64, WIDE, complex, object])
def test_a_model_computes_in_float32_or_float64_only(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        cl.Model(dtype=dtype)


@DTYPES
def test_everything_in_a_model_has_its_dtype(dtype):
    seen = []
    model = classifier(2, 16, 3, dtype=dtype).add(Through(backward=lambda dy: seen.append(dy.dtype) or dy))
    train(model, X.tolist(), Y)
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {np.dtype(dtype)}
    assert set(seen) == {np.dtype(dtype)}
    for x in (X, X.astype(np.float64), X.tolist()):
        assert model.predict(x).dtype == dtype


def test_the_seed_draws_the_parameters_in_the_order_of_adding():
    model, same, other = (classifier(2, 16, 3, seed=seed) for seed in (1, 1, 2))
    assert bits(model) == bits(same) != bits(other)
    layer = cl.Linear(2, 3)
    before = layer.weight.data.copy()
    cl.Model([layer])
    assert (layer.weight.data == before).all()  # without a seed, as it was
    cl.Model([layer], seed=0)
    assert (layer.weight.data != before).any()


def test_initialize_draws_the_parameters_again_and_starts_the_stream_again():
    model, fresh = classifier(2, 16, 3, seed=0), classifier(2, 16, 3, seed=7)
    train(model, X, Y)
    model.initialize(7)
    assert bits(model) == bits(fresh)
    train(model, X, Y)
    train(fresh, X, Y)
    assert bits(model) == bits(fresh)
    model.initialize(np.random.default_rng(7))
    assert bits(model) == bits(classifier(2, 16, 3, seed=7))


def test_values_that_changed_between_forward_and_backward_are_noticed():
    for change in (
        lambda model: model.initialize(1),
        lambda model: model.load_state_dict(model.state_dict()),
        lambda model: train(model, X, Y),
    ):
        model = classifier(2, 16, 3)
        value = cl.SoftmaxLoss()(model(X), Y)
        change(model)
        with pytest.raises(RuntimeError, match="changed"):
            value.backward()


def test_a_model_in_a_model_trains_to_the_bits_of_the_flat_one():
    flat = classifier(2, 16, 8, 3)
    nested = cl.Model([cl.Model([cl.Linear(2, 16), cl.ReLU()]), cl.Model([cl.Linear(16, 8), cl.ReLU()])], seed=0)
    nested.add(cl.Linear(8, 3))
    assert bits(nested) == bits(flat)
    assert len(nested.parameters()) == 6
    histories = [train(model, X, Y, epochs=3) for model in (flat, nested)]
    assert bits(nested) == bits(flat)
    assert histories[0] == histories[1]
    assert nested.predict(X).tobytes() == flat.predict(X).tobytes()
    assert bits(by_hand(nested, X, Y, 2)) == bits(by_hand(flat, X, Y, 2))


def test_a_model_goes_on_learning_inside_another_and_alone():
    inner = classifier(2, 8, seed=3)
    outer = cl.Model([inner, cl.ReLU(), cl.Linear(8, 3)])
    before = bits(inner)
    train(outer, X, Y)
    assert bits(inner) != before
    assert inner.predict(X).tobytes() == outer.functions[0].predict(X).tobytes()
    assert bits(outer).startswith(bits(inner))


def test_a_model_of_one_dtype_in_a_model_of_another_takes_over_its_dtype():
    inner = classifier(2, 4, dtype=np.float64)
    outer = cl.Model([inner, cl.Linear(4, 3)])
    assert outer.predict(X).dtype == np.float32
    assert inner.predict(X).shape == (60, 4)


def test_a_function_that_is_in_a_model_twice_is_applied_twice():
    shared = cl.Linear(4, 4)
    model = cl.Model([cl.Linear(2, 4), shared, cl.ReLU(), shared, cl.Linear(4, 3)], seed=0)
    assert len(model.parameters()) == 6
    assert cl.check_gradients(model, X[:7] + 0.1) < 1e-6

    by_fit, by_calls = copy.deepcopy(model), copy.deepcopy(model)
    train(by_fit, X, Y, momentum=0, batch_size=len(X), shuffle=False)
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(by_calls.parameters(), lr=0.1)
    loss.forward(by_calls.forward(X), Y)
    by_calls.backward(loss.backward())
    optimizer.step()
    assert bits(by_fit) == bits(by_calls) != bits(model)

    unshared = cl.Model([copy.deepcopy(function) for function in model.functions])
    loss(unshared(X), Y).backward()
    loss(model(X), Y).backward()
    twice = unshared.functions[1].weight.grad + unshared.functions[3].weight.grad
    np.testing.assert_allclose(shared.weight.grad, twice, rtol=1e-4, atol=1e-7)


def test_frozen_parameters_stay_as_they_are():
    model = classifier(2, 16, 3)
    frozen = model.functions[0].parameters()
    for p in frozen:
        p.requires_grad = False
    before, others = [p.data.copy() for p in frozen], bits(model)
    train(model, X, Y, epochs=3)  # in the optimizer
    train(model, X, Y, optimizer=cl.SGD(model.functions[2].parameters(), lr=0.1))  # and not
    assert all((p.data == w).all() for p, w in zip(frozen, before, strict=True))
    assert bits(model) != others
    for p in frozen:
        p.requires_grad = True
    train(model, X, Y)
    assert all((p.data != w).any() for p, w in zip(frozen, before, strict=True))


def test_a_frozen_parameter_of_a_users_function_stays_as_it_is():
    model = cl.Model([cl.Linear(2, 3), Scale(3)], seed=0)
    model.functions[1].w.requires_grad = False
    train(model, X, Y, epochs=3)
    assert model.functions[1].w.data.tolist() == [1, 1, 1]


def test_a_parameter_that_the_optimizer_lacks_raises_value_error_naming_it():
    model = classifier(2, 16, 3)
    optimizer = cl.SGD([p for p in model.parameters() if p.shape != (3,)], lr=0.1)
    before = bits(model)
    with pytest.raises(ValueError, match=r"bias \(3,\)"):
        train(model, X, Y, optimizer=optimizer)
    assert bits(model) == before


def test_a_model_can_grow_after_a_fit():
    model = classifier(2, 16, 3)
    train(model, X, Y)
    before = bits(model)
    model.add(cl.ReLU()).add(cl.Linear(3, 3))
    assert bits(model).startswith(before)
    history = train(model, X, Y, epochs=3)
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(X).shape == (60, 3)


def test_the_last_function_gives_the_output_shape():
    model = classifier(2, 16, 3)
    assert model.output_shape((None, 2)) == (None, 3)
    assert model.output_shape((7, 2)) == (7, 3)
    with pytest.raises(ValueError, match="5"):
        model.output_shape((None, 5))


def test_a_call_that_returns_an_empty_tuple_is_a_type_error():
    class Nothing(cl.Model):
        def call(self, x):
            return ()

    for use in (lambda m: m(X), lambda m: m.predict(X), lambda m: m.output_shape((None, 2))):
        with pytest.raises(TypeError, match=r"Nothing.call has to return a Tensor or a tuple of them, got \(\)"):
            use(Nothing([cl.Linear(2, 3)], seed=0))


@pytest.mark.parametrize(
    ("compute", "got"),
    [
        (lambda x: (x, (x, None)), r"got \(Tensor, \(Tensor, None\)\); `return y, \*states` gives one tuple$"),
        (lambda x: (x, None), r"got \(Tensor, None\); leave out what is None, such as `return y if loss is None else"),
        (lambda x: [x, x], r"got \[Tensor, Tensor\]$"),
        (lambda x: {"a": x}, "got dict$"),
        (lambda x: None, "got None$"),
        (lambda x: x.numpy(), "got ndarray$"),
    ],
)
def test_a_call_that_returns_something_else_is_a_type_error_in_a_recording_as_well(compute, got):
    class WrongOutput(cl.Model):
        def call(self, x):
            return compute(x)

    for use in (lambda m: m(X), lambda m: m.predict(X), lambda m: m.output_shape((None, 2))):
        with pytest.raises(TypeError, match=r"WrongOutput.call has to return a Tensor or a tuple of them, " + got):
            use(WrongOutput())


def test_a_model_around_nested_models_looks_at_each_function_a_few_times(monkeypatch):
    """However deep they are nested: counted, not timed."""
    count = 0
    found = cl.Function._named_children

    def count_call(self):
        nonlocal count
        count += 1
        return found(self)

    def nest(depth, functions):
        inner = cl.ReLU()
        for _ in range(depth):
            inner = cl.Model([inner, *[cl.ReLU() for _ in range(functions)]])
        return inner

    monkeypatch.setattr(cl.Function, "_named_children", count_call)
    counts = []
    for depth in (5, 20):
        inner = nest(depth, 100 // depth)
        count = 0
        outer = cl.Model([inner, cl.Linear(2, 2)], seed=0)
        outer.add(cl.ReLU())
        counts.append(count)
    assert counts[1] < 2 * counts[0] + 100
    assert counts[1] < 1000
