"""Mixup: a net that sees blends of two images and of their labels learns fewer of the wrong labels.

Each batch is blended with itself in another order: λ x + (1 − λ) x'. The probabilities of the classes are blended too.
Half of the labels are drawn at random. With the right labels, mixup does not help on these images. H. Zhang, M. Cisse,
Y. Dauphin and D. Lopez-Paz, "mixup: beyond empirical risk minimization", ICLR 2018.
"""

import numpy as np

import caffelite as cl

(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)
rng = np.random.default_rng(0)
y = np.where(rng.random(len(y)) < 0.5, rng.integers(0, 10, len(y)), y)
loss = cl.SoftmaxLoss()


def make_mixup(seed):
    """Return a transform of batches, which draws one λ for each."""
    rng = np.random.default_rng(seed)

    def mix(x, y):
        share, other = rng.beta(1.0, 1.0), rng.permutation(len(x))
        classes = np.eye(10)[y]
        return share * x + (1 - share) * x[other], share * classes + (1 - share) * classes[other]

    return mix


def accuracy(transform, seed):
    """Train, and return the accuracy on the test images, whose labels are right."""
    model = cl.MLP(64, [128, 128, 10], seed=seed)
    batches = cl.DataGenerator(x, y, batch_size=32, seed=seed, transform=transform)
    model.fit(batches, loss=loss, optimizer=cl.Adam(model.parameters()), epochs=60, verbose=0)
    return model.evaluate(x_test, y_test, loss=loss, metrics=["accuracy"])["accuracy"]


plain = np.mean([accuracy(None, seed) for seed in range(2)])
mixed = np.mean([accuracy(make_mixup(seed), seed) for seed in range(2)])
print(f"mean of 2 seeds: test accuracy {plain:.4f}, with mixup: test accuracy {mixed:.4f}")
