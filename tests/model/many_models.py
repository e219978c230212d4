"""Models that are trained together and alone."""

import numpy as np

import caffelite as cl
from tests.conftest import classifier
from tests.core.tensors import Swish

ROWS = 50  # in batches of 16, the last one of 2


def data(outputs=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 4)), rng.integers(0, outputs, ROWS)


class GatedNet(cl.Model):
    """No sequence."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.f, self.g = cl.Linear(4, 3), cl.Linear(4, 3)

    def call(self, x):
        return self.f(x) * self.g(x).sigmoid()


class NumPySGD(cl.Optimizer):
    """Computed by NumPy."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - self.lr * p.grad


def frozen_net(seed):
    model = classifier(4, 8, 3, seed=seed)
    model.functions[0].requires_grad = False
    return model


def one_seed(seed):
    return cl.Model([cl.Linear(4, 3)], seed=7)


MODELS = {
    "plain": lambda seed: classifier(4, 8, 3, seed=seed),
    "float64": lambda seed: classifier(4, 8, 3, seed=seed, dtype=np.float64),
    "of several widths": lambda seed: classifier(4, 5 + seed % 3, 3, seed=seed),
    "random and normalized": lambda seed: cl.Model(
        [cl.Linear(4, 8), cl.BatchNorm(8), cl.Dropout(0.3), cl.ReLU(), cl.DropConnect(8, 3)], seed=seed
    ),
    "Python": lambda seed: cl.Model([cl.Linear(4, 8), Swish(), cl.Linear(8, 3)], seed=seed),
    "call": GatedNet,
    "frozen": frozen_net,
    "of one seed": one_seed,
}
OPTIMIZERS = {
    "SGD": lambda ps, i: cl.SGD(ps, lr=0.1 + 0.01 * i),
    "Adam": lambda ps, i: cl.Adam(ps, lr=0.01 * (i + 1), weight_decay=0.01 * i),
    "schedule": lambda ps, i: cl.SGD(ps, lr=cl.schedules.cosine(0.1 + 0.01 * i, steps=6, warmup=2), momentum=0.9),
    "groups": lambda ps, i: cl.SGD([{"parameters": ps[:1], "lr": 0.05}, {"parameters": ps[1:]}], lr=0.1),
    "Python": lambda ps, i: NumPySGD(ps, lr=0.1),
}


def entries(model, optimizer, count=5):
    models = [MODELS[model](seed) for seed in range(count)]
    return models, [OPTIMIZERS[optimizer](m.parameters(), i) for i, m in enumerate(models)]


def lone(models, optimizers, x, y, rows=None, loss=None, **options):
    """Return what one fit after the other gives."""
    losses = loss if isinstance(loss, list) else [loss or cl.SoftmaxLoss()] * len(models)
    histories = []
    for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        part = (x, y) if rows is None else (x[rows[i]], y[rows[i]])
        histories.append(model.fit(*part, loss=losses[i], optimizer=optimizer, verbose=0, **options))
    return histories


def many(models, optimizers, x, y, loss=None, **options):
    return cl.fit_many(models, x, y, loss=loss or cl.SoftmaxLoss(), optimizers=optimizers, **options)


def state(model, optimizer):
    """All that a training leaves, to the bit."""
    arrays = {**model.state_dict(), **optimizer.state_dict()}
    found = {name: np.asarray(x).tobytes() for name, x in arrays.items()}
    for i, p in enumerate(model.parameters()):
        found[f"gradient {i}"] = None if p.grad is None else p.grad.tobytes()
        found[f"is as drawn {i}"] = p._has_initial_values()
    return found | {"stream": model._model_state.rng.bit_generator.state}


def assert_alike(these, those, but=()):
    for i, (a, b) in enumerate(zip(zip(*these, strict=True), zip(*those, strict=True), strict=True)):
        one, other = state(*a), state(*b)
        assert [name for name in one if one[name] != other[name] and name.split()[0] not in but] == [], f"model {i}"


class TwoHeads(cl.Model):
    def __init__(self, seed, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        self.body, self.classes, self.numbers = cl.Linear(4, 8), cl.Linear(8, 3), cl.Linear(8, 2)

    def call(self, x):
        h = self.body(x).relu()
        return self.classes(h), self.numbers(h)


def small_models():
    """Five models with the arguments of `fit_many`. The first does not learn."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    models = [cl.MLP(3, [4, 1], seed=i) for i in range(5)]
    optimizers = [cl.SGD(m.parameters(), lr=0.01 if i else 1e-30) for i, m in enumerate(models)]
    return models, (models, x, x[:, :1]), {"loss": cl.MSELoss(), "optimizers": optimizers}
