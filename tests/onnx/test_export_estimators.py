"""Exported estimators and pipelines of scikit-learn, and packages that are not installed."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import caffelite as cl
import caffelite.onnx
from caffelite._support.extras import install_command
from tests.cases import both_dtypes
from tests.onnx.graphs import run

# ---- estimators, and what is not installed --------------------------------------------------------------------------


class Estimator:
    """What `export` asks of an estimator."""

    def __init__(self, model, loss, classes=None):
        self.model_, self._link = model, loss.link
        if classes is not None:
            self.classes_ = np.asarray(classes)


@both_dtypes
@pytest.mark.parametrize(
    ("loss", "columns", "classes"),
    [
        (cl.SoftmaxLoss(), 3, ["ant", "bee", "cat"]),
        (cl.SoftmaxLoss(), 3, [10, 20, 30]),
        (cl.SigmoidLoss(), 1, [False, True]),
        (cl.HingeLoss(), 3, [1, 2, 3]),
    ],
)
def test_a_classifier_is_exported_with_its_labels_and_probabilities(loss, columns, classes, dtype, path):
    model = cl.Model([cl.Linear(4, columns)], seed=0, dtype=dtype)
    caffelite.onnx.export(Estimator(model, loss, classes), path)
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(dtype)
    labels, found = run(path, x)
    scores = loss.link(model.predict(x))
    scores = np.hstack([1 - scores, scores]) if columns == 1 else scores
    np.testing.assert_allclose(found, scores, atol=1e-6)
    assert list(labels) == [classes[i] for i in scores.argmax(1)]
    names = [info.name for info in onnx.load(path).graph.output]
    assert names == ["label", "scores" if isinstance(loss, cl.HingeLoss) else "probabilities"]
    np.testing.assert_allclose(caffelite.onnx.load(path).predict(x), scores, atol=1e-6)


def test_a_classifier_of_several_labels_a_row_says_which_are_likely(path):
    model = cl.Model([cl.Linear(4, 3)], seed=0)
    caffelite.onnx.export(Estimator(model, cl.SigmoidLoss(), [0, 1, 2]), path)
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    labels, found = run(path, x)
    np.testing.assert_array_equal(labels, model.predict(x) > 0)
    np.testing.assert_allclose(found, cl.SigmoidLoss().link(model.predict(x)), atol=1e-6)


def test_a_regressor_is_exported_with_its_link(path):
    model = cl.MLP(2, [3, 1], seed=0)
    x = np.ones((3, 2), np.float32)
    estimator = Estimator(model, cl.MSELoss())
    for estimator._link in (cl.MSELoss().link, np.exp):
        caffelite.onnx.export(estimator, path)
        np.testing.assert_allclose(run(path, x), estimator._link(model.predict(x)), atol=1e-6)
    estimator._link = np.sinh
    with pytest.raises(TypeError, match="link"):
        caffelite.onnx.export(estimator, path)
    with pytest.raises(ValueError, match="one class"):
        caffelite.onnx.export(Estimator(model, cl.SigmoidLoss(), ["a"]), path)


def test_without_onnx_it_is_reported_what_to_install():
    program = "import sys; sys.modules['onnx'] = None; import caffelite.onnx"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"ImportError: caffelite.onnx needs the onnx package: {install_command('onnx')}" in done.stderr


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("kind", ["words", "two", "several", "value", "values", "counts", "net", "images"])
@both_dtypes
def test_the_estimators_are_exported_with_what_they_predict(kind, dtype, path):
    runtime, estimators = pytest.importorskip("onnxruntime"), pytest.importorskip("caffelite.sklearn")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(dtype)
    labels = np.argmax(x[:, :3], axis=1)
    estimator, y = {
        "words": (estimators.MLPClassifier((8,), max_iter=20), np.array(["red", "green", "blue"])[labels]),
        "two": (estimators.MLPClassifier((8,), max_iter=20), labels > 0),
        "several": (estimators.MLPClassifier((8,), max_iter=20), (x[:, :3] > 0).astype(int)),
        "value": (estimators.MLPRegressor((8,), max_iter=20), x[:, 0]),
        "values": (estimators.MLPRegressor((8,), max_iter=20), x[:, :2]),
        "counts": (estimators.MLPRegressor((8,), max_iter=20, loss="poisson"), rng.poisson(np.exp(x[:, 0]))),
        "net": (estimators.NetClassifier(lambda n, outputs: cl.Model([cl.Tanh(), cl.Linear(n, outputs)])), labels),
        "images": (
            estimators.NetClassifier(lambda shape, k: cl.Model([cl.Flatten(), cl.Linear(4, k)]), loss=cl.FocalLoss()),
            labels > 0,
        ),
    }[kind]
    x = x.reshape(-1, 1, 2, 2) if kind == "images" else x
    estimator.fit(x, y)
    caffelite.onnx.export(estimator, path)
    session = runtime.InferenceSession(path)
    first, *others = session.run(None, {session.get_inputs()[0].name: x})
    if others:
        np.testing.assert_array_equal(first, estimator.predict(x))
        np.testing.assert_allclose(others[0], estimator.predict_proba(x), atol=1e-6)
    else:
        np.testing.assert_allclose(first.reshape(len(x), -1), estimator.predict(x).reshape(len(x), -1), atol=1e-6)


# ---- pipelines of scikit-learn --------------------------------------------------------------------------------------

# skl2onnx's own warnings are not ours
of_pipelines = pytest.mark.filterwarnings("ignore:not converged", "ignore::DeprecationWarning", "ignore::FutureWarning")


def estimator_modules():
    """Return the estimators, and scikit-learn's modules by name."""
    pytest.importorskip("skl2onnx")
    pytest.importorskip("onnxruntime")
    names = ("compose", "decomposition", "ensemble", "impute", "pipeline", "preprocessing")
    return pytest.importorskip("caffelite.sklearn"), {
        name: importlib.import_module(f"sklearn.{name}") for name in names
    }


def run_file(path, feeds):
    """Return what onnxruntime makes of a file, by the names of the outputs."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


@of_pipelines
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *[("MLPClassifier", target) for target in ("words", "two", "several")],
        *[("NetClassifier", "labels"), ("TableClassifier", "words"), ("TableClassifier", "two")],
        *[
            ("MLPRegressor", "value"),
            ("MLPRegressor", "values"),
            ("NetRegressor", "value"),
            ("TableRegressor", "value"),
        ],
    ],
)
def test_a_pipeline_of_scikit_learn_is_exported_with_its_steps(name, target, path):
    estimators, modules = estimator_modules()
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5)
    y = {
        "words": np.array(["red", "green", "blue"])[labels],
        "two": labels > 0,
        "several": (x[:, :3] > 0).astype(int),
        "labels": labels,
        "value": x[:, 0],
        "values": x[:, :2],
    }[target]
    options = {"M": {"hidden_layer_sizes": (8,), "max_iter": 20}, "T": {"n_estimators": 2}, "N": {}}[name[0]]
    build = [lambda n, outputs: cl.Model([cl.Linear(n, 8), cl.ReLU(), cl.Linear(8, outputs)])] * (name[0] == "N")
    steps = modules["preprocessing"].StandardScaler(), modules["decomposition"].PCA(4)
    last = getattr(estimators, name)(*build, random_state=0, **options)
    pipeline = modules["pipeline"].make_pipeline(*steps, last).fit(x, y)
    caffelite.onnx.export(pipeline, path)
    found = run_file(path, {"X": x})
    if hasattr(pipeline, "predict_proba"):
        np.testing.assert_array_equal(found["label"], pipeline.predict(x))
        np.testing.assert_allclose(found["probabilities"], pipeline.predict_proba(x), atol=1e-5)
    else:
        (values,) = found.values()
        np.testing.assert_allclose(values.reshape(y.shape), pipeline.predict(x), atol=1e-5)


@of_pipelines
def test_a_pipeline_of_frames_is_exported_with_an_example_of_its_rows(path):
    estimators, modules = estimator_modules()
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90), "w": rng.choice(["x", "y", "z"], 90)})
    frame.loc[3, "a"] = np.nan
    frame = frame.astype({"a": np.float32, "b": np.float32})  # onnxruntime imputes in float32 only
    y = (frame["w"] == "x") | (frame["b"] > 1)
    numbers = modules["pipeline"].make_pipeline(
        modules["impute"].SimpleImputer(), modules["preprocessing"].StandardScaler()
    )
    columns = modules["compose"].make_column_transformer(
        (numbers, ["a", "b"]), (modules["preprocessing"].OneHotEncoder(), ["w"]), sparse_threshold=0
    )
    pipeline = modules["pipeline"].make_pipeline(columns, estimators.MLPClassifier((8,), max_iter=20)).fit(frame, y)
    with pytest.raises(ValueError, match=r"the Pipeline takes a frame: give rows of one, example=X\[:1\]"):
        caffelite.onnx.export(pipeline, path)
    assert not path.exists()
    feeds = {name: frame[[name]].to_numpy(object if name == "w" else np.float32) for name in frame}
    pytest.importorskip("narwhals")
    table = pytest.importorskip("pyarrow").Table.from_pandas(frame)
    for example in (frame[:1], table.slice(0, 1), pytest.importorskip("polars").from_arrow(table)):
        caffelite.onnx.export(pipeline, path, example=example)
        np.testing.assert_allclose(run_file(path, feeds)["probabilities"], pipeline.predict_proba(frame), atol=1e-5)


@of_pipelines
def test_skl2onnx_knows_the_estimators_when_they_are_registered(path):
    estimators, modules = estimator_modules()
    skl2onnx = importlib.import_module("skl2onnx")
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    members = [(str(size), estimators.MLPClassifier((size,), max_iter=20)) for size in (3, 8)]
    vote = modules["ensemble"].VotingClassifier(members, voting="soft", flatten_transform=False).fit(x, x[:, 0] > 0)
    caffelite.onnx.register()
    for opset in (17, 21):
        path.write_bytes(
            skl2onnx.to_onnx(vote, x[:1], options={"zipmap": False}, target_opset=opset).SerializeToString()
        )
        found = run_file(path, {"X": x})
        np.testing.assert_allclose(found["probabilities"], vote.predict_proba(x), atol=1e-5)


@of_pipelines
def test_a_table_estimator_alone_takes_numbers_and_codes_and_has_its_labels(path):
    estimators, _ = estimator_modules()
    rng = np.random.default_rng(0)
    frame = {"a": rng.normal(size=90), "w": rng.choice(["x", "y"], 90)}
    y = np.where(frame["w"] == "x", "yes", "no")
    table = pytest.importorskip("pandas").DataFrame(frame)
    model = estimators.TableClassifier(n_estimators=2, random_state=0).fit(table, y)
    caffelite.onnx.export(model, path)
    numbers, codes = model.columns_.arrays(table)
    found = run_file(path, {"input_0": numbers.astype(np.float32), "input_1": codes})
    np.testing.assert_array_equal(found["label"], model.predict(table))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(table), atol=1e-5)


def test_without_skl2onnx_it_is_reported_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    pipeline = SimpleNamespace(named_steps={}, steps=[1, 2])
    with pytest.raises(ImportError, match=r"the export of a Pipeline needs skl2onnx: .* -m pip install skl2onnx"):
        caffelite.onnx.export(pipeline, tmp_path / "net.onnx")
