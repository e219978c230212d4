"""`caffelite gpt`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from caffelite._support.terminal import echo
from caffelite._support.text_table import plural
from caffelite.cli import argtypes
from caffelite.cli.options import add_training
from caffelite.cli.output import draw
from caffelite.cli.training import BATCH_SIZE, train
from caffelite.data.generator import DataGenerator
from caffelite.data.vocabulary import Vocabulary
from caffelite.functions import Embedding, LayerNorm, Linear, PositionalEncoding, SoftmaxLoss, TransformerBlock
from caffelite.model.model import Model
from caffelite.optimizers import AdamW
from caffelite.visualize import plots

BLOCK, SIZE, BATCH = 64, 128, 12  # characters it sees, numbers for each, windows a batch
STEPS = 100  # in what it calls an epoch
SAMPLE_LENGTH = 500  # characters that it writes
MAX_HELD_OUT = 20_000  # characters at most
MIN_CHARACTERS = 20 * (BLOCK + 1)  # characters; a twentieth is held out: a window and the character after it

TEXT = f"""\
Train a small GPT to write like a text, character by character. The text is FILE or, by default, the documentation of
the Python language. Then the GPT writes. It has 4 blocks of causal attention with 4 heads, and {SIZE} numbers for each
of the {BLOCK} characters that it sees. It learns with AdamW on batches of {BATCH} windows of the text, drawn at random.
An epoch is {STEPS} batches. The learning rate falls from 0.001 to 0. Ctrl-C ends training early, and the GPT still
writes. With --live, a page shows training, and what the GPT writes as it learns. The picture shows held-out text, the
loss and the accuracy. The less expected a character is, the darker its background."""


def add(commands: Any) -> None:
    """Add the command."""
    summary, epoch_help = "learn to write like a text, and then write", f"epochs of {STEPS} steps"
    add_argument = add_training(commands, gpt, 20, summary, TEXT, epoch_help)
    add_argument(
        "file",
        nargs="?",
        type=_read_text,
        metavar="FILE",
        help=f"a UTF-8 text of {MIN_CHARACTERS:,} characters or more",
    )
    add_argument(
        "--sample",
        type=argtypes.natural,
        default=SAMPLE_LENGTH,
        metavar="N",
        help="characters to write (default: %(default)s)",
    )
    add_argument("--live", action="store_true", help="show training, and texts written meanwhile, on a page")


def _read_text(name: str) -> str:
    """Return the text in a file; an error if nothing can be learned from it."""
    try:
        text = Path(name).read_text(encoding="utf-8-sig")  # without a byte order mark
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {name!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{name!r} is not a text in UTF-8: byte {error.start:,} is wrong") from None
    if len(text) < MIN_CHARACTERS:
        raise argparse.ArgumentTypeError(f"expected {MIN_CHARACTERS:,} characters or more, {name!r} has {len(text):,}")
    return text


def gpt(arguments: argparse.Namespace) -> int:
    """Learn to write like a text, write, and draw how unexpected the characters of the text were."""
    corpus = _python_docs() if arguments.file is None else arguments.file
    vocabulary = Vocabulary([corpus], characters=True)
    text, held_out = np.split(vocabulary.encode(corpus), [-min(len(corpus) // 20, MAX_HELD_OUT)])
    positions = np.arange(0, len(held_out) - BLOCK, BLOCK)[:, None] + np.arange(BLOCK)
    x, y = held_out[positions], held_out[positions + 1]

    model = Model([Embedding(len(vocabulary), SIZE), PositionalEncoding(SIZE, BLOCK)], seed=arguments.seed)
    for _ in range(4):
        model.add(TransformerBlock(SIZE, heads=4, causal=True))
    model.add(LayerNorm(SIZE)).add(Linear(SIZE, len(vocabulary), bias=False))
    model.vocabulary = vocabulary  # type: ignore[attr-defined]  # files keep it, and the page writes with it
    optimizer = AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    validation_data = DataGenerator(x, y, batch_size=BATCH_SIZE, shuffle=False)
    try:
        windows, callbacks = RandomWindows(text, arguments.seed), [_live()] if arguments.live else []
        history = train(model, (BLOCK,), windows, optimizer, arguments.epochs, validation_data, callbacks)
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "history"):
            raise
        history = interrupt.history
        echo(f"caffelite: stopped after {plural(history.epochs, 'epoch')}", sys.stderr)
    scores = model.predict(x, batch_size=BATCH_SIZE)
    echo(f"accuracy {(scores.argmax(axis=-1) == y).mean():.1%} on the {y.size} held-out characters")

    sample = _generate(model, held_out[:BLOCK], arguments.sample, arguments.seed)
    echo(f"\n{BLOCK} held-out characters, and the text that the GPT adds:\n\n{vocabulary.decode(sample)}\n")
    probabilities = np.take_along_axis(SoftmaxLoss().link(scores), y[..., None], axis=-1)
    held_out_text = vocabulary.decode(y.reshape(-1))
    return draw(lambda: plots.text_picture(history, held_out_text, probabilities.reshape(-1)), arguments.output)


def _live() -> Any:
    from caffelite import live  # which needs the extra `web`

    return live()


class RandomWindows:
    """Batches of windows that begin anywhere in a text, and of the same one character later: STEPS an epoch."""

    def __init__(self, text: np.ndarray, seed: int) -> None:
        self.text, self.rng = text, np.random.default_rng(seed)

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(STEPS):
            positions = self.rng.integers(len(self.text) - BLOCK, size=(BATCH, 1)) + np.arange(BLOCK)
            yield self.text[positions], self.text[positions + 1]


def _generate(model: Model, tokens: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return the text and n further characters, drawn by their probabilities, the likely ones somewhat more often."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        scores = model.predict(tokens[None, -BLOCK:])[0, -1].astype(float) / 0.8
        scores[:2] = -np.inf  # padding and unknown characters
        p = np.exp(scores - scores.max())
        tokens = np.append(tokens, rng.choice(len(p), p=p / p.sum()))
    return tokens


def _python_docs() -> str:
    """Python's documentation of its language, from `help()`, each paragraph once."""
    from pydoc_data.topics import topics

    return "\n\n".join(dict.fromkeys("\n\n".join(topics.values()).split("\n\n")))
