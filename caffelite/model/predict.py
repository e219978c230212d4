"""Predict: a model's outputs for rows in memory, or for rows that are read block by block.

More rows than `batch_size` are computed in blocks if no row depends on another one. caffelite's layers declare this
(`rowwise`), and so may a user's class. Otherwise the first two blocks have to show it: see `row_trace.py`. If they do
not, or if a run of the user's code on a part of the rows could change something (`pure_code.py`), the model gets all
rows at once.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.tracebacks import hide_inner_frames
from caffelite.core.arrays import check_positive_integer
from caffelite.core.modes import inference
from caffelite.data import out_of_core
from caffelite.data.conversion import count_rows
from caffelite.data.generator import DataGenerator
from caffelite.data.lengths import MAX_WIDTHS, LengthGroups, as_lengths
from caffelite.data.out_of_core import Source
from caffelite.model.container import Container
from caffelite.model.pure_code import is_pure
from caffelite.model.row_trace import RowTrace
from caffelite.model.tracing import to_list
from caffelite.program.buckets import RowBuckets
from caffelite.program.program import Program
from caffelite.program.runner import row_specs
from caffelite.training.inputs import check_indices, check_rows, model_inputs

MIN_BLOCK = 3  # rows; a single row could be broadcast, and two blocks have to differ


def predict(model: Container, x: Any, batch_size: int, lengths: Any = None) -> Any:
    """Return the outputs for all rows of what `predict` was given."""
    try:
        batch_size = check_positive_integer("batch_size", batch_size)
        inputs, _ = model_inputs(model, "predict", x)
        if lengths is None:
            return predict_arrays(model, inputs, batch_size)
        count_rows("predict", inputs)
        return predict_by_length(model, inputs, batch_size, as_lengths(lengths, inputs))
    except Exception as error:
        hide_inner_frames(error)
        raise


def predict_by_length(model: Container, inputs: tuple[np.ndarray, ...], batch_size: int, lengths: np.ndarray) -> Any:
    """Return the outputs for all rows, computed in groups of similar length, each cut to its width.

    An output whose axis 1 follows the width is as wide as x, with zeros past each row's length. If rows may depend on
    each other, all are one group.
    """
    rows, width = inputs[0].shape[:2]
    groups, longest, outputs = LengthGroups(lengths, inputs, MAX_WIDTHS), int(lengths.max()), list[Any]()
    cut_inputs = tuple(groups.cut(inputs, longest))
    few = np.arange(2 * MIN_BLOCK - 1) % rows
    try:
        if not _can_predict_blocks(model, tuple([x[few] for x in cut_inputs]), MIN_BLOCK):
            groups = LengthGroups(lengths, inputs, 1)
        places = [np.flatnonzero(groups.groups == group) for group in range(len(groups.widths))]
        widths = groups.widths.tolist()
        for place, group_width in zip(places, widths, strict=True):
            part = tuple([x[place] for x in groups.cut(inputs, group_width)])
            outputs.append(predict_arrays(model, part, batch_size))
    except IndexError:
        check_indices(model, "predict", cut_inputs)  # raises an error with the row's number among all rows
        with inference():
            _predict_all(model, cut_inputs, rows)
        raise
    if len(places) == 1 and lengths.min() < width:  # another width shows which outputs follow it
        other = longest + 1 if longest < width else width - 1
        with suppress(Exception):
            outputs.append(predict_arrays(model, tuple(groups.cut(inputs, other)), batch_size))
            widths.append(other)
    columns = [
        _join_widths(parts, widths, places, lengths, width) for parts in zip(*map(to_list, outputs), strict=True)
    ]
    return tuple(columns) if isinstance(outputs[0], tuple) else columns[0]


def _join_widths(
    parts: tuple[np.ndarray, ...], widths: list[int], places: list[np.ndarray], lengths: np.ndarray, width: int
) -> np.ndarray:
    """Return one output of all rows, from its parts for the rows at these places, cut to these widths.

    There may be one more part, which only shows whether the output follows the width.
    """
    row_shapes = [y.shape[1:] for y in parts]
    follows = all(shape[:1] == (w,) for shape, w in zip(row_shapes, widths, strict=True))
    shapes = [shape[1:] for shape in row_shapes] if follows else row_shapes
    if shapes.count(shapes[0]) < len(shapes):
        i = [shape == shapes[0] for shape in shapes].index(False)
        raise ValueError(
            f"predict with lengths: rows cut to {widths[0]} and {widths[i]} have outputs of shape {row_shapes[0]} and "
            f"{row_shapes[i]}; expected axis 1 as long as in x, or the same for all"
        )
    if not follows and len(places) == 1:
        return parts[0]
    output = np.zeros((len(lengths), width, *shapes[0]) if follows else (len(lengths), *shapes[0]), parts[0].dtype)
    for y, w, place in zip(parts, widths, places, strict=False):
        output[(place, slice(w)) if follows else place] = y
    if follows:
        output[np.arange(width) >= lengths[:, None]] = 0
    return output


def predict_arrays(model: Container, inputs: tuple[Any, ...], batch_size: int) -> Any:
    """Return the outputs for all rows of the inputs, in blocks of `batch_size` rows if no row depends on another."""
    rows = count_rows("predict", inputs)
    if Source in map(type, inputs):
        return _predict_source(model, inputs, batch_size)
    try:
        with inference():
            if rows <= batch_size:
                return _predict_batch(model, inputs, rows)
            if _is_rowwise(model, inputs):
                batches = [tuple([x[i : i + batch_size] for x in inputs]) for i in range(0, rows, batch_size)]
                return _concatenate([_predict_batch(model, batch, len(batch[0])) for batch in batches])
            outputs = _predict_blocks(model, inputs, rows, max(batch_size, MIN_BLOCK))
            return _predict_all(model, inputs, rows) if outputs is None else outputs
    except IndexError:
        check_indices(model, "predict", inputs)  # raises an error with the row's number among all rows
        raise


def _is_rowwise(model: Container, inputs: tuple[Any, ...]) -> bool:
    """Return whether it is declared that no row depends on another one; see `_predict_batch`."""
    model.all_functions()
    return bool((inputs[0].ndim > 1 or model.takes_indices) and model._model_state.is_rowwise(model))


def _concatenate(outputs: list[Any]) -> Any:
    """Return the outputs of blocks as one output, or a tuple of them."""
    if isinstance(outputs[0], tuple):
        return tuple([np.concatenate(column) for column in zip(*outputs, strict=True)])
    return np.concatenate(outputs)


def _predict_all(model: Container, inputs: tuple[Any, ...], rows: int) -> Any:
    """Return the outputs for all rows at once, without a recording, which would take the memory of all results.

    The next `predict` then tries no blocks.
    """
    check_rows(model, "predict", inputs)
    program = Program()
    program.runs_eagerly = True
    outputs = program.run(model, *inputs)
    model._model_state.rows_belong_together |= rows > MIN_BLOCK
    return outputs


def _predict_blocks(model: Container, inputs: tuple[Any, ...], rows: int, size: int) -> Any:
    """Return the outputs for rows in blocks of this size, or None if the rows may belong together.

    The second block is smaller than the first, because a last one may be, too.
    """
    state = model._model_state
    if rows <= size or state.rows_belong_together or kernels.recorder() is not None:
        return None
    outputs, first_trace, start = list[Any](), None, 0
    while start < rows:
        stop = min(start + size - (len(outputs) == 1), rows)
        block = tuple([x[start:stop] for x in inputs])
        program = _find_block_program(model, block)
        if start == 0 and not (program in state.row_traces and program.is_current()) and not is_pure(model):
            return None
        try:
            block_outputs, trace = _predict_block(model, program, block)
        except Exception:  # raised again for all rows, if it is not about the number of rows
            return None
        if trace is None or not trace.are_apart or (first_trace is not None and not first_trace.matches(trace)):
            return None
        outputs.append(block_outputs)
        first_trace, start = trace if first_trace is None else first_trace, stop
    return _concatenate(outputs)


def _find_block_program(model: Container, block: tuple[np.ndarray, ...]) -> Program:
    """Return the Program for blocks of these shapes, or a new one."""
    functions, programs = model.all_functions(), model._model_state.programs
    forms = [(x.shape, x.dtype, type(x)) for x in block]
    program: Program = programs.find(Program, functions, "outputs", "block", model.structure(), *forms)
    if program.runs_eagerly:  # perhaps because there is no room to keep it
        program = Program()
        program.warned_reasons = programs.warned_reasons
    return program


def _predict_block(model: Container, program: Program, block: tuple[np.ndarray, ...]) -> tuple[Any, RowTrace | None]:
    """Return the outputs for a block and its trace, or None for one that could not be recorded."""
    state = model._model_state

    def trace_rows(*inputs: Any) -> Any:
        trace = state.row_traces[program] = RowTrace(kernels.recorder(), inputs)
        outputs = model(*inputs)
        trace.finish(outputs)
        return outputs

    return program.run(trace_rows, *block), None if program.runs_eagerly else state.row_traces.get(program)


def _predict_source(model: Container, inputs: tuple[Any, ...], batch_size: int) -> Any:
    """Return the outputs for rows that are read, a buffer at a time. Some inputs may be in memory.

    If the rows of the first buffer may belong together, all rows are read.
    """
    outputs: Any = None
    generator = DataGenerator(inputs, batch_size=batch_size, shuffle=False, seed=0)
    columns, place = list(inputs), 0
    with closing(generator.buffers(columns, generator.allocate_buffers(columns))) as buffers:
        for read in buffers:
            rows, order, _ = read()
            if outputs is None and not _can_predict_blocks(model, tuple(rows), batch_size):
                break
            try:
                part_outputs = predict(model, tuple(rows), batch_size)
            except IndexError as error:
                raise IndexError(f"among the rows from {place:,} on, {place:,} being row 0: {error}") from None
            if outputs is None:
                outputs = [np.empty((len(inputs[0]), *y.shape[1:]), y.dtype) for y in to_list(part_outputs)]
            for y, part in zip(outputs, to_list(part_outputs), strict=True):
                y[place : place + len(order)] = part
            place += len(order)
    if outputs is None:
        arrays = [np.empty(x.shape, x.dtype) for x in inputs]
        out_of_core.read(columns, [(0, len(inputs[0]))], arrays, lambda: False)
        with inference():
            return _predict_all(model, tuple(arrays), len(arrays[0]))
    return tuple(outputs) if isinstance(part_outputs, tuple) else outputs[0]


def _can_predict_blocks(model: Container, inputs: tuple[np.ndarray, ...], batch_size: int) -> bool:
    """Return whether no row depends on another one, as far as these rows show it."""
    rows = len(inputs[0])
    with inference():
        return _is_rowwise(model, inputs) or (
            _predict_blocks(model, inputs, rows, max(min(batch_size, rows - 1), MIN_BLOCK)) is not None
        )


def _predict_batch(model: Container, inputs: tuple[np.ndarray, ...], rows: int) -> Any:
    """Return the outputs for one batch. The first batch of a shape is checked and recorded; later ones are replayed.

    If the rows are known not to depend on each other, the same RowBuckets serve any number of rows.
    """
    functions, state = model.all_functions(), model._model_state
    has_features = inputs[0].ndim > 1 or model.takes_indices  # otherwise the axis of rows may be an axis of features
    if has_features and state.is_rowwise(model):
        buckets = state.programs.find(RowBuckets, functions, "outputs", state.structure, row_specs(inputs))
        program = buckets.programs.get(rows)
        if program is None:
            program = buckets
    else:
        forms = [(x.shape, x.dtype, type(x)) for x in inputs]
        program = state.programs.find(Program, functions, "outputs", state.structure, *forms)
    if program.dependencies is not functions or not program.is_recorded:
        check_rows(model, "predict", inputs)
        program.dependencies = functions
    return program.run(model, *inputs)
