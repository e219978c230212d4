"""A. Karpathy's microgpt: a training step beside PyTorch's, JAX's and NumPy's, and the time of its 1,000 steps.

The net is that of examples/microgpt.py, with 4,192 parameters: letters and places in 16 numbers each, RMSNorm without
a scale, causal attention of 4 heads, a layer of 64 with ReLU, and Adam. Batches of one name and of 16, and wider nets.

    python benchmarks/microgpt.py                     # the peers are the extra `bench`; without them, caffelite alone
    python benchmarks/microgpt.py --only d16 d64 --profile
    python benchmarks/microgpt.py --quick             # only to see that it works, few peers

All is done as in sequences.py. The names are random letters, all as long as the block. So nobody can leave any out.
Last come the 1,000 steps of the original, of one name each: one call of `fit`, its recording included.
"""

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import harness
import numpy as np
from contestants import begin, compare_all, make_parser, report_profile
from sequences import Net, contestants, torch_attention
from steps import numpy_adam
from workloads import SEED, adam

LETTERS, BLOCK, HEADS, EPSILON = 27, 16, 4, 1e-5


@dataclass(frozen=True)
class MicroGPT(Net):
    """Letters (n, BLOCK) to scores of the next ones, (n, BLOCK, LETTERS)."""

    size: int

    optimizer, settings = adam(betas=(0.85, 0.99))

    @property
    def flops(self):
        """A step's multiply-adds for a row, counted twice; of attention, those with what is not in the future."""
        products, attention = 12 * self.size**2 + self.size * LETTERS, self.size * (BLOCK + 1)
        return 3 * 2 * BLOCK * (products + attention)

    def data(self):
        letters = np.random.default_rng(SEED).integers(LETTERS, size=(self.rows, BLOCK + 1))
        return letters[:, :-1].copy(), letters[:, 1:].copy()

    def model(self):
        import caffelite as cl

        class Transformer(cl.Model):
            takes_indices = True

            def __init__(self, size):
                super().__init__(seed=SEED)
                self.letters, self.places = cl.Embedding(LETTERS, size), cl.Embedding(BLOCK, size)
                self.attention = cl.MultiHeadAttention(size, HEADS, causal=True, bias=False)
                self.widen = cl.Linear(size, 4 * size, bias=False)
                self.narrow = cl.Linear(4 * size, size, bias=False)
                self.scores = cl.Linear(size, LETTERS, bias=False)
                self.norm = cl.RMSNorm(size, eps=EPSILON, scale=False)

            def call(self, x):
                h = self.norm(self.letters(x) + self.places.weight)
                h = h + self.attention(self.norm(h))
                return self.scores(h + self.narrow(self.widen(self.norm(h)).relu()))

        return Transformer(self.size)

    def module(self):
        from torch import nn
        from torch.nn.functional import relu, rms_norm

        class Transformer(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.letters, self.places = nn.Embedding(LETTERS, size), nn.Embedding(BLOCK, size)
                shapes = [(size, 3 * size), (size, size), (size, 4 * size), (4 * size, size), (size, LETTERS)]
                self.qkv, self.output, self.widen, self.narrow, self.scores = [
                    nn.Linear(*shape, bias=False) for shape in shapes
                ]
                self.norm = partial(rms_norm, normalized_shape=[size], eps=EPSILON)

            def forward(self, x):
                h = self.norm(self.letters(x) + self.places.weight)
                h = h + self.output(torch_attention(self.qkv(self.norm(h)), HEADS))
                return self.scores(h + self.narrow(relu(self.widen(self.norm(h)))))

        return Transformer(self.size)

    def function(self):
        import jax
        from jax import numpy as jnp

        def norm(x):
            return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON)

        def apply(weights, x):
            letters, places, qkv, output, widen, narrow, scores = weights
            h = norm(letters[x] + places)
            vectors = jnp.moveaxis((norm(h) @ qkv).reshape(*x.shape, 3, HEADS, -1), 2, 0)
            h = h + jax.nn.dot_product_attention(*vectors, is_causal=True).reshape(h.shape) @ output
            return (h + jnp.maximum(norm(h) @ widen, 0) @ narrow) @ scores

        return apply

    def peer_weights(self, weights):
        """Query, key and value side by side."""
        letters, places, query, key, value, *others = weights
        return [letters, places, np.hstack([query, key, value]), *others]


NETS = {
    "d16": MicroGPT("microgpt, 16 wide", LETTERS, 16, size=16),
    "d16-one": MicroGPT("microgpt, 16 wide", LETTERS, 1, size=16),
    "d32": MicroGPT("microgpt, 32 wide", LETTERS, 16, size=32),
    "d64": MicroGPT("microgpt, 64 wide", LETTERS, 16, size=64),
    "d128": MicroGPT("microgpt, 128 wide", LETTERS, 16, size=128),
}


def numpy_by_hand(task):
    """Prepare a step whose gradients were derived by hand."""
    weights = task.net.peer_weights(task.weights)
    ends = np.cumsum([values.size for values in weights])
    dtype = weights[0].dtype
    w, g = np.zeros((2, ends[-1]), dtype)
    letters, places, *matrices = [
        part.reshape(p.shape) for part, p in zip(np.split(w, ends[:-1]), weights, strict=True)
    ]
    dletters, dplaces, *gradients = [
        part.reshape(p.shape) for part, p in zip(np.split(g, ends[:-1]), weights, strict=True)
    ]
    qkv, output, widen, narrow, scores = matrices
    size, future = task.net.size, np.triu(np.full((BLOCK, BLOCK), -np.inf, dtype), 1)
    scale = dtype.type((size // HEADS) ** -0.5)

    def norm(x):
        r = 1 / np.sqrt((x * x).mean(1, keepdims=True) + dtype.type(EPSILON))
        return x * r, r

    def norm_gradient(y, r, dy):
        return r * (dy - y * (dy * y).mean(1, keepdims=True))

    def step(x, y):
        """Write the gradients of a batch, and return its loss."""
        n = len(x)
        h0, r0 = norm((letters[x] + places).reshape(-1, size))
        h1, r1 = norm(h0)
        q, k, v = (h1 @ qkv).reshape(n, BLOCK, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
        p = q @ k.swapaxes(2, 3) * scale + future
        p = np.exp(p - p.max(3, keepdims=True))
        p /= p.sum(3, keepdims=True)
        mixed = (p @ v).transpose(0, 2, 1, 3).reshape(-1, size)
        h2 = h0 + mixed @ output
        h3, r3 = norm(h2)
        hidden = np.maximum(h3 @ widen, 0)
        h4 = h2 + hidden @ narrow
        s = h4 @ scores
        s -= s.max(1, keepdims=True)
        s -= np.log(np.exp(s).sum(1, keepdims=True))
        at = np.arange(len(s)), y.ravel()
        loss = -s[at].mean()

        ds = np.exp(s)
        ds[at] -= 1
        ds /= len(s)
        dqkv, doutput, dwiden, dnarrow, dscores = gradients
        np.matmul(h4.T, ds, dscores)
        dh = ds @ scores.T
        np.matmul(hidden.T, dh, dnarrow)
        dhidden = (dh @ narrow.T) * np.sign(hidden)
        np.matmul(h3.T, dhidden, dwiden)
        dh += norm_gradient(h3, r3, dhidden @ widen.T)
        np.matmul(mixed.T, dh, doutput)
        dmixed = (dh @ output.T).reshape(n, BLOCK, HEADS, -1).transpose(0, 2, 1, 3)
        dp = dmixed @ v.swapaxes(2, 3)
        dp = p * (dp - (dp * p).sum(3, keepdims=True)) * scale
        dvectors = np.stack([dp @ k, dp.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dmixed])
        dvectors = dvectors.transpose(1, 3, 0, 2, 4).reshape(-1, 3 * size)
        np.matmul(h1.T, dvectors, dqkv)
        dh += norm_gradient(h1, r1, dvectors @ qkv.T)
        dh = norm_gradient(h0, r0, dh)
        dletters[:] = 0
        np.add.at(dletters, x.ravel(), dh)
        np.sum(dh.reshape(n, BLOCK, size), 0, out=dplaces)
        return loss

    def train(epochs, record):
        w[:] = np.concatenate([values.ravel() for values in weights])
        update, losses = numpy_adam(w, g, **task.net.settings), np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            for rows in task.batches(order):
                losses[epoch] += step(task.x[rows], task.y[rows]) * len(rows) / len(task.y)
                update()
        return perf_counter() - start, losses

    return train


def thousand_steps():
    """Return a contestant: () -> the seconds of 1,000 steps of one name each, in one call of `fit` of a new model."""
    import caffelite as cl

    cl.set_num_threads(1)
    net = NETS["d16-one"]
    x, y = net.data()
    x, y = np.resize(x, (1000, BLOCK)), np.resize(y, (1000, BLOCK))
    return lambda: net.fit(x, y, 1)[0]


def main():
    parser = make_parser(__doc__, NETS)
    parser.add_argument("--profile", action="store_true", help="also caffelite's kernels, one thread")
    options = parser.parse_args()
    begin(options)
    missing = compare_all(NETS, lambda net, quick: {**contestants(net, quick), "NumPy": numpy_by_hand}, options)
    for name in options.only if options.profile else []:
        report_profile(name, NETS[name])
    process = harness.Process(thousand_steps)
    first, *later = [1e3 * process() for _ in range(2 if options.quick else 20)]
    process.close()
    print("\n1,000 steps of one name each, 16 wide, by one call of fit, with its recording: the first time in the")
    print(f"process {first:.1f} ms, then {min(later):.1f} at least, {median(later):.1f} in the middle of {len(later)}.")
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
