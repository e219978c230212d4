"""Model: Functions in sequence, with `fit`, `predict` and `evaluate`. MLP makes one. History is what `fit` returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sized
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite.arrays import FLOATS, as_array, as_real, positive_integer
from caffelite.data import DataGenerator, as_targets
from caffelite.function import Function, Shape
from caffelite.functions import Linear, ReLU
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.metrics import Metric, named
from caffelite.modes import inference
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.progress import Progress
from caffelite.tables import table
from caffelite.tensor import Tensor
from caffelite.training import Programs, Steps


class History(dict):
    """What a training run measured: `history["loss"]` and so on, one number for each completed epoch.

    The numbers are means over the rows of an epoch, taken while it ran, penalties (weight decay) not included. What was
    measured on validation data after the epoch has `val_` before its name.
    """

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return len(self["loss"])

    def plot(self) -> Any:
        """Draw a panel for each quantity over the epochs; returns the matplotlib figure. Needs the extra `plot`."""
        from matplotlib.figure import Figure

        names = [name for name in self if not name.startswith("val_")]
        figure = Figure(figsize=(5 * len(names), 3.5), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            self.draw(axes, name)
        return figure

    def draw(self, axes: Any, name: str) -> None:
        """Draw one quantity, and its validation counterpart if there is one, on matplotlib axes."""
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in self:
                axes.plot(range(1, self.epochs + 1), self[key], label=label, marker="o" if self.epochs == 1 else "")
        axes.set(xlabel="epoch", title=name)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if f"val_{name}" in self:
            axes.legend()


class Model(Function, recordable=True):
    """Functions in sequence; itself a Function, so that Models nest.

    Parameters
    ----------
    functions : iterable of Function
        Added in order.
    seed : int, optional
        Makes the model's random stream: `add` draws parameters from it, and `fit` its orders. Without a seed,
        Functions keep the parameters they came with.
    dtype : float32 or float64
        What the model computes in; `fit`, `predict` and `evaluate` convert their data to it.

    A Model lays its parameters out side by side in one vector, and their gradients in another, so that optimizers
    update them in one call.
    """

    unwatched = frozenset({"_programs", "_applied", "_rng"})

    def __init__(self, functions: Iterable[Function] = (), *, seed: int | None = None, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise TypeError(f"Model: expected dtype float32 or float64, got {self.dtype}")
        self.functions: list[Function] = []
        self._seeded = seed is not None
        self._rng = np.random.default_rng(seed)
        self._programs = Programs()
        if isinstance(functions, Function):
            raise TypeError(f"Model takes a list of Functions, Model([Linear(2, 3), …]), got {functions!r}")
        for function in functions:
            self.add(function)

    # ---- building -----------------------------------------------------------------------------------------------

    def add(self, function: Function) -> Model:
        """Append a Function and return the model.

        Raises TypeError for anything but a Function and ValueError where its input can't have the shape before it.
        """
        if not isinstance(function, Function):
            raise TypeError(f"Model.add takes a Function such as ReLU(), got {function!r}")
        try:
            inspect.signature(function.forward).bind(None)
        except TypeError:
            raise TypeError(f"Model.add takes a Function of one input, such as ReLU(), got {function!r}") from None
        self._shape_after([*self.functions, function], self._known_input([*self.functions, function]))
        if isinstance(function, Model):
            function._take_dtype(self.dtype)
        for p in function.parameters():
            p._data = p._data.astype(self.dtype, copy=False)
            p._gradient = None if p._gradient is None else p._gradient.astype(self.dtype, copy=False)
        if self._seeded and function not in self.functions:
            function.initialize(self._rng)
        self.functions.append(function)
        self._lay_out()
        return self

    def all_functions(self) -> tuple[Function, ...]:
        """The Functions, those of Models among them included."""
        inner = (f.all_functions() if isinstance(f, Model) else () for f in self.functions)
        return (*self.functions, *(f for functions in inner for f in functions))

    def structure(self) -> tuple:
        """How the Functions follow and contain each other."""
        return tuple([f.structure() if isinstance(f, Model) else id(f) for f in self.functions])

    def _take_dtype(self, dtype: np.dtype) -> None:
        """Compute in another dtype from now on, that of the Model around this one."""
        self.dtype = dtype
        for function in self.functions:
            if isinstance(function, Model):
                function._take_dtype(dtype)

    def _lay_out(self) -> None:
        """Move the parameters into one vector, and their gradients into another."""
        parameters = self.parameters()
        size = sum(p.size for p in parameters)
        data, gradients = np.empty(size, self.dtype), np.empty(size, self.dtype)
        start = 0
        for p in parameters:
            here = slice(start, start + p.size)
            data[here] = p._data.reshape(-1)
            if p._has_gradient and p._gradient is not None:
                gradients[here] = p._gradient.reshape(-1)
            p._data, p._gradient = data[here].reshape(p.shape), gradients[here].reshape(p.shape)
            p._owns_data = True
            start += p.size

    def initialize(self, seed: Any) -> None:
        """Draw all parameters anew, from a seed (which also restarts the model's stream) or from a Generator."""
        rng = np.random.default_rng(seed)
        if rng is not seed:
            self._rng = rng
        for function in dict.fromkeys(self.functions):
            function.initialize(rng)

    def parameters(self) -> list[Tensor]:
        """The parameters in order, W₁, b₁, W₂, b₂ …, a shared one once."""
        return list(dict.fromkeys(p for function in self.functions for p in function.parameters()))

    @property
    def required_input_shape(self) -> Shape | None:  # type: ignore[override]
        """The shape of the input that the first Function requires."""
        return self._known_input(self.functions)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        return self._shape_after(self.functions, shape)

    @staticmethod
    def _known_input(functions: list[Function]) -> Shape | None:
        return functions[0].required_input_shape if functions else None

    @staticmethod
    def _shape_after(functions: list[Function], shape: Any) -> Any:
        for function in functions:
            shape = function.required_input_shape if shape is None else shape
            shape = None if shape is None else function.output_shape(shape)
        return shape

    def summary(self, input_shape: tuple[int, ...] | None = None) -> str:
        """A table of the Functions with output shapes and numbers of parameters.

        `input_shape` is that of one row, without the batch axis; it is needed where the first Function takes any shape.
        """
        shape: Any = (None, *input_shape) if input_shape is not None else self.required_input_shape
        rows = []
        for i, function in enumerate(self.functions):
            shape = self._shape_after([function], shape)
            text = "?" if shape is None else f"({', '.join('n' if n is None else str(n) for n in shape)})"
            rows.append((str(i), repr(function), text, f"{sum(p.size for p in function.parameters()):,}"))
        rows.append(("", "", "total", f"{sum(p.size for p in self.parameters()):,}"))
        return table(["", "function", "output", "parameters"], rows, "><<>")

    def __repr__(self) -> str:
        return f"Model([{', '.join(map(repr, self.functions))}])"

    # ---- state --------------------------------------------------------------------------------------------------

    def _named_parameters(self) -> dict[str, Tensor]:
        """The parameters by name, `0.weight`, `0.bias`, `2.weight` …, those of a Model in the Model `1.0.weight` …"""
        names: dict[str, Tensor] = {}
        for i, function in enumerate(self.functions):
            if isinstance(function, Model):
                own = function._named_parameters()
            else:
                own = {p.name or str(j): p for j, p in enumerate(function.parameters())}
                if len(own) < len(function.parameters()):
                    own = {str(j): p for j, p in enumerate(function.parameters())}
            names |= {f"{i}.{name}": p for name, p in own.items() if not any(p is other for other in names.values())}
        return names

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters by name: `0.weight`, `0.bias`, `2.weight` …"""
        return {name: p.data.copy() for name, p in self._named_parameters().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the values of a `state_dict`, in the model's dtype.

        Raises ValueError, before anything is written, for names or shapes that are not this model's.
        """
        parameters = self._named_parameters()
        if parameters.keys() != state.keys():
            raise ValueError(f"Model has the parameters {list(parameters)}, got {list(state)}")
        new = {name: as_real(values, self.dtype, f"load_state_dict, {name}") for name, values in state.items()}
        for name, p in parameters.items():
            if new[name].shape != p.shape:
                raise ValueError(f"load_state_dict: {name} has shape {p.shape}, got {new[name].shape}")
        for name, p in parameters.items():
            p.data = new[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_programs"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._programs = Programs()
        self._lay_out()

    # ---- forward and backward -----------------------------------------------------------------------------------

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Through copies of all Functions, which keep what `backward` needs; the Functions themselves keep nothing."""
        self._applied = [function.copy() for function in self.functions]
        for function in self._applied:
            x = function.forward(x)
            if x is None:
                raise TypeError(f"{function!r}.forward returned None; it has to return an array")
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        """Back through the copies that the last `forward` made."""
        for function in reversed(self._applied):
            dy = function.backward(dy)
            if dy is None:
                raise TypeError(f"{function!r}.backward returned None; it has to return the gradient of its input")
        return dy

    # ---- training and use ---------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        loss: Function,
        optimizer: Optimizer,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Iterable[Callable[[int, History], Any]] = (),
        metrics: Iterable[str | Metric] = (),
        verbose: int | str = "auto",
        seed: int | None = None,
    ) -> History:
        """Train from the present parameters on.

        Parameters
        ----------
        x, y : array-like (n, …)
            The rows and their targets; or x a DataGenerator or any iterable of (x, y) batches, and no y. Converted to
            the model's dtype (integer targets stay integers) and never written.
        loss : Function
            Called with outputs and targets; returns a single element.
        optimizer : Optimizer
            Has to know every parameter that requires a gradient.
        epochs, batch_size : int
            The last batch of an epoch may be short; its rows weigh as the loss weighs them.
        shuffle : bool
            Whether each epoch has its own order.
        validation_data : (x, y) or DataGenerator
            Evaluated after each epoch.
        validation_split : float in [0, 1)
            The share of the rows, drawn at random before the first epoch, that is not trained on but evaluated instead.
        callbacks : iterable of callables (epoch, history)
            Called after each epoch, counted from 0; one that returns True ends the training.
        metrics : iterable of "accuracy" or callables (outputs, targets) -> float
        verbose : 0 silent, 1 a bar, 2 a line an epoch, "auto"
        seed : int, optional
            For the split and the orders, instead of the model's own stream.

        Raises
        ------
        ValueError, TypeError
            For data, labels and options that cannot be used, before the first step where the data are in memory.
        TrainingDiverged
            If the loss or a gradient is not finite; parameters are as they were before that step. Has `history`.
        KeyboardInterrupt
            On Ctrl-C, after the step under way. Has `history`, of the completed epochs.
        """
        epochs, measures, callbacks = positive_integer("epochs", epochs), named(metrics), list(callbacks)
        for callback in callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks: expected callables (epoch, history), got {callback!r}")
        self._check_loss(loss)
        self._check_optimizer(optimizer)
        rng = np.random.default_rng(seed) if seed is not None else self._rng
        if validation_split != 0:
            if validation_data is not None:
                raise ValueError("fit takes validation_data or validation_split, not both")
            if y is not None and not isinstance(x, DataGenerator):
                x, y = self._checked("x", x, y, loss)
            (x, y), validation_data = _split(x, y, validation_split, rng)
        batches = self._batches("x", x, y, loss, batch_size=batch_size, shuffle=shuffle, seed=rng)
        validation = None if validation_data is None else self._validation_batches(validation_data, loss)

        history = History({name: [] for name in ["loss", *measures]})
        if validation is not None:
            history |= {f"val_{name}": [] for name in list(history)}

        steps = Steps(self, loss, measures, optimizer)
        count = len(batches) if isinstance(batches, Sized) else None
        attended = bool(callbacks) or validation is not None or verbose == 2
        try:
            with InterruptsBetweenSteps() as interrupts, Progress(verbose, epochs, count) as progress:
                for rows in steps.train(batches, epochs, interrupts, progress, attended):
                    if validation is not None:
                        of_validation = Steps(self, loss, measures).evaluate(validation)
                        rows = np.append(rows, [list(of_validation.values())], axis=1)
                    with interrupts.held():
                        for values, column in zip(history.values(), rows.T.tolist(), strict=True):
                            values.extend(column)
                    progress.epochs_done(len(rows), dict(zip(history, rows[-1], strict=True)))
                    stops = [callback(history.epochs - 1, history) for callback in callbacks]
                    if any(isinstance(stop, bool | np.bool_) and stop for stop in stops):
                        break
        except (KeyboardInterrupt, TrainingDiverged) as error:
            error.history = history  # type: ignore[union-attr]
            raise
        return history

    def predict(self, x: Any, *, batch_size: int = 1024) -> np.ndarray:
        """The outputs (n, …) for the rows of x (n, …), converted to the model's dtype.

        A row's output does not depend on the rows beside it. May be called from several threads at once.
        Raises ValueError for no rows or rows of another shape, TypeError for what is not numbers.
        """
        batch_size = positive_integer("batch_size", batch_size)
        x = as_real(x, self.dtype, "predict")
        self._check_rows("x", x)
        with inference():
            outputs = [self._outputs(x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
        return np.concatenate(outputs)

    def _outputs(self, x: np.ndarray) -> np.ndarray:
        return self._programs.find(self.all_functions(), "outputs", self.structure(), x.shape).run(self.__call__, x)

    def evaluate(
        self, x: Any, y: Any = None, *, loss: Function, metrics: Iterable[str | Metric] = (), batch_size: int = 1024
    ) -> dict[str, float]:
        """The loss and the metrics on x (n, …) and y (n, …), or on a DataGenerator or an iterable of (x, y) batches.

        Means over the rows. Raises as `fit` does.
        """
        self._check_loss(loss)
        measures = named(metrics)
        batches = self._batches("x", x, y, loss, batch_size=batch_size, shuffle=False)
        return Steps(self, loss, measures).evaluate(batches)

    # ---- checks -------------------------------------------------------------------------------------------------

    def _batches(self, name: str, x: Any, y: Any, loss: Function, **options: Any) -> Iterable:
        """Anything that `fit` and `evaluate` take, as batches; checked as a whole where it is in memory."""
        if isinstance(x, DataGenerator):
            if y is not None:
                raise ValueError(f"{name} is a DataGenerator, which brings its own targets; leave out y")
            if x.y is None:
                raise ValueError(f"{name} is a DataGenerator without targets")
            batches = x
        elif y is None:
            if isinstance(x, np.ndarray) or not isinstance(x, Iterable):
                raise ValueError(f"{name} without y has to be a DataGenerator or an iterable of (x, y) batches")
            return x
        else:
            return DataGenerator(*self._checked(name, x, y, loss), **options)
        if type(batches) is DataGenerator:
            self._check_rows(name, batches.x)
            self._check_targets(loss, batches.x, batches.y)
        return batches

    def _checked(self, name: str, x: Any, y: Any, loss: Function) -> tuple[np.ndarray, np.ndarray]:
        """x and y as arrays that the model and the loss can take."""
        x, targets = as_real(x, self.dtype, name), as_array(y, name)
        self._check_rows(name, x)
        if targets.ndim == 0 or len(targets) != len(x):
            raise ValueError(f"{name} has {len(x)} rows, y has shape {targets.shape}")
        self._check_targets(loss, x, y)
        return x, as_targets(targets, self.dtype)

    def _validation_batches(self, data: Any, loss: Function) -> Iterable:
        if isinstance(data, DataGenerator):
            return self._batches("validation_data", data, None, loss)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(f"validation_data: expected (x, y) or a DataGenerator, got {type(data).__name__}")
        x, y = data
        return self._batches("validation_data's x", x, y, loss, batch_size=1024, shuffle=False)

    def _check_rows(self, name: str, x: np.ndarray) -> None:
        if x.ndim == 0 or len(x) == 0:
            raise ValueError(f"{name} has no rows: shape {x.shape}")
        if not self.functions:
            raise ValueError("the model has no Functions; add some first")
        self.output_shape((None, *x.shape[1:]))

    def _check_targets(self, loss: Function, x: np.ndarray, y: Any) -> None:
        if hasattr(loss, "check_targets"):
            loss.check_targets(y, self.output_shape(x.shape))

    @staticmethod
    def _check_loss(loss: Any) -> None:
        if not isinstance(loss, Function):
            raise TypeError(f"loss: expected a Function such as SoftmaxLoss(), got {loss!r}")

    def _check_optimizer(self, optimizer: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer: expected an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}"
            )
        known = set(optimizer.parameters)
        if all([p in known or not p.requires_grad for p in self.parameters()]):  # noqa: C419 (faster than a generator)
            return
        for name, p in self._named_parameters().items():
            if p.requires_grad and p not in known:
                raise ValueError(
                    f"the optimizer does not have the model's parameter {name} {p.shape}; make it after the last "
                    "add, or freeze the parameter with requires_grad = False"
                )


def MLP(
    inputs: int,
    sizes: Iterable[int],
    activation: Callable[[], Function] = ReLU,
    *,
    seed: int | None = None,
    dtype: Any = np.float32,
) -> Model:
    """A multilayer perceptron: a Model of Linear layers with an activation between them, and none after the last.

    `MLP(2, [100, 3])` is `Model([Linear(2, 100), ReLU(), Linear(100, 3)])`.

    Parameters
    ----------
    inputs : int
        The number of features of a row.
    sizes : iterable of int
        The number of outputs of each layer; the last is that of the model.
    activation : class or callable without arguments that returns a Function
        Called for each hidden layer, so that each has an activation of its own.
    seed, dtype
        As in `Model`.

    Raises TypeError or ValueError for sizes that are no positive integers, for no sizes, and for other activations.
    """
    if not isinstance(sizes, Iterable):
        raise TypeError(f"MLP takes the sizes of its layers in a list, MLP(2, [100, 3]), got {sizes!r}")
    if isinstance(activation, Function) or not callable(activation):
        raise TypeError(f"MLP: activation must be a class or a callable that makes a Function, got {activation!r}")
    inputs = positive_integer("MLP: inputs", inputs)
    sizes = [positive_integer(f"MLP: sizes[{i}]", size) for i, size in enumerate(sizes)]
    if not sizes:
        raise ValueError("MLP needs the size of at least one layer, got none")
    model = Model([Linear(inputs, sizes[0])], seed=seed, dtype=dtype)
    for before, size in pairwise(sizes):
        try:
            function = activation()
        except TypeError as error:
            raise TypeError(
                f"MLP: activation must be a class or a callable that makes a Function, got {activation!r}: {error}"
            ) from error
        if not isinstance(function, Function):
            raise TypeError(f"MLP: activation must make a Function, {activation!r} returned {function!r}")
        model.add(function).add(Linear(before, size))
    return model


def _split(x: Any, y: Any, share: float, rng: np.random.Generator) -> tuple[tuple, tuple]:
    """(x, y) of the rows to train on, in their order, and (x, y) of the rows to evaluate."""
    if isinstance(share, bool) or not isinstance(share, int | float | np.integer | np.floating):
        raise TypeError(f"validation_split must be a number, got {share!r}")
    if not 0 <= share < 1:
        raise ValueError(f"validation_split must be in [0, 1), got {share}")
    if y is None:
        raise ValueError("validation_split needs x and y as arrays; give validation_data instead")
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ValueError(f"x has shape {x.shape}, y has shape {y.shape}: expected as many rows")
    count = int(len(x) * share)
    if count == 0:
        raise ValueError(f"validation_split {share} of {len(x)} rows leaves no row to evaluate")
    held_out = np.zeros(len(x), dtype=bool)
    held_out[rng.permutation(len(x))[:count]] = True
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])
