"""Files that cannot be loaded: an error names the node, and nothing costs memory."""

import os
import re

import numpy as np
import onnx
import pytest

import caffelite as cl
import caffelite.onnx
from caffelite.onnx import families, layers, nodes
from tests.conftest import posix
from tests.onnx.graphs import FLOAT, INT64, SEQUENCES, W, load_graph, make_graph

IMAGES = [("x", FLOAT, ("n", 4, 6, 6))]
EMPTY, LINE = np.zeros((0, 1), np.float32), np.ones((1, 20_000), np.float32)
MANY = {"w": np.ones((1, 1000, 1000), np.uint8), "i": np.zeros((1000, 1), np.int64)}
FAR = {"kernel_shape": [3], "pads": [0, 2**40]}
OF_NOTHING = [("ReduceSum", ["z"], ["sum"], {}), ("Add", ["x", "sum"], ["y"], {})]
OF_STEPS = {"inputs": [("x", FLOAT, (4, "n", 3))]}
OF_CLASSES = {"ml": True}
ONE_SCORE = {"coefficients": [1.0] * 3, "intercepts": [1.0], "classlabels_ints": [0, 1]}
PROBIT = {"coefficients": [1.0] * 3, "intercepts": [1.0], "post_transform": "PROBIT"}
OLD = {"opset": 6, "outputs": [("y", FLOAT, ("n", 3))]}
BAD_GRAPHS = [
    ([("CumSum", ["x", "w"], ["y"], {"exclusive": 1})], {"w": np.int64(1)}, {}, r"'the CumSum' \(CumSum\)"),
    ([("If", ["x"], ["y"], {})], {}, {}, r"'the If' \(If\)"),
    ([("Einsum", ["x"] * 3, ["y"], {"equation": "ij,jk,kl->il"})], {}, {}, "the Einsum.*equation 'ij,jk,kl->il'"),
    ([("Einsum", ["x"], ["y"], {"equation": "ii->i"})], {}, {}, "the Einsum.*equation 'ii->i'"),
    ([("Einsum", ["x"], ["y"], {"equation": "...i->i"})], {}, {}, "the Einsum.*equation"),
    ([("Einsum", ["x"], ["y"], {"equation": "ij->ik"})], {}, {}, "the Einsum.*quation"),
    ([("Resize", ["x", "", "s"], ["y"], {"mode": "cubic"})], {"s": np.ones(2, np.float32)}, {}, "mode = 'cubic'"),
    ([("Relu", ["z"], ["y"], {})], {}, {}, "the Relu.*'z'"),
    ([("Relu", ["x"], ["x"], {}), ("Relu", ["x"], ["y"], {})], {}, {}, "makes 'x'"),
    ([("Relu", ["x"], ["z"], {})], {}, {}, "its output 'y'"),
    ([("Relu", ["x"], ["y"], {})], {}, {"opset": 0}, "opset is 0"),
    ([("Add", ["x", "w"], ["y"], {"broadcast": 1})], {"w": W[0]}, OLD, "opset is 6, and onnx can't .*: n Dimension"),
    ([("Add", ["x", "w"], ["y"], {"wide": 1})], {"w": W[0]}, OLD, "opset is 6, and onnx can't .* attribute: wide"),
    ([("Relu", ["x"], ["y"], {})], {}, {"opset": 10**6}, "opset is 1000000"),
    ([("Mul", ["x", "w"], ["y"], {})], {"w": W.astype(np.float16)}, {}, "float16"),
    ([("Mul", ["x", "w"], ["y"], {})], {"w": W.astype(np.float64)}, {}, "float32, float64"),
    (
        [("RNN", ["x", "w", "w"], ["y"], {"activations": ["Relu"], "hidden_size": 3})],
        {"w": W[None]},
        OF_STEPS,
        "'Relu'",
    ),
    ([("LRN", ["x"], ["y"], {"size": 0})], {}, {"inputs": IMAGES}, "the LRN.*size = 0"),
    ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2], "dilations": [-1]})], {}, OF_STEPS, "the MaxPool"),
    (
        [("LinearClassifier", ["x"], ["l", "y"], {"coefficients": [1.0] * 4})],
        {},
        OF_CLASSES,
        "4 coefficients.* 0 scores",
    ),
    ([("LinearClassifier", ["x"], ["l", "y"], {**PROBIT})], {}, OF_CLASSES, "post_transform = 'PROBIT'"),
    ([("LinearClassifier", ["x"], ["l", "y"], {**ONE_SCORE})], {}, OF_CLASSES, "one score for two classes.* 'NONE'"),
    ([("LinearClassifier", ["x"], ["y", "p"], {"coefficients": [1.0] * 3})], {}, OF_CLASSES, "makes labels"),
    ([("ArgMax", ["x"], ["y"], {})], {}, {"outputs": [("y", INT64, None)]}, "no output"),
    ([("MatMul", ["x", "w"], ["y"], {})], {"w": W[:2]}, {"inputs": []}, "the MatMul"),
    ([("GRU", ["x", "w", "w"], ["y"], {})], {"w": W[None]}, {}, "the GRU.*rank"),
    (
        [("GRU", ["x", "w", "r"], ["y"], {"hidden_size": 2})],
        {"w": np.ones((1, 6, 3), np.float32), "r": np.ones((1, 6, 2), np.float32)},
        {"inputs": [("x", FLOAT, (4, "n", 3))]},
        "the GRU.*linear_before_reset",
    ),
    ([("ConstantOfShape", ["s"], ["y"], {})], {"s": np.array([10**6, 10**6])}, {}, "the ConstantOfShape"),
    ([("Expand", ["w", "s"], ["y"], {})], {"w": W, "s": np.array([10**9, 3, 3])}, {}, "the Expand"),
    ([("Gemm", ["x"], ["y"], {})], {}, {}, r"the Gemm.*input size 1 not in range \[min=2, max=3\]"),
    ([("Gemm", ["x", ""], ["y"], {})], {}, {}, "the Gemm.*input 1 .* empty"),
    ([("Transpose", ["x"], ["y"], {"perm": 2.5})], {}, {}, "the Transpose.*Expected: 'INTS', actual: 'FLOAT'"),
    ([("Relu", ["x"], ["y"], {"slope": 1.0})], {}, {}, "the Relu.*Unrecognized attribute: slope"),
    (
        [("PadWindows", ["x"], ["y"], {"kernel_shape": [1]})],
        {},
        {},
        "the PadWindows.*operator that caffelite does not have",
    ),
    ([("Unsqueeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [1, 1]}, {}, "the Unsq"),
    ([("Unsqueeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
    ([("Squeeze", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
    ([("Split", ["x"], ["y", "z"], {"axis": 9})], {}, {}, "the Split"),
    ([("Softmax", ["x"], ["y"], {"axis": 2})], {}, {}, "the Softmax"),
    ([("DepthToSpace", ["x"], ["y"], {"blocksize": 0})], {}, {"inputs": IMAGES}, "the DepthToSpace"),
    ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "strides": [0, 1]})], {}, {"inputs": IMAGES}, "the MaxPool"),
    (
        [("Gemm", ["x", "w"], ["z"], {}), ("Gemm", ["z", "v"], ["y"], {})],
        {"w": W, "v": W[:2]},
        {},
        "the Gemm 1.*before",
    ),
    ([("Tile", ["e", "r"], ["z"], {}), *OF_NOTHING], {"e": EMPTY, "r": [1, 2**31]}, {}, "the Tile.*array"),
    ([("Tile", ["w", "r"], ["z"], {}), *OF_NOTHING], {"w": W, "r": [2**31, 1]}, {}, "the Tile.*array"),
    ([("Resize", ["e", "", "", "r"], ["z"], {}), *OF_NOTHING], {"e": EMPTY, "r": [0, 2**31]}, {}, "the Resize.*array"),
    (
        [
            (
                "MaxPool",
                [
                    "w",
                ],
                ["z"],
                FAR,
            ),
            *OF_NOTHING,
        ],
        {"w": W[None]},
        {},
        "the MaxPool.*array",
    ),
    ([("Gemm", ["w", "w"], ["z"], {"transA": 1}), *OF_NOTHING], {"w": LINE}, {}, "the Gemm.*makes more constants"),
    (
        [("Einsum", ["w", "w"], ["z"], {"equation": "ai,bj->ij"}), *OF_NOTHING],
        {"w": LINE},
        {},
        "the Einsum.*makes more",
    ),
    (
        [("GatherND", ["w", "i"], ["v"], {}), ("Cast", ["v"], ["z"], {"to": FLOAT}), *OF_NOTHING],
        MANY,
        {},
        "the GatherND.*makes more",
    ),
    ([("ReduceSum", ["w", "a"], ["z"], {}), ("MatMul", ["x", "z"], ["y"], {})], {"w": W, "a": [7]}, {}, "node 'the"),
]


@pytest.mark.parametrize(("nodes", "constants", "options", "match"), BAD_GRAPHS)
def test_an_unsupported_operator_raises_with_the_name_of_its_node(nodes, constants, options, match, path):
    with pytest.raises(ValueError, match=match):
        load_graph(path, nodes, constants, **options)


def test_a_mistake_of_caffelites_is_not_blamed_on_the_file(path, monkeypatch):
    monkeypatch.setattr("caffelite.onnx.importing.LayerGraph", lambda reader: None)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'nodes'"):
        load_graph(path, [("MatMul", ["x", "w"], ["y"], {})], {"w": W})


@pytest.mark.parametrize("error", [ValueError, TypeError, IndexError, ZeroDivisionError, MemoryError])
def test_an_error_inside_caffelite_is_not_blamed_on_the_file(error, path, monkeypatch):
    def raise_error(g, node):
        raise error("a mistake")

    monkeypatch.setitem(layers.SINGLE_NODES, "MatMul", [raise_error])
    with pytest.raises(error, match=r"^a mistake$"):
        load_graph(path, [("MatMul", ["x", "w"], ["y"], {})], {"w": W})


def test_a_constant_too_large_for_memory_names_its_node(path, monkeypatch):
    def rule(node, *arrays):
        raise MemoryError

    monkeypatch.setitem(families.OPERATORS, "Neg", rule)
    with pytest.raises(ValueError, match=r"the Neg.*MemoryError"):
        load_graph(path, [("Neg", ["w"], ["z"], {}), ("Add", ["x", "z"], ["y"], {})], {"w": W})


def test_the_lengths_that_a_file_names_its_input_cost_no_memory(path):
    rng = np.random.default_rng(0)
    constants = {name: rng.random((1, rows, 3)).astype(np.float32) for name, rows in (("w", 9), ("r", 9))}
    nodes = [("GRU", ["x", "w", "r"], ["y"], {"hidden_size": 3, "linear_before_reset": 1})]
    model = load_graph(path, nodes, constants, inputs=[("x", FLOAT, (2, 2**45, 3))])
    assert "Recurrence" in repr(model)


@pytest.mark.parametrize(
    ("node", "constants", "shape"),
    [
        (("Pad", ["x", "p"], ["y"], {}), {"p": np.array([0, 0, 1, 0, 0, 1])}, (8, 1, 20)),
        (("Tile", ["x", "r"], ["y"], {}), {"r": np.array([1, 2, 3])}, (8, 2, 54)),
        (("Expand", ["x", "s"], ["y"], {}), {"s": np.array([1, 3, 1])}, (8, 3, 18)),
        (("Resize", ["x", "", "s"], ["y"], {}), {"s": np.array([1, 1, 1.5], np.float32)}, (8, 1, 27)),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) and isinstance(x[0], str) else "",
)
def test_rows_of_a_large_batch_may_grow(node, constants, shape, path, monkeypatch):
    monkeypatch.setattr(nodes, "MAX_SIZE", 100)
    model = load_graph(path, [node], constants, inputs=[("x", FLOAT, ("n", 1, 18))])
    assert model.predict(np.ones((8, 1, 18), np.float32)).shape == shape


def test_constants_do_not_grow_beyond_what_a_file_of_their_size_should_have(path):
    nodes = [("Concat", [f"w{i}"] * 2, [f"w{i + 1}"], {"axis": 0}) for i in range(40)]
    with pytest.raises(ValueError, match="makes more constants"):
        load_graph(path, [*nodes, ("MatMul", ["x", "w40"], ["y"], {})], {"w0": W})


def test_weights_in_another_file_are_read_from_the_same_folder_alone(tmp_path):
    proto = onnx.ModelProto.FromString(make_graph([("MatMul", ["x", "w"], ["y"], {})], {"w": 2 * W}))
    tensor = proto.graph.initializer[0]
    content = b"1234" + tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in (tmp_path / "weights", folder / "weights"):
        target.write_bytes(content)
    if os.name == "posix":
        (folder / "link").symlink_to(tmp_path / "weights")

    def load(location, offset=4, length=36):
        del tensor.external_data[:]
        for key, value in {"location": location, "offset": offset, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        (folder / "net.onnx").write_bytes(proto.SerializeToString())
        return caffelite.onnx.load(folder / "net.onnx")

    assert (load("weights").functions[0].weight.data == 2).all()
    for location in ("../weights", str(tmp_path / "weights"), "link", "", "other", "."):
        with pytest.raises(ValueError, match="the tensor 'w'"):
            load(location)
    for offset, length in ((8, 36), (-1, 36), (0, 40)):
        with pytest.raises(ValueError, match="the tensor 'w' is not in the file"):
            load("weights", offset, length)


#: An error names a node, an input, an output or an array, or what a whole file is without.
WHERE = (
    r"((node|its (in|out)put|the tensor|it defines an operator|nothing makes its output) ['\"]|not an ONNX file|"
    r"its opset|it has (no output|a name that|sparse)|it computes in|a name comes twice)"
)
NUMBERS = [*range(-3, 10), 64, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**63), 2**63 - 1]


def forge_graph(content, rng):
    """Return a graph in which a few numbers, names or operators are others."""
    proto = onnx.ModelProto.FromString(content)
    nodes, tensors, pick = proto.graph.node, proto.graph.initializer, lambda xs: xs[rng.integers(len(xs))]
    constants = [a.t for node in nodes for a in node.attribute if a.name == "value"]
    for _ in range(rng.integers(1, 4)):
        node, other, kind = pick(nodes), pick(nodes), rng.integers(9)
        if kind < 3 and node.attribute:
            attribute = pick(node.attribute)
            attribute.i, attribute.f = pick(NUMBERS), pick([0.0, -1.0, 1e30, np.nan, np.inf])
            for i in range(len(attribute.ints)):
                attribute.ints[i] = pick([attribute.ints[i], pick(NUMBERS)])
            if kind == 2 and attribute.ints:
                del attribute.ints[-1]
        elif kind == 3:
            node.op_type = other.op_type
        elif kind == 4 and node.input and other.input:
            node.input[rng.integers(len(node.input))] = pick(other.input)
        elif kind == 5 and tensors:
            tensor = pick(tensors)
            array = onnx.numpy_helper.to_array(tensor)
            array = pick([array[:1], array[..., None], array.ravel(), array.astype(np.int64), array[:0], array.T])
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        elif kind == 6 and constants:
            constant = pick(constants)
            array = np.array(onnx.numpy_helper.to_array(constant))
            array[...] = pick([array * 0, array - 1, array + 1, array * 1000])
            array = pick([array, array.ravel(), array[None]])
            constant.CopyFrom(onnx.numpy_helper.from_array(array))
        elif kind == 7:
            dims = proto.graph.input[0].type.tensor_type.shape.dim
            pick(dims).dim_value = pick(NUMBERS)
        elif kind == 8 and node.attribute:
            del node.attribute[rng.integers(len(node.attribute))]
    return proto.SerializeToString()


def test_files_that_are_changed_at_random_are_models_or_a_valueerror(path, tmp_path):
    rng = np.random.default_rng(0)
    contents = []
    for model, shape in SEQUENCES[1:]:
        caffelite.onnx.export(model, path, shape)
        contents.append(path.read_bytes())
    opened, refused = 0, []
    for i in range(600):
        content = bytearray(contents[i % len(contents)])
        head = min(400, len(content)) if i % 2 else len(content)
        for place in rng.integers(0, head, rng.integers(1, 5)):
            content[place] = rng.integers(256)
        if i % 5 == 0:
            del content[rng.integers(len(content)) :]
        if i >= 300:
            content = forge_graph(contents[i % len(contents)], rng)
        path.write_bytes(content)
        try:
            opened += isinstance(caffelite.onnx.load(path), cl.Model)
        except ValueError as error:
            refused.append(str(error))
    assert opened
    assert refused
    for why in refused:
        assert re.match(rf"{re.escape(str(path))}: {WHERE}", why), why


def test_a_file_that_is_not_onnx_is_reported(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        caffelite.onnx.load(path)
    for content in (b"", b"no graph at all", bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not an ONNX file"):
            caffelite.onnx.load(path)
    with pytest.raises(OSError, match="directory"):
        caffelite.onnx.load(tmp_path)
    with pytest.raises(ValueError, match="expected a file, and there is a FIFO"):
        caffelite.onnx.load(os.devnull)


@posix
def test_a_fifo_is_not_opened_as_a_file_of_onnx(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for ever
    with pytest.raises(ValueError, match="expected a file, and there is a FIFO"):
        caffelite.onnx.load(tmp_path / "fifo")


def test_an_error_names_a_file_for_one_row_if_more_come(path):
    nodes = [("Reshape", ["x", "shape"], ["flat"], {}), ("MatMul", ["flat", "w"], ["y"], {})]
    arrays = {"shape": np.array([1, 6]), "w": np.ones((6, 3), np.float32)}
    model = load_graph(path, nodes, arrays, inputs=[("x", FLOAT, (1, 2, 3))])
    x, y, loss = np.ones((5, 2, 3), np.float32), np.ones((5, 3), np.float32), cl.MSELoss()
    assert model.predict(x[:1]).shape == (1, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    for use in (
        lambda: model.predict(x),
        lambda: model(x),
        lambda: model.fit(x, y, loss=loss, optimizer=optimizer, verbose=0),
        lambda: model.evaluate(x, y, loss=loss),
    ):
        with pytest.raises(ValueError, match=r"got shape \(5, 2, 3\): it is for 1 row\. .* with dynamic_shapes"):
            use()
