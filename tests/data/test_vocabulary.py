"""Vocabulary: words and characters as indices, back, and in files with a model."""

import copy
import json
import pickle

import numpy as np
import pytest

import caffelite as cl
from caffelite.files import safetensors
from tests.conftest import train

TEXTS = ["The cat sat.", "The dog — the CAT's dog — sat!", "a dog", ""]


def test_the_most_frequent_word_is_first_and_equal_ones_in_alphabetical_order():
    vocabulary = cl.Vocabulary(TEXTS)
    assert vocabulary.words == ["dog", "the", "sat", "a", "cat", "cat's"]
    assert len(vocabulary) == 8
    assert repr(vocabulary) == "Vocabulary(8 words)"
    assert cl.Vocabulary(TEXTS, size=4).words == ["dog", "the"]
    assert cl.Vocabulary(TEXTS, size=100).words == vocabulary.words
    assert cl.Vocabulary([["The", "the", "!"], ("!",)]).words == ["!", "The", "the"]
    assert cl.Vocabulary(iter(TEXTS)).words == vocabulary.words
    assert cl.Vocabulary("abca", characters=True).words == ["a", "b", "c"]
    assert cl.Vocabulary(["Ab", "A "], characters=True).words == ["A", " ", "b"]


def test_texts_are_padded_or_cut_and_an_empty_one_is_one_unknown_word():
    vocabulary = cl.Vocabulary(TEXTS, size=5)  # dog 2, the 3, sat 4
    indices, lengths = vocabulary.encode(["The cat sat", "dog", ""])
    assert indices.tolist() == [[3, 1, 4], [2, 0, 0], [1, 0, 0]]
    assert lengths.tolist() == [3, 1, 1]
    assert indices.dtype == lengths.dtype == np.int64
    indices, lengths = vocabulary.encode(["The cat sat", "dog"], length=2)
    assert indices.tolist() == [[3, 1], [2, 0]]
    assert lengths.tolist() == [2, 1]
    assert vocabulary.encode(["dog"], 4)[0].tolist() == [[2, 0, 0, 0]]
    assert vocabulary.encode("The dog").tolist() == [3, 2]
    assert vocabulary.encode("The dog", 3).tolist() == [3, 2, 0]
    assert vocabulary.encode([])[0].shape == (0, 0)
    assert vocabulary.encode([["dog", "The"]])[0].tolist() == [[2, 1]]


def test_decode_undoes_encode():
    vocabulary = cl.Vocabulary(TEXTS, size=6)
    assert vocabulary.decode(vocabulary.encode(["The dog sat", "a cat"])[0]) == ["the dog sat", "a [unknown]"]
    text = "To be, or not to be.\nThat — is"
    characters = cl.Vocabulary(text, characters=True)
    assert characters.decode(characters.encode(text)) == text
    assert characters.decode(characters.encode("To bZ", 9)) == "To b\ufffd"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda v: cl.Vocabulary([]), ValueError, "no words"),
        (lambda v: cl.Vocabulary(["!", ""]), ValueError, "no words"),
        (lambda v: cl.Vocabulary(["a", np.nan]), TypeError, "got nan as text 1"),
        (lambda v: cl.Vocabulary(["a", ["b", 3]]), TypeError, r"got \['b', 3\] as text 1"),
        (lambda v: cl.Vocabulary(TEXTS, size=2), ValueError, "3 or more.* got 2"),
        (lambda v: cl.Vocabulary(TEXTS, size=9.5), TypeError, "size"),
        (lambda v: cl.Vocabulary(TEXTS, characters="no"), TypeError, "characters"),
        (lambda v: v.encode(TEXTS, 0), ValueError, "length"),
        (lambda v: v.encode([None]), TypeError, "got None as text 0"),
        (lambda v: v.decode([2, 8]), IndexError, r"index 8 is not in 0 … 7"),
        (lambda v: v.decode([-1]), IndexError, "index -1"),
        (lambda v: v.decode([1.5]), TypeError, "expected integers"),
    ],
)
def test_bad_texts_words_and_indices_raise(make, error, message):
    with pytest.raises(error, match=message):
        make(cl.Vocabulary(TEXTS))


# ---- with a model ---------------------------------------------------------------------------------------------------


class Reader(cl.Model):
    takes_indices = (True, True)

    def __init__(self, words, seed=None):
        super().__init__(seed=seed)
        self.vocabulary = None
        self.words, self.memory, self.scores = cl.Embedding(words, 4), cl.GRU(4, 4), cl.Linear(4, 2)

    def arguments(self):
        return {"words": self.words.count}

    def call(self, words, lengths):
        return self.scores(self.memory(self.words(words), lengths=lengths))


def test_a_model_keeps_its_vocabularies_in_files_copies_and_pickles(tmp_path):
    vocabulary, letters = cl.Vocabulary(TEXTS, size=6), cl.Vocabulary("añ\n\ud7ff\U0001f40d", characters=True)
    sequence = cl.Model([cl.Embedding(6, 4), cl.Flatten(), cl.Linear(12, 2)], seed=0)
    sequence.vocabulary, sequence.letters = vocabulary, letters
    train(sequence, vocabulary.encode(TEXTS, 3)[0], np.arange(4) % 2)
    sequence.save(tmp_path / "model.safetensors")
    for again in (
        cl.load(tmp_path / "model.safetensors"),
        copy.deepcopy(sequence),
        pickle.loads(pickle.dumps(sequence)),
    ):
        assert again.vocabulary.words == vocabulary.words
        assert again.letters.words == letters.words
        assert (again.vocabulary.characters, again.letters.characters) == (False, True)
        assert (
            again.predict(again.vocabulary.encode(TEXTS, 3)[0]) == sequence.predict(vocabulary.encode(TEXTS, 3)[0])
        ).all()


def test_a_model_of_ones_own_keeps_its_vocabularies_too_and_those_inside_it(tmp_path):
    reader = Reader(6, seed=0)
    assert reader.vocabulary is None
    reader.vocabulary = cl.Vocabulary(TEXTS, size=6)
    reader.memory.letters = cl.Vocabulary("abc", characters=True)
    x = reader.vocabulary.encode(TEXTS)
    train(reader, x, np.arange(4) % 2)
    reader.save(tmp_path / "reader.safetensors")
    again = cl.load(tmp_path / "reader.safetensors", custom={"Reader": Reader})
    assert (again.predict(again.vocabulary.encode(TEXTS)) == reader.predict(x)).all()
    assert again.memory.letters.words == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["words"], "vocabularies by name"),
        ({"fit": {"words": ["a"], "characters": False}}, "attribute 'fit'"),
        ({"functions.0.bias": {"words": ["a"], "characters": False}}, r"attribute 'functions\.0\.bias'"),
        ({"functions.1.v": {"words": ["a"], "characters": False}}, r"attribute 'functions\.1\.v'"),
        ({"": {"words": ["a"], "characters": False}}, "attribute ''"),
        ({"_model_state": {"words": ["a"], "characters": False}}, "attribute '_model_state'"),
        ({"a b": {"words": ["a"], "characters": False}}, "attribute 'a b'"),
        ({"v": ["a"]}, "words and characters of the vocabulary v"),
        ({"v": {"words": ["a"]}}, "words and characters of the vocabulary v"),
        ({"v": {"words": ["a"], "characters": 1}}, "words and characters of the vocabulary v"),
        ({"v": {"words": "abc", "characters": True}}, "list of the words of the vocabulary v"),
        ({"v": {"words": [], "characters": True}}, "list of the words of the vocabulary v"),
        ({"v": {"words": ["a", 3], "characters": True}}, "list of the words of the vocabulary v"),
        ({"v": {"words": ["a", "a"], "characters": True}}, "the vocabulary v has a word twice"),
    ],
)
def test_a_file_with_a_vocabulary_that_cannot_be_raises(given, message, tmp_path):
    model = cl.Model([cl.Linear(2, 2)], seed=0)
    model.save(tmp_path / "model.safetensors")
    with safetensors.File(tmp_path / "model.safetensors") as file:
        texts, arrays = dict(file.texts), file.arrays(file.specs)
    safetensors.write_arrays(
        tmp_path / "other.safetensors", arrays, {**texts, "caffelite.vocabularies": json.dumps(given)}
    )
    with pytest.raises(ValueError, match=message):
        cl.load(tmp_path / "other.safetensors")
