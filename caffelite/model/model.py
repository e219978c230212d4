"""Model: Functions in sequence, with `fit`, `predict` and `evaluate`.

A Model is a Container (`container.py`), which owns Functions and says what they take and compute. What it uses stands
beside it: `applied.py` for `forward` and `backward`, `predicting.py`, `summary.py`; `training/fitting.py` trains it,
`files/state.py` saves and loads it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import FLOATS, positive, positive_integer, random_stream
from caffelite.core.function import Function
from caffelite.core.tables import Table
from caffelite.core.tensor import Tensor
from caffelite.files.state import load, load_state_dict, save, state_dict
from caffelite.model import predicting, shapes, summary
from caffelite.model.applied import Chain, GraphOfCall, as_input, checked_outputs
from caffelite.model.container import Container
from caffelite.model.memory import Own
from caffelite.optimizers import Optimizer
from caffelite.training import door
from caffelite.training.callbacks import Callbacks
from caffelite.training.checkpoints import Start
from caffelite.training.evaluation import Evaluation
from caffelite.training.fitting import Fitting
from caffelite.training.history import History
from caffelite.training.metrics import Metric, named
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep
from caffelite.training.team import OfTeam, optimizer_and_team


class Model(Container, recordable=True):
    """Functions in sequence; or any graph of them, by `call`. Itself a Function, so that Models nest.

    Parameters
    ----------
    functions : iterable of Function
        Added in order.
    seed : int, optional
        Makes the model's random stream: parameters are drawn from it, and the orders of `fit`. Without a seed,
        Functions keep the parameters they came with.
    dtype : float32 or float64
        What the model computes in; `fit`, `predict` and `evaluate` convert their data to it.

    If a model is not a sequence, write a subclass: put its Functions in attributes and write `call`:

        class Gated(cl.Model):  # y = f(x) · sigmoid(g(x))
            def __init__(self, size, seed=None):
                super().__init__(seed=seed)
                self.f, self.g = cl.Linear(size, size), cl.Linear(size, size)
            def call(self, x):
                return self.f(x) * self.g(x).sigmoid()

    A model owns the Functions that are added to it or stored in its attributes (lists, tuples and dicts included). It
    looks for new ones when `__init__` ends and before each use. It converts a new Function to its dtype and draws its
    parameters from its seed, once. Parameters that were trained, loaded or set keep their values: so a Function that
    one model has trained can go into another. Then both share it; `copy.deepcopy` of a Function makes another one.
    A model keeps its parameters side by side in one vector, and their gradients in another, so that an optimizer
    updates them in one call.
    """

    not_recorded = frozenset({"_own", "_applied"})
    _applied: Any = None  # what the last `forward` made, for `backward`

    def __init__(self, functions: Iterable[Function] = (), *, seed: int | None = None, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise TypeError(f"Model: expected dtype float32 or float64, got {self.dtype}")
        self.functions: list[Function] = []
        self._own = Own(self, seed is not None, random_stream("seed", seed))
        if isinstance(functions, Function):
            raise TypeError(f"Model takes a list of Functions, Model([Linear(2, 3), …]), got {functions!r}")
        self._extend(functions)

    # ---- building -----------------------------------------------------------------------------------------------

    def add(self, function: Function) -> Model:
        """Append a Function and return the model.

        Raises TypeError for anything but a Function and ValueError where its input can't have the shape before it.
        """
        self._extend([function])
        return self

    def _extend(self, functions: Iterable[Function]) -> None:
        new = list(functions)
        for function in new:
            if not isinstance(function, Function):
                raise TypeError(f"Model.add takes a Function such as ReLU(), got {function!r}{_instead_of(function)}")
            if self.is_sequence() and not shapes.takes(type(function).forward, inputs=1):
                raise TypeError(f"Model.add takes a Function of one input, such as ReLU(), got {function!r}")
        if new and self.is_sequence():
            shapes.check_sequence([*self.functions, *new])
        self.functions.extend(new)
        if new:
            self.all_functions()

    def is_sequence(self) -> bool:
        """Whether the model applies `functions` one after the other."""
        return type(self).call is Model.call

    # ---- forward and backward -----------------------------------------------------------------------------------

    def decider(self) -> Callable[..., Any]:
        return self.call

    def call(self, *inputs: Any) -> Any:
        """What the model computes: Tensors in (integers and bool as arrays), a Tensor or a tuple of Tensors out.

        By default the `functions` in sequence.
        """
        for function in self.functions:
            inputs = (function(*inputs),)
        return inputs[0]

    def __call__(self, *inputs: Any) -> Any:
        """`call` on Tensors, arrays or lists of the model's dtype; the graph is that of the Functions it applies."""
        self.all_functions()
        if type(self).forward is not Model.forward and self.is_sequence():
            return super().__call__(*inputs)  # a subclass's own
        recording = kernels.recorder()
        if recording is not None:
            self._shallow_copy()
        return checked_outputs(self, self.call(*[as_input(self, x) for x in inputs]))

    def forward(self, *inputs: Any) -> Any:
        """Arrays in, arrays out, through copies of all Functions, which keep what `backward` needs."""
        self.all_functions()
        applied = self._applied = Chain(self) if self.is_sequence() else GraphOfCall(self)
        return applied.forward(*inputs)

    def backward(self, dy: Any) -> Any:
        """Back through what the last `forward` applied: the gradient of every float input."""
        if self._applied is None:
            raise RuntimeError(f"{type(self).__name__}.backward without a forward")
        return self._applied.backward(dy)

    # ---- training and use ---------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor],
        optimizer: Optimizer | OfTeam,
        epochs: int = 1,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Iterable[Callable[[int, History], Any]] = (),
        metrics: Iterable[str | Metric] = (),
        verbose: int | str = "auto",
        seed: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        clip_norm: float | None = None,
        resume: str | os.PathLike | None = None,
    ) -> History:
        """Train from the present parameters on.

        Parameters
        ----------
        x, y : array-like (n, …)
            The rows and their targets; or x a DataGenerator or any iterable of (x, y) or (x, y, weights) batches, which
            each epoch goes through once, and no y. A tuple x, of arrays of as many rows, is several inputs. Converted
            to the model's dtype (integer targets stay integers, and so do inputs that the model takes as indices) and
            never written. Frames of pandas or polars, or dicts of columns, are arrays of their numbers, and tables for
            a model that begins with `Columns`. A sparse matrix of SciPy's stays sparse where it goes into a Linear, and
            its gradient too. Mapped files, h5py datasets and what else has `shape`, `dtype` and slices are read block
            by block where they are large; `caffelite.sources` says in what order.
        loss : Function, or callable (outputs, targets) -> Tensor
            Called with outputs and targets, and with weights if there are any; returns a single element. If the model
            has several outputs, it gets a tuple.
        optimizer : Optimizer
            Has to know every parameter that requires a gradient. `caffelite.mpi.DataParallel` makes one for several
            processes, each of which takes its share of every batch.
        epochs : int
        batch_size : int, optional
            32 if it is None. A DataGenerator and batches have their own: ValueError for another one. The last batch
            of an epoch may be short; its rows weigh as the loss weighs them. If a BatchNorm is trained
            and the last batch would have one row, that row joins the batch before it.
        shuffle : bool, optional
            Whether each epoch has its own order; True if it is None. A DataGenerator and batches have their own order.
        validation_data : (x, y), (x, y, weights) or DataGenerator
            Evaluated after each epoch.
        validation_split : float in [0, 1)
            The share of the rows, drawn at random before the first epoch, that is not trained on but evaluated
            instead; of what is read, whole blocks. A model remembers its split: every further `fit` on as many rows
            holds out the same rows, unless it is given a `seed`. Copies and pickles remember it, too; files do not.
        callbacks : iterable of callables (epoch, history)
            Called after each epoch, counted from 0; one that returns True ends the training. They may also have
            `begin` and `end`; see `caffelite.callbacks`, where some are ready-made.
        metrics : iterable of names or callables (outputs, targets) -> float
            "accuracy", "top_k(3)", "precision", "recall", "f1", "auc", "mse", "mae", "rmse", "r2" (see
            `caffelite.metrics`). A callable is called once an epoch, with the outputs and the targets of all its rows;
            targets (n,) for outputs (n, 1) come as (n, 1). The outputs are those that the steps computed.
        verbose : 0 silent, 1 a bar, 2 a line an epoch, "auto"
        seed : int, optional
            For the split and the orders, instead of the model's own stream.
        sample_weight : array-like (n,), optional
            How much each row weighs in the loss, not negative. The loss of an epoch is then Σ w l / Σ w; a batch whose
            weights are all 0 is passed over.
        class_weight : {label: weight} or "balanced", optional
            How much each row weighs by its label in y, labels being integers, one a row; 1 for labels that are missing.
            "balanced" is n / (number of classes · rows of the class), of all rows given, as scikit-learn has it. It
            multiplies `sample_weight`, and has no part in validation. A DataGenerator and batches bring their own
            weights instead.
        clip_norm : float, optional
            The largest norm that the gradients, all together, may have; larger ones are scaled down to it, as
            `Optimizer.clip_gradients` says.
        resume : path, optional
            A checkpoint (`callbacks.Checkpoint`) of the same training, which goes on there and ends with the bits of
            one that never stopped; `epochs` includes what was done before. Data, batch size, model, optimizer, loss,
            metrics, dtype and what is frozen have to be the same, else ValueError saying which is not, and all is left
            as it was. The optimizer's rates and other numbers are those of the checkpoint; but if the optimizer has
            another schedule than it had then, it follows that, from the checkpoint's step on. Of what is read block by
            block, rows from all over it are compared. An iterable of batches is gone through again up to there. A path
            where there is no file is a FileNotFoundError.

        Raises
        ------
        ValueError, TypeError, IndexError
            For data, labels, indices and options that cannot be used, before the first step where data are in memory.
        TrainingDiverged
            If the loss or a gradient is not finite; parameters are as they were before that step. Has `history`.
        KeyboardInterrupt
            On Ctrl-C, after the step under way. Has `history`, of the completed epochs.
        """
        rule, team = optimizer_and_team(optimizer)
        with team.entered(), Start(resume, self, rule, called := Callbacks(callbacks)) as start:
            until, measures = positive_integer("epochs", epochs, math.inf), named(metrics)
            clip_norm = None if clip_norm is None else positive("clip_norm", clip_norm)
            loss = door.as_loss(loss)
            door.check_optimizer(self, rule)
            rng = self._own.rng if seed is None else random_stream("seed", seed)
            team.share_streams(self._own.rng, rng)
            start.read(team, rng)
            fitting = Fitting(self, loss, measures, rule, clip_norm, called, team, start, rng)
            given = {"batch_size": batch_size, "shuffle": shuffle}
            held_out = validation_data, validation_split, seed is not None
            batches, validation, columns = door.training_batches(
                self, loss, x, y, sample_weight, class_weight, given, rng, *held_out
            )
            history = fitting.run(batches, validation, columns, until, verbose)
        door.warn_of_overflow(self)
        return history

    def predict(self, x: Any, *, batch_size: int = 1024) -> Any:
        """The outputs (n, …) for the rows of x (n, …), taken as in `fit`; a tuple where the model has several.

        Of a classifier they are scores: `argmax(axis=1)` are the labels, `loss.link` of them the probabilities.
        A row's output does not depend on the rows beside it. May be called from several threads at once.
        Raises ValueError for no rows or rows of another shape, TypeError for what is not numbers, IndexError for an
        index that is not in its table.
        """
        batch_size = positive_integer("batch_size", batch_size)
        inputs, _ = door.model_inputs(self, "predict", x)
        return predicting.outputs(self, inputs, batch_size)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor],
        metrics: Iterable[str | Metric] = (),
        batch_size: int | None = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        """The loss and the metrics on x (n, …) and y (n, …), or on a DataGenerator or an iterable of batches.

        Data, weights and metrics are as in `fit`; `batch_size` is 1024 if it is None. Raises as `fit` does.
        """
        loss = door.as_loss(loss)
        measures = named(metrics)
        given = {"batch_size": batch_size}
        batches = door.batches(self, "x", x, y, sample_weight, loss, given, batch_size=1024, shuffle=False)
        step = EvaluationStep(self, Objective(loss, measures, self._own.programs.warned_of))
        return dict(zip(step.objective.names, Evaluation(step, batches)(), strict=True))

    def summary(self, input_shape: tuple[Any, ...] | None = None) -> Table:
        """A table of the Functions: the shapes of their outputs, their parameters, and what they cost.

        `input_shape` is that of one row, without the batch axis, or a tuple of such for several inputs; it is needed
        where the first Function takes any shape. `memory` is that of the parameters; `multiply-adds`, those in products
        and convolutions, and `activations`, the memory of all outputs of Functions, are counted while the model is used
        on one row of zeros: "?" where lengths are unknown, Python computes, or a Function raises for zeros. What the
        model multiplies besides is in the total alone. What is frozen has a row of its own. A notebook shows the table
        as HTML.

        Raises TypeError for what is no shape, and ValueError for one that does not fit.
        """
        return summary.summary(self, input_shape)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        if self.is_sequence():
            return f"Model([{', '.join(map(repr, self.functions))}])"
        return f"{type(self).__name__}({', '.join([f'{name}={child!r}' for name, child in self._named_children()])})"

    # ---- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, `0.weight`, `0.bias`, `2.weight` …, and of the buffers, by name."""
        return state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the values of a `state_dict`, parameters in the model's dtype, buffers in their own.

        Raises ValueError, before anything is written, for names or shapes that are not this model's, and for values
        that a buffer of integers can't hold; TypeError for what is not numbers.
        """
        load_state_dict(self, state)

    def save(self, path: str | os.PathLike) -> None:
        """Write parameters and buffers to a safetensors file, of which Functions the model is made, and what is frozen.

        The file replaces an older one when it is whole. `caffelite.load` makes the model again, given its classes that
        are not caffelite's: they say by `arguments()` what they are made with. Where something can't say it, its
        parameters are saved nevertheless, for `Model.load`.

        Raises OSError naming the path if the file can't be written, and leaves an older one as it was.
        """
        save(self, path)

    def load(self, path: str | os.PathLike) -> Model:
        """Take over parameters and buffers from a file that a model of the same structure has saved; returns the model.

        Any safetensors file will do that has arrays of the same names and shapes, but for one whose metadata say that
        it is PyTorch's: its weights are transposed. Floats are converted to the model's dtype. Raises OSError for a
        path that can't be read, and ValueError, before anything is written, for what is no such file, and for other
        names, shapes or kinds of numbers.
        """
        load(self, path)
        return self


def _instead_of(x: Any) -> str:
    """What to do, for those who have given this as a Function."""
    if isinstance(x, type) and issubclass(x, Function):
        return f"; {x.__name__}(…) makes one"
    return "; functions of Tensors are for a Model that writes `call`" if callable(x) else ""
