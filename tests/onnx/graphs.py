"""Graphs for the tests of ONNX, and how they are run."""

import numpy as np
import onnx

import caffelite as cl
import caffelite.onnx
from caffelite.onnx.verify import make_runner


def run(path, *inputs):
    outputs = make_runner(onnx.load(path))(*inputs)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


SEQUENCES = [
    (cl.MLP(4, [8, 3], activation=cl.Tanh, seed=0), None),
    (
        cl.Model(
            [
                *[cl.Conv2d(1, 6, 5, padding=2), cl.BatchNorm(6, momentum=0.3), cl.ReLU(), cl.MaxPool2d(2)],
                *[cl.Conv2d(6, 16, 3, stride=2, groups=2, bias=False), cl.SiLU(), cl.AvgPool2d(2, padding=1)],
                *[cl.Upsample(2), cl.Dropout(0.2), cl.ConvTranspose2d(16, 3, 3, 2, 1, output_padding=1)],
                *[cl.GlobalAvgPool(), cl.Linear(3, 4), cl.LogSoftmax()],
            ],
        ),
        (1, 28, 28),
    ),
    (
        cl.Model(
            [
                *[cl.Conv1d(2, 4, 4, padding="same"), cl.GELU(), cl.GELU(approximate=True), cl.LeakyReLU(0.2)],
                *[cl.MaxPool1d(2, 1), cl.ELU(0.5), cl.Softplus(), cl.Flatten(), cl.Residual(cl.Linear(36, 36))],
                *[cl.Residual(cl.Model([cl.LayerNorm(36, 0.1), cl.Linear(36, 36, bias=False), cl.Sigmoid()]))],
                *[cl.Parallel([cl.Linear(36, 3), cl.Linear(36, 3)]), cl.Reshape((2, 3)), cl.Softmax(1)],
            ],
            dtype=np.float64,
        ),
        (2, 10),
    ),
    (
        cl.Model(
            [
                *[cl.Conv1d(2, 4, 3, stride=2, padding="same"), cl.InstanceNorm(4, 0.1), cl.PReLU()],
                *[cl.Conv1d(4, 4, 3, stride=2, padding="causal", dilation=2), cl.MaxPool1d(3, 2, ceil=True)],
                *[cl.ConvTranspose1d(4, 3, 3, 2, 1, output_padding=1), cl.ConvTranspose1d(3, 3, 3, 2, "same")],
                *[cl.GlobalMaxPool(), cl.Linear(3, 4)],
            ],
        ),
        (2, 21),
    ),
    (
        cl.Model(
            [
                *[cl.Embedding(7, 8), cl.PositionalEncoding(8, 6), cl.LSTM(8, 5, sequences=True)],
                *[cl.GRU(5, 4, sequences=True), cl.RNN(4, 3), cl.LayerNorm(3, bias=False)],
            ],
        ),
        (6,),
    ),
    (cl.Model([cl.Embedding(7, 8), cl.GlobalAvgPool(axis=1), cl.Linear(8, 2)]), (6,)),
    (cl.Model([cl.Tanh(), cl.GlobalAvgPool(axis=(1, 3)), cl.Linear(4, 2)], dtype=np.float64), (3, 4, 5)),
]
OF_ESTIMATORS = {"ArrayFeatureExtractor", "LinearClassifier", "LinearRegressor", "Normalizer", "Scaler", "ZipMap"}
FLOAT, DOUBLE, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64


def make_graph(
    nodes, constants, *, inputs=(("x", FLOAT, ("n", 3)),), outputs=(("y", FLOAT, None),), opset=17, ml=False
):
    """Return a file's content: nodes (operator, inputs, outputs, attributes), arrays by name."""
    make = onnx.helper
    protos = [make.make_node(operator, i, o, name=f"the {operator}", **a) for operator, i, o, a in nodes]
    names = set()
    for i, proto in enumerate(protos):
        if proto.name in names:
            proto.name += f" {i}"
        names.add(proto.name)
        proto.domain = "ai.onnx.ml" if proto.op_type in OF_ESTIMATORS else ""
    graph = make.make_graph(
        protos,
        "graph",
        [make.make_tensor_value_info(*info) for info in inputs],
        [
            make.make_tensor_value_info(*info) if len(info) == 3 else make.make_empty_tensor_value_info(*info)
            for info in outputs
        ],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opsets = [make.make_opsetid("", opset)] + [make.make_opsetid("ai.onnx.ml", 3)] * ml
    return make.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def load_graph(path, *arguments, **options):
    path.write_bytes(make_graph(*arguments, **options))
    return caffelite.onnx.load(path)


W = np.ones((3, 3), np.float32)


def chain(operator, count, *others, **attributes):
    """Nodes that apply an operator to x so many times, beside the same other inputs."""
    names = ["x", *[f"{operator} {i}" for i in range(1, count)], "y"]
    return [(operator, [names[i], *others], [names[i + 1]], attributes) for i in range(count)]
