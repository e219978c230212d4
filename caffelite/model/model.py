"""Model: Functions in sequence, with `fit`, `predict` and `evaluate`.

A Model is a Container (`container.py`), which owns its Functions and their parameters. Other files do most of the work:
`execution.py` does `forward` and `backward`, `predict.py` predicts, and `summary.py` makes the table.
`training/fit.py` trains a model, and `files/state.py` saves and loads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import ForeignSetting, foreign_attributes
from caffelite._support.text_table import TextTable
from caffelite.core.arrays import FLOATS, make_rng
from caffelite.core.function import Function
from caffelite.core.modes import model_precision, set_init_source
from caffelite.core.tensor import Tensor
from caffelite.files import structure
from caffelite.model import predict as predicting
from caffelite.model import shapes, summary
from caffelite.model.container import Container
from caffelite.model.execution import GraphExecution, SequentialExecution, as_input, check_outputs, unpack_inputs
from caffelite.model.misfit import check_sequence
from caffelite.model.state import ModelState
from caffelite.optimizers import Optimizer
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.fit import fit
from caffelite.training.history import History as History
from caffelite.training.inputs import EVAL_OPTIONS, UserData, as_batches, as_losses
from caffelite.training.metrics.base import Metric, resolve_metrics
from caffelite.training.objective import Objective
from caffelite.training.options import FitOptions
from caffelite.training.process_group import DistributedOptimizer
from caffelite.training.step import EvaluationStep


@structure.register
@foreign_attributes(
    "add_loss add_metric compile fit_generator get_config get_layer load_weights partial_fit predict_classes "
    "predict_proba save_weights score to_json train_on_batch train_step weights"
)
class Model(Container, recordable=True):
    """Functions in sequence, or any graph of them if you write `call`. A Model is a Function, so Models nest.

    Parameters
    ----------
    functions : iterable of Function
        Added in order.
    seed : int, optional
        Seeds the model's random stream. The model draws its parameters from this stream, and `fit` draws the order of
        the rows from it. Without a seed, Functions keep the parameters they came with.
    dtype : float32 or float64
        The model computes in this dtype. `fit`, `predict` and `evaluate` convert their data to it.

    If a model is not a sequence, write a subclass: put its Functions in attributes and write `call`:

        class Gated(cl.Model):  # y = f(x) · sigmoid(g(x))
            def __init__(self, size, seed=None):
                super().__init__(seed=seed)
                self.f, self.g = cl.Linear(size, size), cl.Linear(size, size)
            def call(self, x):
                return self.f(x) * self.g(x).sigmoid()

    A model owns the Functions that you `add` to it or store in its attributes (lists, tuples and dicts included). It
    looks for new ones when `__init__` ends and before each use. It converts a new Function to its dtype and draws its
    parameters from its seed, once. A Function that your `__init__` makes after `super().__init__` gets its parameters
    at once, so `__init__` may scale or set them. Parameters that were trained, loaded or set keep their values. So you
    can put a Function that one model has trained into another; the two then share it. `copy.deepcopy` of the Function
    makes a separate one.

    A sequence is like a list of its Functions: `len(model)`, `model[0]`, `model[-1]`, and `for function in model`. A
    slice, `model[:-1]`, is a Model without a seed that shares them: what one of the two learns, the other learns too.
    """

    not_recorded = frozenset({"_model_state", "_execution"})
    stop_training = ForeignSetting("stop_training")
    _execution: Any = None  # the result of the last `forward`, for `backward`

    def __init__(self, functions: Iterable[Function] = (), *, seed: int | None = None, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise TypeError(f"Model: expected dtype float32 or float64, got {self.dtype}")
        self.functions: list[Function] = []
        self._model_state = ModelState(self, seed is not None, make_rng("seed", seed))
        if seed is not None:
            set_init_source(self._model_state)
        if isinstance(functions, Function):
            raise TypeError(f"Model takes a list of Functions, Model([Linear(2, 3), …]), got {functions!r}")
        self._extend(functions)

    # ---- building -----------------------------------------------------------------------------------------------

    def add(self, function: Function) -> Model:
        """Append a Function and return the model.

        Raise TypeError for anything but a Function, and ValueError if it can't take the output of the Function before
        it.
        """
        self._extend([function])
        return self

    def _extend(self, functions: Iterable[Function]) -> None:
        new = list(functions)
        for function in new:
            if not isinstance(function, Function):
                raise TypeError(f"Model.add takes a Function such as ReLU(), got {function!r}{_add_hint(function)}")
            if self.is_sequence() and not shapes.accepts_inputs(type(function).forward, inputs=1):
                raise TypeError(f"Model.add takes a Function of one input, such as ReLU(), got {function!r}")
        if new and self.is_sequence():
            check_sequence([*self.functions, *new])
        self.functions.extend(new)
        if new:
            self.all_functions()

    def _make_sequence(self, functions: list[Function]) -> Model:
        return Model(functions, dtype=self.dtype)

    def is_sequence(self) -> bool:
        """Return whether the model applies `functions` one after the other."""
        return type(self).call is Model.call

    def is_rowwise(self) -> bool:
        """Return whether the model only applies `functions` one after the other, or its class declares `rowwise`."""
        own = type(self)
        is_plain = self.is_sequence() and own.forward is Model.forward and own.__call__ is Model.__call__
        return is_plain or super().is_rowwise()

    # ---- forward and backward -----------------------------------------------------------------------------------

    def python_code(self) -> Callable[..., Any]:
        return self.call

    def call(self, *inputs: Any) -> Any:
        """Compute the model's outputs. A subclass may write its own; this one applies `functions` in sequence.

        Inputs are Tensors (integers and bools come as arrays). It returns a Tensor or a tuple of Tensors.
        """
        for function in self.functions:
            inputs = (function(*inputs),)
        return inputs[0]

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Apply `call` to Tensors, or to arrays or lists of the model's dtype: `model(a, b)`, or `model((a, b))`.

        The outputs' graph consists of the model's Functions, not of the model itself.
        """
        self.all_functions()
        if named:
            inputs = self._order_inputs(inputs, named)
        inputs = unpack_inputs(self, inputs)
        if type(self).forward is not Model.forward and self.is_sequence():
            return super().__call__(*inputs)  # the subclass has a `forward` of its own
        recording = kernels.recorder()
        if recording is not None:
            self._shallow_copy()
        return check_outputs(self, self.call(*[as_input(self, x) for x in inputs]))

    def forward(self, *inputs: Any) -> Any:
        """Compute with arrays, through copies of all Functions. The copies keep what `backward` needs."""
        self.all_functions()
        execution = self._execution = SequentialExecution(self) if self.is_sequence() else GraphExecution(self)
        return execution.forward(*unpack_inputs(self, inputs))

    def backward(self, dy: Any) -> Any:
        """Return the gradient of every float input, through the Functions that the last `forward` applied.

        `fit` does not use this method: it calls the model, and then the `backward` of the loss.
        """
        if self._execution is None:
            raise RuntimeError(f"{type(self).__name__}.backward needs a `forward` before it")
        return self._execution.backward(dy)

    # ---- training and use ---------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor] | Sequence[Any],
        optimizer: Optimizer | DistributedOptimizer,
        epochs: int = 1,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Iterable[Callable[[int, History], Any]] = (),
        metrics: Iterable[str | Metric | Sequence[str | Metric]] = (),
        verbose: int | str = "auto",
        seed: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | str | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        resume: str | os.PathLike[str] | None = None,
        precision: str | None = None,
        lengths: Any = None,
    ) -> History:
        """Train the model, starting from its current parameters. Calling `fit` again continues training.

        Parameters
        ----------
        x, y : array-like (n, …)
            The rows and their targets. Instead, x may be a DataGenerator or any iterable of (x, y) or (x, y, weights)
            batches, without y; each epoch goes through it once. A tuple x holds several inputs, and a tuple y several
            targets: arrays with the same number of rows. `fit` converts data to the model's dtype and never writes to
            them. Integer targets stay integers, and so do inputs that the model takes as indices.

            x and y may also be frames of pandas, polars or Arrow, or dicts of columns. `fit` makes arrays of their
            numbers; a model that begins with `Columns` takes them as tables. A SciPy sparse matrix stays sparse if it
            goes into a Linear, and so does the gradient. `fit` reads large mapped files, h5py datasets and data with
            `shape`, `dtype` and slices block by block; `caffelite.sources` describes the order.
        loss : Function, or callable (outputs, targets) -> Tensor
            Called with outputs and targets, and with weights if there are any. Returns a single element. If there are
            several outputs, or several targets, the loss gets them as a tuple. A tuple of losses, or `Losses`, has one
            loss for each output and its target. `fit` minimizes their sum, and measures each of them: `loss_0`,
            `loss_1`, and so on.
        optimizer : Optimizer
            Must hold every parameter that requires a gradient. `caffelite.mpi.DataParallel` makes one for several
            processes, which share the rows of every batch.
        epochs : int
        batch_size : int, optional
            32 if None. A DataGenerator and batches have their own; a different one raises ValueError. The last batch of
            an epoch may be short; the loss determines how much its rows count. If a BatchNorm is trained and the last
            batch would have one row, that row joins the batch before it.
        shuffle : bool, optional
            Whether to reshuffle the rows for each epoch; True if None. DataGenerators and batches have their own order.
        validation_data : (x, y), (x, y, weights) or DataGenerator
            Evaluated after each epoch.
        validation_split : float in [0, 1)
            The share of the rows that `fit` evaluates instead of training on them. It draws them at random before the
            first epoch: whole blocks, if it reads the data block by block. A model remembers its split: another `fit`
            on the same number of rows holds out the same ones, unless you give a `seed`. Copies and pickles remember it
            too; files do not.
        callbacks : iterable of callables (epoch, history)
            Called after each epoch, counted from 0. If one returns True, training ends. They may also have `begin`
            and `end`. `caffelite.callbacks` has ready-made ones.
        metrics : iterable of names or callables (outputs, targets) -> float
            "accuracy", "top_k(3)", "f1", "auc", "log_loss", "mse", "mae", "r2" and others (see `caffelite.metrics`). A
            callable is called once per epoch, with the outputs and the targets of all rows. The outputs are those that
            the steps computed. Targets keep the shape in which you pass them. If the model has several outputs, a
            callable gets tuples. Or give a list for each output: (["accuracy"], ["mae"]). Their names in the history
            are `accuracy_0` and `mae_1`.
        verbose : 0 silent, 1 a bar, 2 a line per epoch, "auto"
        seed : int, optional
            Used for the split and the shuffling, instead of the model's own random stream.
        sample_weight : array-like (n,), optional
            How much each row counts in the loss; not negative. The loss of an epoch is then Σ w l / Σ w. `fit` skips a
            batch whose weights are all 0.
        class_weight : {label: weight} or "balanced", optional
            How much each row counts, depending on its label. y must have one integer label per row. Labels that are not
            in the dict have weight 1. "balanced" is n / (number of classes · rows of the class), over all given rows,
            as in scikit-learn. It multiplies `sample_weight` and does not change validation.
        clip_norm : float, optional
            The largest norm that all gradients together may have. If it is larger, they are scaled down; see
            `Optimizer.clip_gradients`.
        accumulate : int
            How many batches make one step. Their gradients are added up to the gradient of all their rows, so a step
            acts like one on a large batch but needs the memory of a small one. BatchNorm sees each batch by itself. If
            the batches of an epoch are not a multiple, the last step has fewer. Schedules and callbacks count steps.
        resume : path, optional
            A checkpoint (`callbacks.Checkpoint`) of the same training run. Training continues from there and ends with
            the same bits as if it had never stopped. `epochs` includes the epochs already done. Data, batch size,
            model, optimizer, loss, metrics, dtype, precision and frozen parameters have to be the same. If one is not,
            `fit` raises a ValueError that names it and changes nothing. If data are read block by block, `fit` compares
            rows from all over them. The checkpoint also sets the optimizer's numbers. But if the optimizer now has
            another schedule, it follows that schedule from the checkpoint's step on. `fit` goes through an iterable of
            batches again up to that step. If there is no file at the path, `fit` raises FileNotFoundError.
        precision : "float32" or "bfloat16", optional
            "bfloat16" rounds the operands of matrix products to bfloat16, in evaluations too. This is much faster for
            wide layers on some processors. Parameters and all other numbers stay float32. None keeps the precision of
            this thread: float32, unless `fit` is called inside `with caffelite.precision(…)`.
        lengths : array-like (n,) of int, optional
            How many leading positions of each row count. Batches have rows of similar length and are cut to the
            longest, or a little beyond it, to at most 16 widths. All inputs and targets that are as wide as x are cut.
            The loss has to leave out the positions that do not count. With shuffle=False, the rows keep their order.

        Raises
        ------
        ValueError, TypeError, IndexError
            For data, labels, indices and options that cannot be used; before the first step if the data are in memory.
        TrainingDiverged
            If the loss or a gradient is not finite. The parameters are as they were before that step. Has `history`.
        KeyboardInterrupt
            On Ctrl-C, after the current step. Has `history`, of the completed epochs.
        """
        options = FitOptions(
            loss=loss,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=batch_size,
            shuffle=shuffle,
            validation_data=validation_data,
            validation_split=validation_split,
            callbacks=callbacks,
            metrics=metrics,
            verbose=verbose,
            seed=seed,
            sample_weight=sample_weight,
            class_weight=class_weight,
            clip_norm=clip_norm,
            accumulate=accumulate,
            resume=resume,
            precision=precision,
            lengths=lengths,
        )
        return fit(self, x, y, options)

    def predict(self, x: Any, *, batch_size: int = 1024, precision: str | None = None, lengths: Any = None) -> Any:
        """Return the outputs (n, …) for the rows of x (n, …), or a tuple if the model has several outputs.

        x is as in `fit`. A classifier's outputs are scores: their `argmax(axis=1)` gives the labels, and `loss.link`
        the probabilities. Several threads may call `predict` at once. `precision` is as in `fit`. If your own code
        computes across rows, it gets all of them at once. Otherwise no row depends on another. `lengths` are as in
        `fit`. Outputs that are as long as the rows are then 0 past each row's length.

        Raise ValueError for no rows or rows of another shape, TypeError if x does not hold numbers, and IndexError if
        an index is not in its table.
        """
        __tracebackhide__ = True  # IPython and pytest skip this frame
        if precision is None:  # a context that changes nothing would take 4 % of the time of a row
            return predicting.predict(self, x, batch_size, lengths)
        with model_precision(self.dtype, precision):
            return predicting.predict(self, x, batch_size, lengths)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function | Callable[..., Tensor] | Sequence[Any],
        metrics: Iterable[str | Metric | Sequence[str | Metric]] = (),
        batch_size: int | None = None,
        sample_weight: Any = None,
        precision: str | None = None,
        lengths: Any = None,
    ) -> dict[str, float]:
        """Return the loss and the metrics on x (n, …) and y (n, …), a DataGenerator or an iterable of batches.

        Data, weights, metrics, precision and lengths are as in `fit`. A `batch_size` of None means 1024. Raise the same
        errors as `fit`.
        """
        loss, measures, options = as_losses(loss), resolve_metrics(metrics), {"batch_size": batch_size}
        batches = as_batches(self, UserData(x, y, sample_weight, lengths), loss, options, **EVAL_OPTIONS)
        step = EvaluationStep(self, Objective(loss, measures, self._model_state.programs.warned_reasons))
        with model_precision(self.dtype, precision):
            return dict(zip(step.objective.names, Evaluation(step, batches)(), strict=True))

    def summary(self, input_shape: tuple[Any, ...] | None = None) -> TextTable:
        """Return a table of the Functions: the shapes of their outputs, their parameters, and their costs.

        `input_shape` is the shape of one row, without the batch axis, or a tuple of shapes for several inputs. Give it
        if the first Function takes any shape. A notebook shows the table as HTML.

        - `memory` is the memory of the parameters.
        - `multiply-adds` counts those in products and convolutions; `activations` is the memory of all outputs of
          Functions. Both are counted on one row of zeros. They are "?" if lengths are unknown, if Python code computes,
          or if a Function raises an error for zeros. Products outside the Functions count only in the total.
        - Frozen parameters have a row of their own.

        Raise TypeError if `input_shape` is not a shape, and ValueError if it does not fit.
        """
        return summary.summary(self, input_shape)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        if self.is_sequence():
            return f"Model([{', '.join(map(repr, self.functions))}])"
        return f"{type(self).__name__}({', '.join([f'{name}={child!r}' for name, child in self._named_children()])})"


def _add_hint(x: Any) -> str:
    """Return a hint for users who gave this instead of a Function."""
    if isinstance(x, type) and issubclass(x, Function):
        return f"; {x.__name__}(…) makes one"
    return "; functions of Tensors are for a Model that writes `call`" if callable(x) else ""
