"""Wrong labels: a loss that forgives them, compared with the usual one. 40 % of the labels are drawn at random.

The generalized cross-entropy is (1 − p^q) / q, with p the probability of the label. It is between −log p (q → 0) and 1
− p (q = 1). An example that the net finds impossible pulls less than it does with −log p. Z. Zhang and M. Sabuncu,
"Generalized cross entropy loss for training deep neural networks with noisy labels", 2018.
"""

import numpy as np

import caffelite as cl

rng = np.random.default_rng(0)
(x, y), (x_test, y_test) = cl.datasets.digits()
x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)
is_random = rng.random(len(y)) < 0.4
noisy_y = np.where(is_random, rng.integers(0, 10, len(y)), y)
targets = np.eye(10)[noisy_y]  # as rows of probabilities, which both losses take


def generalized_cross_entropy(outputs, targets, q=0.7):
    p = (outputs.softmax() * targets).sum(axis=1)
    return ((1 - p**q) / q).mean()


def train(loss):
    """Return the test accuracy after a training with this loss, and the share of wrong labels that the net repeats."""
    model = cl.MLP(64, [128, 10], seed=0)
    model.fit(x, targets, loss=loss, optimizer=cl.Adam(model.parameters()), epochs=100, verbose=0)
    wrong = noisy_y != y
    memorized = (model.predict(x).argmax(axis=1) == noisy_y)[wrong].mean()
    return (model.predict(x_test).argmax(axis=1) == y_test).mean(), memorized


print(f"{np.mean(noisy_y != y):.1%} of the training labels are wrong")
for name, loss in (("cross-entropy", cl.SoftmaxLoss()), ("generalized cross-entropy", generalized_cross_entropy)):
    accuracy, memorized = train(loss)
    print(f"{name}: test accuracy {accuracy:.4f}, wrong labels memorized {memorized:.4f}")
