"""A language model that reads on: an LSTM whose states go from batch to batch, and from word to word when it writes.

The text is Python's own documentation. It is cut into 20 streams side by side, and row i of each batch is the next
piece of stream i. So the net remembers what came before a batch, although its gradient ends there ("truncated
back-propagation through time"). The matrix of the word vectors also scores the next word (O. Press and L. Wolf, "Using
the output embedding to improve language models", EACL 2017).

python language_model.py                  # a few seconds
python language_model.py --epochs 40      # better text
"""

import argparse
import re
from collections import Counter
from pydoc_data.topics import topics

import numpy as np

import caffelite as cl

STREAMS, LENGTH, SIZE, UNKNOWN = 20, 35, 128, "?"
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()


class LanguageModel(cl.Model):
    """Numbers of words (n, length) to scores of the word after each, (n, length, words)."""

    takes_indices = True

    def __init__(self, words, size, seed=None):
        super().__init__(seed=seed)
        self.words = cl.Embedding(words, size, initializer=cl.initializers.uniform(0.1))
        self.dropout, self.lstm = cl.Dropout(0.2), cl.LSTM(size, size, sequences=True)
        self.bias = cl.Tensor(np.zeros(words, np.float32), requires_grad=True)
        self.forget()

    def call(self, x):
        h, states = self.lstm(self.dropout(self.words(x)), *self.states)
        for state, new in zip(self.states, states, strict=True):
            state.data = new.data  # the next batch goes on from here; no gradient comes back
        return self.dropout(h) @ self.words.weight.T + self.bias

    def forget(self, rows=STREAMS):
        self.states = [cl.Tensor(np.zeros((rows, self.lstm.hidden), np.float32)) for _ in ("h", "c")]

    def write(self, first, count, rng):
        """Return `count` words: each is drawn from the probabilities of what follows the words before it."""
        self.forget(rows=1)
        written = [first]
        while len(written) < count:  # one word at a time: the states know all that is before
            scores = self.predict(np.array([[written[-1]]]))[0, -1].astype(float) / 0.7
            scores[numbers[UNKNOWN]] = -np.inf
            p = np.exp(scores - scores.max())
            written.append(rng.choice(len(p), p=p / p.sum()))
        return written


def pieces(text):
    """Cut a text into streams, and these into batches: the words (n, LENGTH) and the words that follow each."""
    batches = (len(text) - 1) // STREAMS // LENGTH
    cut = [text[i : i + STREAMS * batches * LENGTH].reshape(STREAMS, batches, LENGTH) for i in (0, 1)]
    return [part.swapaxes(0, 1).reshape(-1, LENGTH) for part in cut]


words = re.findall(r"[a-z']+|[.,;:](?=\s)", " ".join(topics[name] for name in sorted(topics)).lower())[:60_000]
counts = Counter(words)
vocabulary = [UNKNOWN, *sorted(word for word, count in counts.items() if count > 2)]
numbers = {word: number for number, word in enumerate(vocabulary)}
text = np.array([numbers.get(word, numbers[UNKNOWN]) for word in words])
train, test = np.split(text, [int(0.9 * len(text))])
(x, y), (x_test, y_test) = pieces(train), pieces(test)

model, loss = LanguageModel(len(vocabulary), SIZE, seed=0), cl.SoftmaxLoss()
print(f"{len(train):,} words, {len(vocabulary):,} of them different; {len(x) // STREAMS} batches an epoch")
history = model.fit(
    x,
    y,
    loss=loss,
    optimizer=cl.Adam(model.parameters(), lr=cl.schedules.cosine(8e-3, steps=options.epochs * len(x) // STREAMS)),
    epochs=options.epochs,
    batch_size=STREAMS,
    shuffle=False,
    clip_norm=1.0,
    callbacks=[lambda epoch, history: model.forget()],
    verbose=0,
)
for name in ("with its states", "without"):
    losses = []
    for i in range(0, len(x_test), STREAMS):
        losses.append(model.evaluate(x_test[i : i + STREAMS], y_test[i : i + STREAMS], loss=loss)["loss"])
        if name == "without":
            model.forget()
    print(f"perplexity of the held-out text: {np.exp(np.mean(losses)):.0f} {name}")
    model.forget()
print(" ".join(vocabulary[number] for number in model.write(numbers["the"], 60, np.random.default_rng(0))))
