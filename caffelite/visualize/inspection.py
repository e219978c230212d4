"""`inspect`: statistics of a model's layers and gradients for some rows, in numbers, words and pictures.

The words point out unusual values, according to these thresholds:

    DEAD        A few ReLU units that no row activates are normal and harmless. From a tenth of them on, the layer is
                noticeably narrower than it was designed to be.
    SATURATED   Within 1 % of the ends of their range, tanh and the sigmoid have less than 4 % of their largest slope.
    STALLED     If half of the values are saturated, less than about half of the gradient gets through.
    VANISHED    Initializations keep the norm of the gradient about the same in all layers as at the outputs
    EXPLODED    (X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks",
                AISTATS 2010). If it is a thousand times smaller or larger, no learning rate suits all layers.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._support.colours import PALETTE, style
from caffelite._support.moved_modules import rename_attributes
from caffelite._support.terminal import make_writable
from caffelite._support.text_table import TextTable, shorten, text_table
from caffelite.core.function import Function
from caffelite.core.sparse import is_sparse, to_row_array
from caffelite.core.tensor import Tensor
from caffelite.data.generator import unpack_single
from caffelite.data.out_of_core import Source
from caffelite.functions import Sigmoid, Tanh
from caffelite.model.model import Model
from caffelite.model.tracing import Trace, TraceStep, to_list, unwrap_tensor
from caffelite.training.callbacks.advice import describe_merged
from caffelite.training.inputs import UserData, as_losses, prepare_data
from caffelite.visualize.graph import observe_graph

DEAD = 0.1  # share of units that are 0 for all rows
SATURATED = 0.01  # share of the range, from its ends
STALLED = 0.5  # share of the values that are saturated
VANISHED, EXPLODED = 1e-3, 1e3  # norm of a gradient, divided by that at the model's outputs
BINS = 40  # of histograms
BLOCK = 2**14  # numbers of a histogram at a time, which stay in the cache

RANGES = {Tanh: (-1, 1), Sigmoid: (0, 1)}  # for Functions that saturate


@rename_attributes(least="min", most="max")
class Statistics:
    """Statistics of the finite numbers in an array: mean, deviation, extremes, norm, share of zeros, histogram."""

    def __init__(self, array: np.ndarray) -> None:
        array = np.asarray(array)
        is_finite = np.isfinite(array)
        finite = (array.reshape(-1) if is_finite.all() else array[is_finite]).astype(np.float64)
        self.shape, self.size = array.shape, array.size
        self.not_finite = array.size - finite.size  # how many numbers are NaN or infinite
        self.mean = self.std = self.min = self.max = self.zeros = math.nan
        if finite.size:
            self.mean, self.min, self.max = float(finite.mean()), float(finite.min()), float(finite.max())
            self.std = _norm(finite - self.mean) / math.sqrt(finite.size)
            self.zeros = 1 - np.count_nonzero(finite) / finite.size
        self.norm = _norm(finite)  # √Σ x²
        self.counts, self.edges = _histogram(finite, self.min, self.max)

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return self.norm / math.sqrt(max(1, self.size - self.not_finite))

    def __repr__(self) -> str:
        return f"Statistics({self.shape}, mean {self.mean:.3g}, std {self.std:.3g}, {self.min:.3g} … {self.max:.3g})"

    def __str__(self) -> str:
        return make_writable(repr(self))


class LayerStatistics:
    """Statistics of one application of a Function."""

    def __init__(
        self, name: str, function: Function, inputs: list, output: np.ndarray, gradient: Any, axis: int
    ) -> None:
        self.name, self.function = name, repr(function)
        self.output = Statistics(output)
        self.gradient = None if gradient is None else Statistics(gradient)  # of the output; None if it was not used
        self.inputs_finite = all(np.isfinite(x).all() for x in inputs if x.dtype.kind == "f")
        self.units, self.dead = _count_dead_units(output, axis)
        if any(np.may_share_memory(x, output) or _count_dead_units(x, axis)[1] for x in inputs):
            self.dead = 0  # they did not die here
        self.saturated: float | None = None  # share of the values
        for saturating, (low, high) in RANGES.items():
            if isinstance(function, saturating):
                margin = SATURATED * (high - low)
                self.saturated = float(np.mean((output < low + margin) | (output > high - margin)))


class ParameterStatistics:
    """Statistics of a parameter and its gradient."""

    def __init__(self, parameter: Tensor, gradient: np.ndarray | None) -> None:
        self.value = Statistics(parameter.data)
        self.gradient = None if gradient is None else Statistics(gradient)
        self.frozen = not parameter.requires_grad


class Inspection:
    """The result of `inspect`: `loss`, `rows`, `layers` in order, `parameters` by name, and `findings` in words.

    Printed, it shows two tables and the findings; `plot` draws histograms. A notebook shows it as HTML.
    """

    def __init__(
        self,
        inputs: Any,
        loss: float,
        layers: Any,
        parameters: dict[str, ParameterStatistics],
        norm: float,
        design: list[str],
    ) -> None:
        self.rows = len(inputs[0])
        self.loss, self.parameters = loss, parameters
        self.layers: list[LayerStatistics] = layers
        bad_inputs = _input_findings(inputs) if any(layer.output.not_finite for layer in self.layers) else ()
        findings = [*bad_inputs, *design, *_value_findings(self), *_gradient_findings(self, norm)]
        self.findings = findings or ["Nothing stands out."]

    def _heading(self) -> str:
        return f"{self.rows:,} row{'s' * (self.rows != 1)}, loss {self.loss:.4g}"

    def _layer_table(self) -> TextTable:
        head = ["layer", "function", "output", "mean", "std", "zeros", "dead", "saturated", "gradient's norm"]
        rows = [
            [
                layer.name,
                layer.function,
                str(layer.output.shape),
                *map(_format_number, (layer.output.mean, layer.output.std)),
                _format_percent(layer.output.zeros),
                f"{layer.dead} of {layer.units}" if layer.dead else "",
                "" if layer.saturated is None else _format_percent(layer.saturated),
                "" if layer.gradient is None else _format_number(layer.gradient.norm),
            ]
            for layer in self.layers
        ]
        return text_table(head, rows, "<<<>>>>>>", cut=1)

    def _parameter_table(self) -> TextTable:
        rows = []
        for name, p in self.parameters.items():
            size, gradient_size = p.value.rms, math.nan if p.gradient is None else p.gradient.rms
            ratio = _format_number(gradient_size / size) if p.gradient is not None and size > 0 else ""
            gradient = "frozen" if p.frozen else "none" if p.gradient is None else _format_number(gradient_size)
            rows.append([name, str(p.value.shape), _format_number(size), gradient, ratio])
        return text_table(["parameter", "shape", "rms", "gradient's rms", "ratio"], rows, "<<>>>", cut=0)

    def __repr__(self) -> str:
        return "\n\n".join([self._heading(), self._layer_table(), self._parameter_table(), "\n".join(self.findings)])

    def __str__(self) -> str:
        return make_writable(repr(self))

    def _repr_html_(self) -> str:
        from html import escape

        findings = "".join([f"<li>{escape(finding)}</li>" for finding in self.findings])
        tables = [self._layer_table()._repr_html_(), self._parameter_table()._repr_html_()]
        return "\n".join([f"<p>{self._heading()}</p>", *tables, f"<ul>{findings}</ul>"])

    @style()
    def plot(self) -> Any:
        """Draw histograms, one line per layer: its outputs, its parameters, and the gradients of both.

        Each has its own scale, from the smallest to the largest number. Counts are on a logarithmic scale, because most
        gradients are small and many outputs are 0. Return the matplotlib figure. This needs matplotlib.
        """
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        from caffelite._support.figures import Figure

        lines, layout = self._plot_lines(), ConstrainedLayoutEngine(h_pad=0.02, hspace=0)
        figure = Figure(8, 0.4 + 0.62 * len(lines), layout)
        panels = figure.subplots(len(lines), 4, squeeze=False)
        for axes, title in zip(panels[0], ("outputs", "gradients", "parameters", "gradients"), strict=True):
            axes.set_title(title)
        for line, (layer, parameter, columns) in zip(panels, lines, strict=True):
            for axes, statistics in zip(line, columns, strict=True):
                _draw_histogram(axes, statistics)
            line[0].set_ylabel(layer, rotation=0, ha="right", va="center", fontsize=8)
            line[2].set_ylabel(parameter, rotation=0, ha="right", va="center", fontsize=8)
        return figure

    def _plot_lines(self) -> list[tuple[str, str, list[Statistics | None]]]:
        """Return the histograms of `plot`: next to each layer its first parameter; others have lines of their own."""
        lines: list[tuple[str, str, list[Statistics | None]]] = []
        remaining = dict(self.parameters)
        for layer in self.layers:
            names = [name for name in remaining if name.rpartition(".")[0] == layer.name and layer.name] or [""]
            label = f"{layer.name}  {shorten(layer.function, 20)}".strip()
            for i, name in enumerate(names):
                p = remaining.pop(name, None)
                output_columns = [None, None] if i else [layer.output, layer.gradient]
                parameter_columns = [p.value, p.gradient] if p else [None, None]
                lines.append(("" if i else label, name.rpartition(".")[2], [*output_columns, *parameter_columns]))
        return lines + [("", name, [None, None, p.value, p.gradient]) for name, p in remaining.items()]


def inspect(model: Model, x: Any, y: Any, *, loss: Function) -> Inspection:
    """Inspect each layer's outputs, parameters and gradients for these rows.

    `inspect` makes one step like `fit`, forward and backward, as in training (Dropout is active) but without an update.
    It uses a copy, so the model, its gradients, buffers and random streams do not change. A few hundred rows are
    enough.

    The layers are the Functions in the model, and the Functions in them, in the order in which they are applied. In a
    `call`, activations applied as methods, such as `.relu()`, count too, but have no name. A unit is a feature or a
    channel. `dead` units are 0 for all rows because of this layer. `saturated` is the fraction of tanh or sigmoid
    values at the ends of their range. The norm of a gradient is √Σ g². An rms is the root mean square. Plain SGD
    changes a parameter by lr × ratio, relative to its size.

    The findings also point out two linear layers, Linear or convolutions, with nothing between them.

    x, y, loss and the errors are as in `fit`.
    """
    if not isinstance(model, Model):
        raise TypeError(f"inspect takes a Model, got {model!r}")
    loss = as_losses(loss)
    batch, _ = prepare_data(model, UserData(x, y, name="inspect"), loss)
    if Source in map(type, batch.columns()):
        raise ValueError(
            "inspect takes rows in memory, some hundreds, such as x[:500]; got rows that are not in memory"
        )
    with observe_graph(training=True):
        return _inspect(*copy.deepcopy((model, loss)), batch)


def _inspect(model: Model, loss: Function, batch: Any) -> Inspection:
    named_parameters = model.named_parameters()
    for p in [*named_parameters.values(), *loss.parameters()]:
        p.zero_grad()
    # If the inputs need a gradient, everything has one, even the outputs of frozen layers.
    inputs = [Tensor(a, requires_grad=True) if to_row_array(a).dtype.kind == "f" else a for a in batch.inputs]
    with Trace(model, strict=False) as trace:
        outputs = trace.model(*inputs)
    steps = [step for step in trace.all_steps() if step.name or step.kind.__name__ in functions.__all__]
    method_steps = [step for step in steps if not step.name]  # `.relu()`: no Function of the model gets its gradient
    results = [*to_list(outputs), *[y for step in method_steps for y in step.outputs]]
    for tensor in results:
        tensor.retain_grad()
    value = loss(outputs, unpack_single(batch.targets))
    if value.requires_grad:
        value.backward()
    for step in method_steps:
        step.gradients = [y.grad for y in step.outputs]
    norm = math.hypot(*[np.linalg.norm(o.grad.astype(np.float64)) for o in to_list(outputs) if o.grad is not None])
    layers, axis = [], -1
    for step in steps:
        if isinstance(step.function, Model):
            continue
        axis = _unit_axis(step.function, axis)
        arrays = [np.asarray(x) for x in map(unwrap_tensor, step.inputs) if isinstance(x, np.ndarray)]
        for output, gradient in zip(map(unwrap_tensor, step.outputs), step.gradients, strict=True):
            layers.append(LayerStatistics(step.name, step.function, arrays, np.asarray(output), gradient, axis))
    parameters = {name: ParameterStatistics(p, p.grad) for name, p in named_parameters.items()}
    design = [*_design_findings(trace.all_steps(), to_list(outputs))]
    return Inspection(batch.inputs, float(value), layers, parameters, norm, design)


def _unit_axis(function: Function, previous: int) -> int:
    """Return the axis of the outputs' features or channels: that of the features or channels in the required input."""
    required = function.required_input_shape or ()
    for i, length in enumerate(required):
        if isinstance(length, int):
            return i - len(required) if ... in required[:i] else i
    return previous


def _norm(numbers: np.ndarray) -> float:
    """Compute √Σ x² on this thread. A BLAS might wake others, which takes longer than the sum."""
    return math.sqrt(np.einsum("i,i->", numbers, numbers))


def _histogram(numbers: np.ndarray, low_value: float, high_value: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute counts and edges, even for numbers that differ in the last digit, or are too far apart to subtract.

    np.histogram takes five times as long, because it compares each number with the rounded edges.
    """
    scale = max(abs(low_value), abs(high_value)) or 1.0
    low, high = (low_value / scale, high_value / scale) if numbers.size else (0.0, 0.0)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    counts = np.zeros(BINS + 1, np.int64)
    for i in range(0, numbers.size, BLOCK):
        places = (numbers[i : i + BLOCK] / scale - low) * (BINS / (high - low))
        counts += np.bincount(places.astype(np.intp), minlength=BINS + 1)
    counts[BINS - 1] += counts[BINS]  # the greatest number
    return counts[:BINS], np.linspace(low, high, BINS + 1) * (scale if numbers.size else 1.0)


def _count_dead_units(array: np.ndarray, axis: int) -> tuple[int, int]:
    """Count the units of an array, and those that are 0 for all rows and positions."""
    if array.ndim < 2 or not -array.ndim < axis < array.ndim:
        return 0, 0
    other_axes = tuple([i for i in range(array.ndim) if i != axis % array.ndim])
    units = array.shape[axis]
    return units, units - int(np.count_nonzero((array != 0).any(axis=other_axes)))


# ---- in words -------------------------------------------------------------------------------------------------------


def _input_findings(inputs: tuple[Any, ...]) -> Iterator[str]:
    for i, x in enumerate(inputs):
        statistics = Statistics(x.tocsr().data if is_sparse(x) else x)
        if statistics.not_finite:
            yield f"Input{f' {i}' * (len(inputs) > 1)}: {_count_nonfinite(statistics)} not finite."


def _design_findings(steps: list[TraceStep], outputs: list[Any]) -> Iterator[str]:
    """Yield findings about two linear layers in a row, if nothing else uses the first one's output."""
    results = {id(unwrap_tensor(y)): step for step in steps if step.name for y in step.outputs}
    uses = Counter(
        [id(unwrap_tensor(x)) for step in steps for x in step.inputs] + [id(unwrap_tensor(y)) for y in outputs]
    )
    applied = Counter([step.name for step in steps])
    for step in [step for step in steps if step.name]:
        between = id(unwrap_tensor(step.inputs[0])) if step.inputs else 0
        before = results.get(between)
        if before is None or before.kind is not step.kind or uses[between] > 1:
            continue
        if applied[before.name] > 1 or applied[step.name] > 1:
            continue
        yield from describe_merged(step.kind, before.name, before.function, step.name, step.function)


def _value_findings(inspection: Inspection) -> Iterator[str]:
    rows = f"all {inspection.rows:,} rows" if inspection.rows > 1 else "the one row"
    if not math.isfinite(inspection.loss):
        yield f"The loss is {inspection.loss}."
    for name, p in inspection.parameters.items():
        if p.value.not_finite:
            yield f"{name}: {_count_nonfinite(p.value)} not finite."
    for layer, place in zip(inspection.layers, _name_layers(inspection.layers), strict=True):
        if layer.output.not_finite and layer.inputs_finite:
            yield f"{place}: {_count_nonfinite(layer.output)} not finite, though its inputs are."
        if layer.units and layer.dead >= DEAD * layer.units:
            yield f"{place}: {layer.dead} of {layer.units} units are 0 for {rows}; dead units learn nothing."
        if layer.saturated is not None and layer.saturated >= STALLED:
            yield f"{place}: {layer.saturated:.0%} of the values are saturated, and let hardly any gradient through."


def _gradient_findings(inspection: Inspection, norm: float) -> Iterator[str]:
    """Yield findings about the gradients. `norm` is the norm of the gradient at the model's outputs."""
    named_layers = zip(inspection.layers, _name_layers(inspection.layers), strict=True)
    gradients = [(layer.gradient, place) for layer, place in named_layers if layer.gradient is not None]
    broken = [place for gradient, place in gradients if gradient.not_finite]
    if broken:
        yield f"{broken[-1]}: its gradient is not finite. So no gradient that comes from it is finite."
    elif norm == 0:
        yield "The gradient of the outputs is 0: there is nothing to learn from these rows."
    elif gradients:
        norms = [(gradient.norm / norm, place) for gradient, place in gradients]
        (low, low_place), (high, high_place) = min(norms), max(norms)
        if low <= VANISHED:
            yield f"{low_place}: the gradient has vanished, to {low:.1g} times its norm at the model's outputs."
        if high >= EXPLODED:
            yield f"{high_place}: the gradient has exploded, to {high:.1g} times its norm at the model's outputs."
    for name, p in inspection.parameters.items():
        if p.gradient is None and not p.frozen:
            yield f"{name} gets no gradient: it has no part in the loss."


def _name_layers(layers: list[LayerStatistics]) -> list[str]:
    """Name the layers, as part of a sentence."""
    places: list[str] = []
    for layer in layers:
        function = shorten(layer.function, 40)
        layer_name = next((earlier.name for earlier in reversed(layers[: len(places)]) if earlier.name), "")
        after = f"{function} after layer {layer_name}" if layer_name else function
        places.append(f"Layer {layer.name} {function}" if layer.name else after)
    return places


def _count_nonfinite(statistics: Statistics) -> str:
    is_plural = statistics.not_finite != 1
    return f"{statistics.not_finite:,} of {statistics.size:,} numbers {'are' if is_plural else 'is'}"


def _format_number(x: float) -> str:
    return f"{x:.3g}"


def _format_short(x: float) -> str:
    """Return a number as short as two digits allow."""
    plain = x == 0 or 1e-3 <= abs(x) < 1e4
    return f"{x:.2g}" if plain else re.sub("e([+-])0*", lambda e: f"e{e[1].strip('+')}", f"{x:.1e}")


def _format_percent(x: float) -> str:
    return f"{x:.0%}" if x > 0 else "0"


def _draw_histogram(axes: Any, statistics: Statistics | None) -> None:
    """Draw the counts over the numbers, with the smallest and the largest number written below."""
    axes.spines["bottom"].set_visible(statistics is not None)
    axes.set(xticks=[], yticks=[])
    if statistics is None or not statistics.counts.any():
        return
    axes.stairs(statistics.counts, statistics.edges, fill=True, baseline=0.5, color=PALETTE[0])
    axes.set_yscale("log")
    axes.set(ylim=(0.5, 1.3 * statistics.counts.max()), yticks=[])
    axes.minorticks_off()
    ends = sorted({statistics.min, statistics.max})
    axes.set_xticks(ends, [_format_short(x) for x in ends], fontsize=7)
    axes.tick_params(length=2, pad=1)
    if len(ends) > 1:
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
