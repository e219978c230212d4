"""What the benchmarks train: networks of a few sizes, three with odd ones that nothing was tuned to, one with norms.

The spirals and the digits are the package's own data. MNIST's files are not in the package: `mnist` and `mnistbig` have
its shapes but, like the rest, random data, 3,000 rows uniform in 0 … 1 with random labels.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

import numpy as np

SEED = 0


class Trainable:
    """What can be trained: it has data(), network() and batches of so many rows, `batch`."""

    def fit(self, x, y, epochs, network=None):
        """Train a network, or a new one, with `Model.fit`, which alone is timed: (seconds, model, history)."""
        model, loss, optimizer = network or self.network()
        start = perf_counter()
        history = model.fit(
            x, y, loss=loss, optimizer=optimizer, epochs=epochs, batch_size=self.batch, shuffle=self.batch < len(y),
            seed=SEED, verbose=0,
        )  # fmt: skip
        return perf_counter() - start, model, history


@dataclass(frozen=True)
class Workload(Trainable):
    """Linear layers with ReLU between them, softmax loss, float32; batches in a new order each epoch, if several.

    With `norms`, BatchNorm stands before each ReLU and Dropout(dropout) behind it.
    """

    sizes: tuple[int, ...]  # of the input and of each layer's output
    batch: int
    optimizer: str  # its name in caffelite and in PyTorch, and its arguments
    settings: dict
    dataset: str = "random"
    norms: bool = False
    dropout: float = 0.0

    def __str__(self):
        norms = f", BatchNorm, Dropout({self.dropout})" if self.norms else ""
        return f"{'-'.join(map(str, self.sizes))}{norms}, batch {self.batch}, {self.optimizer}, {self.dataset} data"

    @property
    def title(self):
        """What the net is called in a chart."""
        shape = f"{'-'.join(map(str, self.sizes))}, batch {self.batch}"
        name = CHART_NAMES.get(self.sizes)
        return f"{name} ({shape})" if name else shape

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice.

        Forward takes one for each weight, the weights' gradients as many, and so does the gradient of a layer's input,
        which only the first does without.
        """
        first, *others = [inputs * outputs for inputs, outputs in pairwise(self.sizes)]
        return 2 * (2 * first + 3 * sum(others))

    @property
    def check_steps(self):
        """Over how many steps losses agree; with norms, float32's rounding errors grow faster."""
        return 50 if self.norms else 100

    def data(self):
        """x (rows, features) float32 and labels (rows,) int64."""
        import caffelite as cl

        if self.dataset == "spiral":
            return cl.datasets.spiral(points_per_class=100, classes=3, seed=SEED)
        if self.dataset == "digits":
            x, y = cl.datasets.digits()[0]
            return x.reshape(len(x), -1), y
        rng = np.random.default_rng(SEED)
        return rng.random((3000, self.sizes[0]), np.float32), rng.integers(self.sizes[-1], size=3000)

    def network(self):
        """caffelite's model, loss and optimizer; the model's parameters are the same each time."""
        import caffelite as cl

        *hidden, last = pairwise(self.sizes)
        model = cl.Model(seed=SEED)
        for shape in hidden:
            model.add(cl.Linear(*shape))
            if self.norms:
                model.add(cl.BatchNorm(shape[1])).add(cl.ReLU()).add(cl.Dropout(self.dropout))
            else:
                model.add(cl.ReLU())
        model.add(cl.Linear(*last))
        return model, cl.SoftmaxLoss(), getattr(cl, self.optimizer)(model.parameters(), **self.settings)

    def without_dropout(self):
        """Return the same without dropout, so that everybody computes the same."""
        return replace(self, dropout=0.0)


def columns(x, y):
    """Return the arrays of data: x, or its members where there are several inputs, and y."""
    return [*x, y] if isinstance(x, tuple) else [x, y]


def sgd(lr, momentum=0.9, weight_decay=0.0):
    return "SGD", {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}


def adam(name="Adam", weight_decay=0.0, betas=(0.9, 0.999)):
    return name, {"lr": 1e-3, "betas": betas, "eps": 1e-8, "weight_decay": weight_decay}


#: What nets of these sizes are called in a chart.
CHART_NAMES = {
    (2, 100, 3): "3 spirals",
    (64, 100, 10): "digits",
    (784, 128, 64, 10): "MNIST",
    (784, 512, 512, 10): "MNIST, wide",
}

WORKLOADS = {
    "spiral": Workload((2, 100, 3), 300, *sgd(0.1, weight_decay=1e-4), "spiral"),
    "spiral32": Workload((2, 100, 3), 32, *sgd(0.1, weight_decay=1e-4), "spiral"),
    "digits": Workload((64, 100, 10), 200, *adam(), "digits"),
    "mnist": Workload((784, 128, 64, 10), 64, *adam()),
    "mnistbig": Workload((784, 512, 512, 10), 128, *sgd(0.002)),
    "tabular": Workload((20, 64, 32, 3), 128, *adam()),
    "wide": Workload((100, 300, 100, 5), 256, *sgd(0.01)),
    "norm": Workload((50, 256, 256, 3), 256, *adam(), norms=True, dropout=0.2),
    "odd": Workload((17, 333, 65, 511, 7), 50, *adam("AdamW", weight_decay=0.1)),
}


def add_options(parser):
    """Add the options that these scripts have in common: which, and how often."""
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME",
                        help=f"these workloads, of {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: a smoke test, not a measurement")
