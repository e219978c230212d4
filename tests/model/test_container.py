"""A Model of Functions in sequence, used like a list of them."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests.reference import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)


def net(dtype=np.float32):
    return cl.Model(
        [cl.Linear(4, 8), cl.BatchNorm(8), cl.ReLU(), cl.Linear(8, 2), cl.Linear(2, 3)], seed=0, dtype=dtype
    )


def train_net(model, x=X, y=Y):
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters(), 0.1), epochs=3, verbose=0, seed=1)
    return model


class GatedNet(cl.Model):
    def __init__(self):
        super().__init__()
        self.f, self.g = cl.Linear(4, 4), cl.Linear(4, 4)

    def call(self, x):
        return self.f(x) * self.g(x)


def test_a_sequence_has_a_length_items_and_an_order():
    model = net()
    assert len(model) == 5
    assert list(model) == model.functions
    assert list(reversed(model)) == model.functions[::-1]
    assert model.functions[2] in model
    for i in (0, 4, -1, -5, np.int64(3)):
        assert model[i] is model.functions[i]
    assert len(cl.Model()) == 0
    assert list(cl.Model()) == []


@pytest.mark.parametrize("index", [5, -6])
def test_a_function_that_there_is_not_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"no Function {index} in a Model of 5 Functions"):
        net()[index]


@pytest.mark.parametrize("index", ["0", 1.0, None, (0, 1)])
def test_a_place_in_a_sequence_is_an_integer_or_a_slice(index):
    with pytest.raises(TypeError):
        net()[index]


def test_a_model_that_writes_call_is_not_a_sequence_and_reports_it():
    model = GatedNet()
    for use in (len, iter, list, lambda model: model[0], lambda model: model[:1]):
        with pytest.raises(TypeError, match=r"GatedNet writes `call` and is not a sequence.*in its attributes"):
            use(model)


def test_a_model_is_true_whatever_is_in_it():
    for model in (cl.Model(), net(), GatedNet()):
        assert model
        assert bool(model) is True


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("part", [slice(2), slice(1, -1), slice(None), slice(0, 0), slice(2, 3)])
def test_a_slice_is_a_model_that_shares_the_functions(part, dtype):
    model = net(dtype)
    of_model = model[part]
    assert type(of_model) is cl.Model
    assert of_model.dtype == dtype
    assert of_model.functions == model.functions[part]
    expected = [p for function in model.functions[part] for p in function.parameters()]
    assert [id(p) for p in of_model.parameters()] == list(map(id, expected))


def test_a_slice_of_a_subclass_is_a_model():
    class Deep(cl.Model):
        def __init__(self, depth):
            super().__init__([cl.Linear(4, 4) for _ in range(depth)])

    assert type(Deep(3)[1:]) is cl.Model
    assert len(Deep(3)[1:]) == 2


def test_a_slice_computes_what_the_model_computes_up_to_its_end():
    model = train_net(net())
    h = model[:3].predict(X)
    assert_same_bits(model[3:].predict(h), model.predict(X))
    assert_same_bits(model[:].predict(X), model.predict(X))


def test_a_slice_moves_no_parameter_and_the_model_trains_as_without_it():
    plain, model = train_net(net()), train_net(net())
    before = [kernels.address(p.data) for p in model.parameters()]
    part = model[1:-1]
    part.predict(RNG.normal(size=(3, 8)))
    model[0:1].predict(X)
    assert [kernels.address(p.data) for p in model.parameters()] == before
    for p, q in zip(train_net(model).parameters(), train_net(plain).parameters(), strict=True):
        assert_same_bits(p.data, q.data)


@pytest.mark.parametrize("part", [slice(3, None), slice(None, 2), slice(None)])
def test_a_slice_and_its_model_learn_together(part):
    model = net()
    before = [p.data.copy() for p in model.parameters()]
    of_model = model[part]
    for p in of_model.parameters():
        p.data = np.full(p.shape, 2)
    shared = {id(p) for p in of_model.parameters()}
    for p, old in zip(model.parameters(), before, strict=True):
        assert_same_bits(p.data, np.full_like(old, 2) if id(p) in shared else old)
    train_net(model)
    assert all((p.data != 2).any() for p in of_model.parameters())


def test_the_head_of_a_net_is_trained_on_what_the_body_gives():
    model = train_net(net())
    body, head = model[:3], model[3:]
    before = [p.data.copy() for p in body.parameters()]
    train_net(head, body.predict(X))
    for p, old in zip(body.parameters(), before, strict=True):
        assert_same_bits(p.data, old)
    assert_same_bits(head.predict(body.predict(X)), model.predict(X))


def test_functions_that_do_not_fit_together_make_no_slice():
    with pytest.raises(ValueError, match=r"Linear\(2 → 3\) got rows of 8 features"):
        net()[::2]


def test_a_model_of_some_functions_may_grow():
    model = net()
    model[:3].add(cl.Linear(8, 2))
    assert len(model) == 5


def test_a_slice_takes_indices_as_its_first_function_does():
    model = cl.Model([cl.Embedding(5, 3), cl.Flatten(), cl.Linear(6, 2)], seed=0)
    indices = np.array([[0, 4], [2, 2]])
    assert model[:2].predict(indices).shape == (2, 6)
    assert not model[1:].takes_indices
    model.takes_indices = False
    assert not model[:2].takes_indices


def test_a_slice_is_saved_copied_and_frozen(tmp_path):
    model = net()
    model[:3].save(tmp_path / "body")
    assert_same_bits(cl.load(tmp_path / "body").predict(X), model[:3].predict(X))
    model[:3].requires_grad = False
    assert [p.requires_grad for p in model.parameters()] == [False] * 4 + [True] * 4
