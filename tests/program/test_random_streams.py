"""Random numbers that Python draws in a step: each step draws its own, and `capture` refuses them."""

import random

import numpy as np
import pytest

import caffelite as cl
from caffelite.program.guards.random_streams import are_equal, get_state

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(32, 1)).astype(np.float32)
STATE, RNG, RANDOM, SYSTEM = np.random.RandomState(3), np.random.default_rng(3), random.Random(3), random.SystemRandom()
DRAWS = {
    "np.random.randn": lambda: float(np.random.randn()),  # noqa: NPY002
    "np.random.normal": lambda: float(np.random.normal()),  # noqa: NPY002
    "np.random.rand": lambda: float(np.random.rand()),  # noqa: NPY002
    "RandomState.normal": lambda: float(STATE.normal()),
    "Generator.normal": lambda: float(RNG.normal()),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.random": lambda: random.random(),
    "Random.gauss": lambda: RANDOM.gauss(0, 1),
    "SystemRandom.random": lambda: SYSTEM.random(),
}


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_loss_that_draws_a_number_draws_one_in_each_step(draw):
    model = cl.MLP(4, [3, 1], seed=0)
    optimizer = cl.SGD(model.parameters(), 1e-30)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean() * (2 + draw())

    history = model.fit(X, Y, loss=loss, optimizer=optimizer, epochs=8, batch_size=32, verbose=0)
    assert len(set(history["loss"])) == 8


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_capture_refuses_each_number_also_one_that_the_stream_has_kept(draw):
    for _ in range(2):
        with pytest.raises(TypeError, match="draws random numbers in Python"):
            cl.capture(lambda x: cl.Tensor(x) * draw(), X)


@pytest.mark.parametrize("stream", [random.Random(1), np.random.RandomState(1), np.random.default_rng(1)])
def test_a_state_has_the_normal_number_that_is_kept(stream):
    draw = getattr(stream, "gauss", None) or stream.normal
    draw(0, 1)
    state = get_state(stream)
    assert are_equal(get_state(stream), state)
    draw(0, 1)
    assert not are_equal(get_state(stream), state)
