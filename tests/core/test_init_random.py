"""Functions that `__init__` of a Model with a seed makes, and what it does with their parameters."""

import threading

import numpy as np
import pytest

import caffelite as cl
from tests.reference import assert_same_bits

DTYPES = (np.float32, np.float64)


def net(change=lambda model: None, *, seed=0, dtype=np.float32):
    class Net(cl.Model):
        def __init__(self):
            super().__init__(seed=seed, dtype=dtype)
            self.a, self.b = cl.Linear(3, 4), cl.Linear(4, 2)
            change(self)

        def call(self, x):
            return self.b(self.a(x))

    return Net()


def sequence(dtype=np.float32):
    return cl.Model([cl.Linear(3, 4), cl.Linear(4, 2)], seed=0, dtype=dtype)


def scale(model):
    model.a.weight.data = model.a.weight.data * 0.1


def write_in_place(model):
    model.a.weight.data[...] = 7


def draw_from_5(model):
    model.a.initialize(5)


def keep_the_largest(model):
    model.largest = np.abs(model.a.weight.data).max()


class Writer(cl.Model):
    """Embedding, blocks in a list and Dropout: Functions with children, with buffers, and with both."""

    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.embedding = cl.Embedding(10, 8)
        self.blocks = [cl.TransformerBlock(8, 2, dropout=0.1) for _ in range(2)]
        self.dropout, self.output = cl.Dropout(0.1), cl.Linear(8, 10)

    def call(self, x):
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return self.output(self.dropout(h))


def values(model):
    return [*(p.data for p in model.parameters()), *model.buffers().values()]


def assert_equal_values(a, b):
    for x, y in zip(values(a), values(b), strict=True):
        assert_same_bits(x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_subclass_draws_what_a_sequence_of_its_functions_draws(dtype):
    assert_equal_values(net(dtype=dtype), sequence(dtype))


def test_children_and_buffers_are_drawn_as_in_a_sequence_and_by_initialize():
    functions = [cl.Embedding(10, 8), *[cl.TransformerBlock(8, 2, dropout=0.1) for _ in range(2)]]
    as_sequence = cl.Model([*functions, cl.Dropout(0.1), cl.Linear(8, 10)], seed=0)
    again = Writer(seed=1)
    again.initialize(0)
    assert_equal_values(Writer(seed=0), as_sequence)
    assert_equal_values(Writer(seed=0), again)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_init_scales_come_from_the_seed(dtype):
    scaled, plain = net(scale, dtype=dtype), sequence(dtype)
    assert_same_bits(scaled.a.weight.data, (plain[0].weight.data * 0.1).astype(dtype))
    assert_same_bits(scaled.b.weight.data, plain[1].weight.data)


def test_init_reads_the_values_that_the_model_will_have():
    model = net(keep_the_largest)
    assert model.largest == np.abs(model.a.weight.data).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_init_writes_in_place_stay(dtype):
    model = net(write_in_place, dtype=dtype)
    assert np.all(model.a.weight.data == 7)
    assert_same_bits(model.b.weight.data, sequence(dtype)[1].weight.data)


def test_a_function_that_init_draws_from_a_seed_of_its_own_keeps_it():
    expected = cl.Linear(3, 4)
    expected.initialize(5)
    assert_same_bits(net(draw_from_5).a.weight.data, expected.weight.data)


def test_a_model_that_draws_itself_again_in_init_has_the_values_of_that_seed():
    class Again(Writer):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.initialize(3)

    assert_equal_values(Again(0), Writer(3))


@pytest.mark.parametrize("change", [scale, write_in_place, draw_from_5])
def test_initialize_draws_all_parameters_again_whatever_init_did(change):
    model = net(change)
    model.initialize(0)
    assert_equal_values(model, sequence())


def test_functions_that_were_made_outside_are_drawn_from_the_seed():
    layer = cl.Linear(3, 4)

    def use_it(model):
        model.a = layer

    assert not np.array_equal(net(use_it).a.weight.data, net().a.weight.data)
    assert_same_bits(net(use_it).a.weight.data, net(use_it).a.weight.data)  # drawn once, and kept from then on
    assert_same_bits(
        net(lambda model: setattr(model, "a", None), seed=3).b.weight.data, sequence_of_seed(3)[1].weight.data
    )


def sequence_of_seed(seed):
    return cl.Model([cl.Linear(3, 4), cl.Linear(4, 2)], seed=seed)


@pytest.mark.parametrize("inner_seed", [None, 1])
def test_a_model_inside_draws_from_the_outer_seed(inner_seed):
    class Outer(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.first = cl.Linear(3, 3)
            self.inner = cl.Model([cl.Linear(3, 4), cl.Linear(4, 2)], seed=inner_seed)
            self.last = cl.Linear(2, 1)

        def call(self, x):
            return self.last(self.inner(self.first(x)))

    assert_equal_values(Outer(0), Outer(0))
    assert not np.array_equal(Outer(0).inner[0].weight.data, Outer(2).inner[0].weight.data)


def test_a_class_without_a_seed_inside_one_with_a_seed_draws_from_it():
    class Inner(cl.Model):
        def __init__(self):
            super().__init__()
            self.a = cl.Linear(3, 3)
            self.a.weight.data = self.a.weight.data * 2

        def call(self, x):
            return self.a(x)

    class Outer(cl.Model):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.inner, self.b = Inner(), cl.Linear(3, 3)

        def call(self, x):
            return self.b(self.inner(x))

    plain = cl.Model([cl.Linear(3, 3), cl.Linear(3, 3)], seed=0)
    assert_same_bits(Outer(0).inner.a.weight.data, plain[0].weight.data * np.float32(2))
    assert_same_bits(Outer(0).b.weight.data, plain[1].weight.data)


def test_after_init_functions_draw_from_the_operating_system_again():
    net()
    assert not np.array_equal(cl.Linear(3, 4).weight.data, cl.Linear(3, 4).weight.data)
    assert cl.Linear(3, 4).weight.dtype == np.float32
    with pytest.raises(ZeroDivisionError):
        net(lambda model: 1 / 0)
    assert not np.array_equal(cl.Linear(3, 4).weight.data, cl.Linear(3, 4).weight.data)


def test_another_thread_does_not_draw_from_the_model():
    drawn = []

    def in_another_thread(model):
        thread = threading.Thread(target=lambda: drawn.append(cl.Linear(3, 4).weight.data))
        thread.start()
        thread.join()

    assert_equal_values(net(in_another_thread), sequence())
    net(in_another_thread)
    assert not np.array_equal(*drawn)
