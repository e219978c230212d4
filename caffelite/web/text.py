"""Texts that a model writes while it learns, and maps of its attention."""

from __future__ import annotations

import copy
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.data.vocabulary import Vocabulary
from caffelite.files.state import find_vocabularies
from caffelite.functions import MultiHeadAttention

if TYPE_CHECKING:
    from caffelite.web.snapshots import TrainingView

CHARACTERS, WORDS = 80, 24  # that the model writes in a text
CONTEXT = 32  # tokens that it sees at most: more take longer
WRITING_SECONDS = 0.003  # for the tokens of one update
MAX_TEXTS = 24  # that the page keeps
MAX_POSITIONS = 32  # positions of a map of attention
MAX_LAYERS, MAX_HEADS = 12, 16
FIRST_TOKEN = 2  # those before it are padding and unknown ones


class TextSampler:
    """Writes texts, a few tokens at each update, with the model as it is then. So a text shows how the model learns."""

    def __init__(self, view: TrainingView) -> None:
        self.view, self.vocabulary = view, _find_vocabulary(view)
        self.texts: list[dict[str, Any]] = []  # the oldest first; the model still writes the last one
        self.rng = np.random.default_rng(0)
        self.tokens = np.zeros(0, np.int64)

    def write(self, seconds: float) -> dict[str, Any] | None:
        """Add tokens for this many seconds, at least one. Return all texts, or None if the model writes none."""
        if self.vocabulary is None:
            return None
        if not self.texts or self.texts[-1]["is_whole"]:
            self._begin_text(self.vocabulary)
        end = time.monotonic() + seconds
        limit = self.begun + (CHARACTERS if self.vocabulary.characters else WORDS)
        while len(self.tokens) < limit:
            token = self._next_token(self.vocabulary)
            if token is None:
                return None
            self.tokens = np.append(self.tokens, token)
            if time.monotonic() >= end:
                break
        written = self.vocabulary.decode(self.tokens[self.begun :])
        place = self.view.place
        self.texts[-1] |= {"written": written, "last_step": place, "is_whole": len(self.tokens) >= limit}
        return {"given": self.given, "texts": [dict(each) for each in self.texts]}

    def _begin_text(self, vocabulary: Vocabulary) -> None:
        """Begin with a row of the data, always the same. So the number of tokens that the model sees never changes."""
        x = self.view.x
        if x is not None and x.ndim == 2 and x.dtype.kind in "iu":
            self.tokens = self.view.sample_rows(1)[0][0][:CONTEXT].astype(np.int64)
            self.given = vocabulary.decode(self.tokens)
        else:
            self.tokens, self.given = np.full(CONTEXT, FIRST_TOKEN), ""
        self.begun = len(self.tokens)
        if len(self.texts) == MAX_TEXTS:
            del self.texts[1::2]
        self.texts.append({"first_step": self.view.place, "is_whole": False})

    def _next_token(self, vocabulary: Vocabulary) -> int | None:
        """Draw a token by the probabilities of the model, the likely ones somewhat more often."""
        scores = self.view.model.predict(self.tokens[None, -self.begun :])
        if scores.ndim != 3 or scores.shape[-1] != len(vocabulary):
            return None
        last = scores[0, -1].astype(float) / 0.8
        last[:FIRST_TOKEN] = -math.inf
        p = np.exp(last - last.max())
        return int(self.rng.choice(len(p), p=p / p.sum()))


def _find_vocabulary(view: TrainingView) -> Vocabulary | None:
    """Return the vocabulary of a model that takes tokens; None if it has none, or several."""
    if getattr(view.model, "takes_indices", False) is not True:
        return None
    vocabularies = [*find_vocabularies(view.model).values()]
    return vocabularies[0] if len(vocabularies) == 1 else None


def attention(view: TrainingView) -> dict[str, Any] | None:
    """Return the weights of positions for each other in a row, for each layer and head of self-attention."""
    if view.x is None or not any(isinstance(f, MultiHeadAttention) for f in view.model.all_functions()):
        return None
    row, _ = view.sample_rows(1)
    model, maps = copy.deepcopy(view.model), list[np.ndarray]()
    for f in model.all_functions():
        if isinstance(f, MultiHeadAttention):
            _watch(f, maps)
    with inference():
        model(row)
    if not maps:
        return None
    vocabulary = _find_vocabulary(view)
    tokens = [vocabulary.decode([token]) for token in row[0, :MAX_POSITIONS].tolist()] if vocabulary else None
    return {"maps": maps[:MAX_LAYERS], "tokens": tokens}


def _watch(layer: MultiHeadAttention, maps: list[np.ndarray]) -> None:
    """Let a layer of a copy add its probabilities to `maps`. Attention to another sequence is left out."""

    def forward(*arguments: Any, **options: Any) -> np.ndarray:
        y = MultiHeadAttention.forward(layer, *arguments, **options)
        if not layer.has_context and layer.mask is None:
            p = attention_probabilities(layer)[:MAX_HEADS, :MAX_POSITIONS, :MAX_POSITIONS]
            maps.append(np.round(255 * p).astype(np.uint8))
        return y

    layer.forward = forward  # type: ignore[method-assign]


def attention_probabilities(layer: MultiHeadAttention) -> np.ndarray:
    """Return p = softmax(q kᵀ / √d) of the first row, (heads, length, length), from its last forward pass."""
    q, k = (a[0].reshape(a.shape[1], layer.heads, -1).transpose(1, 0, 2).astype(float) for a in (layer.q, layer.k))
    scores = np.einsum("hid,hjd->hij", q, k) / math.sqrt(q.shape[-1])
    if layer.causal:
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -math.inf
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)
