"""Recognize good and bad reviews, from learned vectors of their words and of pairs of neighbours, and their mean.

The program makes the reviews itself, from a small grammar. "not good" is the reason why pairs matter, as in A. Joulin
et al., "Bag of tricks for efficient text classification", EACL 2017. Reviews differ in length, so rows are filled up
with 0. The 0 is not a word: a mask keeps it out of the mean.

python reviews.py    # a few seconds
"""

from itertools import pairwise

import numpy as np

import caffelite as cl

THINGS = ["film", "story", "acting", "music", "ending", "book", "plot", "cast"]
WORDS = {True: ["good", "great", "moving", "clever", "superb"], False: ["bad", "dull", "awful", "clumsy", "weak"]}
STRESS = ["", "really ", "clearly ", "just "]


def opinion(rng, good):
    """Something is good, or bad; half the time said by what it is not."""
    negated = rng.random() < 0.5
    word = rng.choice(WORDS[bool(good != negated)])
    return f"the {rng.choice(THINGS)} was {rng.choice(STRESS)}{'not ' if negated else ''}{word}"


def reviews(n, seed):
    """n texts of one, three or five opinions, and whether most of these are good, (n,) int64."""
    rng = np.random.default_rng(seed)
    opinions = [rng.random(rng.choice([1, 3, 5])) < rng.choice([0.2, 0.8]) for _ in range(n)]
    texts = [" and ".join(opinion(rng, good) for good in goods) for goods in opinions]
    return texts, np.array([goods.mean() > 0.5 for goods in opinions], int)


def tokens(text):
    """Return the words of a text, and its pairs of neighbours."""
    words = text.split()
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def encode(texts, vocabulary):
    """Return the number of each token, 0 if it is missing or unknown, and whether it is there: both (n, length)."""
    rows = [[vocabulary.get(token, 0) for token in tokens(text)] for text in texts]
    numbers = np.zeros((len(rows), max(map(len, rows))), int)
    for target, row in zip(numbers, rows, strict=True):
        target[: len(row)] = row
    return numbers, numbers > 0


class Review(cl.Model):
    """Scores of bad and good, of the mean of the tokens' vectors."""

    takes_indices = (True, False)

    def __init__(self, count, size=16, seed=None):
        super().__init__(seed=seed)
        self.vectors, self.scores = cl.Embedding(count, size), cl.Linear(size, 2)

    def call(self, numbers, mask):
        vectors = self.vectors(numbers) * mask[:, :, None]
        return self.scores(vectors.sum(axis=1) / cl.sum(mask, axis=1, keepdims=True))


(texts, good), (test_texts, test_good) = reviews(4_000, seed=0), reviews(1_000, seed=1)
vocabulary = {token: i for i, token in enumerate(sorted(set().union(*map(tokens, texts))), start=1)}
model = Review(1 + len(vocabulary), seed=0)
loss, optimizer = cl.SoftmaxLoss(), cl.Adam(model.parameters(), lr=0.01)
model.fit(encode(texts, vocabulary), good, loss=loss, optimizer=optimizer, epochs=8, verbose=2)

results = model.evaluate(encode(test_texts, vocabulary), test_good, loss=loss, metrics=["accuracy"])
print(f"test reviews: accuracy {results['accuracy']:.3f}")
for text in ["the book was good", "the book was not good", "the plot was dull and the music was really not bad"]:
    probability = loss.link(model.predict(encode([text], vocabulary)))[0, 1]
    print(f"{probability:4.0%} good: {text}")
