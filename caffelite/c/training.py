"""`export_training`: a training step, and the prediction of a batch, as a file of C."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caffelite.c.capture import Snapshots, TrainingStep, capture_predict, capture_step, keep_state
from caffelite.c.random_batches import make_inputs, make_targets
from caffelite.c.training_check import expected_losses
from caffelite.c.training_file import TrainingFile
from caffelite.core.arrays import check_bool, check_positive, check_positive_integer
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.files.atomic import replace_file
from caffelite.model.model import Model
from caffelite.model.shapes import row_shapes
from caffelite.optimizers import Optimizer
from caffelite.training.inputs import as_losses


def export_training(
    model: Model,
    path: str | os.PathLike,
    *,
    loss: Any,
    optimizer: Optimizer,
    batch_size: int,
    input_shape: Any = None,
    name: str = "net",
    check: bool = True,
    targets: Any = None,
    clip_norm: float | None = None,
    trainable: Iterable[Function | Tensor] | None = None,
) -> None:
    """Write a training step of a model as one file of C99 that needs no library but libm and allocates nothing.

        void net_init(void);                                  parameters and optimizer as they are now
        float net_train(const float *x, const int32_t *y);    a step on a batch; it returns the loss
        void net_predict(const float *x, float *y);           the outputs of a batch
        void net_learning_rate(float rate);                   the rate of the next steps; a schedule ends
        int net_state(float *state, int save);                all state out of, or into, NET_STATE numbers

    The functions begin with `name`. For a model of float64 the numbers are `double`. Arrays are in C order, so images
    come channel by channel. Labels and indices are `int32_t`, masks are `uint8_t`. Several inputs or targets are
    x_1, x_2, …, y_1, y_2, …. A comment in the file lists them, the bytes of memory, and how to compile it. All memory
    is one static struct of NET_BYTES bytes. `net_state` returns NET_STATE. The parameters come first in it.

    The step is the one that `fit` makes on a batch of `batch_size` rows: forward, backward, clipping to `clip_norm` if
    it is given, update. If a label or an index is wrong, or if the loss or a gradient is not finite, `net_train`
    returns NAN and learns nothing.

    Parameters
    ----------
    loss, optimizer : as in `fit`
    batch_size : int
        The number of rows of every batch.
    input_shape : tuple, optional
        The shape of a row, or of a row of each input; as in `export`.
    check : bool
        Write three steps on a random batch into the file. With -DNET_CHECK, it is a program that repeats them. It
        returns 1 if a loss differs, otherwise 0.
    targets : array or tuple of arrays, optional
        An example of the targets of a batch, for its shape and dtype. Without it, targets are labels for SoftmaxLoss,
        HingeLoss and FocalLoss, and have the outputs' shape for other losses.
    trainable : iterable of Functions and parameters, optional
        The step trains these only. All other parameters become constants, without gradients. Without it, the step
        trains the parameters that require a gradient.

    The model, the optimizer and the random numbers are as before when it returns. The same model gives the same file
    on every processor. Raise TypeError, and write nothing, if the step calls Python, or a kernel without C. The error
    names it. Raise ValueError for shapes that do not fit, and OSError naming the path if it can't be written.
    """
    _check_arguments(model, optimizer, name)
    batch_size = check_positive_integer("export_training: batch_size", batch_size)
    has_check = check_bool("export_training: check", check)
    clip_norm = None if clip_norm is None else check_positive("export_training: clip_norm", clip_norm)
    loss, shapes = as_losses(loss), row_shapes(model, input_shape)
    snapshots = Snapshots()
    inputs = make_inputs(model, shapes, batch_size)
    with keep_state(model, optimizer, snapshots):
        targets = make_targets(model, loss, inputs, targets)
        _freeze(model, trainable)
        step = TrainingStep(model, loss, optimizer, clip_norm, len(inputs))
        train = capture_step(step, [*inputs, *targets], snapshots)
        predict = capture_predict(model, inputs, snapshots)
        losses = expected_losses(step, [*inputs, *targets], snapshots) if has_check else None
        net = TrainingFile(model, loss, optimizer, name, snapshots, train, predict, len(inputs))
    replace_file(path, [net.render(Path(path).name, [*inputs, *targets], losses).encode()])


def _check_arguments(model: Any, optimizer: Any, name: Any) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"export_training takes a Model, got {model!r}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"export_training: optimizer must be an Optimizer, got {optimizer!r}")
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ValueError(f"export_training: name must be a name in C, such as 'net', got {name!r}")


def _freeze(model: Model, trainable: Iterable[Function | Tensor] | None) -> None:
    """Let only these parameters require a gradient."""
    if trainable is None:
        return
    kept: set[int] = set()
    for part in trainable:
        if not isinstance(part, Function | Tensor):
            raise TypeError(f"export_training: trainable holds Functions and parameters, got {part!r}")
        kept |= {id(p) for p in (part.parameters() if isinstance(part, Function) else [part])}
    if not any(id(p) in kept for p in model.parameters()):
        raise ValueError("export_training: trainable has no parameter of the model")
    for p in model.parameters():
        p._requires_grad = p._requires_grad and id(p) in kept
