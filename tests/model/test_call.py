"""Models that write `call`: drawing, dtype, memory, several inputs and outputs."""

import gc
import weakref

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import training_step
from tests.functions.nested import RNG, Block, Net, X, Y, assert_same_parameters
from tests.reference import assert_same_bits

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class PlainNet:
    """What Net computes, by single Functions."""

    def __init__(self, net):
        (a, _, b) = net.f.functions
        self.a, self.b, self.c, self.d = a, b, net.blocks[0].function, net.blocks[1]["last"]

    def __call__(self, x):
        x = cl.Tensor(x)
        x = x + self.b(self.a(x).relu())
        return self.d(self.c(self.c(x)).relu())


# ---- drawing, dtype, memory -----------------------------------------------------------------------------------------


def test_a_seeded_model_draws_the_parameters_inside_users_functions():
    one, two = (cl.Model([Block(cl.Linear(3, 2)), cl.Linear(2, 2)], seed=5) for _ in range(2))
    flat = cl.Model([cl.Linear(3, 2), cl.Linear(2, 2)], seed=5)
    assert_same_parameters(one, two)
    assert_same_parameters(one, flat)


def test_a_model_by_call_is_drawn_from_its_seed_each_function_once():
    one, two, other = Net(seed=5), Net(seed=5), Net(seed=6)
    assert_same_parameters(one, two)
    assert not np.array_equal(one.parameters()[0].data, other.parameters()[0].data)
    flat = cl.Model([cl.Linear(4, 8), cl.Linear(8, 4), cl.Linear(4, 4), cl.Linear(4, 3)], seed=5)
    assert_same_parameters(one, flat)
    one.initialize(6)
    assert_same_parameters(one, other)


def test_functions_added_to_a_list_are_drawn_at_the_next_use_of_the_model():
    class Growing(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.layers = []

        def call(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    def grow():
        model = Growing(seed=1)
        model.layers.append(cl.Linear(4, 4))
        model.parameters()
        before = model.layers[0].weight.data.copy()
        model.layers.append(cl.Linear(4, 4))
        model.predict(X)
        assert_same_bits(model.layers[0].weight.data, before)
        return model

    assert_same_parameters(grow(), grow())


def test_learned_values_are_not_drawn_again():
    model = cl.Model([cl.Linear(4, 4)], seed=0)
    outer = cl.Model([model], seed=1)
    model.add(cl.Linear(4, 3))
    model.parameters()[2].data = np.ones((4, 3))
    popped = outer.functions.pop()
    outer.functions.append(popped)
    outer.predict(X)
    assert (model.parameters()[2].data == 1).all()


def test_a_model_takes_over_what_was_assigned_before_it_is_used():
    class LoadedNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=np.float64)
            self.f = cl.MLP(4, [3])

        def call(self, x):
            return self.f(x)

    model = LoadedNet()
    model.f.load_state_dict({"0.weight": np.ones((4, 3)), "0.bias": np.zeros(3)})
    assert_same_bits(model.predict(np.ones((1, 4))), np.full((1, 3), 4.0))


def test_a_model_whose_init_does_not_call_super_raises():
    class Bare(cl.Model):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match=r"super\(\).__init__\(\)"):
        Bare()


def test_everything_in_a_tree_has_the_models_dtype_and_is_in_one_vector():
    net = Net(dtype=np.float64)
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float64)}
    assert net.f.dtype == np.float64
    assert net.predict(X).dtype == np.float64
    assert len({id(p.data.base) for p in net.parameters()}) == 1


def test_gradient_memory_that_nobody_wrote_is_not_converted():
    inner = cl.Model([cl.Linear(2, 2)], dtype=np.float64)
    for p in inner.parameters():
        p._gradient[...] = 1e300  # which is not a float32, and would warn
    model = cl.Model([inner])
    assert {p.dtype for p in model.parameters()} == {np.dtype(np.float32)}


class Counting(cl.Function):
    """Adds what it has counted; keeps a mean and a count."""

    def __init__(self):
        self.mean, self.count = np.zeros(2, np.float32), np.zeros((), np.int64)

    def buffers(self):
        return {"mean": self.mean, "count": self.count}

    def forward(self, x):
        if cl.is_training():
            self.mean += x.mean(axis=0)
            self.count += 1
        return x + self.mean

    def backward(self, dy):
        return dy


def test_buffers_are_part_of_the_state():
    model = cl.Model([Block(Counting()), cl.Linear(2, 2)])
    assert list(model.buffers()) == ["0.function.mean", "0.function.count"]
    model(X[:, :2])
    model(X[:, :2])
    state = model.state_dict()
    assert list(state) == ["1.weight", "1.bias", "0.function.mean", "0.function.count"]
    assert state["0.function.count"] == 2
    other = cl.Model([Block(Counting()), cl.Linear(2, 2)], dtype=np.float64)
    array = other.buffers()["0.function.mean"]
    assert array.dtype == np.float64
    other.load_state_dict(state)
    assert other.buffers()["0.function.mean"] is array
    np.testing.assert_array_equal(array, state["0.function.mean"])
    assert other.functions[0].function.count == 2


def test_a_parameter_and_a_buffer_of_one_name_raise():
    class NameClash(Counting):
        def __init__(self):
            super().__init__()
            self.p = cl.Tensor([1.0], requires_grad=True, name="mean")

        def parameters(self):
            return [self.p]

    with pytest.raises(ValueError, match=r"have the name 0\.mean"):
        cl.Model([NameClash()]).state_dict()


@pytest.mark.parametrize("count", [1.5, np.zeros(2), "word"])
def test_a_state_with_a_bad_buffer_raises_before_anything_is_written(count):
    model = cl.Model([Counting(), cl.Linear(2, 2)], seed=0)
    before = model.state_dict()
    state = {name: array + 1 for name, array in before.items()} | {"0.count": count}
    with pytest.raises((ValueError, TypeError)):
        model.load_state_dict(state)
    for name, array in model.state_dict().items():
        assert_same_bits(array, before[name])


# ---- models by call -------------------------------------------------------------------------------------------------


@DTYPES
def test_a_model_by_call_trains_to_the_bits_of_its_functions_by_hand(dtype):
    net, other = Net(seed=0, dtype=dtype), Net(seed=0, dtype=dtype)
    plain = PlainNet(other)
    net.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(net.parameters(), lr=0.1, momentum=0.9), epochs=5,
            batch_size=5, shuffle=False, verbose=0)  # fmt: skip
    one = training_step(plain, cl.SGD(other.parameters(), lr=0.1, momentum=0.9))
    for _ in range(5):
        for i in range(0, len(X), 5):
            one(X[i : i + 5].astype(dtype), Y[i : i + 5])
    assert_same_parameters(net, other)
    assert_same_bits(net.predict(X), plain(X.astype(dtype)).data)


def test_a_model_by_call_has_forward_and_backward_on_arrays():
    by_hand, by_graph = Net(seed=0), Net(seed=0)
    y = by_hand.forward(X)
    dy = RNG.normal(size=y.shape).astype(np.float32)
    dx = by_hand.backward(dy)
    x = cl.Tensor(X, requires_grad=True)
    by_graph(x).backward(dy)
    assert_same_bits(dx, x.grad)
    for p, q in zip(by_hand.parameters(), by_graph.parameters(), strict=True):
        assert_same_bits(p.grad, q.grad)
    with cl.no_grad():
        by_hand.forward(X)
    assert_same_bits(by_hand.backward(dy), dx)


def test_the_gradients_of_a_model_by_call_are_right():
    assert cl.check_gradients(Net(seed=1), X[:3]) < 1e-6


def test_a_model_by_call_nests_in_a_sequence_in_an_attribute_and_in_a_function():
    inner = Net(seed=0)
    outer = cl.Model(
        [cl.Linear(4, 4), inner, cl.Parallel([cl.Model([cl.Linear(3, 3)])]), Block(cl.MLP(3, [3]))], seed=0
    )
    program = cl.capture(lambda x: outer(x), X)
    assert_same_bits(program(X + 1), outer(X + 1).data)
    assert cl.check_gradients(outer, X[:2]) < 1e-6


@DTYPES
def test_a_model_by_call_may_have_parameters_of_its_own(dtype):
    class ParameterNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=dtype)
            self.w = cl.Tensor(np.ones((4, 3)), requires_grad=True, name="w")
            self.f = cl.Linear(3, 3)

        def parameters(self):
            return [self.w, *super().parameters()]

        def call(self, x):
            return self.f((x @ self.w).tanh())

    model = ParameterNet()
    assert list(model.state_dict()) == ["w", "f.weight", "f.bias"]
    assert {p.dtype for p in model.parameters()} == {np.dtype(dtype)}
    assert cl.check_gradients(model, X[:2]) < 1e-7
    optimizer = cl.Adam(model.parameters())
    history = model.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=30, metrics=["accuracy"], verbose=0)
    assert history["loss"][-1] < history["loss"][0]
    assert len({id(p.data.base) for p in model.parameters()}) == 1


def test_trees_and_their_graphs_are_freed_without_the_garbage_collector():
    gc.disable()
    try:
        net = Net(seed=0)
        net.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(net.parameters(), lr=0.1), epochs=2, verbose=0)
        net.predict(X)
        net.backward(np.ones_like(net.forward(X)))
        y = cl.Parallel([cl.Linear(4, 3), Block(cl.Linear(4, 4))])(X)
        gone = [weakref.ref(net.parameters()[0]), weakref.ref(y.function)]
        y.sum().backward()
        del net, y
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_functions_that_appear_in_the_midst_of_a_recorded_step_raise():
    net = Net(seed=0)

    def step(x):
        h = cl.Tensor(x).exp()
        net.blocks[1]["last"] = cl.Linear(4, 3)
        return net(h)

    with pytest.raises(TypeError, match="add them before"):
        cl.capture(step, X)


def test_models_of_several_inputs_and_outputs():
    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.g = cl.Linear(4, 3), cl.Linear(2, 3)

        def call(self, a, b):
            h = self.f(a) * self.g(b)
            return h.exp(), h

    model = Two()
    a, b = X, X[:, :2]
    y, h = model(a, b)
    np.testing.assert_allclose(y.data, np.exp(h.data), rtol=1e-6)
    arrays = model.forward(a, b)
    assert isinstance(arrays, tuple)
    dh = np.ones_like(arrays[1])
    da, db = model.backward((None, dh))
    (h * 1.0).sum().backward()
    assert da.shape == a.shape
    np.testing.assert_allclose(db, (model.f(a).data) @ model.g.weight.data.T, rtol=1e-5)
    assert model.output_shape((None, 4), (None, 2)) == ((None, 3), (None, 3))
    program = cl.capture(model, a, b)
    for replayed, eager in zip(program(a + 1, b), model(a + 1, b), strict=True):
        assert_same_bits(replayed, eager.data)


class TwoInputs(cl.Model):
    """A model of two inputs, and an optional third."""

    def __init__(self, dtype=np.float32):
        super().__init__(seed=0, dtype=dtype)
        self.a, self.b = cl.Linear(4, 3), cl.Linear(2, 3)

    def call(self, x, y, scale=1.0):
        return (self.a(x) + self.b(y)) * scale


@DTYPES
def test_a_tuple_of_all_inputs_is_called_as_it_is_predicted(dtype):
    sparse = pytest.importorskip("scipy.sparse")
    model, x, y = TwoInputs(dtype), X.astype(dtype), X[:, :2].astype(dtype)
    expected = model(x, y).data
    for function in (model, model.forward, cl.Model([model], dtype=dtype)):
        result = function((x, y))
        assert_same_bits(result if isinstance(result, np.ndarray) else result.data, expected)
    assert_same_bits(model((cl.Tensor(x), y)).data, expected)
    assert_same_bits(model((x, y, 2.0)).data, model(x, y, 2.0).data)
    assert_same_bits(model((x, sparse.csr_matrix(y))).data, model(x, sparse.csr_matrix(y)).data)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'y'"):
        model(x)
    with pytest.raises(ValueError, match=r"TwoInputs\(.*\): x is not an array: "):
        model([x, sparse.csr_matrix(y)], y)


def test_a_tuple_stays_one_input_if_the_model_takes_one():
    class Pair(cl.Model):
        def call(self, pair, scale=1.0):
            return (pair[0] + pair[1]) * scale

    model, t = Pair(), cl.Tensor(X)
    assert_same_bits(model((t, t)).data, X + X)
    assert_same_bits(model((t, t), 2.0).data, 2 * (X + X))


class ListModel(cl.Model):
    """A model whose `call` takes all inputs in one argument, as in Keras."""

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(4, 3), cl.Linear(2, 3)

    def call(self, inputs):
        a, b = inputs
        return self.a(a) + self.b(b)


A_TUPLE = r"inputs are a tuple, fit\(\(a, b\), y\), and each one is an argument, call\(self, a, b\)$"


def test_inputs_that_call_does_not_take_raise_and_name_the_tuple_and_the_arguments():
    options = {"loss": cl.MSELoss(), "verbose": 0}
    for model, x, message in [
        (ListModel(), (X, X[:, :2]), rf"^ListModel.call\(inputs\) got 2: several {A_TUPLE}"),
        (TwoInputs(), X, rf"^TwoInputs.call\(x, y, scale=1.0\) got 1: several {A_TUPLE}"),
    ]:
        with pytest.raises(TypeError, match=message):
            model.fit(x, X[:, :3], optimizer=cl.Adam(model.parameters()), **options)
        with pytest.raises(TypeError, match=message):
            model.predict(x)


def test_several_inputs_in_a_list_raise_and_name_the_tuple():
    model = ListModel()
    with pytest.raises(
        ValueError, match=r"^predict is not an array: .*; several arrays are a tuple, .*, call\(self, a, b\)$"
    ):
        model.predict([X, X[:, :2]])
    with pytest.raises(ValueError, match=r"^x has 2 rows, y has shape .*; several inputs are a tuple, got a list$"):
        model.fit([X, X], X[:, :3], loss=cl.MSELoss(), optimizer=cl.Adam(model.parameters()))


def test_a_call_with_keras_argument_training_raises_and_names_is_training():
    class Noisy(cl.Model):
        def call(self, x, training=None):
            return x * 2 if training else x

    with pytest.raises(TypeError, match=r"^Noisy.call takes training, .* ask cl.is_training\(\), which is False in"):
        Noisy()


def test_a_sequence_takes_one_input():
    model = cl.Model([cl.Linear(4, 3)], seed=0)
    for call in (model.predict, lambda x: model.evaluate(x, Y, loss=cl.SoftmaxLoss())):
        with pytest.raises(ValueError, match=r"which takes one input, got 2 of shapes \(n, 4\), \(n, 4\); .*`call`"):
            call((X, X))


def test_call_has_to_return_tensors():
    class Bad(cl.Model):
        def call(self, x):
            return x.data

    with pytest.raises(TypeError, match=r"Bad\.call has to return a Tensor"):
        Bad()(X)


def test_a_changed_attribute_that_call_reads_is_recorded_again():
    class Deep(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.depth = cl.Linear(4, 4), 1

        def call(self, x):
            for _ in range(self.depth):
                x = self.f(x)
            self.last = x
            return x

    model = Deep()
    model.predict(X)
    model.depth = 3
    assert_same_bits(model.predict(X), model(X).data)
    last = model.last
    assert model.output_shape((None, 4)) == (None, 4)
    assert model.last is last


def test_a_model_that_writes_call_may_use_the_functions_that_were_added_as_it_likes():
    class Skipping(cl.Model):
        def call(self, x):
            for function in self.functions:
                x = x + function(x)
            return x

    layers = [cl.Linear(4, 4, bias=False) for _ in range(3)]
    model = Skipping(layers[:2]).add(layers[2])
    assert list(model.state_dict()) == ["0.weight", "1.weight", "2.weight"]
    truth = X
    for layer in layers:
        truth = truth + truth @ layer.weight.data
    np.testing.assert_allclose(model.predict(X), truth, rtol=1e-5)


def test_shapes_summary_and_repr_of_a_model_by_call():
    net = Net()
    assert net.output_shape((None, 4)) == (None, 3)
    assert net.output_shape((7, 4)) == (7, 3)
    with pytest.raises(ValueError, match="all lengths but the first"):
        net.output_shape((None, None))
    with pytest.raises(ValueError, match="got rows of 5 features"):
        net.output_shape((None, 5))
    summary = net.summary((4,))
    assert "blocks.1.last" in summary
    assert "(n, 3)" in summary
    assert summary.count("(n, 4)") >= 2  # of its children
    assert repr(net).startswith("Net(f=Model([Linear(4, 8), ReLU(), Linear(8, 4)]), blocks.0=")


def test_a_model_takes_indices_if_its_first_function_does():
    class Indices(cl.Function):
        takes_indices = True

        def forward(self, x):
            assert x.dtype == np.int64
            return np.eye(3, dtype=np.float32)[x]

        def backward(self, dy):
            return None

    model = cl.Model([cl.Model([Indices()]), cl.Linear(3, 2)])
    assert model.takes_indices is True
    assert model([0, 2]).shape == (2, 2)
    assert cl.Model().takes_indices is False
    assert cl.Parallel([Indices(), Indices()]).takes_indices is True
    with pytest.raises(TypeError, match="integers"):
        model([0.5])
    model.forward(np.array([1, 2]))
    assert model.backward(np.ones((2, 2), np.float32)) is None
    net = Net()
    assert net.takes_indices is False
    net.takes_indices = (True, False)
    assert net.takes_indices == (True, False)
