"""Predict: a model's outputs for rows in memory, or for rows that are read block by block."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.data.conversion import count_rows
from caffelite.data.generator import DataGenerator
from caffelite.data.out_of_core import Source
from caffelite.model.container import Container
from caffelite.model.tracing import to_list
from caffelite.program.buckets import RowBuckets
from caffelite.program.program import Program
from caffelite.program.runner import row_specs
from caffelite.training.inputs import check_indices, check_rows, model_inputs


def predict(model: Container, x: Any, batch_size: int) -> Any:
    """Return the outputs for all rows of what `predict` was given."""
    inputs, _ = model_inputs(model, "predict", x)
    return predict_arrays(model, inputs, batch_size)


def predict_arrays(model: Container, inputs: tuple[Any, ...], batch_size: int) -> Any:
    """Return the outputs for all rows of the inputs, computed in batches of `batch_size` rows."""
    rows = count_rows("predict", inputs)
    if Source in map(type, inputs):
        return _predict_source(model, inputs, batch_size)
    try:
        with inference():
            if rows <= batch_size:
                return _predict_batch(model, inputs, rows)
            batches = [tuple([x[i : i + batch_size] for x in inputs]) for i in range(0, rows, batch_size)]
            outputs = [_predict_batch(model, batch, len(batch[0])) for batch in batches]
    except IndexError:
        check_indices(model, "predict", inputs)  # raises an error with the row's number among all rows
        raise
    if isinstance(outputs[0], tuple):
        return tuple([np.concatenate(column) for column in zip(*outputs, strict=True)])
    return np.concatenate(outputs)


def _predict_source(model: Container, inputs: tuple[Any, ...], batch_size: int) -> Any:
    """Return the outputs for rows that are read, a buffer at a time. Some inputs may be in memory."""
    outputs: Any = None
    generator = DataGenerator(inputs, batch_size=batch_size, shuffle=False, seed=0)
    columns, place = list(inputs), 0
    with closing(generator.buffers(columns, generator.allocate_buffers(columns))) as buffers:
        for read in buffers:
            rows, order, _ = read()
            try:
                part_outputs = predict(model, tuple(rows), batch_size)
            except IndexError as error:
                raise IndexError(f"among the rows from {place:,} on, {place:,} being row 0: {error}") from None
            if outputs is None:
                outputs = [np.empty((len(inputs[0]), *y.shape[1:]), y.dtype) for y in to_list(part_outputs)]
            for y, part in zip(outputs, to_list(part_outputs), strict=True):
                y[place : place + len(order)] = part
            place += len(order)
    return tuple(outputs) if isinstance(part_outputs, tuple) else outputs[0]


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
