"""Clipping the norm of gradients."""

import numpy as np

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.columns import ARMS, POINTS, RNG


def test_a_fit_clips_as_a_loop_by_hand_does():
    model, other = classifier(2, 8, 3), classifier(2, 8, 3)
    history = train(model, POINTS, ARMS, lr=0.5, clip_norm=0.1, batch_size=7, shuffle=False, epochs=4)
    optimizer, loss = cl.SGD(other.parameters(), lr=0.5, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(4):
        for i in range(0, 60, 7):
            optimizer.zero_grad()
            loss(other(POINTS[i : i + 7]), ARMS[i : i + 7]).backward()
            if i < 30:
                optimizer.step(clip_norm=0.1)
            else:  # the same in two steps
                optimizer.clip_gradients(0.1)
                optimizer.step()
    assert bits(model) == bits(other)
    assert history.epochs == 4


def test_each_fit_has_its_own_norm():
    """Programs are kept; another norm, or none, is another step."""
    model = classifier(2, 8, 3)
    start, optimizer, loss = model.state_dict(), cl.SGD(model.parameters(), lr=0.5), cl.SoftmaxLoss()

    def train_with(clip_norm):
        model.load_state_dict(start)
        train(model, POINTS, ARMS, loss=loss, optimizer=optimizer, epochs=2, seed=0, clip_norm=clip_norm)
        return bits(model)

    first = [train_with(norm) for norm in (None, 0.1, 0.01, 1e9)]
    assert first == [train_with(norm) for norm in (None, 0.1, 0.01, 1e9)]
    assert first[0] == first[3]
    assert len(set(first)) == 3


def test_the_gradients_of_a_users_optimizer_are_clipped():
    class NumPySGD(cl.Optimizer):
        def step(self):
            for p in self.parameters:
                p.data = p.data - np.float32(self.lr) * p.grad

    model, other = classifier(2, 8, 3), classifier(2, 8, 3)
    options = {"epochs": 3, "seed": 0, "clip_norm": 0.1}
    train(model, POINTS, ARMS, optimizer=NumPySGD(model.parameters(), lr=0.5), **options)
    train(other, POINTS, ARMS, optimizer=cl.SGD(other.parameters(), lr=0.5), **options)
    np.testing.assert_allclose(model.predict(POINTS), other.predict(POINTS), rtol=1e-5, atol=1e-6)


def test_clipping_gives_the_same_bits_for_any_number_of_threads(restored_threads):
    x, y = RNG.normal(size=(64, 1200)).astype(np.float32), RNG.integers(0, 10, size=64)
    seen = set()
    for threads in (1, 2, 3):
        cl.set_num_threads(threads)
        model = classifier(1200, 800, 10)
        train(model, x, y, clip_norm=0.05, seed=0)
        seen.add(bits(model))
    assert len(seen) == 1
