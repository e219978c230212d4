"""A small GPT that learns to write like a text, character by character; by default like Python's own documentation.

Each character becomes a vector, and a vector for its place is added. In blocks of causal attention, every place sees
itself and earlier places. A last layer scores the next character. A. Radford et al., "Language models are unsupervised
multitask learners", 2019. nanoGPT uses the same sizes on CPUs.

python gpt.py                                         # a minute or two
python gpt.py FILE --steps 5000 --picture loss.png    # like your own text; the picture needs matplotlib
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import caffelite as cl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the text, in UTF-8")
parser.add_argument("--layers", type=int, default=4, help="how many blocks (4)")
parser.add_argument("--heads", type=int, default=4, help="of attention in a block (4)")
parser.add_argument("--size", type=int, default=128, help="of the vectors (128)")
parser.add_argument("--block", type=int, default=64, help="how many characters it sees (64)")
parser.add_argument("--steps", type=int, default=2000, help="of training, in hundreds (2000)")
parser.add_argument("--sample", type=int, default=500, help="how many characters it writes (500)")
parser.add_argument("--live", action="store_true", help="show the training, and texts while it learns, on a page")
parser.add_argument("--picture", type=Path, help="a file to draw the loss into")
options = parser.parse_args()


class GPT(cl.Model):
    """Numbers of characters (n, length) to scores of what follows each, (n, length, characters)."""

    takes_indices = True

    def __init__(self, characters, layers, heads, size, block, seed=None):
        super().__init__(seed=seed)
        self.characters, self.places = cl.Embedding(characters, size), cl.Embedding(block, size)
        self.blocks = [cl.TransformerBlock(size, heads, causal=True) for _ in range(layers)]
        self.norm, self.scores = cl.LayerNorm(size), cl.Linear(size, characters, bias=False)

    def call(self, x, caches=None):
        """With caches, one for each block, x is what comes behind the characters in them."""
        before = caches[0].length if caches else 0
        h = self.characters(x) + self.places.weight[before : before + x.shape[1]]
        for i, block in enumerate(self.blocks):
            h = block(h, None, caches[i]) if caches else block(h)
        return self.scores(self.norm(h))

    def write(self, text, count, rng):
        """Return the text and `count` more characters, drawn from the model's probabilities at temperature 0.8."""
        text, block, caches = list(text), self.places.count, []
        with cl.inference():
            for _ in range(count):
                new = text[-1:]
                if not caches or caches[0].length == block:  # if they are full, go on from half of what it saw
                    caches, new = [b.cache(rows=1, max_length=block) for b in self.blocks], text[-block // 2 :]
                scores = self.call(np.array([new]), caches).numpy()[0, -1].astype(float) / 0.8
                scores[:2] = -np.inf  # padding and unknown characters
                p = np.exp(scores - scores.max())
                text.append(rng.choice(len(p), p=p / p.sum()))
        return text


class Windows:
    """A hundred batches an epoch: windows of a text that begin anywhere, and the same one character later."""

    def __init__(self, text, block, rng):
        self.text, self.block, self.rng = text, block, rng

    def __iter__(self):
        for _ in range(100):
            places = self.rng.integers(len(self.text) - self.block, size=(12, 1)) + np.arange(self.block)
            yield self.text[places], self.text[places + 1]


paragraphs = "\n\n".join(topics.values()).split("\n\n")
written = options.file.read_text("utf-8") if options.file else "\n\n".join(dict.fromkeys(paragraphs))  # each once
vocabulary = cl.Vocabulary([written], characters=True)
text, held_out = np.split(vocabulary.encode(written), [int(0.95 * len(written))])
n = (len(held_out) - 1) // options.block
if n < 1:
    parser.error(f"a text of {len(written):,} characters is too short: a twentieth is held out, more than --block")
x, y = [held_out[i : i + n * options.block].reshape(n, options.block) for i in (0, 1)]

model = GPT(len(vocabulary), options.layers, options.heads, options.size, options.block, seed=0)
model.vocabulary = vocabulary  # files keep it, and the page of --live writes with it
print(f"{len(text):,} characters, {len(vocabulary.words)} of them different\n{model.summary((options.block,))}")
rate = cl.schedules.cosine(1e-3, steps=options.steps, warmup=options.steps // 20, end=1e-4)
history = model.fit(
    Windows(text, options.block, np.random.default_rng(0)),
    loss=cl.SoftmaxLoss(),
    optimizer=cl.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.1),
    epochs=max(options.steps // 100, 1),
    clip_norm=1.0,
    validation_data=cl.DataGenerator(x, y, batch_size=64, shuffle=False),
    callbacks=[cl.live()] if options.live else [],
)
print(vocabulary.decode(model.write(held_out[: options.block], options.sample, np.random.default_rng(0))))
if options.picture:
    history.plot().savefig(options.picture)
