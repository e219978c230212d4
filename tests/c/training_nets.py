"""Nets whose training is written as C: each optimizer, each loss, and kinds of nets of examples/ and benchmarks/."""

import ast
import functools
from pathlib import Path

import numpy as np

import caffelite as cl
from tests.c.training import STEPS, Net

BATCH = 8
ROWS = STEPS * BATCH
EXAMPLES = Path(__file__).parents[2] / "examples"


@functools.cache
def load_definitions(name):
    """Return what an example imports, its classes and functions, and its constants. The program does not run."""
    tree = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, kinds)
        or (isinstance(node, ast.Assign) and not any(isinstance(part, ast.Call) for part in ast.walk(node)))
    ]
    names = {"__name__": name}
    exec(compile(tree, name, "exec"), names)
    return names


def rows(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(dtype)


def labels(classes, *shape, seed=1):
    return np.random.default_rng(seed).integers(0, classes, (ROWS, *shape))


def make_mlp(dtype, *hidden, outputs=3, inputs=4):
    return cl.Model([cl.Linear(inputs, 16), *hidden, cl.Linear(16, outputs)], seed=0, dtype=dtype)


def with_optimizer(make, **options):
    """Return the net of an MLP that an optimizer trains."""

    def build(dtype):
        model = make_mlp(dtype, cl.ReLU())
        return Net(model, cl.SoftmaxLoss(), make(model.parameters()), BATCH, (rows(4),), (labels(3),), options)

    return build


def with_loss(loss, make_targets, outputs=3, **options):
    """Return the net of an MLP with a loss, and targets that are made of random numbers (rows, 3)."""

    def build(dtype):
        model, numbers = make_mlp(dtype, cl.Tanh(), outputs=outputs), rows(3, seed=1)
        y = labels(3) if make_targets is None else make_targets(numbers)
        optimizer = cl.SGD(model.parameters(), lr=0.02, momentum=0.9)
        return Net(model, loss() if callable(loss) else loss, optimizer, BATCH, (rows(4),), (y,), options)

    return build


def with_layers(*make, x=(4,), y=3, optimizer=lambda p: cl.SGD(p, lr=0.05)):
    """Return the net of a sequence of layers, which makes scores of classes."""

    def build(dtype):
        model = cl.Model([layer() for layer in make], seed=0, dtype=dtype)
        return Net(model, cl.SoftmaxLoss(), optimizer(model.parameters()), BATCH, (rows(*x),), (labels(y),))

    return build


class GPT(cl.Model):
    """A small language model: rotary positions, and dropout if wanted."""

    takes_indices = True

    def __init__(self, dtype, dropout=0.0):
        super().__init__(seed=0, dtype=dtype)
        self.embedding, self.norm, self.scores = cl.Embedding(11, 16), cl.LayerNorm(16), cl.Linear(16, 11)
        self.block = cl.TransformerBlock(16, 4, causal=True, rotary=True, dropout=dropout)

    def call(self, x):
        return self.scores(self.norm(self.block(self.embedding(x))))


def gpt(dtype, dropout=0.0):
    model, x = GPT(dtype, dropout), labels(11, 6)
    optimizer = cl.AdamW(model.parameters(), lr=1e-3)
    return Net(model, cl.SoftmaxLoss(), optimizer, BATCH, (x,), (np.roll(x, 1, 1),))


def microgpt(dtype):
    model, x = load_definitions("microgpt.py")["MicroGPT"](seed=0, dtype=dtype), labels(27, 16)
    y = np.roll(x, 1, 1)
    y[:, 12:] = -1
    optimizer = cl.Adam(model.parameters(), lr=cl.schedules.linear(0.001, 1000), betas=(0.85, 0.99))
    return Net(model, cl.SoftmaxLoss(ignore=-1), optimizer, BATCH, (x,), (y,))


class Formula(cl.Model):
    """A `call` of operators and elementary functions."""

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.first, self.last = cl.Linear(4, 8), cl.Linear(8, 3)

    def call(self, x):
        h = self.first(x)
        h = cl.exp(-(h * h)) + cl.sin(h) * cl.cos(h) + cl.maximum(h, 0.1) - cl.minimum(h, -0.1)
        h = h + cl.sqrt(h * h + 1) / (cl.abs(h) + 2) - h.mean(axis=1, keepdims=True)
        return self.last(cl.concatenate([h[:, :4], h[:, 4:] ** 2], axis=1) + h.max(axis=1, keepdims=True))


def formula(dtype):
    model = Formula(dtype)
    return Net(model, cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.01), BATCH, (rows(4),), (labels(3),))


class TwoHeads(cl.Model):
    """Two inputs and two outputs."""

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.a, self.b, self.c, self.d = cl.Linear(4, 8), cl.Linear(3, 8), cl.Linear(8, 2), cl.Linear(8, 1)

    def call(self, x, z):
        h = cl.tanh(self.a(x)) * cl.sigmoid(self.b(z))
        return self.c(h), self.d(h)


def two_heads(dtype):
    model = TwoHeads(dtype)
    optimizer, loss = cl.Adam(model.parameters(), lr=0.01), (cl.SoftmaxLoss(), cl.MSELoss())
    return Net(model, loss, optimizer, BATCH, (rows(4), rows(3, seed=2)), (labels(2), rows(1, seed=3)))


def table(dtype):
    rng = np.random.default_rng(0)
    numbers, towns = rng.normal(size=(ROWS, 2)), rng.choice(["Oslo", "Rome", "Lima"], ROWS)
    numbers[::7, 0] = np.nan
    columns = cl.Columns({"age": numbers[:, 0], "size": numbers[:, 1], "town": towns}, size=4, bins=5)
    model = cl.Model([columns, cl.Linear(columns.features, 3)], seed=0, dtype=dtype)
    x = columns.arrays({"age": numbers[:, 0], "size": numbers[:, 1], "town": towns})
    return Net(model, cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.05), BATCH, tuple(x), (labels(3),))


def penalized_net(dtype):
    model = make_mlp(dtype, cl.ReLU())
    loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l1=1e-3, l2=0.01)
    return Net(model, loss, cl.SGD(model.parameters(), lr=0.05), BATCH, (rows(4),), (labels(3),))


def own_loss_net(dtype):
    model = make_mlp(dtype, cl.Tanh())

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean() + 0.1 * cl.abs(outputs - targets).mean()

    return Net(model, loss, cl.Adam(model.parameters(), lr=0.01), BATCH, (rows(4),), (rows(3, seed=1),))


def groups(parameters):
    return cl.SGD([{"parameters": parameters[:2], "lr": 0.01}, {"parameters": parameters[2:]}], lr=0.1)


CONVOLUTIONS = [
    lambda: cl.Conv2d(3, 32, 3, stride=2, padding=1),
    lambda: cl.BatchNorm(32),
    lambda: cl.Tanh(),
    lambda: cl.Conv2d(32, 16, 3, padding=1, groups=16),
    lambda: cl.AvgPool2d(2),
    lambda: cl.ConvTranspose2d(16, 4, 2, 2),
    lambda: cl.Tanh(),
    lambda: cl.GlobalAvgPool(),
    lambda: cl.Linear(4, 3),
]
LENET = [
    *[lambda: cl.Conv2d(1, 6, 5, padding=2), cl.ReLU, lambda: cl.MaxPool2d(2)],
    *[lambda: cl.Conv2d(6, 16, 3), cl.ReLU, lambda: cl.MaxPool2d(2), cl.Flatten],
    *[lambda: cl.Linear(64, 20), cl.ReLU, lambda: cl.Linear(20, 10)],
]


def norm_net(norm):
    return with_layers(lambda: cl.Linear(4, 16), norm, cl.ReLU, lambda: cl.Linear(16, 3))


def adam(parameters):
    return cl.Adam(parameters, lr=0.005)


NETS = {
    "sgd": with_optimizer(lambda p: cl.SGD(p, lr=0.1)),
    "momentum": with_optimizer(lambda p: cl.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3)),
    "nesterov": with_optimizer(lambda p: cl.SGD(p, lr=0.05, momentum=0.9, nesterov=True)),
    "adam": with_optimizer(lambda p: cl.Adam(p, lr=0.01, weight_decay=1e-3)),
    "adamw": with_optimizer(lambda p: cl.AdamW(p, lr=0.01)),
    "nadam": with_optimizer(lambda p: cl.NAdam(p, lr=0.01)),
    "adagrad": with_optimizer(lambda p: cl.Adagrad(p, lr=0.05)),
    "adadelta": with_optimizer(lambda p: cl.Adadelta(p)),
    "rmsprop": with_optimizer(lambda p: cl.RMSProp(p, lr=0.005)),
    "rmsprop_momentum": with_optimizer(lambda p: cl.RMSProp(p, lr=0.002, momentum=0.9)),
    "lion": with_optimizer(lambda p: cl.Lion(p, lr=0.001)),
    "cosine": with_optimizer(lambda p: cl.SGD(p, lr=cl.schedules.cosine(0.1, 80, warmup=5))),
    "drops": with_optimizer(lambda p: cl.SGD(p, lr=cl.schedules.steps(0.1, every=10, factor=0.5))),
    "groups": with_optimizer(groups),
    "clipped": with_optimizer(lambda p: cl.SGD(p, lr=0.1), clip_norm=0.5),
    "smoothing": with_loss(lambda: cl.SoftmaxLoss(label_smoothing=0.1), None),
    "probabilities": with_loss(cl.SoftmaxLoss, lambda t: np.eye(3)[t.argmax(1)], targets=np.full((BATCH, 3), 1 / 3)),
    "hinge": with_loss(cl.HingeLoss, None),
    "focal": with_loss(cl.FocalLoss, None),
    "mse": with_loss(cl.MSELoss, lambda t: t),
    "mae": with_loss(cl.MAELoss, lambda t: t),
    "huber": with_loss(cl.HuberLoss, lambda t: 2 * t),
    "sigmoid": with_loss(cl.SigmoidLoss, lambda t: (t > 0).astype(float)),
    "poisson": with_loss(cl.PoissonLoss, lambda t: np.floor(2 * abs(t))),
    "quantile": with_loss(lambda: cl.QuantileLoss([0.1, 0.5, 0.9]), lambda t: t[:, 0]),
    "gaussian": with_loss(cl.GaussianLoss, lambda t: 3 * t[:, :1], outputs=2),
    "own_loss": own_loss_net,
    "penalized": penalized_net,
    "two_heads": two_heads,
    "dropout": norm_net(lambda: cl.Dropout(0.3)),
    "layer_norm": norm_net(lambda: cl.LayerNorm(16)),
    "rms_norm": norm_net(lambda: cl.RMSNorm(16)),
    "batch_norm": norm_net(lambda: cl.BatchNorm(16)),
    "activations": with_layers(
        *[lambda: cl.Linear(4, 8), cl.GELU, lambda: cl.Linear(8, 8), cl.SiLU, lambda: cl.Linear(8, 8), cl.Mish],
        *[lambda: cl.Linear(8, 8), cl.ELU, lambda: cl.PReLU(), cl.Softplus, lambda: cl.Linear(8, 3)],
    ),
    "lenet": with_layers(*LENET, x=(1, 12, 12), y=10, optimizer=adam),
    "convolutions": with_layers(*CONVOLUTIONS, x=(3, 8, 8)),
    "residual": with_layers(
        lambda: cl.Linear(4, 16),
        lambda: cl.Residual(cl.Model([cl.Linear(16, 16), cl.ReLU()])),
        lambda: cl.Residual(cl.Model([cl.Linear(16, 16), cl.ReLU()])),
        lambda: cl.Linear(16, 3),
    ),
    "series": with_layers(
        *[lambda: cl.Conv1d(2, 6, 3, padding="causal"), cl.ReLU, lambda: cl.MaxPool1d(2), cl.Flatten],
        *[lambda: cl.Linear(30, 3)],
        x=(2, 10),
    ),
    "rnn": with_layers(lambda: cl.RNN(3, 8), lambda: cl.Linear(8, 4), x=(5, 3), y=4, optimizer=adam),
    "gru": with_layers(lambda: cl.GRU(3, 8), lambda: cl.Linear(8, 4), x=(5, 3), y=4, optimizer=adam),
    "lstm": with_layers(
        lambda: cl.LSTM(3, 8, layers=2, bidirectional=True, dropout=0.2),
        lambda: cl.Linear(16, 4),
        x=(5, 3),
        y=4,
        optimizer=adam,
    ),
    "gpt": gpt,
    "gpt_dropout": lambda dtype: gpt(dtype, 0.2),
    "microgpt": microgpt,
    "formula": formula,
    "table": table,
}
