"""Functions made of Functions: children, and what derives from them; models by `call`; several inputs and outputs."""

import copy
import gc
import pickle
import weakref
from collections import namedtuple

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.cases.composition import AROUND
from tests.reference import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class Scale(cl.Function, recordable=True):
    """y = s x; s is the class's until an instance has its own."""

    s = 2.0

    def forward(self, x):
        self.factor = self.s
        return kernels.multiply(x, self.factor)

    def backward(self, dy):
        return kernels.multiply(dy, self.factor)


class Block(cl.Function):
    """A user's Function that holds another: y = f(x) · s, in NumPy."""

    def __init__(self, function, s=1.0):
        self.function, self.s = function, s

    def forward(self, x):
        self.factor = self.s
        return self.function.forward(x) * np.asarray(self.factor, x.dtype)

    def backward(self, dy):
        return self.function.backward(dy * np.asarray(self.factor, dy.dtype))


class RecordableBlock(Block, recordable=True):
    """The same with kernels."""

    def forward(self, x):
        self.factor = self.s
        return kernels.multiply(self.function.forward(x), self.factor)

    def backward(self, dy):
        return self.function.backward(kernels.multiply(dy, self.factor))


class Split(cl.Function):
    """Two outputs, y = 2 x and z = x²."""

    def forward(self, x):
        self.x = x
        return 2 * x, x * x

    def backward(self, dys):
        dy, dz = dys
        dx = np.zeros_like(self.x)
        if dy is not None:
            dx = dx + 2 * dy
        if dz is not None:
            dx = dx + 2 * self.x * dz
        return dx


class RecordableSplit(Split, recordable=True):
    """The same with kernels."""

    def forward(self, x):
        self.x = x
        return kernels.multiply(x, 2.0), kernels.multiply(x, x)

    def backward(self, dys):
        dy, dz = dys
        dx = None if dy is None else kernels.multiply(dy, 2.0)
        if dz is not None:
            d = kernels.multiply(kernels.multiply(self.x, dz), 2.0)
            dx = d if dx is None else kernels.add(dx, d)
        return dx


class Net(cl.Model):
    """A model by `call`, with Functions in an attribute, in a list, and in a dict in a list."""

    def __init__(self, seed=None, dtype=np.float32, size=4):
        super().__init__(seed=seed, dtype=dtype)
        self.f = cl.MLP(size, [8, size])
        self.blocks = [Block(cl.Linear(size, size)), {"last": cl.Linear(size, 3)}]

    def call(self, x):
        x = x + self.f(x)
        x = self.blocks[0](self.blocks[0](x)).relu()
        return self.blocks[1]["last"](x)


class PlainNet:
    """What Net computes, by single Functions."""

    def __init__(self, net):
        (a, _, b) = net.f.functions
        self.a, self.b, self.c, self.d = a, b, net.blocks[0].function, net.blocks[1]["last"]

    def __call__(self, x):
        x = cl.Tensor(x)
        x = x + self.b(self.a(x).relu())
        return self.d(self.c(self.c(x)).relu())


def step(model, optimizer, loss=None):
    loss = loss or cl.SoftmaxLoss()

    def one(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    return one


def assert_same_parameters(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert_same_bits(p.data, q.data)


# ---- the walk -------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


def test_children_are_the_functions_in_attributes_in_order_and_each_once():
    a, b, c, d, e = (cl.Linear(2, 2) for _ in range(5))
    holder = Block(a)
    holder.many = [b, (c, {"x": d, "again": a}), 3, "word", np.ones(2)]
    holder.pair = Pair(e, None)
    holder.self_containing = holder.many
    holder.many.append(holder.many)
    assert [id(f) for f in holder.children()] == [id(f) for f in (a, b, c, d, e)]
    assert cl.ReLU().children() == []


def test_parameters_and_names_follow_from_the_children():
    shared = cl.Linear(2, 2, bias=False)
    holder = Block(cl.Model([shared, cl.ReLU(), Block(cl.Linear(2, 3))]))
    holder.more = {"head": shared, "rest": [cl.Linear(1, 1)]}
    names = ["function.0.weight", "function.2.function.weight", "function.2.function.bias"]
    assert list(holder.named_parameters()) == [*names, "more.rest.0.weight", "more.rest.0.bias"]
    assert [id(p) for p in holder.parameters()] == [id(p) for p in holder.named_parameters().values()]


def test_a_function_with_parameters_of_its_own_includes_its_childrens():
    class Affine(Block):
        def __init__(self, function):
            super().__init__(function)
            self.shift = cl.Tensor(np.zeros(2, np.float32), requires_grad=True, name="shift")

        def parameters(self):
            return [self.shift, *super().parameters()]

    model = cl.Model([Affine(cl.Linear(2, 2))])
    assert list(model.state_dict()) == ["0.shift", "0.function.weight", "0.function.bias"]


def test_parameters_that_would_have_the_same_name_are_refused():
    holder = Block(cl.ReLU())
    holder.two = {1: cl.Linear(1, 1, bias=False), "1": cl.Linear(1, 1, bias=False)}
    with pytest.raises(ValueError, match=r"two\.1\.weight"):
        holder.named_parameters()


def test_names_of_a_model_by_call():
    names = list(Net().named_parameters())
    assert names[:4] == ["f.0.weight", "f.0.bias", "f.2.weight", "f.2.bias"]
    assert names[4:] == [f"blocks.{name}.{p}" for name in ("0.function", "1.last") for p in ("weight", "bias")]


@DTYPES
@pytest.mark.parametrize("kind", [Block, RecordableBlock])
def test_a_function_that_holds_another_and_is_applied_twice_adds_the_gradients_of_both(kind, dtype):
    block = kind(cl.Linear(1, 1, bias=False))
    model = cl.Model([block], dtype=dtype)
    a, b = (cl.Tensor(np.full((1, 1), value, dtype)) for value in (1, 10))
    (block(a) + block(b)).sum().backward()
    assert block.function.weight.grad == 11
    assert model.parameters()[0].dtype == dtype


def test_a_copy_shares_inside_what_the_original_shares():
    shared = Scale()
    holder = Block(shared)
    holder.many, holder.log = [Block(shared), {"again": shared}], [1]
    other = holder.copy()
    assert other.function is not shared
    assert other.many[0].function is other.many[1]["again"] is other.function
    assert other.log is holder.log
    assert holder.many[0].function is shared


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_tree_pickles_and_deepcopies(duplicate):
    net = Net(seed=3)
    other = duplicate(net)
    assert_same_parameters(net, other)
    assert_same_bits(net.predict(X), other.predict(X))
    assert other.parameters()[0] is not net.parameters()[0]


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


def test_functions_that_are_put_into_a_list_later_are_drawn_when_the_model_is_used_next():
    class Growing(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.layers = []

        def call(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    def grown():
        model = Growing(seed=1)
        model.layers.append(cl.Linear(4, 4))
        model.parameters()
        before = model.layers[0].weight.data.copy()
        model.layers.append(cl.Linear(4, 4))
        model.predict(X)
        assert_same_bits(model.layers[0].weight.data, before)
        return model

    assert_same_parameters(grown(), grown())


def test_what_was_learned_is_not_drawn_again():
    model = cl.Model([cl.Linear(4, 4)], seed=0)
    outer = cl.Model([model], seed=1)
    model.add(cl.Linear(4, 3))
    model.parameters()[2].data = np.ones((4, 3))
    popped = outer.functions.pop()
    outer.functions.append(popped)
    outer.predict(X)
    assert (model.parameters()[2].data == 1).all()


def test_a_model_takes_over_what_was_assigned_before_it_is_used():
    class Loaded(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=np.float64)
            self.f = cl.MLP(4, [3])

        def call(self, x):
            return self.f(x)

    model = Loaded()
    model.f.load_state_dict({"0.weight": np.ones((4, 3)), "0.bias": np.zeros(3)})
    assert_same_bits(model.predict(np.ones((1, 4))), np.full((1, 3), 4.0))


def test_a_model_whose_init_does_not_call_that_of_model_is_refused():
    class Bare(cl.Model):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match=r"super\(\).__init__\(\)"):
        Bare()


def test_everything_in_a_tree_has_the_models_dtype_and_lies_in_one_vector():
    net = Net(dtype=np.float64)
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float64)}
    assert net.f.dtype == np.float64
    assert net.predict(X).dtype == np.float64
    assert len({id(p.data.base) for p in net.parameters()}) == 1


def test_gradient_memory_that_nobody_wrote_is_not_converted():
    inner = cl.Model([cl.Linear(2, 2)], dtype=np.float64)
    for p in inner.parameters():
        p._gradient[...] = 1e300  # which is no float32, and would warn
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


def test_a_parameter_and_a_buffer_of_one_name_are_refused():
    class Same(Counting):
        def __init__(self):
            super().__init__()
            self.p = cl.Tensor([1.0], requires_grad=True, name="mean")

        def parameters(self):
            return [self.p]

    with pytest.raises(ValueError, match=r"have the name 0\.mean"):
        cl.Model([Same()]).state_dict()


@pytest.mark.parametrize("count", [1.5, np.zeros(2), "word"])
def test_a_state_with_a_bad_buffer_is_refused_before_anything_is_written(count):
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
    one = step(plain, cl.SGD(other.parameters(), lr=0.1, momentum=0.9))
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
    class Own(cl.Model):
        def __init__(self):
            super().__init__(seed=0, dtype=dtype)
            self.w = cl.Tensor(np.ones((4, 3)), requires_grad=True, name="w")
            self.f = cl.Linear(3, 3)

        def parameters(self):
            return [self.w, *super().parameters()]

        def call(self, x):
            return self.f((x @ self.w).tanh())

    model = Own()
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


def test_functions_that_appear_in_the_midst_of_a_recorded_step_are_refused():
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


def test_what_call_knows_by_an_attribute_is_recorded_anew_when_it_changes():
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


def test_a_model_takes_indices_where_its_first_function_does():
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


# ---- several outputs ------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("kind", [Split, RecordableSplit])
@pytest.mark.parametrize("used", ["both", "first", "second", "twice", "none"])
def test_a_function_of_several_outputs_gets_a_gradient_for_each_that_was_used(kind, used, dtype):
    split = kind()

    def f(x):
        y, z = split(x)
        return {
            "both": lambda: y + z,
            "first": lambda: y * 1.0,
            "second": lambda: z * 3.0,
            "twice": lambda: y * z + y,
            "none": lambda: x * 1.0,
        }[used]()

    truth = {"both": 2 + 2 * X, "first": 2 + 0 * X, "second": 6 * X, "twice": 6 * X * X + 2, "none": 1 + 0 * X}[used]
    x = cl.Tensor(X.astype(dtype), requires_grad=True)
    y = f(x)
    y.backward(np.ones(X.shape, dtype))
    np.testing.assert_allclose(x.grad, truth, rtol=1e-5)

    def step(array):
        x.data = array
        x.zero_grad()
        f(x).backward(ones)
        return x.grad

    ones = np.ones(X.shape, dtype)
    program = cl.capture(step, X.astype(dtype))
    new = (X + 1).astype(dtype)
    assert_same_bits(program(new), step(new))


def test_the_backward_of_several_outputs_is_called_once():
    class Counted(Split):
        calls: list = []  # noqa: RUF012 (shared by the copies)

        def backward(self, dys):
            self.calls.append([dy is not None for dy in dys])
            return super().backward(dys)

    x = cl.Tensor(X, requires_grad=True)
    y, z = Counted()(x)
    (y.exp() + z * y).sum().backward()
    y, z = Counted()(x)
    z.sum().backward()
    assert Counted.calls == [[True, True], [False, True]]


def test_the_graph_of_several_outputs_is_freed_once():
    x = cl.Tensor(X, requires_grad=True)
    y, z = Split()(x)
    y.retain_grad()
    (y + z).sum().backward()
    assert_same_bits(y.grad, np.ones_like(X))
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()


def test_a_sequence_may_end_with_several_outputs():
    model = cl.Model([cl.Linear(4, 3), Split()])
    y, z = model(X)
    arrays = model.forward(X)
    assert_same_bits(arrays[0], y.data)
    assert_same_bits(arrays[1], z.data)
    assert model.backward((np.ones((12, 3), np.float32), None)).shape == X.shape
    with pytest.raises(TypeError, match="tuple"):
        cl.Model([Split(), cl.ReLU()])(X)


@pytest.mark.parametrize("bare", [True, False])
def test_a_loss_of_several_outputs_gets_them_as_a_tuple(bare):
    class SumOfBoth(cl.Function):
        def forward(self, outputs, targets):
            self.shape = targets.shape
            y, z = outputs
            return np.asarray((y * targets).sum() + 2 * z.sum(), y.dtype)

        def backward(self, dy=1.0):
            ds = np.full(self.shape, 1.0, np.float32), np.full(self.shape, 2.0, np.float32)
            return ds if bare else (ds, None)

    model = cl.Model([cl.Linear(4, 3, bias=False), RecordableSplit()], seed=0)
    targets = np.ones((12, 3), np.float32)
    one = step(model, cl.SGD(model.parameters(), lr=0.0), SumOfBoth())
    one(X, targets)
    h = X @ model.parameters()[0].data
    np.testing.assert_allclose(model.parameters()[0].grad, X.T @ (2 + 4 * h), rtol=1e-4)
    program = cl.capture(one, X, targets)
    assert_same_bits(program(X + 1, targets), one(X + 1, targets).data)


def test_a_tuple_of_tensors_is_not_taken_for_an_array():
    with pytest.raises((TypeError, ValueError)):
        cl.ReLU()(Split()(cl.Tensor(X)))


# ---- recordings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Block, RecordableBlock, *AROUND.values()], ids=["", "recordable", *AROUND])
def test_an_attribute_of_a_child_that_changes_after_recording_is_seen(kind):
    inner = Scale()
    function = kind(RecordableBlock(inner))
    program = cl.capture(lambda x: function(x), X)
    for value in (5.0, 7.0):
        inner.s = value  # at first it was the class's
        assert_same_bits(program(X), function(X).data)
    function.other = 1
    (function.children()[0]).function = Scale()
    assert_same_bits(program(X), function(X).data)


@pytest.mark.parametrize("around", [Block, RecordableBlock, *AROUND.values()], ids=["", "recordable", *AROUND])
@pytest.mark.parametrize("twice", [False, True])
def test_an_attribute_of_a_users_function_inside_others_that_changes_after_recording_is_seen(around, twice):
    inner = Block(cl.ReLU())
    function = around(cl.Model([inner, inner]) if twice else inner)
    program = cl.capture(lambda x: function(x), X)
    for value in (5.0, 7.0):
        inner.s = value
        assert_same_bits(program(X), function(X).data)


def test_an_attribute_that_was_the_classs_and_is_set_on_the_instance_is_seen():
    model = cl.Model([Scale()])
    model.predict(X)
    model.functions[0].s = 3.0
    assert_same_bits(model.predict(X), 3 * X)
    model.functions[0].forward = lambda x: x
    assert_same_bits(model.predict(X), X)
    del model.functions[0].s, model.functions[0].forward
    assert_same_bits(model.predict(X), 2 * X)


@pytest.mark.parametrize("kind", [Block, RecordableBlock])
def test_a_child_that_is_replaced_after_recording_is_seen(kind):
    def trained(replay):
        block = kind(cl.Linear(4, 3))
        model = cl.Model([block], seed=0)
        one = step(model, cl.SGD(model.parameters(), lr=0.1))
        run = cl.capture(one, X, Y) if replay else one
        if not replay:
            run(X, Y)
        block.function = cl.Linear(4, 3)
        block.function.initialize(1)
        values = [np.asarray(run(X, Y).data if not replay else run(X, Y)) for _ in range(3)]
        return values, block.function.weight.grad

    (eager, g), (replayed, h) = trained(False), trained(True)
    assert_same_bits(np.array(eager), np.array(replayed))
    assert_same_bits(g, h)


def test_what_is_in_an_attributes_dict_or_nested_list_is_seen():
    class Options(cl.Function, recordable=True):
        def __init__(self):
            self.options = {"factors": [[2.0]]}

        def forward(self, x):
            self.factor = self.options["factors"][0][0]
            return kernels.multiply(x, self.factor)

        def backward(self, dy):
            return kernels.multiply(dy, self.factor)

    model = cl.Model([Options()])
    model.predict(X)
    model.functions[0].options["factors"][0][0] = 3.0
    assert_same_bits(model.predict(X), 3 * X)
    model.functions[0].options["factors"] = [[4.0]]
    assert_same_bits(model.predict(X), 4 * X)


def random_tree(rng, depth):
    """A Function of rows of 4 features, made of others."""
    kind = rng.integers(0, 7 + len(AROUND) if depth else 3)
    inner = [random_tree(rng, depth - 1) for _ in range(2)] if kind > 2 else []
    shared = inner[0] if inner and rng.random() < 0.3 else None
    if kind == 0:
        return cl.Linear(4, 4)
    if kind == 1:
        return Scale()
    if kind == 2:
        return cl.Tanh()
    if kind == 3:
        return Block(cl.Model(inner))
    if kind == 4:
        return RecordableBlock(inner[0], s=float(rng.normal()))
    if kind == 5:
        return cl.Model([cl.Parallel([shared or inner[1], inner[0]]), cl.Linear(8, 4)])
    if kind == 6:
        return ByCall(inner, shared or inner[1])
    around = list(AROUND.values())[kind - 7](inner[0])
    return cl.Model([around, cl.Linear(around.output_shape((None, 4))[-1], 4)])


class ByCall(cl.Model):
    """Applies one of its Functions twice."""

    def __init__(self, functions, last):
        super().__init__()
        self.parts, self.last = {"all": functions}, last

    def call(self, x):
        for function in self.parts["all"]:
            x = x + function(x)
        y, z = RecordableSplit()(x)
        return (self.last(self.last(y)) + z).tanh()


@DTYPES
@pytest.mark.parametrize("seed", range(25))
def test_random_trees_replay_to_the_bit_while_their_attributes_change(seed, dtype):
    rng = np.random.default_rng(seed)
    tree = cl.Model([random_tree(rng, 3), cl.Linear(4, 3)], seed=seed, dtype=dtype)
    twin = copy.deepcopy(tree)
    steps = [step(model, cl.SGD(model.parameters(), lr=0.01, momentum=0.9)) for model in (tree, twin)]
    x = X.astype(dtype)
    program = cl.capture(steps[0], x, Y)
    steps[1](x, Y)
    scales = [[f for f in model.all_functions() if isinstance(f, Scale | Block)] for model in (tree, twin)]
    for i in range(6):
        x = rng.normal(size=X.shape).astype(dtype)
        if i % 2 and scales[0]:
            which, value = rng.integers(len(scales[0])), float(rng.uniform(0.5, 1.5))
            for of_model in scales:
                of_model[which].s = value
        assert_same_bits(program(x, Y), steps[1](x, Y).data)
        assert_same_parameters(tree, twin)
    assert_same_bits(tree.predict(X), twin(X.astype(dtype)).data)


@pytest.mark.parametrize("seed", range(25))
def test_the_gradients_of_random_trees_are_right_by_graph_and_by_hand(seed):
    rng = np.random.default_rng(seed)
    model = cl.Model([random_tree(rng, 2)], seed=seed)
    assert cl.check_gradients(model, X[:2]) < 1e-4
    model = cl.Model([random_tree(np.random.default_rng(seed), 2)], seed=seed, dtype=np.float64)
    assert cl.check_gradients(lambda x: model(x), X[:2]) < 1e-4


# ---- layers of the package -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_is_no_function_cannot_be_put_into_one(around):
    for wrong in (cl.ReLU, 1, None):
        with pytest.raises(TypeError, match="takes"):
            around(wrong)


def test_parallel_takes_a_list_of_functions():
    with pytest.raises(ValueError, match="no Functions"):
        cl.Parallel([])
    with pytest.raises(TypeError, match="takes"):
        cl.Parallel(cl.ReLU())
    assert cl.Parallel([cl.Linear(4, 3), cl.Linear(4, 2)]).output_shape((None, 4)) == (None, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_function_in_a_parallel_gets_all_inputs(dtype):
    frame = {"a": np.linspace(-1, 1, 12), "b": np.arange(12.0) ** 2, "word": np.array(list("xyzxyzxyzxyz"))}
    splines = [cl.Splines(frame, size, bins=3) for size in (4, 2)]
    parts = [cl.Model([splines[0], cl.ReLU(), cl.Linear(4, 3)]), splines[1]]
    model = cl.Model([cl.Parallel(parts), cl.Linear(5, 2)], seed=0, dtype=dtype)
    assert model.takes_indices == (False, True)
    assert model.input_dtype == np.float64
    arrays = splines[0].arrays(frame)
    outputs = np.concatenate([part.predict(arrays) for part in (parts[0], cl.Model([parts[1]], dtype=dtype))], axis=1)
    np.testing.assert_allclose(model[:1].predict(frame), outputs, rtol=0, atol=0)
    np.testing.assert_array_equal(model.predict(frame), model.predict(arrays))
    if dtype == np.float64:
        between = arrays[0] * 0.99 + 0.013  # not at a knot
        assert cl.check_gradients(model, between, arrays[1]) < 1e-6
    with pytest.raises(TypeError, match="column 'word' holds numbers"):
        model.predict({**frame, "word": np.ones(12)})


def test_a_parallel_of_other_columns_takes_no_frames():
    one, other = {"a": [1.0, 2], "b": [3.0, 5]}, {"c": [10.0, 20], "d": [30.0, 50]}
    with pytest.raises(ValueError, match=r"Columns\(a, b\) got \(n, 4\); expected numbers \(n, 2\)"):
        cl.Model([cl.Parallel([cl.Columns(one), cl.Columns(other)])]).predict({**one, **other})
    x = np.array([[1.0, 3], [2, 5]])
    assert cl.Model([cl.Parallel([cl.Columns(one), cl.Linear(2, 3)])], seed=0).predict(x).shape == (2, 5)


def test_one_function_that_stands_twice_in_a_parallel_adds_its_gradients():
    class OfDouble(Block):
        """y = f(2 x)."""

        def forward(self, x):
            return self.function.forward(2 * x)

        def backward(self, dy):
            return 2 * self.function.backward(dy)

    f = cl.Linear(4, 4)
    others = [around(f) for around in AROUND.values()]
    assert cl.check_gradients(cl.Parallel([f, f, OfDouble(f), *others]), X[:2]) < 1e-6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: cl.Parallel([cl.ReLU(), cl.Tanh()], axis=1), "Parallel([ReLU(), Tanh()], axis=1)"),
        (lambda: cl.Flatten(), "Flatten()"),
        (lambda: cl.Reshape([2, -1]), "Reshape((2, -1))"),
        (lambda: cl.Reshape(6), "Reshape((6,))"),
    ],
)
def test_layers_are_written_as_they_are_made(make, text):
    assert repr(make()) == text


def test_reshape_and_flatten_say_what_does_not_fit():
    assert cl.Reshape((2, -1)).output_shape((None, 4, 3)) == (None, 2, 6)
    assert cl.Reshape((2, -1)).output_shape((None, None, 3)) == (None, 2, None)
    assert cl.Flatten().output_shape((5, 4, 3)) == (5, 12)
    for layer, shape in ((cl.Reshape((2, 3)), (5, 5)), (cl.Reshape((4, -1)), (5, 6)), (cl.Flatten(), ())):
        with pytest.raises(ValueError, match="got"):
            layer.output_shape(shape)
        with pytest.raises(ValueError, match="got"):
            layer.forward(np.zeros(shape, np.float32))
    for shape in ((-2,), (-1, -1)):
        with pytest.raises(ValueError, match="Reshape"):
            cl.Reshape(shape)


@DTYPES
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 2, 4), (0, 3, 4), (2, 0, 4)])
def test_a_linear_layer_of_more_axes_is_that_of_so_many_rows(shape, dtype):
    layer = cl.Linear(4, 5)
    cl.Model([layer], dtype=dtype)
    x = np.asfortranarray(RNG.normal(size=shape).astype(dtype))
    dy = RNG.normal(size=(*shape[:-1], 5)).astype(dtype)
    y, dx, dw = layer.forward(x), layer.backward(dy), layer.weight.grad.copy()
    layer.weight.zero_grad()
    assert_same_bits(y, layer.forward(x.reshape(-1, 4)).reshape(dy.shape))
    assert_same_bits(dx, layer.backward(dy.reshape(-1, 5)).reshape(shape))
    assert_same_bits(dw, layer.weight.grad)


def test_layers_of_more_axes_can_follow_a_linear_layer():
    class Three(cl.Function):
        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

        def output_shape(self, *shapes):
            if len(shapes[0]) != 3:
                raise ValueError(f"three axes, not {shapes[0]}")
            return shapes[0]

    model = cl.Model([cl.Linear(4, 5), Three(), cl.Linear(5, 2)])
    assert model.output_shape((None, 3, 4)) == (None, 3, 2)
    with pytest.raises(ValueError, match="three axes"):
        model.output_shape((None, 4))
