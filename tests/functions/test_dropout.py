"""Dropout and DropConnect: what their cases do not say."""

import copy
import math
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.functions import DropConnect, Dropout
from tests.cases import both_dtypes
from tests.cases.dropout import philox, philox_mask
from tests.conftest import bits
from tests.reference import assert_same_bits


def drop_bits(n, random):
    """Return the 16 bits that each of n elements is dropped by, of the compiled generator, found by halving p."""
    low, high = np.zeros(n, np.int64), np.full(n, 2**16)
    while (high - low > 1).any():
        middle = (low + high) // 2
        for i in range(n):
            kept = kernels.dropout_grad(np.ones(n), random, middle[i] / 2**16)[i] > 0
            low[i], high[i] = (middle[i], high[i]) if kept else (low[i], middle[i])
    return low.tolist()


# ---- the generator ----

# counter, key and words: kat_vectors of Random123, the library of the paper's authors
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_the_judges_philox_gives_the_published_words(counter, key, words):
    assert tuple(philox(counter, key)) == words


def test_the_kernels_philox_gives_the_published_words():
    counter, key, words = PUBLISHED[0]
    assert counter == (0, 0, 0, 0)
    assert key == (0, 0)
    drawn = drop_bits(128, np.zeros(2, np.int64))[::16]
    assert drawn == [*[word & 0xFFFF for word in words], *[word >> 16 for word in words]]


@pytest.mark.parametrize("random", [(0, 1), (2**63 - 1, 2**62 + 2**31), (2**32, 2**32 - 1), (12345678901234567, 7)])
def test_the_kernels_philox_gives_the_judges_words(random):
    seed, step = random
    for i, drawn in enumerate(drop_bits(129, np.array(random))):
        counter = (16 * (i // 128) + i % 16, 0, step % 2**32, step >> 32)
        word = philox(counter, (seed % 2**32, seed >> 32))[i % 64 // 16]
        assert drawn == (word >> 16 if i % 128 >= 64 else word & 0xFFFF)


@pytest.mark.parametrize("p", [1e-3, 0.2, 0.5, 0.9])
def test_as_many_elements_are_dropped_as_p_says_independently_of_place_step_and_seed(p):
    """Frequencies within 4.5 standard deviations, of elements and of pairs of them; the seeds are fixed."""
    n, x = 1 << 18, np.ones(1 << 18, np.float32)
    dropped = np.array(
        [kernels.dropout_grad(x, np.array([seed, step]), p) == 0 for seed in (0, 1, 2**40) for step in range(3)]
    )
    assert_frequency(dropped, p)
    for distance in (1, 4, 16, 64, 128, 1000):
        assert_frequency(dropped[:, :-distance] & dropped[:, distance:], p * p)
    assert_frequency(dropped[:-1] & dropped[1:], p * p)
    assert_frequency(dropped[0] & dropped[3], p * p)
    of_place = dropped.reshape(-1, n // 128, 128).mean(axis=(0, 1))
    assert (abs(of_place - p) < 4.5 * math.sqrt(p * (1 - p) * 128 / dropped.size)).all()


def assert_frequency(events, p):
    # Neighbouring pairs share elements, which makes their counts vary a little more than independent ones.
    assert abs(events.mean() - p) < 4.5 * math.sqrt(3 * p * (1 - p) / events.size)


@pytest.mark.parametrize("p", [1 - 2**-53, 1 - 2**-33, 2**-33, 1e-300])
def test_a_p_next_to_0_or_1_drops_none_or_all(p):
    y = kernels.dropout_grad(np.ones(100_000), np.array([5, 0]), p)
    assert (y == 0).mean() == round(p)


# ---- the layer ----


def apply_to_ones(function, n=1000):
    return function(np.ones(n, np.float32)).data


def test_every_application_in_training_draws_another_mask_and_the_count_goes_on():
    dropout = Dropout(0.3)
    seed = int(dropout.random[0])
    masks = [apply_to_ones(dropout) for _ in range(3)]
    assert dropout.buffers()["random"].tolist() == [seed, 3]
    for step, mask in enumerate(masks):
        np.testing.assert_allclose(mask, philox_mask((1000,), (seed, step), 0.3), 1e-6)
    assert len({mask.tobytes() for mask in masks}) == 3


def test_in_inference_and_with_p_0_it_is_the_identity_and_draws_nothing():
    x = np.array([1.0, np.nan, -0.0])
    for dropout, training in [(Dropout(0.9), False), (Dropout(0.0), True)]:
        before = dropout.random.tolist()
        if training:
            assert dropout.forward(x) is x
            assert dropout.backward(x) is x
        else:
            with cl.inference():
                assert dropout.forward(x) is x
                assert dropout.backward(x) is x
        assert dropout.random.tolist() == before


def test_the_first_rows_have_the_mask_that_they_have_in_the_whole_batch():
    x = np.random.default_rng(0).normal(size=(100, 37))
    whole = kernels.dropout_grad(x, np.array([1, 2]), 0.5)
    for rows in (1, 2, 7, 99):
        assert_same_bits(kernels.dropout_grad(x[:rows], np.array([1, 2]), 0.5), whole[:rows])
        rest = x[rows:], np.array([1, 2]), 0.5
        assert_same_bits(kernels.dropout_grad(*rest, first=rows * 37), whole[rows:])
        assert_same_bits(kernels.dropout(*rest, first=rows * 37)[0], whole[rows:])
    with pytest.raises(ValueError, match="first"):
        kernels.dropout_grad(x, np.array([1, 2]), 0.5, first=-1)


@both_dtypes
def test_backward_has_the_mask_of_its_own_forward_though_another_came_in_between(dtype):
    dropout = Dropout(0.5)
    dropout.initialize(3)
    seed = int(dropout.random[0])

    def step(x):
        a, b = cl.Tensor(x, requires_grad=True), cl.Tensor(x, requires_grad=True)
        first = dropout(a)
        second = dropout(b)
        (first.sum() + second.sum()).backward()
        return a.grad, b.grad

    program = cl.capture(step, np.ones(300, dtype))
    for k in range(1, 4):
        gradients = program(np.ones(300, dtype)) if k < 3 else step(np.ones(300, dtype))
        assert dropout.random.tolist() == [seed, 2 * k + 2]
        for i, gradient in enumerate(gradients):
            assert_same_bits(np.asarray(gradient), philox_mask((300,), (seed, 2 * k + i), 0.5).astype(dtype))


@pytest.mark.parametrize("layer", [lambda: Dropout(0.4), lambda: DropConnect(8, 8, 0.4)])
def test_fit_has_the_bits_of_the_loop_by_hand_and_leaves_its_counts(layer):
    def net():
        return cl.Model([cl.Linear(3, 8), layer(), cl.ReLU(), layer(), cl.Linear(8, 4)], seed=0)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 4, 50)
    model, by_hand = net(), net()
    optimizer = cl.Adam(model.parameters(), lr=0.01)
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=3, batch_size=20, shuffle=False, verbose=0)
    optimizer, loss = cl.Adam(by_hand.parameters(), lr=0.01), cl.SoftmaxLoss()
    for _ in range(3):
        for rows in (slice(0, 20), slice(20, 40), slice(40, 50)):
            optimizer.zero_grad()
            loss(by_hand(x[rows]), y[rows]).backward()
            optimizer.step()
    assert bits(model) == bits(by_hand)
    for i in (1, 3):
        counts = [m.functions[i].buffers()["random"].tolist() for m in (model, by_hand)]
        assert counts[0] == counts[1]
        assert counts[0][1] == 9


def test_a_p_that_is_changed_is_seen_by_the_next_replay():
    dropout = Dropout(0.5)
    program = cl.capture(lambda x: dropout(x), np.ones(1000, np.float32))
    dropout.p = 0.9
    np.testing.assert_allclose(program(np.ones(1000, np.float32)).max(), 10)
    dropout.p = 1.0
    with pytest.raises(ValueError, match=r"p must be 0 or more and below 1, got 1\.0"):
        program(np.ones(1000, np.float32))


# ---- seeds ----


def test_a_seeded_model_drops_the_same_each_time_and_each_layer_something_else():
    models = [cl.Model([Dropout(), cl.Linear(3, 3), Dropout(), Dropout()], seed=seed) for seed in (0, 0, 1)]
    seeds = [[int(m.functions[i].random[0]) for i in (0, 2, 3)] for m in models]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 6
    models[0].initialize(1)
    assert [int(models[0].functions[i].random[0]) for i in (0, 2, 3)] == seeds[2]


def test_without_a_seed_every_dropout_has_one_of_its_own():
    assert len({int(Dropout().random[0]) for _ in range(100)}) == 100


def test_a_dropout_more_changes_no_draw_of_another_layer():
    plain = cl.Model([cl.Linear(3, 4), cl.Linear(4, 5)], seed=0)
    dropped = cl.Model([Dropout(), cl.Linear(3, 4), Dropout(), Dropout(), cl.Linear(4, 5), Dropout()], seed=0)
    assert bits(plain) == bits(dropped)
    connected = cl.Model([DropConnect(3, 4), Dropout(), DropConnect(4, 5)], seed=0)
    assert bits(plain) == bits(connected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_goes_on_drawing_as_the_model_does_by_itself(copied):
    model = cl.Model([Dropout(), cl.Linear(30, 4), DropConnect(4, 4)], seed=0)
    model(np.ones((5, 30), np.float32))
    other = copied(model)
    for _ in range(3):
        x = np.ones((5, 30), np.float32)
        assert_same_bits(other(x).data, model(x).data)
    assert other.functions[0].random is not model.functions[0].random


def test_drawing_again_begins_to_count_again():
    dropout = Dropout()
    dropout.initialize(4)
    first = apply_to_ones(dropout)
    dropout.initialize(np.random.default_rng(4))
    assert_same_bits(apply_to_ones(dropout), first)


# ---- DropConnect ----


def test_a_dropconnect_never_drops_its_bias_and_scales_what_it_keeps():
    layer = DropConnect(50, 40, 0.75)
    layer.weight.data, layer.bias.data = np.eye(50, 40), np.arange(40)
    y = layer(np.eye(50, dtype=np.float32)).data - np.arange(40)
    assert set(np.unique(np.diag(y[:40]))) == {0, 4}
    assert (y[~np.eye(50, 40, dtype=bool)] == 0).all()


def test_in_inference_a_dropconnect_is_linear():
    layer, linear = DropConnect(5, 4), cl.Linear(5, 4)
    for p, q in zip(linear.parameters(), layer.parameters(), strict=True):
        p.data = q.data
    x = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    with cl.inference():
        assert_same_bits(layer(x).data, linear(x).data)
        assert_same_bits(layer.forward(x.reshape(7, 1, 5))[:, 0], linear(x).data)


def test_a_frozen_weight_of_a_dropconnect_gets_no_gradient():
    layer = DropConnect(5, 4)
    layer.weight.requires_grad = False
    layer(cl.Tensor(np.ones((7, 5)), dtype=np.float32, requires_grad=True)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.tolist() == [7] * 4


# ---- errors, which move nothing on ----


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, np.nan, np.inf])
def test_a_p_outside_0_to_1_raises(p):
    for make in (lambda: Dropout(p), lambda: DropConnect(2, 3, p)):
        with pytest.raises(ValueError, match="p must be 0 or more and below 1"):
            make()
    random = np.array([3, 4])
    for kernel in (kernels.dropout, kernels.dropout_grad):
        with pytest.raises(ValueError, match="p must be 0 or more and below 1"):
            kernel(np.ones(3), random, p)
    assert random.tolist() == [3, 4]


def test_dropout_that_drops_nothing_draws_no_mask():
    for dropout, x, error in [
        (Dropout(), np.ones(3, np.int64), TypeError),
        (Dropout(), np.ones(3, np.float16), TypeError),
        (DropConnect(3, 2), np.ones((4, 3)), TypeError),
        (DropConnect(3, 2), np.ones((4, 5), np.float32), ValueError),
        (DropConnect(3, 2), np.ones(3, np.float32), ValueError),
    ]:
        before = dropout.random.tolist()
        with pytest.raises(error):
            dropout.forward(x)
        assert dropout.random.tolist() == before


def test_the_numerical_check_leaves_a_dropouts_count_as_it_is():
    dropout = Dropout()
    apply_to_ones(dropout)
    before = dropout.random.tolist()
    assert cl.check_gradients(dropout, np.random.default_rng(0).normal(size=(4, 5))) < 1e-7
    assert dropout.random.tolist() == before


def test_seed_and_count_are_two_int64_side_by_side():
    for bad, error in [
        (np.ones(2), TypeError),
        (np.ones(3, np.int64), ValueError),
        (np.ones((1, 2), np.int64), ValueError),
        (np.ones(4, np.int64)[::2], ValueError),
    ]:
        for call in (kernels.next_draw, lambda random: kernels.dropout_grad(np.ones(3), random, 0.5)):
            with pytest.raises(error):
                call(bad)


def test_dropouts_say_how_they_are_made():
    assert repr(Dropout(0.25)) == "Dropout(0.25)"
    assert repr(DropConnect(2, 3)) == "DropConnect(2, 3, 0.5)"
