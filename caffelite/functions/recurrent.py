"""Recurrent layers: they read a sequence of vectors (n, length, features) step by step, into a state (n, hidden)."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import repr_with_arguments
from caffelite._support.warnings import warn
from caffelite.core.arrays import (
    INDICES_HINT,
    as_array,
    check_nonnegative,
    check_positive_integer,
    find_outside,
    reshape_array,
)
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.initializers import Initializer, check_initializer, uniform
from caffelite.core.inputs import as_float
from caffelite.core.modes import is_training, meta_init, shape_inference
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor, make_parameter
from caffelite.functions.dropout import draw_seed
from caffelite.functions.indexing import Concatenate, Stack

__all__ = ["GRU", "LSTM", "RNN"]

PARAMETER_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # the parameters of one layer in one direction
MAX_LAYERS = 1000  # a forged file cannot ask for more parameters than this allows


class Recurrent(Function, recordable=True):
    """The base of recurrent layers: parameters, checks, stacks and directions.

    A subclass sets `gates`, the number of its gates of `hidden` units, its states, and the `RecurrentPass` for them.
    """

    gates: int
    axis_names = ("n", "length")
    state_names: tuple[str, ...] = ("h",)
    pass_type: type[RecurrentPass]
    weight_ih: Tensor

    def __init__(
        self,
        in_features: int,
        hidden: int,
        sequences: bool = False,
        layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        name = type(self).__name__
        self.in_features = check_positive_integer(f"{name}: in_features", in_features)
        self.hidden = check_positive_integer(f"{name}: hidden", hidden)
        self.sequences, self.bidirectional = bool(sequences), bool(bidirectional)
        self.layers = check_positive_integer(f"{name}: layers", layers, MAX_LAYERS)
        self.dropout = check_nonnegative(f"{name}: dropout", dropout, 1.0)
        if self.dropout > 0 and self.layers == 1 and not meta_init.is_on:
            hint = f"give layers=2, or put cl.Dropout({dropout:g}) before or after it"
            warn(f"{name}: dropout={dropout:g} does nothing, because it acts between layers and there is one: {hint}")
        self.initializer = check_initializer(name, initializer)
        rows = self.gates * self.hidden
        for layer in range(self.layers):
            features = self.in_features if layer == 0 else self.directions * self.hidden
            for suffix in self._suffixes(layer):
                shapes = ((rows, features), (rows, self.hidden), (rows,), (rows,))
                for part, shape in zip(PARAMETER_NAMES, shapes, strict=True):
                    setattr(self, part + suffix, make_parameter(part + suffix, shape))
        if self.layers > 1:
            self.random = np.zeros(2, np.int64)
        self._set_initial_values()

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        """Return the ends of the names of a layer's parameters, one for each direction."""
        suffix = f"_l{layer}" if layer > 0 else ""
        return [suffix, f"{suffix}_reverse"][: self.directions]

    def initialize(self, rng: Any) -> None:
        """Draw the parameters. In a stack, take another seed for dropout, and count the masks from 0 again."""
        rng = np.random.default_rng(rng)
        for p in self.parameters():
            if self.initializer is None:
                p.data = uniform(1 / math.sqrt(self.hidden))(p.shape, rng)
            else:
                p.data = np.transpose(self.initializer(p.shape[::-1], rng)) if p.ndim > 1 else np.zeros(p.shape)
        if self.layers > 1:
            self.random[:] = draw_seed(rng), 0

    def buffers(self) -> dict[str, np.ndarray]:
        """In a stack: the seed of dropout, and how many masks were drawn. They are kept but not learned."""
        return {"random": self.random} if self.layers > 1 else {}

    @property
    def required_input_shape(self) -> Any:
        return (None, None, self.in_features)

    def output_shape(self, *input_shapes: Shape) -> Any:
        x, states = input_shapes[0], [shape for shape in input_shapes[1:] if len(shape) != 1]  # lengths are (n,)
        self.check_input_shape(x)
        self._check_states(x, states)
        y = (*(x[:2] if self.sequences else x[:1]), self.directions * self.hidden)
        return (y, *[self._state_shape(x) for _ in self.state_names]) if states else y

    def _state_shape(self, x: Shape) -> Shape:
        """Return the shape of a state."""
        count = self.layers * self.directions
        return (x[0], self.hidden) if count == 1 else (count, x[0], self.hidden)

    def _check_states(self, x: Shape, shapes: Sequence[Shape]) -> None:
        """ValueError unless states of these shapes fit x."""
        expected = self._state_shape(x)
        for name, shape in zip(self.state_names, shapes, strict=False):
            if len(shape) != len(expected) or any(
                len({a, b} - {None}) > 1 for a, b in zip(shape, expected, strict=True)
            ):
                raise ValueError(
                    f"{self!r} got a state {name} of shape {format_shape(shape)}; expected {format_shape(expected)}"
                )

    def _forward(self, x: np.ndarray, states: tuple[Any, ...], lengths: Any) -> Any:
        initial_states = [state for state in states if state is not None]
        if initial_states and len(initial_states) < len(states):
            raise TypeError(f"{self!r} takes both states, or none: layer(x, {', '.join(self.state_names)})")
        self.check_input_shape(x.shape)
        self._check_states(x.shape, [np.shape(state) for state in initial_states])
        arrays, names = (x, *initial_states), ("x", *self.state_names)
        x, *initial_states = [
            as_float(self, a, self.weight_ih.dtype, name) for a, name in zip(arrays, names, strict=False)
        ]
        n, steps, _ = self.shape = x.shape
        counts = None if lengths is None or shape_inference.is_on else self._check_lengths(lengths, n, steps)
        if counts is not None:
            x = kernels.cut(x, counts, functools.partial(_raise_bad_length, self, steps, np.asarray(lengths).dtype))
        y, last = self._run_stack(x, initial_states, counts)
        if not self.sequences:
            y = _concat_directions([h for h, *_ in last[-self.directions :]])
        self.has_state = bool(initial_states)
        if not self.has_state:
            return y
        if len(last) == 1 and not self.sequences:
            y = kernels.copy(y)  # for the last state is an output of its own
        return (y, *[_stack_states(states) for states in zip(*last, strict=True)])

    def _run_stack(self, x: Any, initial_states: list[np.ndarray], lengths: Any) -> tuple[Any, list[Any]]:
        """Return the states of the top layer at all steps (if `sequences`), and the last states of each pass."""
        self.passes: list[RecurrentPass] = []
        self.rng_states: list[Any] = []  # of dropout's masks, between each layer and the next
        last: list[Any] = []
        pass_states = list(zip(*map(self._split_by_pass, initial_states), strict=True))
        for layer in range(self.layers):
            if layer > 0:
                x = self._apply_dropout(x)
            all_steps, results = self.sequences or layer < self.layers - 1, []
            for suffix in self._suffixes(layer):
                layer_pass = self.pass_type(self, suffix, lengths, all_steps)
                states = pass_states[len(last)] if initial_states else layer_pass.zeros(len(x))
                y, *ends = layer_pass.forward(x, *states)
                self.passes.append(layer_pass)
                results.append(y)
                last.append(ends)
            x = _concat_directions(results) if all_steps else None
        return x, last

    def _apply_dropout(self, y: np.ndarray) -> np.ndarray:
        """Return the states that the next layer gets. In training, some are dropped."""
        self.rng_states.append(None)
        if is_training() and self.dropout > 0:
            self.active_p, self.offset = self.dropout, current_shard().offset(y.size)
            y, self.rng_states[-1] = kernels.dropout(y, self.random, self.active_p, self.offset)
        return y

    def backward(self, dy: Any) -> Any:
        dy, *dlast = dy if self.has_state else (dy, *[None] * len(self.state_names))
        dlast = [self._split_by_pass(d) for d in dlast]
        direction_dys = self._split_by_direction(dy)
        if not self.sequences:
            dlast[0][-self.directions :] = map(_add_gradients, direction_dys, dlast[0][-self.directions :])
            direction_dys = [None] * self.directions
        dfirst: list[Any] = []  # from the last pass to the first
        for layer in range(self.layers - 1, -1, -1):
            dx: Any = None
            for direction in range(self.directions - 1, -1, -1):
                i = layer * self.directions + direction
                wants_dx = layer > 0 or self.wants_gradient(0)
                dx_pass, *dstates = self.passes[i].backward(wants_dx, direction_dys[direction], *[d[i] for d in dlast])
                dx = _add_gradients(dx_pass, dx)
                dfirst.append(dstates)
            if layer > 0:
                rng_state = self.rng_states[layer - 1]
                dx = dx if rng_state is None else kernels.dropout_grad(dx, rng_state, self.active_p, self.offset)
                direction_dys = self._split_by_direction(dx)
        return (dx, *[_stack_states(states[::-1]) for states in zip(*dfirst, strict=True)]) if self.has_state else dx

    def _split_by_pass(self, states: Any) -> list[Any]:
        """Return the state of each pass, or its gradient; None for each if there is none."""
        count = self.layers * self.directions
        return [states] if count == 1 else [None if states is None else states[i] for i in range(count)]

    def _split_by_direction(self, dy: Any) -> list[Any]:
        """Return the columns of a gradient that belong to each direction; None for each if there is none."""
        if self.directions == 1:
            return [dy]
        columns = slice(self.hidden), slice(self.hidden, None)
        return [None if dy is None else dy[..., part] for part in columns]

    def _check_lengths(self, lengths: Any, rows: int, steps: int) -> np.ndarray:
        """Return the lengths as int64. TypeError unless they are integers, ValueError unless there is one per row."""
        array = as_array(lengths, f"{self!r}: lengths")
        if array.dtype.kind not in "iu":
            row, value = find_outside(lengths, 1, steps)
            where = "" if row < 0 else f": {value!r} in row {row}"
            hint = f"; {INDICES_HINT}" if array.dtype.kind == "f" else ""
            raise TypeError(f"{self!r} takes lengths that are integers in 1 … {steps}, got {array.dtype}{where}{hint}")
        if array.shape != (rows,):
            raise ValueError(f"{self!r} got lengths of shape {array.shape} for {rows} rows; expected ({rows},)")
        return array if array.dtype == np.int64 else kernels.convert(array, np.int64)

    __repr__ = repr_with_arguments


def _add_gradients(a: Any, b: Any) -> Any:
    """Return the sum of two gradients; None is 0."""
    return b if a is None else a if b is None else kernels.add(a, b)


def _concat_directions(arrays: list[np.ndarray]) -> np.ndarray:
    """Join the arrays of both directions: first the features of the first, then the features of the second."""
    return arrays[0] if len(arrays) == 1 else Concatenate(-1).forward(*arrays)


def _stack_states(states: Sequence[np.ndarray]) -> np.ndarray:
    """Return the states of all passes as one array (layers · directions, n, hidden); of a single pass (n, hidden)."""
    return states[0] if len(states) == 1 else Stack().forward(*states)


def _raise_bad_length(layer: Recurrent, steps: int, dtype: np.dtype, lengths: np.ndarray) -> None:
    """Raise ValueError for the first of these lengths, int64 made of this dtype, that is not in 1 … steps."""
    row = int(((lengths < 1) | (lengths > steps)).argmax())
    raise ValueError(f"{layer!r}: length {lengths.astype(dtype)[row]} in row {row} is not in 1 … {steps}")


# ---- one layer in one direction --------------------------------------------------------------------------------------


class RecurrentPass(ABC):
    """One layer of a stack in one direction: its parameters, and what `backward` needs.

    It computes the gates' inputs from x by one product for all steps. A subclass computes the rest: `run` the states
    from the inputs of the gates, step by step, and `run_backward` the gradients.
    """

    state_count = 1
    previous: np.ndarray  # after `run`: the states before each step (n, length, hidden)

    def __init__(self, layer: Recurrent, suffix: str, lengths: Any, all_steps: bool) -> None:
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = (
            getattr(layer, p + suffix) for p in PARAMETER_NAMES
        )
        self.hidden, self.lengths, self.all_steps = layer.hidden, lengths, all_steps
        self.reverse = suffix.endswith("_reverse")

    def zeros(self, rows: int) -> list[np.ndarray]:
        """Return the first states if none are given."""
        return [kernels.full((rows, self.hidden), 0, self.weight_hh.dtype) for _ in range(self.state_count)]

    def forward(self, x: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        """Return the states of all steps (if `all_steps`), and then the last state of each kind."""
        n, steps, features = self.shape = x.shape
        self.x = reshape_array(x, (n * steps, features))
        inputs = kernels.matmul(self.x, self.weight_ih.data.T, bias=self.bias_ih.data)
        return self.run(inputs.reshape(n, steps, self.bias_ih.size), *states)

    def backward(self, wants_dx: bool, dy: Any, *dlast: Any) -> tuple[Any, ...]:
        """Return the gradients of x (None unless wanted) and of the first states."""
        dinputs, *dstates = self.run_backward(dy, *dlast)
        dinputs = dinputs.reshape(len(self.x), self.bias_ih.size)
        self.weight_ih.add_grad_of(kernels.matmul, dinputs.T, self.x)
        dbias = kernels.sum(dinputs, axis=0)
        self.bias_ih.add_grad(dbias)
        self._add_hidden_gradients(dinputs, dbias, self.previous.reshape(len(self.x), self.hidden))
        dx = kernels.matmul(dinputs, self.weight_ih.data).reshape(self.shape) if wants_dx else None
        return dx, *dstates

    def _add_hidden_gradients(self, dinputs: np.ndarray, dbias: np.ndarray, previous: np.ndarray) -> None:
        self.weight_hh.add_grad_of(kernels.matmul, dinputs.T, previous)
        self.bias_hh.add_grad(dbias)

    @abstractmethod
    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        """Return what `forward` returns. `gates` are the inputs of the gates that come from x. Sets `previous`."""

    @abstractmethod
    def run_backward(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        """Return the gradients of `gates` and of the first states, given the gradients of the results of `run`."""


class RNNPass(RecurrentPass):
    """One layer of an RNN in one direction."""

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        self.states = gates
        (h,) = states
        arguments = gates, self.weight_hh.data, self.bias_hh.data, h
        self.previous, last = kernels.rnn(*arguments, self.lengths, self.reverse)
        return gates, last

    def run_backward(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        (dh,) = dlast
        return kernels.rnn_grad(self.states, self.weight_hh.data, dy, dh, self.lengths, self.reverse)


class GRUPass(RecurrentPass):
    """One layer of a GRU in one direction."""

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        self.activations = gates
        (h,) = states
        arguments = gates, self.weight_hh.data, self.bias_hh.data, h
        self.previous, last, self.reset, y = kernels.gru(*arguments, self.lengths, self.all_steps, self.reverse)
        return y, last

    def run_backward(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        (dh,) = dlast
        saved_arrays = self.activations, self.weight_hh.data, self.previous, self.reset
        dinputs, self.dreset, dh = kernels.gru_grad(*saved_arrays, dy, dh, self.lengths, self.reverse)
        return dinputs, dh

    def _add_hidden_gradients(self, dinputs: np.ndarray, dbias: np.ndarray, previous: np.ndarray) -> None:
        n = 2 * self.hidden  # the rows of r and z; the rows of n get the state through r
        dreset = self.dreset.reshape(len(dinputs), self.hidden)
        dweight, dbias_hh = kernels.output_like(self.weight_hh.data), kernels.output_like(dbias)
        kernels.matmul(dinputs[:, :n].T, previous, dweight[:n])
        kernels.matmul(dreset.T, previous, dweight[n:])
        kernels.copy(dbias[:n], dbias_hh[:n])
        kernels.sum(dreset, axis=0, out=dbias_hh[n:])
        self.weight_hh.add_grad(dweight)
        self.bias_hh.add_grad(dbias_hh)


class LSTMPass(RecurrentPass):
    """One layer of an LSTM in one direction."""

    state_count = 2

    def run(self, gates: np.ndarray, *states: np.ndarray) -> tuple[Any, ...]:
        h, c = states
        self.activations, self.first_cells = gates, c
        arguments = gates, self.weight_hh.data, self.bias_hh.data, h, c
        self.previous, h, self.cells, c, y = kernels.lstm(*arguments, self.lengths, self.all_steps, self.reverse)
        return y, h, c

    def run_backward(self, dy: Any, *dlast: Any) -> tuple[np.ndarray, ...]:
        saved_arrays = self.activations, self.weight_hh.data, self.cells, self.first_cells
        dh, dc = dlast
        return kernels.lstm_grad(*saved_arrays, dy, dh, dc, self.lengths, self.reverse)


# ---- the layers ------------------------------------------------------------------------------------------------------


class RNN(Recurrent, recordable=True, rowwise=True):
    """A recurrent layer,  h[t] = tanh(W x[t] + b + U h[t − 1] + c):  a state that changes with every step.

        da[t] = dh[t] (1 − h[t]²),  dh[t − 1] += Uᵀ da[t],  dx[t] = Wᵀ da[t]
        dW = Σ da[t] x[t]ᵀ,  dU = Σ da[t] h[t − 1]ᵀ,  db = dc = Σ da[t]  over all steps and rows

    x (n, length, in_features) → the last state (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (hidden, in_features), U `weight_hh` (hidden, hidden), b `bias_ih` and c `bias_hh` (hidden,), all drawn
    from U(−1/√hidden, 1/√hidden), as in PyTorch. With an `initializer`, (shape, rng) -> array, it draws the
    transpose of each weight, a matrix (in, out) like a Linear's for all gates at once, and the biases are 0.

    The first state is 0, or the h (n, hidden) that you give. `rnn(x, h)` returns (y, the last state), from which the
    next part of a long sequence continues. `rnn(x, lengths=…)` takes the number of steps of each row, (n,) integers in
    1 … length. The last state is then the state after the row's own last step. After this step y is 0, and x has no
    influence and no gradient. Raise ValueError for other shapes and, with the first bad row, for other lengths. Raise
    TypeError for other dtypes.

    In a stack of `layers`, each layer reads the states of the layer below. In training, `dropout` is the p of Dropout
    between the layers. A single layer drops nothing. The buffer `random` of a stack is the same as in Dropout.

    A `bidirectional` layer also reads x from each row's last element to its first, with other parameters. The states of
    both directions are side by side: y is (n, 2 hidden) or (n, length, 2 hidden), and a layer above reads 2 hidden
    features. The last state of the second direction is the one at the first element.

    The names of the parameters end with `_reverse` for the second direction, and with `_l1`, `_l2` and so on for the
    layers above the first: `weight_ih_l1_reverse`. With several layers or directions, the states that the layer takes
    and returns are (layers · directions, n, hidden): layer by layer, and in each layer the forward direction first. The
    order of parameters and states is PyTorch's.

    J. Elman, "Finding structure in time", Cognitive Science 14, 1990.
    """

    gates = 1
    pass_type = RNNPass

    def forward(self, x: np.ndarray, h: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h,), lengths)


class GRU(Recurrent, recordable=True, rowwise=True):
    """A layer of gated recurrent units, which learn when to forget and when to keep their state:

        r = σ(Wᵣ x[t] + bᵣ + Uᵣ h[t − 1] + cᵣ),  z alike,  n = tanh(Wₙ x[t] + bₙ + r (Uₙ h[t − 1] + cₙ))
        h[t] = (1 − z) n + z h[t − 1]

    x (n, length, in_features) → the last state (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (3 hidden, in_features), U `weight_hh` (3 hidden, hidden), b `bias_ih`, c `bias_hh`, each for r, z and n
    in this order, drawn as in PyTorch or by an `initializer`, as in `RNN`.

        y = gru(x)                      # from a state of 0
        y, last = gru(x, h)             # from the state h (n, hidden), and the last state too
        y = gru(x, lengths=lengths)     # (n,) integers in 1 … length: the steps of each row

    `layers`, `dropout` between them, `bidirectional`, the shapes of states then, and errors are as in `RNN`.

    K. Cho et al., "Learning phrase representations using RNN encoder–decoder for statistical machine translation",
    EMNLP 2014; r is applied after the product, as in PyTorch.
    """

    gates = 3
    pass_type = GRUPass

    def forward(self, x: np.ndarray, h: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h,), lengths)


class LSTM(Recurrent, recordable=True, rowwise=True):
    """A layer of long short-term memory: cells c, with gates that write into them, keep them and read them.

        i = σ(Wᵢ x[t] + bᵢ + Uᵢ h[t − 1] + cᵢ),  f and o alike,  g with tanh for σ
        c[t] = f c[t − 1] + i g,  h[t] = o tanh c[t]

    x (n, length, in_features) → the last h (n, hidden), or with `sequences` all of them (n, length, hidden). W
    `weight_ih` (4 hidden, in_features), U `weight_hh` (4 hidden, hidden), b `bias_ih`, c `bias_hh`, each for i, f, g
    and o in this order, drawn as in PyTorch or by an `initializer`, as in `RNN`.

        y = lstm(x)                     # from states of 0
        y, (h, c) = lstm(x, h, c)       # from these states, (n, hidden) each, and the last states too
        y = lstm(x, lengths=lengths)    # (n,) integers in 1 … length: the steps of each row

    With arrays, `forward(x, h, c)` returns (y, h, c), and `backward` gets the gradients of these. `layers`, `dropout`
    between them, `bidirectional`, the shapes of states then, and errors are as in `RNN`.

    S. Hochreiter and J. Schmidhuber, "Long short-term memory", Neural Computation 9, 1997; with f of F. Gers,
    J. Schmidhuber and F. Cummins, "Learning to forget", Neural Computation 12, 2000.
    """

    gates = 4
    pass_type = LSTMPass
    state_names = ("h", "c")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().__call__(*inputs, **named)
        return (outputs[0], outputs[1:]) if isinstance(outputs, tuple) else outputs

    def forward(self, x: np.ndarray, h: Any = None, c: Any = None, lengths: Any = None) -> Any:
        return self._forward(x, (h, c), lengths)
