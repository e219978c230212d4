"""microgpt: a GPT of 4,192 numbers learns names letter by letter, and writes new ones.

The net, its training and its numbers are as in A. Karpathy's program of this name (2026), which is 200 lines of
Python without a library. Its 1,000 steps take that program minutes, and caffelite some hundredths of a second.

python microgpt.py                       # names of made-up syllables, a second
python microgpt.py FILE --steps 5000     # like the names in your own file, one in a line
"""

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np

import caffelite as cl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="names of the letters a to z, in UTF-8")
parser.add_argument("--steps", type=int, default=1000, help="of training, with a name each (1000)")
options = parser.parse_args()

BLOCK, END = 16, 26  # it sees so many letters; this number begins and ends a name


class MicroGPT(cl.Model):
    """Numbers of letters (n, length) to scores of what follows each, (n, length, 27)."""

    takes_indices = True

    def __init__(self, size=16, heads=4, seed=None, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        settings = {"bias": False, "initializer": cl.initializers.normal(0.08)}
        self.letters, self.places = [cl.Embedding(n, size, initializer=settings["initializer"]) for n in (27, BLOCK)]
        self.attention = cl.MultiHeadAttention(size, heads, causal=True, **settings)
        self.widen, self.narrow = cl.Linear(size, 4 * size, **settings), cl.Linear(4 * size, size, **settings)
        self.scores, self.norm = cl.Linear(size, 27, **settings), cl.RMSNorm(size, eps=1e-5, scale=False)

    def call(self, x):
        h = self.norm(self.letters(x) + self.places.weight[: x.shape[1]])
        h = h + self.attention(self.norm(h))
        h = h + self.narrow(self.widen(self.norm(h)).relu())
        return self.scores(h)


def encode(names):
    """Return the letters of each name, and the letters that follow them, (n, BLOCK); −1 does not count."""
    x, y = np.full((len(names), BLOCK), END), np.full((len(names), BLOCK), -1)
    for i, name in enumerate(names):
        letters = [END, *(ord(c) - ord("a") for c in name), END][: BLOCK + 1]
        x[i, : len(letters) - 1], y[i, : len(letters) - 1] = letters[:-1], letters[1:]
    return x, y


rng = np.random.default_rng(0)
syllables = [consonant + vowel for consonant in "bdfgklmnrst" for vowel in "aeiou"]
names = ["".join(rng.choice(syllables, 2 + i % 2)) + "lnrs"[i % 4] * (i % 3 > 0) for i in range(5000)]
if options.file:
    names = options.file.read_text("utf-8").lower().split()
if others := set("".join(names)) - set("abcdefghijklmnopqrstuvwxyz"):
    parser.error(f"expected names of the letters a to z, got {''.join(sorted(others))}")
x, y = encode(rng.permutation(names))

model = MicroGPT(seed=0)
rate = cl.schedules.linear(0.01, options.steps)
began = perf_counter()
history = model.fit(
    *[np.resize(rows, (options.steps, BLOCK)) for rows in (x, y)],
    loss=cl.SoftmaxLoss(ignore=-1),
    optimizer=cl.Adam(model.parameters(), lr=rate, betas=(0.85, 0.99)),
    epochs=1,
    batch_size=1,
    shuffle=False,
    verbose=0,
)
print(f"{options.steps:,} steps in {perf_counter() - began:.2f} s, loss {history['loss'][-1]:.2f} on the way")
print(f"loss {model.evaluate(x, y, loss=cl.SoftmaxLoss(ignore=-1))['loss']:.2f} after it")

written = np.full((10, BLOCK + 1), END)
for t in range(BLOCK):
    scores = model.predict(written[:, :BLOCK])[:, t] / 0.5  # at temperature 0.5
    written[:, t + 1] = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
print(*["".join(chr(ord("a") + c) for c in row[1:]).split("{")[0] for row in written.tolist()], sep=", ")
