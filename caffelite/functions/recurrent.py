"""Recurrent layers: they read a sequence of vectors (n, length, features) step by step, into a state (n, hidden)."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_array, first_outside, positive_integer
from caffelite.core.construction import as_code
from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.initializers import uniform
from caffelite.core.inputs import as_float
from caffelite.core.modes import placeholders
from caffelite.core.tensor import parameter
from caffelite.functions.shape import reshaped

__all__ = ["GRU", "LSTM", "RNN"]


class Recurrent(Function, recordable=True):
    """What recurrent layers share: parameters, checks, and the products that are computed for all steps at once.

    A layer says how many `gates` of `hidden` units it has, and which states. It has two methods of its own: `run`
    computes the states from the inputs of the gates, step by step, and `run_back` the gradients.
    """

    gates: int
    axis_names = ("n", "length")
    state_names: tuple[str, ...] = ("h",)
    previous: np.ndarray  # after `run`: the states before each step (n, length, hidden)

    def __init__(self, in_features: int, hidden: int, sequences: bool = False) -> None:
        name = type(self).__name__
        self.in_features = positive_integer(f"{name}: in_features", in_features)
        self.hidden = positive_integer(f"{name}: hidden", hidden)
        self.sequences = bool(sequences)
        rows = self.gates * self.hidden
        self.weight_ih = parameter("weight_ih", (rows, self.in_features))
        self.weight_hh = parameter("weight_hh", (rows, self.hidden))
        self.bias_ih, self.bias_hh = parameter("bias_ih", rows), parameter("bias_hh", rows)
        self._set_first_values()

    def arguments(self) -> dict[str, Any]:
        return {"in_features": self.in_features, "hidden": self.hidden, "sequences": self.sequences}

    def initialize(self, rng: Any) -> None:
        rng = np.random.default_rng(rng)
        for p in self.parameters():
            p.data = uniform(1 / math.sqrt(self.hidden))(p.shape, rng)

    @property
    def required_input_shape(self) -> Any:
        return (None, None, self.in_features)

    def output_shape(self, *input_shapes: Shape) -> Any:
        x, states = input_shapes[0], [shape for shape in input_shapes[1:] if len(shape) != 1]  # lengths are (n,)
        self.check_input_shape(x)
        self._check_states(x, states)
        y = (*x[:2], self.hidden) if self.sequences else self._state(x)
        return (y, *[self._state(x) for _ in self.state_names]) if states else y

    def _state(self, x: Shape) -> Shape:
        """The shape of a state."""
        return (x[0], self.hidden)

    def _check_states(self, x: Shape, shapes: Sequence[Shape]) -> None:
        """ValueError unless states of these shapes fit x."""
        expected = self._state(x)
        for name, shape in zip(self.state_names, shapes, strict=False):
            if len(shape) != 2 or any(len({a, b} - {None}) > 1 for a, b in zip(shape, expected, strict=True)):
                raise ValueError(
                    f"{self!r} got a state {name} of shape {shape_text(shape)}; expected {shape_text(expected)}"
                )

    def _forward(self, x: np.ndarray, states: tuple[Any, ...], lengths: Any) -> Any:
        given = [state for state in states if state is not None]
        if given and len(given) < len(states):
            raise TypeError(f"{self!r} takes both states, {' and '.join(self.state_names)}, or none")
        self.check_input_shape(x.shape)
        self._check_states(x.shape, [np.shape(state) for state in given])
        arrays, names = (x, *given), ("x", *self.state_names)
        x, *given = [as_float(self, a, self.weight_ih.dtype, name) for a, name in zip(arrays, names, strict=False)]
        n, steps, _ = self.shape = x.shape
        self.lengths = None if lengths is None or placeholders.is_on else self._checked(lengths, n, steps)
        if self.lengths is not None:
            x = kernels.cut(x, self.lengths, functools.partial(_refuse_lengths, self, steps, np.asarray(lengths).dtype))
        self.x = reshaped(x, (n * steps, self.in_features))
        inputs = kernels.matmul(self.x, self.weight_ih.data.T, bias=self.bias_ih.data)
        first = given or [kernels.full((n, self.hidden), 0, inputs.dtype) for _ in states]
        y, *last = self.run(inputs.reshape(n, steps, self.gates * self.hidden), *first)
        self.with_state = bool(given)
        if not self.with_state:
            return y if self.sequences else last[0]
        return (y if self.sequences else kernels.copy(last[0]), *last)

    def backward(self, dy: Any) -> Any:
        dy, *dlast = dy if self.with_state else (dy, *[None] * len(self.state_names))
        if not self.sequences:
            dlast[0], dy = _sum_of_given(dy, dlast[0]), None
        dinputs, *dstates = self.run_back(dy, *dlast)
        dinputs = dinputs.reshape(len(self.x), self.gates * self.hidden)
        self.weight_ih.add_grad_of(kernels.matmul, dinputs.T, self.x)
        dbias = kernels.sum(dinputs, axis=0)
        self.bias_ih.add_grad(dbias)
        self._add_hidden_gradients(dinputs, dbias, self.previous.reshape(len(self.x), self.hidden))
        dx = None
        if self.wants_gradient(0):
            dx = kernels.matmul(dinputs, self.weight_ih.data).reshape(self.shape)
        return (dx, *dstates) if self.with_state else dx

    def _add_hidden_gradients(self, dinputs: np.ndarray, dbias: np.ndarray, previous: np.ndarray) -> None:
        self.weight_hh.add_grad_of(kernels.matmul, dinputs.T, previous)
        self.bias_hh.add_grad(dbias)

    @abstractmethod
    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        """Return the states of all steps (if `sequences`), and then the last state of each kind.

        `gates` are the inputs of the gates that come from x. Sets `previous`.
        """

    @abstractmethod
    def run_back(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        """Return the gradients of `gates` and of the first states, given those of the results of `run`."""

    def _checked(self, lengths: Any, rows: int, steps: int) -> np.ndarray:
        """The lengths as int64. TypeError unless they are integers, ValueError unless there is one for each row."""
        array = as_array(lengths, f"{self!r}: lengths")
        if array.dtype.kind not in "iu":
            row, value = first_outside(lengths, 1, steps)
            where = "" if row < 0 else f": {value!r} in row {row}"
            raise TypeError(f"{self!r} takes lengths that are integers in 1 … {steps}, got {array.dtype}{where}")
        if array.shape != (rows,):
            raise ValueError(f"{self!r} got lengths of shape {array.shape} for {rows} rows; expected ({rows},)")
        return array if array.dtype == np.int64 else kernels.convert(array, np.int64)

    def __repr__(self) -> str:
        return as_code(self, self.in_features, self.hidden, sequences=self.sequences)


def _sum_of_given(a: Any, b: Any) -> Any:
    """The sum of two gradients; None is 0."""
    return b if a is None else a if b is None else kernels.add(a, b)


def _refuse_lengths(layer: Recurrent, steps: int, dtype: np.dtype, lengths: np.ndarray) -> None:
    """Raise ValueError for the first of these lengths, int64 made of this dtype, that is not in 1 … steps."""
    row = int(((lengths < 1) | (lengths > steps)).argmax())
    raise ValueError(f"{layer!r}: length {lengths.astype(dtype)[row]} in row {row} is not in 1 … {steps}")


class RNN(Recurrent, recordable=True, by_row=True):
    """A recurrent layer,  h[t] = tanh(W x[t] + b + U h[t − 1] + c):  a state that changes with every step.

        da[t] = dh[t] (1 − h[t]²),  dh[t − 1] += Uᵀ da[t],  dx[t] = Wᵀ da[t]
        dW = Σ da[t] x[t]ᵀ,  dU = Σ da[t] h[t − 1]ᵀ,  db = dc = Σ da[t]  over all steps and rows

    x (n, length, in_features) → the last state (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (hidden, in_features), U `weight_hh` (hidden, hidden), b `bias_ih` and c `bias_hh` (hidden,), all drawn
    from U(−1/√hidden, 1/√hidden), as in PyTorch.

    The first state is 0, or the h (n, hidden) that you give. `rnn(x, h)` returns (y, the last state), from which the
    next part of a long sequence continues. `rnn(x, lengths=…)`, (n,) integers in 1 … length, says how many steps each
    row has. The last state is that of the row's own last step. After it y is 0, and x has no influence and no gradient.
    ValueError for other shapes and, with the first bad row, for other lengths. TypeError for other dtypes.

    J. Elman, "Finding structure in time", Cognitive Science 14, 1990.
    """

    gates = 1

    def __init__(self, in_features: int, hidden: int, sequences: bool = False) -> None:
        super().__init__(in_features, hidden, sequences)  # Python's errors about arguments name this class

    def forward(self, x: np.ndarray, h: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h,), lengths)

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        self.states = gates
        self.previous, last = kernels.rnn(gates, self.weight_hh.data, self.bias_hh.data, *states, self.lengths)
        return gates, last

    def run_back(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        return kernels.rnn_grad(self.states, self.weight_hh.data, dy, *dlast, self.lengths)


class GRU(Recurrent, recordable=True, by_row=True):
    """A layer of gated recurrent units, which learn when to forget and when to keep their state:

        r = σ(Wᵣ x[t] + bᵣ + Uᵣ h[t − 1] + cᵣ),  z alike,  n = tanh(Wₙ x[t] + bₙ + r (Uₙ h[t − 1] + cₙ))
        h[t] = (1 − z) n + z h[t − 1]

    x (n, length, in_features) → the last state (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (3 hidden, in_features), U `weight_hh` (3 hidden, hidden), b `bias_ih`, c `bias_hh`, each for r, z and n
    in this order, drawn as in PyTorch. States, lengths and errors are those of `RNN`.

    K. Cho et al., "Learning phrase representations using RNN encoder–decoder for statistical machine translation",
    EMNLP 2014; r is applied after the product, as in PyTorch.
    """

    gates = 3

    def __init__(self, in_features: int, hidden: int, sequences: bool = False) -> None:
        super().__init__(in_features, hidden, sequences)  # Python's errors about arguments name this class

    def forward(self, x: np.ndarray, h: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h,), lengths)

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        self.activations = gates
        found = kernels.gru(gates, self.weight_hh.data, self.bias_hh.data, *states, self.lengths, self.sequences)
        self.previous, last, self.reset, y = found
        return y, last

    def run_back(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        kept = self.activations, self.weight_hh.data, self.previous, self.reset
        dinputs, self.dreset, dh = kernels.gru_grad(*kept, dy, *dlast, self.lengths)
        return dinputs, dh

    def _add_hidden_gradients(self, dinputs: np.ndarray, dbias: np.ndarray, previous: np.ndarray) -> None:
        n = 2 * self.hidden  # the rows of r and z; those of n saw the state by way of r
        dreset = self.dreset.reshape(len(dinputs), self.hidden)
        dweight, dbias_hh = kernels.output_like(self.weight_hh.data), kernels.output_like(dbias)
        kernels.matmul(dinputs[:, :n].T, previous, dweight[:n])
        kernels.matmul(dreset.T, previous, dweight[n:])
        kernels.copy(dbias[:n], dbias_hh[:n])
        kernels.sum(dreset, axis=0, out=dbias_hh[n:])
        self.weight_hh.add_grad(dweight)
        self.bias_hh.add_grad(dbias_hh)


class LSTM(Recurrent, recordable=True, by_row=True):
    """A layer of long short-term memory: cells c, with gates that write into them, keep them and read them.

        i = σ(Wᵢ x[t] + bᵢ + Uᵢ h[t − 1] + cᵢ),  f and o alike,  g with tanh for σ
        c[t] = f c[t − 1] + i g,  h[t] = o tanh c[t]

    x (n, length, in_features) → the last h (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (4 hidden, in_features), U `weight_hh` (4 hidden, hidden), b `bias_ih`, c `bias_hh`, each for i, f, g
    and o in this order, drawn as in PyTorch. `lstm(x, h, c)` begins with these states, (n, hidden) each, and returns
    (y, (h, c)). With arrays, `forward(x, h, c)` returns (y, h, c), and `backward` gets the gradients of these. Lengths
    and errors are those of `RNN`.

    S. Hochreiter and J. Schmidhuber, "Long short-term memory", Neural Computation 9, 1997; with f of F. Gers,
    J. Schmidhuber and F. Cummins, "Learning to forget", Neural Computation 12, 2000.
    """

    gates = 4
    state_names = ("h", "c")

    def __init__(self, in_features: int, hidden: int, sequences: bool = False) -> None:
        super().__init__(in_features, hidden, sequences)  # Python's errors about arguments name this class

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().__call__(*inputs, **named)
        return (outputs[0], outputs[1:]) if isinstance(outputs, tuple) else outputs

    def forward(self, x: np.ndarray, h: Any = None, c: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h, c), lengths)

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        self.activations, self.first_cells = gates, states[1]
        found = kernels.lstm(gates, self.weight_hh.data, self.bias_hh.data, *states, self.lengths, self.sequences)
        self.previous, h, self.cells, c, y = found
        return y, h, c

    def run_back(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        kept = self.activations, self.weight_hh.data, self.cells, self.first_cells
        return kernels.lstm_grad(*kept, dy, *dlast, self.lengths)
