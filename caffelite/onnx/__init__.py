"""Models as files of ONNX, which many programs run, and Models of such files.

    import caffelite.onnx

    caffelite.onnx.export(model, "net.onnx")
    model = caffelite.onnx.load("net.onnx")

It needs the `onnx` package: `pip install onnx`.
"""

from caffelite._support.extras import install_command

try:
    import onnx as _onnx  # noqa: F401
except ImportError as error:
    raise ImportError(f"caffelite.onnx needs the onnx package: {install_command('onnx')}") from error

from caffelite.onnx.exporting import export
from caffelite.onnx.importing import load
from caffelite.onnx.pipelines import register

__all__ = ["export", "load", "register"]
