"""Nets of tokens, series and tables: training steps beside PyTorch's and JAX's, and beside their arithmetic's time.

µs a step for two GPTs of characters, with nanoGPT's sizes for CPUs and smaller, a GRU, an LSTM, and a net of tables
with embeddings, side by side in one run.

    python benchmarks/sequences.py                    # the peers are the extra `bench`; without them, caffelite alone
    python benchmarks/sequences.py --only gpt gru --threads 1 2
    python benchmarks/sequences.py --profile          # also kernel by kernel, as shares of the peak
    python benchmarks/sequences.py --memory           # instead: what attention takes, as sequences get longer
    python benchmarks/sequences.py --loss-after 2000  # instead: the GPT's loss beside PyTorch's after so many steps
    python benchmarks/sequences.py --quick            # only to see that it works, PyTorch in one form

All is done as in steps.py: a process for each contestant, on the same core or cores, one working at a time; the same
weights, batches and updates; losses compared before anything is timed; rounds. caffelite is timed through `Model.fit`.

Peers get their best: fused optimizers, JAX with donation; `scaled_dot_product_attention`, and query, key and value by
one product; recurrences by PyTorch's own layers and JAX's `lax.scan`; and a malloc that keeps its memory, which on some
machines halves the time that PyTorch takes for a GPT's step. PyTorch eager is timed with malloc as it is, too.
`torch.compile` takes 10 to 40 s before its first step, for each net, which is not counted; nor is what
others do the first time: everybody trains once before.

The data are random, ten batches of them, none short; with --loss-after they are a text.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import harness
import numpy as np
from contestants import (
    begin,
    caffelite,
    caffelite_memory,
    compare_all,
    jax_trainer,
    make_parser,
    megabytes,
    pytorch_memory_growth,
    pytorch_trainer,
    report_profile,
    start_pytorch,
    tensors,
)
from steps import prepare
from workloads import SEED, Trainable, adam, columns

# ---- nets: each in caffelite, in PyTorch and in JAX -----------------------------------------------------------------


@dataclass(frozen=True)
class Net(Trainable):
    """float32; softmax loss of labels below `classes`, or where there are no classes the mean squared error."""

    title: str
    classes: int
    batch: int

    check_steps = 10  # steps, an epoch, over which losses agree
    optimizer, settings = adam()

    def __str__(self):
        return f"{self.title}, batch {self.batch}, {self.optimizer}"

    @property
    def rows(self):
        return 10 * self.batch

    def network(self):
        """caffelite's model, loss and optimizer; the model's parameters are the same each time."""
        import caffelite as cl

        model, loss = self.model(), cl.SoftmaxLoss() if self.classes else cl.MSELoss()
        return model, loss, getattr(cl, self.optimizer)(model.parameters(), **self.settings)

    def peer_weights(self, weights):
        """Return the weights of caffelite's model, as its peers have them."""
        return weights


def torch_attention(qkv, heads):
    """Causal attention of query, key and value side by side, (n, length, 3 size): (n, length, size)."""
    from torch.nn.functional import scaled_dot_product_attention

    n, length, width = qkv.shape
    query, key, value = qkv.view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind()
    y = scaled_dot_product_attention(query, key, value, is_causal=True)
    return y.transpose(1, 2).reshape(n, length, width // 3)


@dataclass(frozen=True)
class GPT(Net):
    """Tokens (n, block) to scores of the next ones, (n, block, classes): learned positions, norms first, GELU."""

    layers: int
    heads: int
    size: int
    block: int

    optimizer, settings = adam("AdamW", weight_decay=0.1)

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice; of attention, those with what is not in the future."""
        products = self.layers * 12 * self.size**2 + self.size * self.classes
        attention = self.layers * 2 * self.size * (self.block + 1) / 2
        return 3 * 2 * self.block * (products + attention)

    def data(self):
        tokens = np.random.default_rng(SEED).integers(self.classes, size=(self.rows, self.block + 1))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    def model(self):
        import caffelite as cl

        class Transformer(cl.Model):
            takes_indices = True

            def __init__(self, net):
                super().__init__(seed=SEED)
                self.tokens, self.positions = cl.Embedding(net.classes, net.size), cl.Embedding(net.block, net.size)
                blocks = [cl.TransformerBlock(net.size, net.heads, causal=True) for _ in range(net.layers)]
                scores = cl.Linear(net.size, net.classes, bias=False)
                self.layers = cl.Model([*blocks, cl.LayerNorm(net.size), scores])

            def call(self, tokens):
                return self.layers(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])

        return Transformer(self)

    def module(self):
        from torch import nn
        from torch.nn import functional

        heads, size = self.heads, self.size

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm1, self.qkv, self.output = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
                self.norm2, self.up, self.down = (
                    nn.LayerNorm(size),
                    nn.Linear(size, 4 * size),
                    nn.Linear(4 * size, size),
                )

            def forward(self, x):
                x = x + self.output(torch_attention(self.qkv(self.norm1(x)), heads))
                return x + self.down(functional.gelu(self.up(self.norm2(x))))

        class Transformer(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(net.classes, size), nn.Embedding(net.block, size)
                blocks = [Block() for _ in range(net.layers)]
                self.layers = nn.Sequential(*blocks, nn.LayerNorm(size), nn.Linear(size, net.classes, bias=False))

            def forward(self, tokens):
                return self.layers(self.tokens(tokens) + self.positions.weight)

        return Transformer(self)

    def function(self):
        import jax
        from jax import numpy as jnp

        def norm(x, scale, shift):
            return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift

        def apply(weights, tokens):
            weights = iter(weights)

            def take(count):
                return [next(weights) for _ in range(count)]

            embedding, positions = take(2)
            x = embedding[tokens] + positions
            for _ in range(self.layers):
                h = norm(x, *take(2))
                W, b, V, c = take(4)
                qkv = jnp.moveaxis((h @ W + b).reshape(*h.shape[:2], 3, self.heads, -1), 2, 0)
                x = x + jax.nn.dot_product_attention(*qkv, is_causal=True).reshape(x.shape) @ V + c
                h = norm(x, *take(2))
                W, b, V, c = take(4)
                x = x + jax.nn.gelu(h @ W + b, approximate=False) @ V + c
            return norm(x, *take(2)) @ next(weights)

        return apply

    def peer_weights(self, weights):
        """Query, key and value side by side."""
        weights = iter(weights)
        found = [next(weights), next(weights)]
        for _ in range(self.layers):
            norm, (q, b, k, c, v, d), rest = [[next(weights) for _ in range(count)] for count in (2, 6, 8)]
            found += [*norm, np.hstack([q, k, v]), np.hstack([b, c, d]), *rest]
        return [*found, *weights]


@dataclass(frozen=True)
class Recurrent(Net):
    """Series (n, length, features) to scores or a number, by a GRU's or an LSTM's last state and a Linear."""

    kind: str
    features: int
    hidden: int
    length: int

    @property
    def gates(self):
        return {"GRU": 3, "LSTM": 4}[self.kind]

    @property
    def outputs(self):
        return self.classes or 1

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice; nobody asks for the gradient of the data."""
        of_x, of_h = self.gates * self.hidden * np.array([self.features, self.hidden])
        return 2 * (self.length * (2 * of_x + 3 * of_h) + 3 * self.hidden * self.outputs)

    def data(self):
        rng = np.random.default_rng(SEED)
        x = rng.random((self.rows, self.length, self.features), np.float32)
        return x, rng.integers(self.classes, size=self.rows) if self.classes else rng.random((self.rows, 1), np.float32)

    def model(self):
        import caffelite as cl

        recurrent = getattr(cl, self.kind)(self.features, self.hidden)
        return cl.Model([recurrent, cl.Linear(self.hidden, self.outputs)], seed=SEED)

    def module(self):
        from torch import nn

        class Last(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.recurrent = getattr(nn, net.kind)(net.features, net.hidden, batch_first=True)
                self.scores = nn.Linear(net.hidden, net.outputs)

            def forward(self, x):
                return self.scores(self.recurrent(x)[0][:, -1])

        return Last(self)

    def function(self):
        import jax
        from jax import numpy as jnp

        def gru(of_x, state, U, c):
            (h,) = state
            of_h = h @ U.T + c
            hidden = self.hidden
            r, z = jnp.split(jax.nn.sigmoid(of_x[:, : 2 * hidden] + of_h[:, : 2 * hidden]), 2, axis=1)
            new = jnp.tanh(of_x[:, 2 * hidden :] + r * of_h[:, 2 * hidden :])
            return (new + z * (h - new),)

        def lstm(of_x, state, U, c):
            h, cell = state
            i, f, g, o = jnp.split(of_x + h @ U.T + c, 4, axis=1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax.nn.sigmoid(o) * jnp.tanh(cell), cell

        step, states = {"GRU": (gru, 1), "LSTM": (lstm, 2)}[self.kind]

        def apply(weights, x):
            W, U, b, c, *linear = weights
            of_x = jnp.swapaxes(x, 0, 1) @ W.T + b
            start = (jnp.zeros((len(x), self.hidden)),) * states
            (h, *_), _ = jax.lax.scan(lambda state, of_x: (step(of_x, state, U, c), None), start, of_x)
            return h @ linear[0] + linear[1]

        return apply


@dataclass(frozen=True)
class Tabular(Net):
    """Kinds (n, tables) and numbers (n, numbers) to scores: a table of vectors for each kind, and three Linears."""

    tables: tuple[int, ...]  # their rows
    width: int  # of a vector
    numbers: int
    hidden: tuple[int, ...]

    @property
    def sizes(self):
        return len(self.tables) * self.width + self.numbers, *self.hidden, self.classes

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice; nobody asks for the gradient of the numbers."""
        return 2 * (3 * sum(n * m for n, m in pairwise(self.sizes)) - self.numbers * self.hidden[0])

    def data(self):
        rng = np.random.default_rng(SEED)
        kinds = rng.integers(self.tables, size=(self.rows, len(self.tables)))
        numbers = rng.random((self.rows, self.numbers), np.float32)
        return (kinds, numbers), rng.integers(self.classes, size=self.rows)

    def model(self):
        import caffelite as cl

        class Tables(cl.Model):
            takes_indices = True, False

            def __init__(self, net):
                super().__init__(seed=SEED)
                self.tables = [cl.Embedding(rows, net.width) for rows in net.tables]
                self.layers = cl.MLP(net.sizes[0], net.sizes[1:])

            def call(self, kinds, numbers):
                vectors = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
                return self.layers(cl.concatenate([*vectors, numbers], axis=1))

        return Tables(self)

    def module(self):
        import torch
        from torch import nn

        class Tables(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.tables = nn.ModuleList([nn.Embedding(rows, net.width) for rows in net.tables])
                layers = [part for shape in pairwise(net.sizes) for part in (nn.Linear(*shape), nn.ReLU())]
                self.layers = nn.Sequential(*layers[:-1])

            def forward(self, kinds, numbers):
                vectors = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
                return self.layers(torch.cat([*vectors, numbers], 1))

        return Tables(self)

    def function(self):
        from jax import numpy as jnp

        def apply(weights, kinds, numbers):
            tables, layers = weights[: len(self.tables)], iter(weights[len(self.tables) :])
            x = jnp.concatenate([*[table[kinds[:, i]] for i, table in enumerate(tables)], numbers], axis=1)
            for _ in self.hidden:
                x = jnp.maximum(x @ next(layers) + next(layers), 0)
            return x @ next(layers) + next(layers)

        return apply


NETS = {
    "gpt": GPT("GPT of 4 layers, 4 heads, 128 wide, block 64", 65, 12, layers=4, heads=4, size=128, block=64),
    "gpt-small": GPT("GPT of 2 layers, 2 heads, 64 wide, block 32", 65, 16, layers=2, heads=2, size=64, block=32),
    "gru": Recurrent("GRU 8-64 of 50 steps, and 1", 0, 32, "GRU", features=8, hidden=64, length=50),
    "lstm": Recurrent("LSTM 28-128 of 28 steps, and 10", 10, 64, "LSTM", features=28, hidden=128, length=28),
    "tabular": Tabular(
        "6 embeddings of 10 to 5,000 rows of 8, beside 10 numbers, 128-64-2", 2, 256,
        tables=(10, 30, 100, 500, 2_000, 5_000), width=8, numbers=10, hidden=(128, 64),
    ),
}  # fmt: skip


# ---- the peers: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------------


def pytorch(task, compiled=False, keeping=True):
    """`compiled`: by torch.compile. `keeping`: malloc keeps its memory."""
    start_pytorch(task, keeping)
    return pytorch_trainer(task, task.net.module(), tensors(task), task.net.peer_weights(task.weights), compiled)


def jax(task, scan=False):
    """`scan`: an epoch is one call."""
    harness.keep_memory()
    *inputs, _ = columns(task.x, task.y)
    return jax_trainer(task, task.net.function(), inputs, task.net.peer_weights(task.weights), scan)


def contestants(net, quick):
    """Return the peers, by name; PyTorch in its first form alone if it has to be quick."""
    peers = {"PyTorch": pytorch, "JAX": jax}
    if not quick:
        peers["PyTorch, malloc as it is"] = partial(pytorch, keeping=False)
        peers["torch.compile"] = partial(pytorch, compiled=True)
        peers["JAX, scan"] = partial(jax, scan=True)
    return peers


# ---- memory ---------------------------------------------------------------------------------------------------------

LENGTHS = 64, 256, 1_024, 4_096
WIDTH, HEADS = 128, 4


@dataclass(frozen=True)
class Attention(Net):
    """Causal self-attention of a series (1, length, WIDTH), trained to give it back."""

    length: int

    def data(self):
        x = np.random.default_rng(SEED).random((self.batch, self.length, WIDTH), np.float32)
        return x, x

    def model(self):
        import caffelite as cl

        return cl.Model([cl.MultiHeadAttention(WIDTH, HEADS, causal=True)], seed=SEED)

    def module(self):
        from torch import nn

        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                return self.output(torch_attention(self.qkv(x), HEADS))

        return Attention()


FEW, ALL = np.s_[:, :16], np.s_[:]  # positions


def attention_in_pytorch(net):
    """Return a contestant: () -> the bytes by which a process grows in steps, after steps on few positions."""
    import torch

    torch.set_num_threads(1)
    model, data = net.module(), list(map(torch.from_numpy, net.data()))
    return lambda: pytorch_memory_growth(net, model, data, FEW, ALL)


def report_memory():
    """Print what a step of attention takes at each length, beside all scores, which grow with its square."""
    rows = []
    for length in LENGTHS:
        net = Attention("attention", 0, 1, length)
        own, peer = harness.Process(caffelite_memory, net, FEW, ALL), harness.Process(attention_in_pytorch, net)
        block, _, grown = own()
        scores = HEADS * length**2 * np.dtype(np.float32).itemsize
        torch = "–" if peer.missing else megabytes(peer())
        rows.append([f"{length:,}", megabytes(block), megabytes(grown), torch, megabytes(scores)])
        for process in (own, peer):
            process.close()
    print(f"\nMemory of a training step of causal attention, {HEADS} heads, {WIDTH} wide, one series: caffelite's")
    print("temporaries, the growth of its process at the peak, the growth of PyTorch's, and the memory of all scores,")
    print("float32, at once.\n")
    print(harness.table(["length", "temporaries", "caffelite", "PyTorch", "all scores"], rows))


# ---- the loss after many steps --------------------------------------------------------------------------------------

EPOCHS, TOLERANCE = 10, 0.02


@dataclass(frozen=True)
class TextGPT(GPT):
    """The same, of windows of a text that every Python has, its language reference: so many, anywhere in it."""

    rows: int = 0

    def data(self):
        from pydoc_data.topics import topics

        text = "\n".join(topics.values())
        frequent = [character for character, _ in Counter(text).most_common(self.classes - 1)]
        tokens = np.array([frequent.index(c) if c in frequent else self.classes - 1 for c in text])
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self.block + 1)
        rows = windows[np.random.default_rng(SEED).integers(len(windows), size=self.rows)]
        return rows[:, :-1].copy(), rows[:, 1:].copy()


def report_losses(steps, threads):
    """Print caffelite's and PyTorch's loss in each tenth of so many steps; exit if they differ much at the end."""
    harness.use_threads(threads)
    net = NETS["gpt"]
    of_text = TextGPT(**vars(net), rows=net.batch * -(-steps // EPOCHS))
    task, _, _ = prepare(of_text, True, caffelite, threads)
    task.draw_orders(EPOCHS)
    processes = [harness.Process(make, task, cores=threads) for make in (caffelite, pytorch)]
    if processes[1].missing:
        raise SystemExit("--loss-after needs PyTorch")
    own, peer = [process(EPOCHS, True)[1] for process in processes]
    rows = [
        [f"{(epoch + 1) * task.steps_an_epoch:,}", f"{a:.4f}", f"{b:.4f}", f"{a - b:+.4f}"]
        for epoch, (a, b) in enumerate(zip(own, peer, strict=True))
    ]
    print(f"\n{net}, on a text: losses, means since the row before\n")
    print(harness.table(["steps", "caffelite", "PyTorch", "difference"], rows))
    if not abs(own[-1] - peer[-1]) <= TOLERANCE:
        raise SystemExit(f"after {steps:,} steps the losses differ by more than {TOLERANCE}")


# ---- all of it ------------------------------------------------------------------------------------------------------


def main():
    parser = make_parser(__doc__, NETS)
    parser.add_argument("--profile", action="store_true", help="also caffelite's kernels, one thread")
    parser.add_argument("--memory", action="store_true", help="instead: the memory that attention takes")
    parser.add_argument("--loss-after", type=int, metavar="N",
                        help="instead: caffelite's and PyTorch's loss of the GPT on a text")  # fmt: skip
    options = parser.parse_args()

    begin(options)
    if options.memory:
        report_memory()
        return
    if options.loss_after:
        report_losses(options.loss_after, options.threads[0])
        return
    missing = compare_all(NETS, contestants, options)
    for name in options.only if options.profile else []:
        report_profile(name, NETS[name])
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
