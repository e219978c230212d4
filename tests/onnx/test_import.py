"""Files of others: what is imported computes what onnxruntime says, and is trained and exported again."""

import re

import numpy as np
import onnx
import pytest

import caffelite as cl
import caffelite.onnx
from caffelite.onnx.verify import make_runner
from tests.cases import both_dtypes
from tests.onnx.graphs import DOUBLE, FLOAT, INT64, W, chain, load_graph, make_graph, run
from tests.tools import onnx_nodes


def test_onnxs_own_tests_of_its_operators(path):
    computed, _, _ = onnx_nodes.check(path, long=False)
    assert computed >= 400


def test_the_tests_that_give_numbers_of_numpy_are_among_them():
    names = {name for name, *_ in onnx_nodes.cases(long=False)}
    assert {"test_clip", "test_einsum_inner_prod"} <= names


def test_nets_of_old_opsets_that_pytorch_has_written_compute_what_their_files_say():
    count, refused = 0, []
    for path, inputs, outputs in onnx_nodes.nets():
        try:
            model = caffelite.onnx.load(path)
        except ValueError as error:
            refused.append(str(error))
            continue
        found = onnx_nodes.compute_outputs(model, inputs)
        assert len(found) == len(outputs)
        for y, other in zip(outputs, found, strict=True):
            np.testing.assert_allclose(other, y, rtol=1e-3, atol=1e-5, err_msg=str(path))
        count += 1
    assert count >= 106
    assert all(re.search("not a pool of images|no images or series|has no output", why) for why in refused)


@pytest.mark.parametrize("opset", range(1, 7))
def test_a_sum_of_an_old_opset_broadcasts_as_its_attributes_say(opset, path):
    options = {"inputs": [("x", FLOAT, (4, 3, 2))], "outputs": [("y", FLOAT, (4, 3, 2))], "opset": opset}
    b = np.arange(3, dtype=np.float32)
    model = load_graph(path, [("Add", ["x", "b"], ["y"], {"broadcast": 1, "axis": 1})], {"b": b}, **options)
    x = np.ones((4, 3, 2), np.float32)
    np.testing.assert_array_equal(model.predict(x), x + b[:, np.newaxis])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 3), (4, 3, 2, 2)])
def test_an_old_prelu_has_a_slope_for_each_channel(shape, path):
    options = {"inputs": [("x", FLOAT, shape)], "outputs": [("y", FLOAT, shape)], "opset": 6}
    slopes = np.array([1, 2, 3], np.float32)
    model = load_graph(path, [("PRelu", ["x", "s"], ["y"], {})], {"s": slopes}, **options)
    y = model.predict(-np.ones(shape, np.float32))
    np.testing.assert_array_equal(y, np.broadcast_to(-slopes.reshape(3, *[1] * (len(shape) - 2)), shape))
    assert [p.size for p in model.parameters()] == [3]


def test_a_bias_that_two_old_sums_share_stays_one_parameter(path):
    options = {"inputs": [("x", FLOAT, (4, 3, 2))], "outputs": [("y", FLOAT, (4, 3, 2))], "opset": 6}
    nodes = chain("Add", 3, "b", broadcast=1, axis=1)
    model = load_graph(path, nodes, {"b": np.arange(3, dtype=np.float32)}, **options)
    x = np.ones((4, 3, 2), np.float32)
    np.testing.assert_array_equal(model.predict(x), x + 3 * np.arange(3, dtype=np.float32)[:, np.newaxis])
    assert len(model.parameters()) == 1


@pytest.mark.slow
def test_all_of_onnxs_own_tests_of_its_operators(path):
    computed, refused, _ = onnx_nodes.check(path, long=True)
    assert computed >= 700
    assert refused >= onnx_nodes.NOT_THERE  # the list is no longer than it has to be


def test_a_classifier_of_scikit_learns_converter_gives_its_probabilities(path):
    rng = np.random.default_rng(0)
    w, b, v, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (1, 5), (5, 2), (1, 2)))
    model = load_graph(
        path,
        [
            ("Cast", ["x"], ["cast"], {"to": FLOAT}),
            ("MatMul", ["cast", "w"], ["xw"], {}),
            ("Add", ["xw", "b"], ["h"], {}),
            ("Relu", ["h"], ["a"], {}),
            ("MatMul", ["a", "v"], ["av"], {}),
            ("Add", ["av", "c"], ["s"], {}),
            ("Softmax", ["s"], ["p"], {"axis": 1}),
            ("ArgMax", ["p"], ["best"], {"axis": 1}),
            ("ArrayFeatureExtractor", ["classes", "best"], ["label"], {}),
        ],
        {"w": w, "b": b, "v": v, "c": c, "classes": np.array([3, 7])},
        outputs=(("label", INT64, None), ("p", FLOAT, None)),
        ml=True,
    )
    assert repr(model) == "Model([Linear(3, 5), ReLU(), Linear(5, 2), Softmax(1)])"
    x = rng.standard_normal((4, 3)).astype(np.float32)
    scores = np.exp(np.maximum(x @ w + b, 0) @ v + c)
    np.testing.assert_allclose(model.predict(x), scores / scores.sum(1, keepdims=True), rtol=1e-5)


def test_the_scaler_of_scikit_learns_converter_is_read(path):
    nodes = [("Scaler", ["x"], ["s"], {"offset": [1.0, 2, 3], "scale": [2.0, 0.5, 1]}), ("Gemm", ["s", "w"], ["y"], {})]
    model = load_graph(path, nodes, {"w": W}, ml=True)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    scaled = (x - np.array([1, 2, 3], np.float32)) * np.array([2, 0.5, 1], np.float32)
    np.testing.assert_allclose(model.predict(x), scaled @ W, rtol=1e-5, atol=1e-6)
    assert (model.predict(x[:1])[0] == model.predict(x)[0]).all()
    caffelite.onnx.export(model, path, (3,))
    np.testing.assert_allclose(run(path, x), scaled @ W, rtol=1e-5, atol=1e-6)


def test_indices_that_keras_counts_from_the_end_go_into_an_embedding(path):
    nodes = [
        ("Cast", ["x"], ["a"], {"to": INT64}),
        ("Less", ["a", "zero"], ["negative"], {}),
        ("Add", ["a", "count"], ["wrapped"], {}),
        ("Where", ["negative", "wrapped", "a"], ["places"], {}),
        ("Gather", ["table", "places"], ["h"], {}),
        ("ReduceMean", ["h"], ["y"], {"axes": [1], "keepdims": 0}),
    ]
    table = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    constants = {"zero": np.int64(0), "count": np.int64(7), "table": table}
    inputs = [("x", onnx.TensorProto.INT32, ("n", 5))]
    model = load_graph(path, nodes, constants, inputs=inputs)
    x = np.random.default_rng(0).integers(7, size=(3, 5)).astype(np.int32)
    np.testing.assert_allclose(model.predict(x), table[x].mean(axis=1), rtol=1e-6)
    with pytest.raises(IndexError, match="index -1 in row 1"):
        model.predict(np.where(np.arange(3)[:, None] == 1, -1, x))
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(x, np.zeros((3, 4)), loss=cl.MSELoss(), optimizer=optimizer, verbose=0)


#: Nodes that make y of h, an array of a shape, constants, and whether the domain of estimators is needed.
COMPOSED = {
    "LRN": ([("LRN", ["h"], ["y"], {"size": 3, "alpha": 0.5, "beta": 0.7})], (5, 3, 2), {}),
    "LRN of images": ([("LRN", ["h"], ["y"], {"size": 5, "bias": 2.0})], (7, 3, 2), {}),
    "a dilated MaxPool": (
        [
            (
                "MaxPool",
                ["h"],
                ["y"],
                {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 1], "pads": [1, 0, 2, 1]},
            )
        ],
        (2, 9, 8),
        {},
    ),
    "a dilated MaxPool with ceil_mode": (
        [("MaxPool", ["h"], ["y"], {"kernel_shape": [3], "dilations": [2], "strides": [3], "ceil_mode": 1})],
        (2, 9),
        {},
    ),
    "a MaxPool of three axes": ([("MaxPool", ["h"], ["y"], {"kernel_shape": [2, 3, 2]})], (2, 4, 5, 4), {}),
    "TopK": ([("TopK", ["h", "k"], ["y", "i"], {"axis": 1})], (6, 2), {"k": np.array([3])}),
    "the least of TopK": ([("TopK", ["h", "k"], ["y", "i"], {"largest": 0})], (2, 6), {"k": np.array([2])}),
    "the places of TopK": (
        [
            ("TopK", ["h", "k"], ["v", "i"], {}),
            ("Cast", ["i"], ["c"], {"to": "dtype"}),
            ("Mul", ["v", "c"], ["y"], {}),
        ],
        (2, 6),
        {"k": np.array([2])},
    ),
    **{
        f"Normalizer {norm}": ([("Normalizer", ["h"], ["y"], {"norm": norm})], (4,), {}) for norm in ("MAX", "L1", "L2")
    },
}
IN_FLOAT32_ALONE = ("LRN", "LRN of images", "Normalizer MAX", "Normalizer L1", "Normalizer L2")  # onnxruntime


@both_dtypes
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_operators_equal_onnxruntime_have_gradients_and_are_exported(name, dtype, path):
    nodes, row, constants = COMPOSED[name]
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [(op, i, o, {k: code if v == "dtype" else v for k, v in a.items()}) for op, i, o, a in nodes]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((2, *row), row))
    graph = [("Mul", ["x", "w"], ["h"], {}), *nodes], {"w": w, **constants}
    model = load_graph(path, *graph, inputs=[("x", code, ("n", *row))], outputs=[("y", code, None)], ml=True)
    y = model.predict(x)
    assert y.dtype == dtype
    if not (dtype == np.float64 and name in IN_FLOAT32_ALONE):
        np.testing.assert_allclose(y, run(path, x), rtol=1e-5, atol=1e-6)
    caffelite.onnx.export(model, path, row)  # which compares them
    if dtype == np.float64:
        r = rng.standard_normal(y.shape)
        (model(x) * r).sum().backward()
        (weight,) = model.parameters()
        for place in np.ndindex(row):
            sums = []
            for step in (1e-6, -1e-6):
                weight.data[place] = w[place] + step
                sums.append((model.predict(x) * r).sum())
            weight.data[place] = w[place]
            np.testing.assert_allclose(weight.grad[place], (sums[0] - sums[1]) / 2e-6, rtol=1e-4, atol=1e-6)
    before = abs(y).mean()
    model.fit(x, 0 * y, loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.02), epochs=20, verbose=0)
    assert "Normalizer" in name or abs(model.predict(x)).mean() < before


@both_dtypes
@pytest.mark.parametrize(("classes", "link"), [(2, "LOGISTIC"), (3, "NONE"), (3, "LOGISTIC"), (3, "SOFTMAX")])
def test_the_linear_classifiers_of_scikit_learns_converter_are_linears(classes, link, dtype, path):
    rng = np.random.default_rng(0)
    rows = 1 if classes == 2 else classes
    w, b = rng.standard_normal((rows, 3)).astype(np.float32), rng.standard_normal(rows).astype(np.float32)
    weights = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "classlabels_ints": [*range(classes)]}
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [("LinearClassifier", ["x"], ["label", "p"], {"post_transform": link, **weights})]
    options = {"inputs": [("x", code, ("n", 3))], "outputs": [("label", INT64, None), ("p", FLOAT, None)], "ml": True}
    model = load_graph(path, nodes, {}, **options)
    x = rng.standard_normal((4, 3)).astype(dtype)
    s = x @ w.T + b
    s = np.concatenate([-s, s], axis=1) if classes == 2 else s
    softmax = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    expected = {"NONE": s, "LOGISTIC": 1 / (1 + np.exp(-s)), "SOFTMAX": softmax}[link]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)
    assert model.predict(x).dtype == dtype
    of_link = {"NONE": "", "LOGISTIC": ", Sigmoid()", "SOFTMAX": ", Softmax(1)"}[link]
    assert repr(model) == f"Model([Linear(3, {classes}){of_link}])"


def test_a_converted_logistic_regression_gives_its_probabilities_and_trains_on(path):
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((3, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    weights = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "classlabels_strings": ["a", "b", "c"]}
    nodes = [
        ("Scaler", ["x"], ["s"], {"offset": [1.0, 2, 3], "scale": [2.0, 0.5, 1]}),
        ("LinearClassifier", ["s"], ["label", "p"], {"post_transform": "LOGISTIC", **weights}),
        ("Normalizer", ["p"], ["q"], {"norm": "L1"}),
        ("ZipMap", ["q"], ["y"], {"classlabels_strings": ["a", "b", "c"]}),
    ]
    model = load_graph(path, nodes, {}, outputs=[("label", onnx.TensorProto.STRING, None), ("y",)], ml=True)
    x, t = rng.standard_normal((6, 3)).astype(np.float32), np.arange(6) % 3
    p = 1 / (1 + np.exp(-((x - [1, 2, 3]) * [2, 0.5, 1] @ w.T + b)))
    np.testing.assert_allclose(model.predict(x), p / p.sum(1, keepdims=True), rtol=1e-5)
    assert list(model.named_parameters()) == ["layers.the LinearClassifier.weight", "layers.the LinearClassifier.bias"]
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(x, np.eye(3)[t], loss=cl.MSELoss(), optimizer=optimizer, epochs=3, verbose=0)
    caffelite.onnx.export(model, path, (3,))  # which compares them


@both_dtypes
def test_the_linear_regressors_of_scikit_learns_converter_are_linears(dtype, path):
    w, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, -1], np.float32)
    attributes = {"coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "targets": 2}
    code = DOUBLE if dtype == np.float64 else FLOAT
    nodes = [("LinearRegressor", ["x"], ["y"], attributes)]
    model = load_graph(path, nodes, {}, inputs=[("x", code, ("n", 3))], outputs=[("y", FLOAT, None)], ml=True)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(dtype)
    np.testing.assert_allclose(model.predict(x), x @ w.T + b, rtol=1e-5)
    assert repr(model) == "Model([Linear(3, 2)])"


@both_dtypes
@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"reduction": "sum"}, {"reduction": "none"}], ids=str)
def test_a_loss_of_labels_in_a_file_has_gradients(options, dtype, path):
    code = DOUBLE if dtype == np.float64 else FLOAT
    rng = np.random.default_rng(0)
    nodes = [("MatMul", ["x", "w"], ["s"], {}), ("SoftmaxCrossEntropyLoss", ["s", "t", "c"], ["y", "log_p"], options)]
    model = load_graph(
        path,
        nodes,
        {"w": W.astype(dtype), "c": np.array([1, 2, 3], dtype)},
        inputs=[("x", code, ("n", 3)), ("t", INT64, ("n",))],
        outputs=[("y", code, None), ("log_p", code, None)],
    )
    x, t = rng.standard_normal((5, 3)).astype(dtype), np.array([0, 1, 2, 1, 0])
    loss, log_p = model(x, t)
    log_p.sum()
    loss.sum().backward()
    (weight,) = model.parameters()  # the weights of classes are None
    p, one_hot = np.full((5, 3), 1 / 3), np.eye(3)[t]
    share = np.array([1, 2, 3])[t] * (t != options.get("ignore_index"))
    if "reduction" not in options:
        share = share / share.sum()
    np.testing.assert_allclose(weight.grad, x.T @ ((p - one_hot) * share[:, np.newaxis]), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"the SoftmaxCrossEntropyLoss.*outside 0 … 2"):
        model(x, t + 1)


def attention(q, k, v, heads=1, seen=True, bias=0.0, scale=None, softcap=None):
    """Softmax(q kᵀ scale + bias) v in heads, for rows, one after the other."""
    y = np.zeros((*q.shape[:2], v.shape[2] // (k.shape[2] // (q.shape[2] // heads)) * heads))
    d = q.shape[2] // heads
    of_keys = k.shape[2] // d
    size = v.shape[2] // of_keys
    for row, i, h in np.ndindex(*q.shape[:2], heads):
        j = h * of_keys // heads
        s = k[row, :, j * d : (j + 1) * d] @ q[row, i, h * d : (h + 1) * d] * (scale or d**-0.5)
        s = s if softcap is None else np.tanh(s / softcap) * softcap
        s = s + np.broadcast_to(bias, (*q.shape[:2], k.shape[1]))[row, i]
        p = np.exp(s) * np.broadcast_to(seen, (*q.shape[:2], k.shape[1]))[row, i]
        y[row, i, h * size : (h + 1) * size] = p @ v[row, :, j * size : (j + 1) * size] / max(p.sum(), 1e-30)
    return y


@both_dtypes
@pytest.mark.parametrize("mask", ["none", "bool", "numbers", "lengths"])
@pytest.mark.parametrize(("heads", "of_keys"), [(1, 1), (4, 2)])
@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"scale": 0.25, "softcap": 0.75}], ids=str)
def test_attention_is_the_judges_has_gradients_and_is_trained_and_exported(heads, of_keys, options, mask, dtype, path):
    rng = np.random.default_rng(0)
    length, keys, code = 3, 5, DOUBLE if dtype == np.float64 else FLOAT
    q, k, v = (
        rng.standard_normal((2, n, h * d)).astype(dtype)
        for n, h, d in ((3, heads, 2), (5, of_keys, 2), (5, of_keys, 3))
    )
    seen, bias = np.ones((2, length, keys), bool), 0.0
    inputs = [("q", code, ("n", *q.shape[1:])), ("k", code, ("n", *k.shape[1:])), ("v", code, ("n", *v.shape[1:]))]
    names, given, first = ["h", "k", "v"], [q, k, v], np.zeros(2, int)
    if mask == "bool":
        seen = rng.random((2, length, keys)) < 0.6
        seen[0, 1] = False  # a query that sees none
        inputs.append(("m", onnx.TensorProto.BOOL, ("n", 1, length, keys)))
        names, given = [*names, "m"], [*given, seen[:, np.newaxis]]
    elif mask == "numbers":
        bias = np.where(rng.random((2, length, keys)) < 0.6, rng.standard_normal((2, length, keys)), -np.inf)
        inputs.append(("m", code, ("n", 1, length, keys)))
        names, given = [*names, "m"], [*given, bias[:, np.newaxis].astype(dtype)]
    elif mask == "lengths":
        lengths = np.array([2, 4])
        seen &= np.arange(keys) < lengths[:, np.newaxis, np.newaxis]
        inputs.append(("m", INT64, ("n",)))
        names, given, first = [*names, "", "", "", "m"], [*given, lengths], lengths - length
    if "is_causal" in options:
        seen &= np.arange(keys) <= first[:, np.newaxis, np.newaxis] + np.arange(length)[:, np.newaxis]
    w = rng.standard_normal(q.shape[2]).astype(dtype)
    attributes = {"q_num_heads": heads, "kv_num_heads": of_keys, **options}
    nodes = [("Mul", ["q", "w"], ["h"], {}), ("Attention", names, ["y"], attributes)]
    model = load_graph(path, nodes, {"w": w}, inputs=inputs, outputs=[("y", code, None)], opset=24)

    def judge(w):
        others = {"scale": options.get("scale"), "softcap": options.get("softcap")}
        return attention(q.astype(np.float64) * w, k, v, heads, seen, bias, **others)

    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    y = model.predict(tuple(given))
    assert y.dtype == dtype
    np.testing.assert_allclose(y, judge(w), **tolerance)
    r = rng.standard_normal(y.shape)
    (model(*given) * r.astype(dtype)).sum().backward()
    (weight,) = model.parameters()
    for i, e in enumerate(np.eye(len(w)) * 1e-5):
        slope = ((judge(w + e) - judge(w - e)) * r).sum() / 2e-5
        np.testing.assert_allclose(weight.grad[i], slope, rtol=1e-3, atol=1e-5)
    caffelite.onnx.export(model, path, tuple([x.shape[1:] for x in given]))  # which compares them
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.fit(tuple(given), np.zeros_like(y), loss=cl.MSELoss(), optimizer=optimizer, epochs=2, verbose=0)
    assert np.isfinite(weight.data).all()


def test_an_attention_that_is_not_computed_raises_by_name(path):
    inputs = [(name, FLOAT, ("n", 3, 6)) for name in "qkv"]

    def load_attention(**attributes):
        node = ("Attention", ["q", "k", "v"], ["y"], attributes)
        return load_graph(path, [node], {}, inputs=inputs, outputs=[("y", FLOAT, None)], opset=24)

    x, heads = np.ones((2, 3, 6), np.float32), {"q_num_heads": 2, "kv_num_heads": 2}
    for attributes, match in [
        ({"q_num_heads": 2}, r"the Attention.*kv_num_heads"),
        ({"q_num_heads": 4, "kv_num_heads": 2}, r"the Attention.*\(2, 3, 6\).*q_num_heads = 4"),
        ({"q_num_heads": 3, "kv_num_heads": 2}, r"the Attention.*3 heads of queries, 2 of keys"),
        ({**heads, "qk_matmul_output_mode": 4}, r"the Attention.*qk_matmul_output_mode = 4"),
        ({**heads, "softmax_precision": 6}, r"the Attention.*softmax_precision = 6"),
    ]:
        with pytest.raises(ValueError, match=match):
            load_attention(**attributes)(x, x, x)


BOOL = onnx.TensorProto.BOOL
AGAIN = {
    **{
        name: [(name, ["x", "w"], ["c"], {}), ("Where", ["c", "x", "w"], ["y"], {})]
        for name in ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
    },
    **{
        name: [
            ("Less", ["x", "w"], ["a"], {}),
            ("Cast", ["x"], ["b"], {"to": BOOL}),
            (name, ["a", "b"], ["c"], {}),
            ("Cast", ["c"], ["y"], {"to": FLOAT}),
        ]
        for name in ["And", "Or", "Xor"]
    },
    "Not": [("IsNaN", ["x"], ["a"], {}), ("Not", ["a"], ["b"], {}), ("Cast", ["b"], ["y"], {"to": FLOAT})],
    "Cast": [("Cast", ["x"], ["i"], {"to": INT64}), ("Cast", ["i"], ["y"], {"to": FLOAT})],
    "Max": [("Max", ["x", "w", "v"], ["y"], {})],
    "Min": [("Min", ["w", "x"], ["y"], {})],
    "ThresholdedRelu": [("ThresholdedRelu", ["x"], ["y"], {"alpha": 0.5})],
    **{
        name: [("Sigmoid", ["x"], ["p"], {}), (name, ["p"], ["y"], {})]
        for name in [
            *["Floor", "Ceil", "Round", "Sign", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh"],
            *["Asinh", "Atanh"],
        ]
    },
}


@pytest.mark.parametrize("name", AGAIN)
def test_loaded_operators_that_compute_in_numpy_are_exported_again(name, path):
    w = np.linspace(-1, 1, 3).astype(np.float32)
    model = load_graph(path, AGAIN[name], {"w": w, "v": np.zeros(3, np.float32)})
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    x[:4] = np.array([[np.nan], [0], [2], [-1]], np.float32)
    x[5] = w
    if name in ("Cast", "And", "Or", "Xor"):
        x = np.nan_to_num(x)
    before = run(path, x)
    np.testing.assert_allclose(model.predict(x), before, rtol=1e-5, atol=1e-6)
    caffelite.onnx.export(model, path, (3,))
    np.testing.assert_allclose(run(path, x), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(caffelite.onnx.load(path).predict(x), before, rtol=1e-5, atol=1e-6)


def test_masks_that_were_computed_of_indices_are_exported_again(path):
    nodes = [
        ("Equal", ["x", "zero"], ["padded"], {}),
        ("Not", ["padded"], ["there"], {}),
        ("Cast", ["there"], ["mask"], {"to": FLOAT}),
        ("Gather", ["table", "x"], ["h"], {}),
        ("Unsqueeze", ["mask", "last"], ["m"], {}),
        ("Mul", ["h", "m"], ["y"], {}),
    ]
    table = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    constants = {"zero": np.int64(0), "last": np.array([2]), "table": table}
    model = load_graph(path, nodes, constants, inputs=[("x", INT64, ("n", 5))])
    x = np.random.default_rng(0).integers(7, size=(3, 5))
    np.testing.assert_allclose(model.predict(x), table[x] * (x != 0)[..., None])
    caffelite.onnx.export(model, path, (5,))
    np.testing.assert_allclose(run(path, x), table[x] * (x != 0)[..., None])


EQUATIONS = "abc,cde->abde aecd,abcd->acbe acbe,aecd->abcd abde,dec->abc ab,b->a ab,cd->abcd ab,ab->ab ab,ac->a abc,cb"
EQUATIONS += " abc->ca abc->ba ab abc->ab"


@both_dtypes
@pytest.mark.parametrize("equation", EQUATIONS.split())
def test_einsum_is_numpys(equation, dtype, path):
    rng = np.random.default_rng(0)
    lengths = dict(zip("abcde", (3, 2, 4, 5, 6), strict=True))
    terms = equation.partition("->")[0].split(",")
    arrays = {
        name: rng.standard_normal([lengths[letter] for letter in term]).astype(dtype)
        for name, term in zip("xw", terms, strict=False)
    }
    kind = FLOAT if dtype == np.float32 else DOUBLE
    of_rows = {name: x for name, x in arrays.items() if len(x) == 3}  # an axis of rows: they are inputs
    model = load_graph(
        path,
        [("Einsum", list(arrays), ["y"], {"equation": equation})],
        {name: x for name, x in arrays.items() if name not in of_rows},
        inputs=[(name, kind, ("n", *x.shape[1:])) for name, x in of_rows.items()],
        outputs=[("y", kind, None)],
    )
    found = model.predict(tuple(of_rows.values()) if len(of_rows) > 1 else of_rows["x"])
    np.testing.assert_allclose(found, np.einsum(equation, *arrays.values()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("AveragePool", {"pads": [1, 0, 2, 1]}),
        ("AveragePool", {"pads": [1, 0, 2, 1], "count_include_pad": 1}),
        ("AveragePool", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("AveragePool", {"ceil_mode": 1, "strides": [2, 3]}),
        ("AveragePool", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("MaxPool", {"pads": [1, 0, 2, 1]}),
        ("MaxPool", {"ceil_mode": 1, "strides": [2, 3]}),
        ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("Conv", {"auto_pad": "SAME_UPPER"}),
        ("Conv", {"pads": [2, 0, 1, 1], "dilations": [2, 1]}),
    ],
)
def test_windows_with_all_kinds_of_pads(operator, attributes, path):
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((2, 3, 3, 2)).astype(np.float32)} if operator == "Conv" else {}
    model = load_graph(
        path,
        [(operator, ["x", *weights], ["y"], {"kernel_shape": [3, 2], **attributes})],
        weights,
        inputs=[("x", FLOAT, ("n", 3, 8, 7))],
    )
    for n in (1, 3):
        x = rng.standard_normal((n, 3, 8, 7)).astype(np.float32)
        np.testing.assert_allclose(model.predict(x), run(path, x), atol=1e-5)


def test_layers_of_two_directions_with_states_and_lengths(path):
    rng = np.random.default_rng(0)
    parts = {"w": (2, 12, 4), "r": (2, 12, 3), "b": (2, 24)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in parts.items()}
    content = make_graph(
        [
            (
                "LSTM",
                ["x", "w", "r", "b", "", "h", "c"],
                ["y", "hn", "cn"],
                {"hidden_size": 3, "direction": "bidirectional"},
            )
        ],
        constants,
        inputs=[("x", FLOAT, (5, "n", 4)), ("h", FLOAT, (2, "n", 3)), ("c", FLOAT, (2, "n", 3))],
        outputs=[(name, FLOAT, None) for name in ("y", "hn", "cn")],
    )
    path.write_bytes(content)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 2, 4), (2, 2, 3), (2, 2, 3))]
    with cl.inference():
        found = caffelite.onnx.load(path)(*inputs)
    for y, other in zip(make_runner(onnx.load(path))(*inputs), found, strict=True):
        np.testing.assert_allclose(other.numpy(), y, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_nets_that_pytorch_exports_are_loaded(path):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    lenet = nn.Sequential(
        *[nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.GELU(), nn.AvgPool2d(2)],
        *[nn.Flatten(), nn.Linear(400, 84), nn.SiLU(), nn.BatchNorm1d(84), nn.Dropout(), nn.Linear(84, 10)],
    )

    class Series(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.lstm = nn.LSTM(8, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x):
            x = self.embedding(x)
            return self.lstm(x + self.attention(x, x, x, need_weights=False)[0])[0][:, -1]

    expected = (
        "Model([Conv2d(1, 6, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(6, 16, 5), GELU(), AvgPool2d(2), Flatten(), "
        "Linear(400, 84), SiLU(), BatchNorm(84), Linear(84, 10)])"
    )
    for model, x, text in [
        (lenet, torch.randn(3, 1, 28, 28), expected),
        (Series(), torch.randint(0, 11, (3, 6)), "Graph"),
    ]:
        model.eval()
        torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
        loaded = caffelite.onnx.load(path)
        assert repr(loaded).startswith(text)
        more = torch.cat([x, x])
        np.testing.assert_allclose(loaded.predict(more.numpy()), model(more).detach().numpy(), atol=1e-5)
