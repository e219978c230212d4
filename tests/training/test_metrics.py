"""Metrics, in `fit` and `evaluate`: row-weighted means by name."""

import itertools
import pickle
import tracemalloc
import warnings
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from caffelite.metrics import accuracy
from hypothesis import given

import caffelite as cl
from caffelite.training.metrics.base import METRICS, resolve_metrics
from caffelite.training.metrics.classification import find_threshold
from tests.conftest import classifier, train
from tests.functions.test_losses import DLPackArray

every_seed = given(seed=st.integers(0, 2**32))


class Rows(cl.Function):
    """A loss that is 0 everywhere, so that metrics can be looked at alone."""

    def forward(self, scores, targets):
        self.shape, self.dtype = scores.shape, scores.dtype
        return np.zeros((), scores.dtype)

    def backward(self, dy):
        return np.zeros(self.shape, self.dtype)


class Identity(cl.Function):
    def forward(self, x):
        return x

    def backward(self, dy):
        return dy


def evaluate(x, y, metrics, **options):
    return cl.Model([Identity()]).evaluate(x, y, loss=Rows(), metrics=metrics, **options)


def test_accuracy_is_the_share_of_rows_with_the_largest_output_at_the_label():
    outputs = np.array([[3, 1, 2], [0, 5, 9], [0, 0, 0], [-1, -2, -3]])
    assert accuracy(outputs, np.array([0, 1, 0, 2])) == 0.5
    assert accuracy(outputs, np.array([0, 2, 1, 0])) == 0.75  # among equals the first is the largest


@pytest.mark.parametrize("shape", [(4, 1), (3,), (), (5,)])
def test_accuracy_of_other_shapes_raises_value_error_naming_both(shape):
    with pytest.raises(ValueError, match=r"\(4, 3\)"):
        accuracy(np.zeros((4, 3)), np.zeros(shape, int))


def test_accuracy_by_name_counts_right_predictions():
    x, y = cl.datasets.spiral(points_per_class=11, seed=0)
    model = classifier(2, 8, 3)
    measured = model.evaluate(x, y, loss=cl.SoftmaxLoss(), metrics=["accuracy"], batch_size=7)
    assert measured["accuracy"] == pytest.approx((model.predict(x).argmax(axis=1) == y).mean(), rel=1e-12)
    assert list(measured) == ["loss", "accuracy"]


def test_a_callable_is_called_by_its_name_with_outputs_and_targets():
    def error(outputs, targets):
        assert type(outputs) is type(targets) is np.ndarray
        return np.abs(outputs - targets).mean()

    assert evaluate([[1.0], [2.0]], [[1.5], [3.0]], [error]) == {"loss": 0, "error": 0.75}


def test_a_callable_without_a_name_is_named_by_its_class():
    class Largest:
        def __call__(self, outputs, targets):
            return outputs.max()

    assert evaluate([[1.0], [2.0]], [0, 0], [Largest()])["Largest"] == 2


def test_a_short_last_batch_weighs_as_many_rows_as_it_has():
    def mean(outputs, targets):
        return outputs.mean()

    x = np.arange(10.0)[:, None]
    assert evaluate(x, x, [mean], batch_size=4)["mean"] == 4.5
    model = cl.Model([cl.Linear(1, 1, initializer=lambda shape, rng: np.ones(shape))])
    history = train(model, x, x, loss=Rows(), metrics=[mean], batch_size=4)
    assert history["mean"] == [4.5]


# ---- of whole epochs ------------------------------------------------------------------------------------------------


def softmax(scores):
    p = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def reference_metrics(outputs, targets, k):
    """Return the metrics of scores (n, C), two or more, by counting."""
    n, C = outputs.shape
    predicted = [max(range(C), key=lambda j: (row[j], -j)) for row in outputs]
    classes = [1] if C == 2 else sorted({*predicted, *targets.tolist()})
    precisions, recalls, f1s = [], [], []
    for c in classes:
        hits = sum(p == c == t for p, t in zip(predicted, targets, strict=True))
        of_predicted, of_targets = predicted.count(c), targets.tolist().count(c)
        precisions.append(hits / of_predicted if of_predicted else 0)
        recalls.append(hits / of_targets if of_targets else 0)
        f1s.append(2 * hits / max(of_predicted + of_targets, 1))
    p = softmax(outputs)
    areas, averages = [], []
    for c in [1] if C == 2 else range(C):
        precise = [np.mean(targets[p[:, c] >= p[i, c]] == c) for i in range(n) if targets[i] == c]
        averages.append(np.mean(precise) if precise else 0)
        order = [(p[i, c] > p[j, c]) + (p[i, c] == p[j, c]) / 2 for i in range(n) for j in range(n)
                 if targets[i] == c != targets[j]]  # fmt: skip
        areas.append(np.mean(order) if order else np.nan)
    ranks = [sorted(range(C), key=lambda j: (-row[j], -j)).index(t) for row, t in zip(outputs, targets, strict=True)]
    return {
        "precision": np.mean(precisions),
        "recall": np.mean(recalls),
        "f1": np.mean(f1s),
        "balanced_accuracy": np.mean([np.mean(np.equal(predicted, c)[targets == c]) for c in set(targets.tolist())]),
        "auc": np.mean(areas),
        "average_precision": np.mean(averages),
        "log_loss": -np.mean([np.log(p[i, t]) for i, t in enumerate(targets)]),
        f"top_k({k})": np.mean([rank < k for rank in ranks]),
    }


def random_classes(seed):
    """Scores, some of them equal, labels that need not have all classes, and a k."""
    rng = np.random.default_rng(seed)
    n, C = int(rng.integers(1, 30)), int(rng.integers(2, 6))
    scores = rng.normal(size=(n, C)).astype(rng.choice([np.float32, np.float64]))
    scores = scores.round(seed % 3)
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1):
        scores += 1  # which are not probabilities by chance
    return scores, rng.integers(0, C, size=n), int(rng.integers(1, C + 1))


@every_seed
def test_metrics_of_classes_are_what_counting_gives_for_random_shapes(seed):
    outputs, targets, k = random_classes(seed)
    for name, expected in reference_metrics(outputs, targets, k).items():
        metric = resolve_metrics([name])[name]
        for labels in (targets, targets.astype(np.uint8), targets.astype(np.float32)):
            assert metric(outputs, labels) == pytest.approx(expected, rel=1e-12, nan_ok=True), name


def average_precision_of_all_classes(targets, p):
    """scikit-learn's, where some classes may have no rows."""
    from sklearn.metrics import average_precision_score
    from sklearn.preprocessing import label_binarize

    if p.ndim == 1 or p.shape[1] == 2:
        return average_precision_score(targets == 1, p if p.ndim == 1 else p[:, 1])
    return average_precision_score(label_binarize(targets, classes=range(p.shape[1])), p)


@every_seed
def test_metrics_of_several_labels_a_row_are_scikit_learns_for_random_shapes(seed):
    judge = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    n, C = int(rng.integers(2, 30)), int(rng.integers(2, 6))
    scores = rng.normal(size=(n, C)).astype(rng.choice([np.float32, np.float64])).round(seed % 3)
    targets = (rng.random((n, C)) < rng.choice([0.02, 0.3, 0.5, 0.95], C)).astype(rng.choice([np.int64, np.float32]))
    link, ones = cl.SigmoidLoss().link, targets.astype(int)
    p = 1 / (1 + np.exp(-scores.astype(np.float64)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that no row has
        expected = {name: getattr(judge, f"{name}_score")(ones, scores > 0) for name in ("accuracy",)}
        for name in ("precision", "recall", "f1"):
            expected[name] = getattr(judge, f"{name}_score")(ones, scores > 0, average="macro")
        expected["average_precision"] = judge.average_precision_score(ones, p)
        expected["auc"] = np.nan
        if (ones.sum(axis=0) > 0).all() and (ones.sum(axis=0) < n).all():
            expected["auc"] = judge.roc_auc_score(ones, p)
    for name, value in expected.items():
        metric = getattr(cl.metrics, name)
        assert metric.compute(0.0, scores, targets, link) == pytest.approx(value, rel=1e-9, nan_ok=True), name


@every_seed
def test_metrics_of_classes_are_scikit_learns_for_random_shapes(seed):
    judge = pytest.importorskip("sklearn.metrics")
    outputs, targets, k = random_classes(seed)
    C = outputs.shape[1]
    average, one = {} if C == 2 else {"average": "macro"}, outputs[:, 0]
    p, guesses = softmax(outputs), outputs.argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without rows
        for name in ("precision", "recall", "f1"):
            metric, its = getattr(cl.metrics, name), getattr(judge, f"{name}_score")
            assert metric(outputs, targets) == pytest.approx(its(targets, outputs.argmax(axis=1), **average), rel=1e-12)
            for scores, labels in ((one, targets > 0), (one[:, None], (targets > 0)[:, None])):
                expected = its(targets > 0, one > 0)
                assert metric.compute(0.0, scores, labels) == pytest.approx(expected, rel=1e-12)
        for name, its in (("balanced_accuracy", "balanced_accuracy_score"), ("matthews", "matthews_corrcoef")):
            metric, its = getattr(cl.metrics, name), getattr(judge, its)
            assert metric(outputs, targets) == pytest.approx(its(targets, guesses), rel=1e-9, abs=1e-12)
            expected = its(targets > 0, one > 0)
            assert metric.compute(0.0, one, targets > 0) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        of_one = 1 / (1 + np.exp(-one.astype(np.float64)))
        for metric, its, options in (
            (cl.metrics.log_loss, judge.log_loss, {"labels": range(C)}),
            (cl.metrics.average_precision, average_precision_of_all_classes, {}),
        ):
            for given in (outputs, p):
                assert metric(given, targets) == pytest.approx(its(targets, p, **options), rel=1e-9)
            of_two = {"labels": [False, True]} if options else {}
            for link, given in ((cl.SigmoidLoss().link, one), (None, of_one), (cl.MSELoss().link, of_one[:, None])):
                expected = its(targets > 0, of_one, **of_two)
                assert metric.compute(0.0, given, targets > 0, link) == pytest.approx(expected, rel=1e-9)
        if C > 2:
            expected = judge.top_k_accuracy_score(targets, outputs, k=k, labels=range(C))
            assert cl.metrics.top_k(k)(outputs, targets) == pytest.approx(expected, rel=1e-12)
        assert accuracy.compute(0.0, one, targets > 0) == judge.accuracy_score(targets > 0, one > 0)
        if len(set(targets.tolist())) == C:
            expected = judge.roc_auc_score(targets, p[:, 1] if C == 2 else p, multi_class="ovr")
            assert cl.metrics.auc(outputs, targets) == pytest.approx(expected, rel=1e-12)
            assert cl.metrics.auc(p, targets) == pytest.approx(expected, rel=1e-12)  # probabilities already


@every_seed
def test_metrics_of_values_are_their_formulas_and_scikit_learns_for_random_shapes(seed):
    rng = np.random.default_rng(seed)
    n, columns = int(rng.integers(2, 30)), int(rng.integers(1, 4))
    outputs, targets = rng.normal(size=(2, n, columns)).astype(rng.choice([np.float32, np.float64]))
    if seed % 3 == 0:
        targets[:, 0] = 2  # a column of one value
    if seed % 6 == 0:
        outputs[:, 0] = 2
    a, b = outputs.astype(np.float64), targets.astype(np.float64)
    shares = []
    for j in range(columns):
        residual, total = ((a[:, j] - b[:, j]) ** 2).sum(), ((b[:, j] - b[:, j].mean()) ** 2).sum()
        shares.append(1 - residual / total if total else float(residual == 0))
    expected = {
        "mse": ((a - b) ** 2).mean(),
        "mae": np.abs(a - b).mean(),
        "mape": (np.abs(a - b) / np.abs(b)).mean(),
        "rmse": np.sqrt(((a - b) ** 2).mean(axis=0)).mean(),
        "r2": np.mean(shares),
    }
    for name, value in expected.items():
        assert getattr(cl.metrics, name)(outputs, targets) == pytest.approx(value, rel=1e-12), name
    judge = pytest.importorskip("sklearn.metrics")
    names = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "rmse": "root_mean_squared_error"}
    names["mape"] = "mean_absolute_percentage_error"
    for name, value in expected.items():
        assert getattr(judge, names.get(name, f"{name}_score"))(b, a) == pytest.approx(value, rel=1e-9), name


def test_one_value_a_row_may_be_a_vector_or_a_column():
    a, b = np.arange(5.0), np.arange(5.0) ** 2
    for name in ("mse", "mae", "mape", "rmse", "r2"):
        metric = getattr(cl.metrics, name)
        assert metric(a, b) == metric(a[:, None], b) == metric(a, b[:, None]) == metric(a[:, None], b[:, None])


def test_a_metric_without_a_value_is_nan():
    assert np.isnan(cl.metrics.auc(np.array([0.5, 1]), np.array([1, 1])))
    assert np.isnan(cl.metrics.auc(np.array([0.5, np.nan]), np.array([0, 1])))
    assert np.isnan(cl.metrics.r2(np.array([0.5]), np.array([1.0])))


ONE_SCORE = ["accuracy", "precision", "recall", "f1", "balanced_accuracy", "matthews", "auc", "average_precision"]


@pytest.mark.parametrize("name", [*METRICS, "top_k(1)"])
def test_a_metric_of_nan_is_nan(name):
    metric = resolve_metrics([name])[name]
    of_values = name in ("mse", "mae", "mape", "rmse", "r2")
    given = [(np.array([[np.nan], [1.0], [2.0]]), np.array([[5.0], [5], [5]]))]  # also constant targets
    if of_values:
        given += [(np.array([1.0, 2, 3]), np.array([1.0, np.nan, 3])), (np.array([np.nan, 1]), np.array([0.0, 1]))]
    else:
        given = [(np.array([[np.nan, 0], [1, 0], [0, 1]]), np.array([0, 0, 1]))]
        given += [(np.array([np.nan, -1, 1]), np.array([0, 0, 1]))] * (name in ONE_SCORE)
    for outputs, targets in given:
        assert np.isnan(metric(outputs, targets))
        assert np.isnan(evaluate(outputs, targets, [name])[name])


@pytest.mark.parametrize("name", ["auc", "average_precision", "log_loss"])
def test_a_metric_of_probabilities_of_infinite_scores_is_not_a_number(name):
    metric = getattr(cl.metrics, name)
    for scores in ([[np.inf, 0], [0, 1]], [[np.inf, 0, 0], [0, 1, 0]], [[-np.inf] * 3, [0, 1, 0]]):
        assert np.isnan(metric(np.array(scores), np.array([0, 1])))


def test_r2_of_an_infinite_value_is_not_a_number_that_means_something():
    assert np.isnan(cl.metrics.r2(np.array([1.0, 2, 3]), np.array([1.0, np.inf, 3])))
    assert cl.metrics.r2(np.array([1.0, np.inf, 3]), np.array([1.0, 2, 3])) == -np.inf


def test_metrics_of_many_classes_take_memory_for_rows_not_for_rows_times_classes():
    labels = np.arange(5000) % 1000
    outputs = np.zeros((5000, 1000), np.float32)
    outputs[np.arange(5000), labels] = 1
    for name in ("precision", "recall", "f1", "balanced_accuracy", "matthews"):
        tracemalloc.start()
        try:
            assert getattr(cl.metrics, name)(outputs, labels) == 1
            assert tracemalloc.get_traced_memory()[1] < 200 * len(labels)
        finally:
            tracemalloc.stop()


# ---- what one score a row means -------------------------------------------------------------------------------------


class BinaryCrossEntropy(cl.Function):
    """A user's loss of probabilities."""

    def forward(self, p, t):
        self.p, self.t = p, t.reshape(p.shape)
        return -np.mean(np.where(self.t == 1, np.log(p), np.log(1 - p)), dtype=p.dtype)

    def backward(self, dy):
        return dy * np.where(self.t == 1, -1 / self.p, 1 / (1 - self.p)).astype(self.p.dtype) / len(self.p)


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_of_labels_take_the_most_probable_class_of_probabilities(batches, dtype):
    rng, names = np.random.default_rng(0), ["accuracy", "f1", "auc", "top_k(2)"]
    x, labels = rng.normal(size=(60, 4)), rng.integers(4, size=60)
    y = 0.6 * np.eye(4)[labels] + 0.1
    expected = cl.Model([Identity()], dtype=dtype).evaluate(x, labels, loss=cl.SoftmaxLoss(), metrics=names)
    model = cl.Model([cl.Linear(4, 4, bias=False, initializer=lambda shape, rng: np.eye(4))], dtype=dtype)
    for loss in (cl.SoftmaxLoss(), cl.Penalized(cl.SoftmaxLoss(), [cl.Tensor(np.ones(1, dtype))])):
        given = ([(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)],) if batches else (x, y)
        found = model.evaluate(*given, loss=loss, metrics=[*names, rows_and_columns])
        history = train(model, *given, loss=loss, lr=1e-12, metrics=names, validation_data=(x, y))
        for name in names:
            assert found[name] == history[name][0] == history[f"val_{name}"][0] == pytest.approx(expected[name])
        assert found["rows_and_columns"] == 604


def rows_and_columns(outputs, targets):
    """Check that a user's metric gets the probabilities."""
    return 10 * targets.shape[0] + targets.shape[1]


SCORES = np.array([[-2.0], [-1], [0.5], [3], [1], [-0.5], [0.25], [-3]])
ONES = (SCORES[:, 0] > 0).astype(int)
ONES[:2] = 1  # two mistakes


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("loss", [cl.MSELoss, cl.MAELoss, BinaryCrossEntropy])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.filterwarnings("ignore:metrics. all outputs")
def test_class_1_of_probabilities_is_more_than_a_half(loss, kind, batches):
    y = ONES.astype(kind)[:, None]
    expected = {name: resolve_metrics([name])[name](SCORES, ONES) for name in ONE_SCORE}
    x = ([(SCORES[i : i + 1], y[i : i + 1]) for i in range(8)],) if batches else (SCORES, y)
    found = cl.Model([cl.Sigmoid()]).evaluate(*x, loss=loss(), metrics=ONE_SCORE)
    assert {name: found[name] for name in ONE_SCORE} == pytest.approx(expected, rel=1e-12)
    model = cl.Model([cl.Linear(1, 1, initializer=lambda shape, rng: np.ones(shape)), cl.Sigmoid()])
    history = train(model, *x, loss=loss(), lr=1e-9, metrics=ONE_SCORE, validation_data=(SCORES, y))
    for name, value in expected.items():
        assert history[name] == pytest.approx([value], rel=1e-12)
        assert history[f"val_{name}"] == pytest.approx([value], rel=1e-12)


def test_class_1_is_a_score_whose_link_gives_more_than_a_half():
    class ShiftedLoss(cl.MSELoss):
        def link(self, scores):
            return 1 / (1 + np.exp(-3 * (scores - 0.4)))

    expected = np.mean((SCORES[:, 0] > 0.4) == ONES)
    found = cl.Model([Identity()]).evaluate(SCORES, ONES[:, None], loss=ShiftedLoss(), metrics=["accuracy"])
    assert found["accuracy"] == expected


def test_a_loss_says_where_class_1_begins_by_its_threshold_or_its_link():
    class Half(cl.SigmoidLoss):
        threshold = 0.5

    class LinkedLoss(Half):
        def link(self, scores):
            return scores / 2

    own = LinkedLoss()
    own.threshold = 3.0
    for loss, threshold in (
        (cl.SigmoidLoss(), 0),
        (cl.MSELoss(), 0.5),
        (cl.PoissonLoss(), np.log(0.5)),
        (cl.SoftmaxLoss(), None),
        (Half(), 0.5),
        (own, 3.0),
        (Rows(), None),
    ):
        assert find_threshold(loss) == find_threshold(cl.Penalized(loss, [cl.Tensor([1.0])])) == (None, threshold)
    linked = LinkedLoss()
    assert find_threshold(linked) == find_threshold(cl.Penalized(linked, [cl.Tensor([1.0])])) == (linked.link, 0.5)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_of_a_loss_with_a_link_of_its_own_are_of_its_probabilities(several, dtype):
    class Halves(cl.SigmoidLoss):
        def link(self, scores):
            return super().link(scores / 2 - 1)

    names = ["accuracy", "precision", "recall", "f1"]
    scores = np.hstack([SCORES, 4 - SCORES]) if several else SCORES
    y = np.stack([ONES, 1 - ONES], axis=1)[:, : scores.shape[1]]
    expected = [METRICS[name].compute(2.0, scores, y) for name in names]
    model = cl.Model([Identity()], dtype=dtype)
    for batch_size in (3, 8):
        found = model.evaluate(scores, y, loss=Halves(), metrics=names, batch_size=batch_size)
        assert [found[name] for name in names] == pytest.approx(expected)
    eye = np.eye(scores.shape[1])
    model = cl.Model([cl.Linear(*eye.shape, bias=False, initializer=lambda shape, rng: eye)], dtype=dtype)
    history = train(model, scores, y, loss=Halves(), lr=1e-9, metrics=names, batch_size=3, epochs=3)
    assert [history[name] for name in names] == [pytest.approx([value] * 3) for value in expected]


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_pickled_by_its_name(name):
    assert pickle.loads(pickle.dumps(METRICS[name])) is getattr(cl.metrics, name)


@pytest.mark.parametrize("name", ["accuracy", "precision", "recall", "f1"])
def test_outputs_are_taken_for_probabilities_with_one_warning(name):
    model = cl.Model([cl.Linear(1, 1), cl.Sigmoid()], seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, SCORES, ONES[:, None], loss=BinaryCrossEntropy(), lr=1e-3, metrics=[name], epochs=3)
    (warning,) = [w for w in caught if w.category is cl.TrainingWarning]
    assert "count as probabilities" in str(warning.message)
    with pytest.warns(cl.TrainingWarning, match="count as probabilities"):
        getattr(cl.metrics, name)(np.array([0.2, 0.7]), np.array([0, 1]))


def test_scores_outside_0_and_1_or_of_no_consequence_give_no_warning():
    for scores in ([0.2, 0.7, 1.5], [0.2, 0.7, -0.1], [0, 1, 0], [0.6, 0.0, 0.7]):
        x, y = np.array(scores)[:, None], np.array([1, 1, 0])
        expected = pytest.approx(np.mean((np.array(scores) > 0) == y))
        assert accuracy(x, y) == expected
        assert evaluate(x, y[:, None], ["accuracy", "f1"], batch_size=1)["accuracy"] == expected


# ---- of one's own ---------------------------------------------------------------------------------------------------


class Read:
    """Rows that are read from somewhere."""

    def __init__(self, rows):
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __getitem__(self, key):
        return self.rows[key]


@pytest.mark.parametrize("given", ["arrays", "batches", "buffers"])
def test_a_metric_of_ones_own_is_of_all_rows_of_the_epoch(given):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    seen = []

    def median(outputs, targets):
        seen.append((outputs, targets))
        return np.median(outputs[:, 0]) * (targets.max() + 1)

    model = classifier(2, 3)
    batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 60, 7)]
    data = {"arrays": (x, y), "batches": (batches,), "buffers": (Read(x), y)}[given]
    size = None if given == "batches" else 7
    history = train(model, *data, lr=1e-12, epochs=2, batch_size=size, metrics=[median], validation_data=(x, y))
    assert [len(targets) for _, targets in seen] == [60] * 4
    expected = np.median(model.predict(x)[:, 0]) * 3
    for values in (history["median"], history["val_median"]):
        assert values == pytest.approx([expected] * 2, rel=1e-5)
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations([o for o, _ in seen], 2))


def test_a_metric_may_write_to_what_it_gets():
    def spoils(outputs, targets):
        outputs[...] = targets[...] = 0
        return 0

    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model, other = classifier(2, 3), classifier(2, 3)
    histories = [train(model, x, y, metrics=["f1"]), train(other, x, y, metrics=[spoils, "f1"])]
    assert histories[0]["f1"] == histories[1]["f1"]


def test_a_metric_of_ones_own_gets_targets_as_they_were_given():
    def shapes(outputs, targets):
        seen.append((outputs.shape, targets.shape))
        return 0

    seen = []
    model = cl.Model([cl.Linear(1, 1)])
    for targets in (np.zeros(4), np.zeros((4, 1))):
        model.evaluate(np.zeros((4, 1)), targets, loss=cl.MSELoss(), metrics=[shapes])
    cl.Model([cl.Linear(1, 4)]).evaluate(np.zeros((4, 1)), np.zeros(4, int), loss=cl.SoftmaxLoss(), metrics=[shapes])
    assert seen == [((4, 1), (4,)), ((4, 1), (4, 1)), ((4, 4), (4,))]


def test_a_metric_of_ones_own_that_broadcasts_a_column_with_a_vector_warns():
    def mse(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    def right(outputs, targets):
        difference = outputs[:, 0] - targets
        difference *= difference
        return np.mean(difference)

    model, targets = cl.Model([cl.Linear(1, 1)], seed=0), np.arange(4.0)
    x = np.array([[0.0], [1.0], [2.0], [4.0]])
    with pytest.warns(cl.TrainingWarning, match=r"\(n, 1\) with \(n,\).*o\[:, 0\] - y"):
        result = model.evaluate(x, targets, loss=cl.MSELoss(), metrics=[mse])
    assert result["mse"] == pytest.approx(np.mean((model.predict(x) - targets) ** 2))
    result = model.evaluate(x, targets, loss=cl.MSELoss(), metrics=[right])
    assert result["right"] == pytest.approx(result["loss"])


def test_metrics_take_arrays_of_other_libraries():
    outputs, targets = np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])
    assert accuracy(DLPackArray(outputs), DLPackArray(targets)) == 0.5


@pytest.mark.parametrize("value", [None, "0.5", [1, 2], np.zeros(2), 1j, {}])
def test_a_metric_that_gives_no_number_is_an_error_that_names_it(value):
    def mine(outputs, targets):
        return value

    with pytest.raises(TypeError, match=r"the metric mine returned .*; expected a number"):
        train(classifier(2, 3), *cl.datasets.spiral(points_per_class=5), metrics=[mine])


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.array(1), np.array([1.0]), Fraction(1)])
def test_a_metric_gives_any_kind_of_number(value):
    assert evaluate([[1.0]], [[1.0]], [cl.metrics.metric(lambda outputs, targets: value, "mine")])["mine"] == 1


def test_a_metric_of_batches_whose_rows_differ_is_an_error_that_reports_it():
    def mine(outputs, targets):
        return 0.0

    batches = [(np.zeros((2, k, 3)), np.zeros((2, k), int)) for k in (4, 5)]
    model = cl.Model([cl.Linear(3, 3)], seed=0)
    message = r"mine: metrics of the whole epoch .* shape \(n, 5, 3\) and \(n, 5\), the first one of shape \(n, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        train(model, batches, metrics=[mine])
    train(model, batches, metrics=["accuracy"])  # is counted batch by batch


def test_a_metric_of_outputs_that_are_not_rows_raises_before_the_first_step():
    class Mean(cl.Function):
        def forward(self, x):
            return x.mean(axis=0, keepdims=True)

        def backward(self, dy):
            raise AssertionError

    def mine(outputs, targets):
        return 0.0

    with pytest.raises(ValueError, match=r"the metric mine needs an output for each row.* \(1, 3\) for 4 rows"):
        cl.Model([Mean()]).evaluate(np.zeros((4, 3)), np.zeros((4, 3)), loss=Rows(), metrics=[mine])


def test_a_metric_has_the_name_and_the_mode_it_is_given():
    def mine(outputs, targets):
        """Mine."""
        return 2.0

    resolve_metrics = cl.metrics.metric(mine, mode="max")
    assert (resolve_metrics.__name__, resolve_metrics.__doc__, resolve_metrics.mode, resolve_metrics(1, 2)) == (
        "mine",
        "Mine.",
        "max",
        2.0,
    )
    assert evaluate([[1.0]], [[1.0]], [cl.metrics.metric(mine, name="yours")]) == {"loss": 0, "yours": 2.0}
    for wrong, error in (({"mode": "up"}, ValueError), ({"name": 3}, TypeError), ({"f": 3}, TypeError)):
        with pytest.raises(error, match="metric: expected"):
            cl.metrics.metric(**{"f": mine, **wrong})


@pytest.mark.parametrize("metrics", [None, 3])
def test_metrics_other_than_a_list_raise_and_say_what_is_expected(metrics):
    with pytest.raises(TypeError, match=r"metrics: expected a list such as \['accuracy'\], got"):
        evaluate([[1.0]], [[1.0]], metrics)


@pytest.mark.parametrize("name", [*METRICS, "top_k(2)"])
def test_metrics_of_other_shapes_raise_value_error_naming_both(name):
    metric = resolve_metrics([name])[name]
    for targets in (np.zeros((4, 2), int), np.zeros(3, int), np.zeros((), int)):
        with pytest.raises(ValueError, match=rf"{name.split('(')[0]}.*\(4, 3\)"):
            metric(np.zeros((4, 3)), targets)


TWO_LABELS = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
OF_TWO_LABELS = np.array([[2.0, -1], [1, -3], [-2, -1], [-1, 0.25]], np.float32)
SEVERAL = ["accuracy", "precision", "recall", "f1", "auc", "average_precision"]


@pytest.mark.parametrize("kind", [int, float, bool])
def test_metrics_of_several_labels_a_row_are_in_the_history(kind):
    expected = [0.75, 1.0, 0.75, (1 + 2 / 3) / 2, (1 + 2 / 4) / 2, (1 + (1 + 2 / 4) / 2) / 2]
    y = TWO_LABELS.astype(kind)
    found = cl.Model([Identity()]).evaluate(OF_TWO_LABELS, y, loss=cl.SigmoidLoss(), metrics=SEVERAL, batch_size=3)
    assert [found[name] for name in SEVERAL] == pytest.approx(expected)
    model = cl.Model([cl.Linear(2, 2, initializer=lambda shape, rng: np.eye(2))])
    history = train(model, OF_TWO_LABELS, y, loss=cl.SigmoidLoss(), lr=1e-9, metrics=SEVERAL, batch_size=3, epochs=2)
    for name, value in zip(SEVERAL, expected, strict=True):
        assert history[name] == pytest.approx([value] * 2)


@pytest.mark.parametrize("name", [*SEVERAL, "log_loss", "balanced_accuracy", "matthews"])
def test_one_hot_targets_of_a_softmax_loss_are_one_label_per_row(name):
    labels, model = np.array([0, 1, 1, 0]), cl.Model([Identity()])
    found, expected = [
        model.evaluate(OF_TWO_LABELS, y, loss=cl.SoftmaxLoss(), metrics=[name])[name]
        for y in (np.eye(2, dtype=np.float32)[labels], labels)
    ]
    assert found == expected


@pytest.mark.parametrize("name", ["log_loss", "balanced_accuracy", "matthews"])
def test_metrics_of_one_label_a_row_refuse_several(name):
    with pytest.raises(ValueError, match=rf"{name} got outputs of shape \(4, 2\) and targets of shape \(4, 2\)"):
        cl.Model([Identity()]).evaluate(OF_TWO_LABELS, TWO_LABELS, loss=cl.SigmoidLoss(), metrics=[name])


def test_labels_that_are_neither_0_nor_1_raise_value_error_naming_the_row():
    for name in SEVERAL[1:]:
        with pytest.raises(ValueError, match=r"0\.5 in row 2"):
            getattr(cl.metrics, name)(OF_TWO_LABELS, np.where(np.arange(4)[:, None] == 2, 0.5, TWO_LABELS))


def test_metrics_of_probabilities_are_of_the_link_of_the_loss():
    class DoubledLoss(cl.SigmoidLoss):
        def link(self, scores):
            return super().link(2 * scores)

    scores, y = SCORES, ONES
    p = 1 / (1 + np.exp(-2 * scores[:, 0]))
    expected = -np.mean(np.log(np.where(y == 1, p, 1 - p)))
    for loss in (DoubledLoss(), cl.Penalized(DoubledLoss(), [cl.Tensor(np.ones(1))])):
        model = cl.Model([Identity()], dtype=np.float64)
        found = model.evaluate(scores, y[:, None], loss=loss, metrics=["log_loss", "auc"])
        assert found["log_loss"] == pytest.approx(expected, rel=1e-12)
        assert found["auc"] == cl.metrics.auc(scores, y)
    model = cl.Model([Identity()], dtype=np.float64)
    scores, y = np.array([[1.0, 2, 0], [3, 1, 1], [0, 0, 1]]), np.array([1, 0, 0])
    found = model.evaluate(scores, y, loss=cl.SoftmaxLoss(), metrics=["log_loss"])
    assert found["log_loss"] == pytest.approx(found["loss"], rel=1e-12)


def test_a_log_loss_of_a_label_without_a_probability_is_an_error_that_names_the_row():
    for outputs, classes in ((np.zeros((3, 3)), 2), (np.zeros((3, 1)), 1), (np.zeros(3), 1)):
        for bad in (-1, classes + 1):
            with pytest.raises(ValueError, match=rf"label {bad} in row 1 is not one of the classes 0 … {classes}"):
                cl.metrics.log_loss(outputs, np.array([0, bad, 1]))
    assert cl.metrics.log_loss(np.array([0.0, 1.0]), np.array([0, 1])) == pytest.approx(0, abs=1e-15)
    assert cl.metrics.log_loss(np.array([1.0, 0.0]), np.array([0, 1])) == pytest.approx(52 * np.log(2))


def test_fractions_as_labels_raise_value_error_naming_the_row():
    with pytest.raises(ValueError, match=r"0\.5 in row 2"):
        cl.metrics.f1(np.zeros((4, 3)), np.array([0, 1, 0.5, 2]))


def test_a_top_k_has_its_name_and_a_k():
    assert cl.metrics.top_k(3).__name__ == "top_k(3)"
    for k, error in ((0, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError)):
        with pytest.raises(error):
            cl.metrics.top_k(k)


def test_accuracy_of_one_score_a_row_is_counted_by_a_kernel_too():
    x, y = np.array([[1.0], [-1], [0], [2], [3]]), np.array([1, 0, 1, 0, 1])
    for outputs, labels in ((x, y), (x, y[:, None]), (x[:, 0], y), (x, y.astype(float)), (x, y > 0)):
        assert evaluate(outputs, labels, ["accuracy"], batch_size=2)["accuracy"] == pytest.approx(0.6)
        assert accuracy(outputs, labels) == 0.6


def test_metrics_of_an_epoch_are_measured_while_it_runs():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    seen = []

    def rows(outputs, targets):
        seen.append(len(targets))
        return 1

    history = train(classifier(2, 3), x, y, metrics=["accuracy", rows], epochs=2, batch_size=25)
    assert seen == [60] * 2
    assert history["rows"] == [1, 1]
    assert len(history["accuracy"]) == 2


@pytest.mark.parametrize("metrics", ["accuracy", accuracy, [3], [None], 5])
def test_metrics_other_than_names_and_callables_raise_type_error(metrics):
    x, y = cl.datasets.spiral(points_per_class=5)
    with pytest.raises(TypeError):
        train(classifier(2, 3), x, y, metrics=metrics)
    with pytest.raises(TypeError):
        classifier(2, 3).evaluate(x, y, loss=cl.SoftmaxLoss(), metrics=metrics)


def loss(outputs, targets):
    return 0.0


@pytest.mark.parametrize(
    "metrics", [["precise"], ["top_k(0)"], ["top_k"], ["accuracy", "accuracy"], ["accuracy", accuracy], [loss]]
)
def test_an_unknown_name_or_one_that_is_taken_raises_value_error(metrics):
    x, y = cl.datasets.spiral(points_per_class=5)
    with pytest.raises(ValueError, match="metrics"):
        train(classifier(2, 3), x, y, metrics=metrics)


def test_an_exception_in_a_metric_comes_through():
    def fail(outputs, targets):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(classifier(2, 3), *cl.datasets.spiral(points_per_class=5), metrics=[fail])


@pytest.mark.parametrize("ignore", [None, -1])
def test_metrics_of_labels_in_sequences_cover_all_labels_that_count(ignore):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4, 3)).astype(np.float32), rng.integers(0, 3, (30, 4))
    if ignore is not None:
        y[rng.random(y.shape) < 0.3] = ignore
    names = ["accuracy", "top_k(2)", "precision", "recall", "f1", "auc"]
    for metrics in (names, ["accuracy"]):
        found = cl.Model([cl.Reshape((4, 3))]).evaluate(
            x, y, loss=cl.SoftmaxLoss(ignore=ignore), metrics=metrics, batch_size=7
        )
        for name, metric in resolve_metrics(metrics).items():
            assert found[name] == pytest.approx(metric(x[y != ignore], y[y != ignore]), rel=1e-12), name
            if ignore is None:
                assert metric(x, y) == found[name]
    model = cl.Model([cl.Linear(3, 3)], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=1e-300)
    loss = cl.SoftmaxLoss(ignore=ignore)
    history = model.fit(x, y, loss=loss, optimizer=optimizer, metrics=["accuracy"], batch_size=8, verbose=0)
    right = (model.predict(x).argmax(axis=2) == y)[y != ignore]
    assert history["accuracy"] == [pytest.approx(right.mean(), rel=1e-12)]
    assert history["loss"] == [pytest.approx(loss.forward(model.predict(x), y).item(), rel=1e-6)]
