"""Vocabulary: turns words or characters into the indices that `Embedding` takes, and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import as_indices, check_bool, check_positive_integer

WORD = re.compile(r"\w+(?:['’]\w+)*")


@rename_attributes(_places="_indices")
class Vocabulary:
    """A tokenizer: turns words or characters into indices.

        vocabulary = cl.Vocabulary(texts, size=5_000)
        words, lengths = vocabulary.encode(texts, length=100)     # (n, 100) and (n,), int64
        model = cl.Model([cl.Embedding(len(vocabulary), 32), …])
        model.vocabulary = vocabulary                             # `save` and `cl.load` keep it

    Parameters
    ----------
    texts : iterable of str
        The texts to learn from. Words are runs of letters and digits, perhaps with an apostrophe inside, in lower case.
        For any other rule, split the texts yourself: a text may also be a list of words, which stay as they are.
    size : int, optional
        The maximum number of indices, including the two for padding and unknown words. The most frequent words are
        kept; of equally frequent ones, those that come first in the alphabet.
    characters : bool
        If True, every character of a text is a word, and upper case stays as it is.

    Index 0 is padding, 1 is unknown, 2 the most frequent word, and so on. `len()` is the number of indices, and `words`
    the list of words: `words[i - 2]` has index i. A model saves the vocabularies in its attributes.

    Raise ValueError if there are no words, or if size is below 3. Raise TypeError, with the number of the text, if a
    text is neither a string nor a list of strings.
    """

    def __init__(self, texts: Iterable[Any], size: int | None = None, *, characters: bool = False) -> None:
        self.characters = check_bool("Vocabulary: characters", characters)
        counts = Counter(word for text in self._tokenize(texts) for word in text)
        words = sorted(counts, key=lambda word: (-counts[word], word))
        if size is not None:
            if check_positive_integer("Vocabulary: size", size) < 3:
                raise ValueError(f"Vocabulary: size must be 3 or more, two for padding and unknown words, got {size}")
            words = words[: size - 2]
        self._set(words)

    @classmethod
    def from_words(cls, words: list[str], characters: bool = False) -> Vocabulary:
        """Make a vocabulary from these words, in this order."""
        self = cls.__new__(cls)
        self.characters = characters
        self._set(words)
        return self

    def _set(self, words: list[str]) -> None:
        if not words:
            raise ValueError("Vocabulary: there are no words in the texts")
        self.words = words
        self._indices = {word: i for i, word in enumerate(words, start=2)}

    def __len__(self) -> int:
        return len(self.words) + 2

    def encode(self, texts: Any, length: int | None = None) -> Any:
        """Return the indices of texts, (n, length), and their lengths, (n,), int64; for one string, only its indices.

        Texts are cut, or padded with 0 at the end, to `length`. By default, they are padded to the longest. A text
        without words counts as one unknown word, because recurrent layers do not accept empty rows. Recurrent layers
        take `lengths`, and attention takes the mask `indices != 0`.
        """
        if isinstance(texts, str):
            return self.encode([texts], length)[0][0]
        max_length = None if length is None else check_positive_integer("Vocabulary: length", length)
        rows = [[self._indices.get(word, 1) for word in text[:max_length]] or [1] for text in self._tokenize(texts)]
        lengths = np.array([len(row) for row in rows], np.int64)
        indices = np.zeros((len(rows), max(lengths, default=0) if max_length is None else max_length), np.int64)
        indices[np.arange(indices.shape[1]) < lengths[:, None]] = [index for row in rows for index in row]
        return indices, lengths

    def decode(self, indices: Any) -> Any:
        """Return the text for indices (length,), or a list of texts for indices (n, length).

        Words are joined by spaces. Padding is left out. An unknown word is "[unknown]", an unknown character "\\ufffd".
        Raise IndexError for an index that is not in the vocabulary, and TypeError unless all are integers.
        """
        array = as_indices(indices, "Vocabulary")
        if array.ndim > 1:
            return [self.decode(row) for row in array]
        if ((array < 0) | (array >= len(self))).any():
            bad = array[(array < 0) | (array >= len(self))][0]
            raise IndexError(f"Vocabulary: index {bad} is not in 0 … {len(self) - 1}")
        unknown = "\ufffd" if self.characters else "[unknown]"
        words = [unknown if i == 1 else self.words[i - 2] for i in array.reshape(-1).tolist() if i != 0]
        return ("" if self.characters else " ").join(words)

    def _tokenize(self, texts: Any) -> Iterable[list[str]]:
        """Yield the words of each text."""
        for i, text in enumerate([texts] if isinstance(texts, str) else texts):
            if isinstance(text, str):
                yield list(text) if self.characters else WORD.findall(text.lower())
            elif isinstance(text, list | tuple) and all(isinstance(word, str) for word in text):
                yield list(text)
            else:
                raise TypeError(f"Vocabulary: expected a string or a list of words, got {text!r} as text {i}")

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} {'characters' if self.characters else 'words'})"
