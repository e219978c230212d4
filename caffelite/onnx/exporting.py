"""`export`: a model, an estimator or a Pipeline as a file of ONNX."""

from __future__ import annotations

import os
from typing import Any

from caffelite.files.atomic import replace_file
from caffelite.onnx import model_proto, pipelines


def export(model: Any, path: str | os.PathLike, input_shape: Any = None, *, example: Any = None) -> None:
    """Write a model, as it is used and not trained, as a file of ONNX (opset 17), which many programs run.

    Inputs and outputs have any number of rows, an axis named `batch`. `input_shape` is the shape of one row, or a tuple
    of such shapes for several inputs. It is needed if the first Function takes rows of any shape. Inputs are float32 or
    float64 like the model, int64 if they are indices, bool if they are masks. Parameters and buffers have the model's
    names, `f.0.weight`. A `call` is written as the Functions and Tensor's operators that it applies. If there are no
    nodes for a Function, `export` writes its `formula`.

    An estimator of `caffelite.sklearn` has the outputs `label` and `probabilities`, or `output`. If skl2onnx is
    installed, the model may be a Pipeline of scikit-learn that ends in such an estimator. If it takes a frame,
    `example` has rows of one, X[:1], for the names and types of its columns.

    onnx's checker checks the graph. If onnxruntime is installed, it computes random rows, and the outputs are compared
    with the model's. (It does not have all operators in float64; then it computes in float32.)

    Before anything is written, raises TypeError naming a Function that computes in Python, or another one that ONNX
    can't express. Raise ValueError for a shape that is missing or does not fit, and if the model depends on the number
    of rows. Raise RuntimeError if the outputs differ. Raise OSError naming the path if it can't be written. The file
    replaces an older one when it is complete.
    """
    proto = (
        pipelines.to_proto(model, example) if pipelines.is_pipeline(model) else model_proto.to_proto(model, input_shape)
    )
    replace_file(path, [proto.SerializeToString()])
