"""`check`: compare a graph with its model on random rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx

from caffelite import _kernels as kernels
from caffelite.core.modes import inference
from caffelite.functions.recurrent import Recurrent
from caffelite.model.dataflow import Columns, Given, Graph

TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-7}  # of the largest number


def check(proto: Callable[[np.dtype], onnx.ModelProto], graph: Graph, finish: Callable[[Any], Any]) -> None:
    """Compare the graph, which `proto` makes for a dtype, with the model; RuntimeError naming an output that differs.

    Does nothing if onnxruntime is not installed.
    """
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented, RuntimeException
    except ImportError:
        return
    try:
        _compare(proto(graph.model.dtype), graph, finish)
    except (NotImplemented, RuntimeException) as error:
        if graph.model.dtype == np.float32:
            raise RuntimeError(f"onnxruntime can't run what was made of {graph.model!r}: {error}") from error
        _compare(proto(np.dtype(np.float32)), graph, finish)


def _compare(proto: onnx.ModelProto, graph: Graph, finish: Callable[[Any], Any]) -> None:
    rng, run = np.random.default_rng(0), runner(proto)
    for n in (1, 4):
        inputs = random_rows(graph, n, rng)
        with inference(), kernels.Paused(), np.errstate(all="ignore"):
            outputs = finish(graph.model(*inputs))
        expected = [y.numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
        found = run(*inputs)[-len(expected) :]
        for output, y, other in zip(list(proto.graph.output)[-len(expected) :], expected, found, strict=True):
            if (why := difference(y, other)) is not None:
                raise RuntimeError(f"ONNX says something else than {graph.model!r}: {n} rows, {output.name} {why}")


def difference(y: np.ndarray, other: np.ndarray) -> str | None:
    """Say how other numbers differ from these; None if they do not."""
    if y.shape != other.shape:
        return f"has shape {other.shape} and not {y.shape}"
    finite = np.isfinite(y) & np.isfinite(other)
    most = float(abs(y[finite]).max(initial=1))
    apart = float(abs(y[finite] - other[finite]).max(initial=0))
    if apart > TOLERANCE[other.dtype] * most:
        return f"is {apart:.2g} off, its numbers being up to {most:.2g}"
    if not np.array_equal(y[~finite], other[~finite], equal_nan=True):
        return "is infinite or NaN where the model's is not, or other way round"
    return None


def runner(proto: onnx.ModelProto) -> Callable[..., list[np.ndarray]]:
    """Make a function that runs a graph with onnxruntime: arrays in, arrays out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    forms = {"tensor(float)": np.float32, "tensor(double)": np.float64}

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        given = {
            i.name: x.astype(forms.get(i.type, x.dtype)) for i, x in zip(session.get_inputs(), inputs, strict=True)
        }
        return session.run(None, given)

    return run


def random_rows(graph: Graph, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw random inputs. Indices and lengths are valid ones."""
    inputs: list[np.ndarray] = []
    for i, (shape, dtype) in enumerate(zip(graph.shapes, graph.dtypes, strict=True)):
        row: Any = shape[1:]
        if dtype == np.bool_:
            inputs.append(rng.random((n, *row)) < 0.7)
        elif dtype.kind == "f":
            inputs.append(rng.standard_normal((n, *row)).astype(dtype))
        else:
            least, most = np.zeros(row, np.int64), np.full(row, 2, np.int64)
            for columns, low, high in _limits(graph, i):
                least.reshape(-1)[columns], most.reshape(-1)[columns] = low, high
            inputs.append(rng.integers(least, most, (n, *row)))
    return inputs


def _limits(graph: Graph, place: int) -> Iterable[tuple[Any, int, int]]:
    """Yield the places of indices and lengths in a row of an input, with their least and most (exclusive) values."""
    for a in graph.leaves():
        function: Any = a.function
        for source in a.inputs:
            if not isinstance(source, Given | Columns) or source.place != place:
                continue
            columns = source.columns.reshape(-1) if isinstance(source, Columns) else slice(None)
            if function.index_count is not None:
                yield columns, 0, function.index_count
            elif isinstance(function, Recurrent):
                yield columns, 1, 1 + function.shape[1]
