"""ONNX: what is exported computes what the model does, for any number of rows; what is imported computes it too."""

import onnx
import pytest
from cases import FAMILIES, both_dtypes

import caffelite as cl
import caffelite.onnx
from caffelite import functions
from caffelite.functions.loss import Loss
from caffelite.onnx.checking import runner

LAYERS = {kind: family for kind, family in FAMILIES.items() if not issubclass(kind, Loss | functions.Penalized)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


class Applied(cl.Model):
    """A Function as a model."""

    def __init__(self, function, dtype, takes_indices):
        super().__init__(dtype=dtype)
        self.function, self.takes_indices = function, takes_indices

    def call(self, *inputs):
        if isinstance(self.function, functions.recurrent.Recurrent) and len(inputs) > 1 and inputs[-1].ndim == 1:
            outputs = self.function(*inputs[:-1], lengths=inputs[-1])
        else:
            outputs = self.function(*inputs)
        if isinstance(outputs, tuple) and isinstance(outputs[1], tuple):
            return outputs[0], *outputs[1]
        return outputs


def run(path, *inputs):
    outputs = runner(onnx.load(path))(*inputs)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


# The rows of these are no examples: they index, reshape or normalize the first axis.
OF_ALL_ROWS = {functions.Index, functions.ToShape, functions.LayerNorm}


@both_dtypes
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_function_is_exported_and_computes_the_same(kind, dtype, path):
    exported = 0
    for arguments in LAYERS[kind].listed:
        case = LAYERS[kind].build(*arguments)
        inputs = case.inputs(dtype)
        if any(x.ndim == 0 or len(x) != len(inputs[0]) for x in inputs):
            continue  # no rows, or not as many of each
        model = Applied(case.function(dtype), dtype, tuple([x.dtype.kind == "i" for x in inputs]))
        try:
            caffelite.onnx.export(model, path, tuple([x.shape[1:] for x in inputs]))  # which compares them
        except ValueError:
            assert kind in OF_ALL_ROWS, arguments
            continue
        graph = onnx.load(path).graph
        onnx.checker.check_model(path, full_check=True)
        assert all(info.type.tensor_type.shape.dim[0].dim_param == "batch" for info in graph.input)
        names = {initializer.name for initializer in graph.initializer}
        assert {name for name, p in model._named_parameters().items()} <= names
        exported += 1
    assert exported > 0
