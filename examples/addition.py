"""Learn to add: a net reads "47+85" character by character, and writes "132". It never sees numbers, only characters.

One GRU reads the question into a vector of 128 numbers, and another one writes the answer from it. The questions are
written backwards. So the net reads the units last, and they are what it needs first. A tenth of all sums of two numbers
below 100 is held out. The program follows I. Sutskever et al., "Sequence to sequence learning with neural networks",
NeurIPS 2014, and W. Zaremba and I. Sutskever, "Learning to execute", 2014.

python addition.py    # a few seconds
"""

import numpy as np

import caffelite as cl

CHARACTERS = "0123456789+ "
QUESTION, ANSWER = len("99+99"), len("198")


class Adder(cl.Model):
    """Questions (n, 5) to scores of the characters of the answers, (n, 3, 12)."""

    takes_indices = True

    def __init__(self, hidden=128, seed=None):
        super().__init__(seed=seed)
        self.characters = cl.Embedding(len(CHARACTERS), 16)
        self.reader, self.writer = cl.GRU(16, hidden), cl.GRU(hidden, hidden, sequences=True)
        self.scores = cl.Linear(hidden, len(CHARACTERS))

    def call(self, x):
        h = self.reader(self.characters(x))
        return self.scores(self.writer(cl.repeat(h[:, None], ANSWER, axis=1)))


def encode(texts, length):
    """Return texts as the numbers of their characters, (n, length), with spaces behind them."""
    return np.array([[CHARACTERS.index(c) for c in text.ljust(length)] for text in texts])


def decode(numbers):
    return "".join(CHARACTERS[i] for i in numbers).strip()


rng = np.random.default_rng(0)
pairs = rng.permutation(np.stack([np.arange(10_000) // 100, np.arange(10_000) % 100], axis=1))
questions, answers = [f"{a}+{b}" for a, b in pairs], [str(a + b) for a, b in pairs]
x, y = encode(questions, QUESTION)[:, ::-1], encode(answers, ANSWER)
test = 1000

EPOCHS, BATCH = 20, 100
model, loss = Adder(seed=0), cl.SoftmaxLoss()
rate = cl.schedules.cosine(4e-3, steps=EPOCHS * (len(x) - test) // BATCH)
history = model.fit(
    x[test:],
    y[test:],
    loss=loss,
    optimizer=cl.Adam(model.parameters(), lr=rate),
    epochs=EPOCHS,
    batch_size=BATCH,
    clip_norm=1.0,
    validation_data=(x[:test], y[:test]),
    metrics=["accuracy"],
    verbose=0,
)
for epoch in (1, 5, EPOCHS):
    print(f"epoch {epoch}: {history['val_accuracy'][epoch - 1]:.1%} of the held-out characters are right")
found = model.predict(x[:test]).argmax(axis=2)
print(f"held-out sums: {(found == y[:test]).all(axis=1).mean():.1%} are right")
for question, answer, numbers in list(zip(questions, answers, found, strict=False))[:5]:
    print(f"{question} = {decode(numbers)}" + ("" if decode(numbers) == answer else f", but it is {answer}"))
