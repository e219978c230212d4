"""ONNX's own tests of its operators, as many as are tests of nets: an operator each, inputs and the outputs they give.

What a test gives besides its first input is what a net has as weights and settings: initializers of its graph.
"""

import importlib
import re
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import caffelite as cl
import caffelite.onnx
from caffelite.onnx.importing import GraphModel

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

#: Files of tests that take their time to be read.
LONG = {"averagepool", "lppool", "maxpool", "attention", "image_decoder", "cast", "sequence_map", "quantizelinear"}

#: Operators that caffelite does not have, with whatever attributes.
_NAMES = """
Adagrad Adam AffineGrid Bernoulli BitCast BlackmanWindow CausalConvWithState CenterCropPad Col2Im Compress
CumProd DFT DeformConv DequantizeLinear Det EyeLike FlexAttention GridSample HammingWindow
HannWindow Hardmax If LinearAttention Loop LpPool MaxUnpool MelWeightMatrix Momentum
OneHot OptionalGetElement RandomUniformLike ReverseSequence RoiAlign RotaryEmbedding STFT Scan Scatter
ScatterElements ScatterND Shrink SwiGLU TensorScatter TfIdfVectorizer Unique
"""
NOT_THERE = set(_NAMES.split())

#: Those that it has, but not with all attributes, kinds of inputs or further outputs.
NOT_ALL = {
    "AveragePool": "of three axes, and dilated",
    "BatchNormalization": "in training",
    "ConvTranspose": "of three axes, and with output_shape or auto_pad",
    "CumSum": "exclusive, and in reverse",
    "Einsum": "of a diagonal",
    "GRU": "with linear_before_reset = 0, and layout = 1",
    "LSTM": "with peepholes, and layout = 1",
    "MaxPool": "with indices",
    "RNN": "layout = 1",
    "Resize": "cubic, antialiased, and cut out",
    "SpaceToDepth": "column by column",
}

#: Tests of operators that it has which it does not compute, and why.
EXCEPTIONS = {
    r"test_mod_.*": "the remainder of what depends on data",
    r"test_range_.*": "a range whose bounds are inputs",
    r"test_training_dropout.*": "what is dropped is random, and in use nothing is",
    r"test_cast_(FLOAT_to_DOUBLE|DOUBLE_to_FLOAT)": "float32 and float64 in one net",
    r"test_reduce_(max|min)_empty_set(_expanded)?": "the largest of no elements",
    r"test_(attention_local_window_.*|reduce_log_sum_exp_empty_set)_expanded": "float64 in a net of float32",
}


def cases(long):
    """Yield the tests that give an array of floats for arrays: name, graph, inputs, outputs."""
    left_out = set() if long else LONG | {operator.lower() for operator in NOT_THERE}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        node = importlib.import_module("onnx.backend.test.case.node")
        names = sorted(path.stem for path in Path(node.__file__).parent.glob("[!_]*.py"))
        for name in names:
            if name.replace("_", "") not in left_out:
                importlib.import_module(f"{node.__name__}.{name}")
    for case in node._NodeTestCases:
        inputs, outputs = [[to_array(x) for x in data] for data in case.data_sets[0]]
        arrays = all(isinstance(x, np.ndarray) for x in (*inputs, *outputs))
        if arrays and inputs and outputs[0].dtype in FLOATS:
            yield case.name, case.model, inputs, outputs


def nets():
    """Nets of opsets 6, 9 and 12 that PyTorch has written: the files' paths, inputs and outputs."""
    for path in sorted(Path(onnx.__file__).parent.glob("backend/test/data/pytorch-*/*/model.onnx")):

        def arrays(kind, folder=path.parent / "test_data_set_0"):
            files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
            return [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]

        yield path, arrays("input"), arrays("output")


def to_array(x):
    """Return what a test gives, as an array: some give numbers of NumPy, or tensors of types that NumPy lacks."""
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return np.asarray(x) if isinstance(x, np.generic) else x


def run(proto, inputs, path):
    """Return what the model in a graph computes, its outputs of floats; None, and why, if caffelite has no
    such model.
    """
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for info, x in list(zip(proto.graph.input, inputs, strict=True))[1:]:
        proto.graph.initializer.append(numpy_helper.from_array(x, info.name))
    path.write_bytes(proto.SerializeToString())
    try:
        model = caffelite.onnx.load(path)
    except ValueError as error:
        return None, str(error)
    return compute_outputs(model, inputs), ""


def compute_outputs(model, inputs):
    with cl.inference(), np.errstate(all="ignore"):
        y = model(*inputs[: len(model.inputs) if isinstance(model, GraphModel) else 1])
    return [t.numpy() for t in (y if isinstance(y, tuple) else (y,))]


def check(path, long):
    """How many tests were computed. AssertionError for a wrong result, and for one that is refused and not listed."""
    computed, refused, partly = 0, set(), set()
    for name, proto, inputs, outputs in cases(long):
        if any(re.fullmatch(pattern, name) for pattern in EXCEPTIONS):
            continue
        found, why = run(proto, inputs, path)
        if found is None:
            operator = re.search(r"node '.*' \((\w+)\)", why)
            if operator is None:
                assert re.search("is not an array|is of type|computes in|no output|its opset", why), f"{name}: {why}"
            else:
                assert operator[1] in NOT_THERE or operator[1] in NOT_ALL, f"{name}: {why}"
                refused.add(operator[1])
            continue
        expected = [y for y in outputs if y.dtype in FLOATS]
        assert len(found) == len(expected), name
        for y, other in zip(expected, found, strict=True):
            assert (y.shape, y.dtype) == (other.shape, other.dtype), name
            np.testing.assert_allclose(other, y, rtol=1e-3, atol=1e-5 if y.dtype == np.float32 else 1e-7, err_msg=name)
        computed += 1
        partly |= {n.op_type for n in proto.graph.node}
    assert not partly & NOT_THERE
    return computed, refused, partly
