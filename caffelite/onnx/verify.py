"""`check`: compare a graph with its model on random rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from caffelite.model.export_graph import ExportGraph, apply_to_rows, random_rows

TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-7}  # of the largest number


def check(make_proto: Callable[[np.dtype], onnx.ModelProto], graph: ExportGraph, finish: Callable[[Any], Any]) -> None:
    """Compare the graph, which `make_proto` makes for a dtype, with the model; RuntimeError names a wrong output.

    Does nothing if onnxruntime is not installed.
    """
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented, RuntimeException
    except ImportError:
        return
    try:
        _compare(make_proto(graph.model.dtype), graph, finish)
    except (NotImplemented, RuntimeException) as error:
        if graph.model.dtype == np.float32:
            raise RuntimeError(f"onnxruntime can't run the file of {graph.model!r}: {error}") from error
        _compare(make_proto(np.dtype(np.float32)), graph, finish)


def _compare(proto: onnx.ModelProto, graph: ExportGraph, finish: Callable[[Any], Any]) -> None:
    rng, run = np.random.default_rng(0), make_runner(proto)
    for n in (1, 4):
        inputs = random_rows(graph, n, rng)
        expected = apply_to_rows(graph.model, inputs, finish)
        results = run(*inputs)[-len(expected) :]
        for output, y, result in zip(list(proto.graph.output)[-len(expected) :], expected, results, strict=True):
            if (why := describe_difference(y, result)) is not None:
                raise RuntimeError(f"ONNX and {graph.model!r} compute different numbers: {n} rows, {output.name} {why}")


def describe_difference(y: np.ndarray, result: np.ndarray) -> str | None:
    """Say how the results differ from y; None if they do not."""
    if y.shape != result.shape:
        return f"has shape {result.shape} and not {y.shape}"
    finite = np.isfinite(y) & np.isfinite(result)
    largest = float(abs(y[finite]).max(initial=1))
    distance = float(abs(y[finite] - result[finite]).max(initial=0))
    if distance > TOLERANCE[result.dtype] * largest:
        return f"differs by {distance:.2g}; its numbers are up to {largest:.2g}"
    if not np.array_equal(y[~finite], result[~finite], equal_nan=True):
        return "is infinite or NaN where the model's is not, or the other way round"
    return None


def make_runner(proto: onnx.ModelProto) -> Callable[..., list[np.ndarray]]:
    """Make a function that runs a graph with onnxruntime: arrays in, arrays out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": np.float32, "tensor(double)": np.float64}

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        feeds = {
            i.name: x.astype(dtypes.get(i.type, x.dtype)) for i, x in zip(session.get_inputs(), inputs, strict=True)
        }
        return session.run(None, feeds)

    return run
