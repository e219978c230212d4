"""Training, as the commands on built-in data do it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from caffelite._support.terminal import echo, is_terminal
from caffelite._support.text_table import plural
from caffelite.functions import SoftmaxLoss
from caffelite.model.model import History, Model
from caffelite.optimizers import Optimizer
from caffelite.training.callbacks.progress import rate_text

BATCH_SIZE = 32


def train(
    model: Model,
    row_shape: tuple[int, ...],
    data: Any,
    optimizer: Optimizer,
    epochs: int,
    validation_data: Any = None,
    callbacks: Sequence[Any] = (),
) -> History:
    """Train, with a learning rate that falls to 0. Then print the model, for a row of this shape, and the speed."""
    lr = optimizer.lr

    def decay(epoch: int, history: History) -> None:
        optimizer.lr = lr * (1 - (epoch + 1) / epochs)

    start = time.perf_counter()
    history = model.fit(
        data,
        loss=SoftmaxLoss(),
        optimizer=optimizer,
        epochs=epochs,
        validation_data=validation_data,
        metrics=["accuracy"],
        callbacks=[decay, *callbacks],
        verbose=1 if is_terminal(sys.stderr) else "auto",  # on a terminal a bar, even for a run that is soon over
    )
    seconds = time.perf_counter() - start
    steps = epochs * len(data)
    echo(f"\n{model.summary(row_shape)}\n")
    echo(f"{plural(epochs, 'epoch')} in {seconds:.2f} seconds, {rate_text(steps / seconds)} steps per second")
    return history
