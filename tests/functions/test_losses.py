"""Losses: what their cases do not say."""

import copy
import math

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests import reference
from tests.cases import both_dtypes
from tests.conftest import train
from tests.reference import assert_close, assert_same_bits


@both_dtypes
@pytest.mark.parametrize("scores", [[3e38, -3e38], [-3e38, 3e38], [3e38, 3e38], [-3e38, -3e38], [1000, 0], [0, 1000]])
def test_scores_at_the_end_of_float32_have_a_finite_loss_and_gradient(scores, dtype):
    loss = cl.SoftmaxLoss()
    value = loss.forward(np.array([scores] * 100, dtype), np.array([0, 1] * 50))
    assert np.isfinite(value)
    assert value >= 0
    assert np.isfinite(loss.backward()).all()
    np.testing.assert_allclose(loss.probabilities.sum(axis=1), 1)


@both_dtypes
def test_a_softmax_loss_of_not_a_number_is_not_a_number(dtype):
    for scores, label in [
        ([0, np.nan], 0),
        ([np.nan, 0], 1),
        ([np.nan, np.nan], 0),
        ([np.inf, 0], 0),
        ([np.inf, np.inf], 1),
        ([-np.inf, -np.inf], 0),
    ]:
        loss = cl.SoftmaxLoss()
        assert np.isnan(loss.forward(np.array([scores], dtype), np.array([label])))
        assert np.isnan(loss.backward()).any()


@both_dtypes
def test_a_score_of_minus_infinity_is_a_class_of_probability_0(dtype):
    scores = np.array([[0.0, -np.inf, 0.0]], dtype)
    loss = cl.SoftmaxLoss()
    assert loss.forward(scores, np.array([0])) == pytest.approx(math.log(2))
    assert loss.probabilities.tolist() == [[0.5, 0.0, 0.5]]
    assert loss.forward(scores, np.array([1])) == np.inf
    assert loss.backward().tolist() == [[0.5, -1.0, 0.5]]


SCORES = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0], [0.2, 0.1, 0.0], [3.0, 1.0, 2.0]], np.float32)

BAD_LABELS = {
    "negative": ([0, -1, 2, -5], ValueError, 1),
    "too large": ([0, 1, 3, 9], ValueError, 2),
    "the smallest int64": (np.array([0, 1, 2, -(2**63)]), ValueError, 3),
    "beyond int64, unsigned": (np.array([0, 2**63, 1, 2], np.uint64), ValueError, 1),
    "all bits set, unsigned": (np.array([2**64 - 1, 0, 1, 2], np.uint64), ValueError, 0),
    "beyond int64, in a list": ([0, 1, 2**63, 2], (TypeError, ValueError), 2),
    "beyond uint64, in a list": ([0, 1, 2, 2**70], (TypeError, ValueError), 3),
    "float": ([0.0, 1.0, 2.0, 0.0], TypeError, 0),
    "fractions": ([0.5, 1.0, 2.0, 0.0], TypeError, 0),
    "nan": ([np.nan, 1, 2, 0], (TypeError, ValueError), 0),
    "bool": ([True, False, True, False], TypeError, 0),
    "string": (["0", "1", "2", "0"], TypeError, 0),
    "bytes": ([b"0", b"1", b"2", b"0"], TypeError, 0),
    "object": (np.array([0, 1, None, 2], object), TypeError, 2),
    "complex": ([0j, 1, 2, 0], TypeError, 0),
    "timedelta": (np.array([0, 1, 2, 0], "m8[s]"), TypeError, 0),
}

BAD_SHAPES = {
    "2-d": [[0, 1, 2, 0]],
    "a column": [[0], [1], [2], [0]],
    "too short": [0, 1, 2],
    "too long": [0, 1, 2, 0, 1],
    "empty": np.array([], np.int64),
    "0-d": np.int64(1),
}


@pytest.mark.parametrize("labels", BAD_LABELS)
def test_bad_labels_raise_with_the_first_bad_row_and_the_allowed_range(labels):
    targets, error, row = BAD_LABELS[labels]
    for method in (cl.SoftmaxLoss().forward, lambda scores, y: cl.SoftmaxLoss().check_targets(y, scores.shape)):
        with pytest.raises(error, match=rf"row {row}\b") as raised:
            method(SCORES, targets)
        assert "0 … 2" in str(raised.value)


@pytest.mark.parametrize("labels", BAD_SHAPES)
def test_labels_of_another_shape_raise_with_both_shapes(labels):
    targets = BAD_SHAPES[labels]
    with pytest.raises(ValueError, match="SoftmaxLoss") as raised:
        cl.SoftmaxLoss().forward(SCORES, targets)
    assert str(np.shape(targets)) in str(raised.value)
    assert str(SCORES.shape) in str(raised.value)


def test_an_empty_list_of_labels_raises():
    with pytest.raises((TypeError, ValueError), match="0 … 2"):
        cl.SoftmaxLoss().forward(SCORES, [])


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2), (), (0, 3)])
def test_scores_other_than_a_matrix_of_rows_raise(shape):
    with pytest.raises(ValueError, match=r"SoftmaxLoss|softmax_loss"):
        cl.SoftmaxLoss().forward(np.zeros(shape, np.float32), np.zeros(shape[:1], np.int64))


def test_backward_needs_a_forward_that_succeeded():
    loss = cl.SoftmaxLoss()
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(ValueError, match="row 3"):
        loss.forward(SCORES, [0, 1, 2, 3])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    loss.forward(SCORES, [0, 1, 2, 0])
    with pytest.raises(TypeError):
        loss.forward(SCORES.astype(np.float16), [0, 1, 2, 0])
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()


def test_backward_is_of_the_labels_that_forward_saw():
    loss, labels = cl.SoftmaxLoss(), np.array([0, 1, 2, 0])
    loss.forward(SCORES, labels)
    expected = loss.backward().copy()
    labels[1] = 3
    assert_same_bits(loss.backward(), expected)


def test_probabilities_are_the_softmax_and_survive_backward():
    loss = cl.SoftmaxLoss()
    assert loss.probabilities is None
    loss.forward(SCORES, [0, 1, 2, 0])
    loss.backward()
    assert_close(loss.probabilities, reference.softmax(SCORES), np.float32)


def test_probabilities_stay_with_the_instance_that_ran():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    kept, values = loss.probabilities, loss.probabilities.copy()
    loss(cl.Tensor(SCORES * 2), [0, 1, 2, 0])
    assert loss.probabilities is kept
    loss.forward(SCORES * 2, [0, 1, 2, 0])
    assert_same_bits(kept, values)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
def test_labels_are_integers_of_any_width(dtype):
    expected = cl.SoftmaxLoss().forward(SCORES, [0, 1, 2, 0])
    assert_same_bits(cl.SoftmaxLoss().forward(SCORES, np.array([0, 1, 2, 0], dtype)), expected)


def test_the_incoming_gradient_scales_the_losss():
    loss = cl.SoftmaxLoss()
    loss.forward(SCORES, [0, 1, 2, 0])
    assert_close(loss.backward(-2.5), reference.softmax_loss(SCORES, [0, 1, 2, 0])[1](-2.5)[0], np.float32)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        loss.backward(np.ones(2))
    for dy in (None, "1", 1j):
        with pytest.raises(TypeError, match=r"SoftmaxLoss\(\).backward"):
            loss.backward(dy)


# ---- all losses ----

LOSSES = {
    "mse": (cl.MSELoss(), np.array([0.5, 1, 2, -1], np.float32).repeat(3).reshape(4, 3)),
    "mae": (cl.MAELoss(), np.array([0.5, 1, 2, -1], np.float32).repeat(3).reshape(4, 3)),
    "huber": (cl.HuberLoss(0.5), np.array([0.5, 1, 2, -1], np.float32).repeat(3).reshape(4, 3)),
    "hinge": (cl.HingeLoss(), np.array([0, 1, 2, 0])),
    "sigmoid": (cl.SigmoidLoss(2.0), np.array([0, 1, 0.5, 1], np.float32).repeat(3).reshape(4, 3)),
    "softmax": (cl.SoftmaxLoss(), np.array([0, 1, 2, 0])),
    "smoothed": (cl.SoftmaxLoss(0.1, ignore=9), np.array([0, 1, 2, 9])),
    "probabilities": (cl.SoftmaxLoss(), np.array([[0.5, 0.25, 0.25]] * 4, np.float32)),
    "sigmoid, one each": (cl.SigmoidLoss([0.5, 1, 2]), np.array([0, 1, 0.5, 1], np.float32).repeat(3).reshape(4, 3)),
    "focal": (cl.FocalLoss(), np.array([0, 1, 2, 0])),
    "quantiles": (cl.QuantileLoss([0.1, 0.5, 0.9]), np.array([0.5, 1, 2, -1], np.float32)),
    "poisson": (cl.PoissonLoss(), np.array([0, 1, 2, 3], np.float32).repeat(3).reshape(4, 3)),
    "penalized": (cl.Penalized(cl.SoftmaxLoss(), [cl.Tensor([2.0], True)], l2=0.1), np.array([0, 1, 2, 0])),
}
every_loss = pytest.mark.parametrize(("loss", "targets"), LOSSES.values(), ids=LOSSES)


@every_loss
def test_backward_of_any_loss_needs_a_forward_that_succeeded_and_may_be_called_again(loss, targets):
    loss = copy.deepcopy(loss)
    with pytest.raises(RuntimeError, match=r"backward needs a `forward` before it"):
        loss.backward()
    loss.forward(SCORES, targets)
    assert_same_bits(loss.backward(), loss.backward(np.float32(1)))
    with pytest.raises((ValueError, TypeError)):
        loss.forward(SCORES, targets[:3])
    with pytest.raises(RuntimeError, match=r"backward needs a `forward` before it"):
        loss.backward()


class DLPackArray:
    """An array of another library that NumPy does not know by `__array__`."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@every_loss
def test_targets_of_another_library_are_copied_too(loss, targets):
    theirs = targets.copy()
    assert_same_bits(loss.forward(SCORES, DLPackArray(theirs)), loss.forward(SCORES, targets))
    expected = loss.backward().copy()
    loss.forward(SCORES, DLPackArray(theirs))
    theirs[...] = targets[::-1]
    assert_same_bits(loss.backward(), expected)


@every_loss
def test_equal_weights_change_nothing_and_a_weight_of_two_is_a_row_given_twice(loss, targets):
    plain = loss.forward(SCORES, targets)
    assert_close(loss.forward(SCORES, targets, [0.5] * 4), np.float64(plain), np.float32)
    weighted = loss.forward(SCORES, targets, np.array([1, 2, 0, 1]))
    again = [0, 1, 1, 3]
    assert_close(weighted, np.float64(loss.forward(SCORES[again], targets[again])), np.float32)


@every_loss
def test_bad_weights_raise_naming_the_first_bad_row(loss, targets):
    for weights in ([1, 1, -1, np.nan], [1, 1, np.inf, 1], [0, 0, np.nan, 0]):
        with pytest.raises(ValueError, match=r"weight .* row 2\b"):
            loss.forward(SCORES, targets, np.array(weights))
    with pytest.raises(ValueError, match="no mean"):
        loss.forward(SCORES, targets, np.zeros(4, np.float32))
    for weights in (np.ones(3), np.ones((4, 1)), 1.0):
        with pytest.raises(ValueError, match="weights of shape"):
            loss.forward(SCORES, targets, weights)
    with pytest.raises(TypeError, match="weights"):
        loss.forward(SCORES, targets, ["1"] * 4)


# ---- the losses of rows ----


@every_loss
@both_dtypes
def test_the_loss_of_a_row_does_not_depend_on_other_rows(loss, targets, dtype):
    scores = SCORES.astype(dtype)
    rows = loss.rows(scores, targets)
    assert rows.shape == (4,)
    assert rows.dtype == dtype
    plain = getattr(loss, "loss", loss)
    for i in range(4):
        ignored = targets[i].ndim == 0 and targets[i] == getattr(plain, "ignore", None)
        alone = 0.0 if ignored else plain.forward(scores[i : i + 1], targets[i : i + 1])
        assert_close(rows[i : i + 1], np.full(1, alone, np.float64), dtype)


@every_loss
def test_the_losses_of_rows_leave_a_pending_backward_alone(loss, targets):
    loss = copy.deepcopy(loss)
    loss.forward(SCORES, targets, np.array([1, 2, 0, 1]))
    expected, value = loss.backward().copy(), loss.value.copy()
    loss.rows(SCORES[:2] * 3, targets[:2])
    with pytest.raises((ValueError, TypeError)):
        loss.rows(SCORES, targets[:3])
    assert_same_bits(loss.backward(), expected)
    assert_same_bits(loss.value, value)


def test_the_loss_of_a_row_of_several_labels_is_the_mean_over_those_that_count():
    scores = np.random.default_rng(0).normal(size=(3, 2, 2, 4))
    labels = np.array([[[0, 1], [2, 3]], [[9, 1], [9, 9]], [[9, 9], [9, 9]]])
    each = -np.log(reference.softmax(scores.reshape(-1, 4)))[np.arange(12), labels.reshape(-1) % 9].reshape(3, 4)
    assert_close(cl.SoftmaxLoss(ignore=9).rows(scores, labels), np.array([each[0].mean(), each[1, 1], 0]), np.float64)
    assert_close(cl.SoftmaxLoss().rows(scores, labels % 4), cl.FocalLoss(0).rows(scores, labels % 4), np.float64)
    assert cl.SoftmaxLoss(ignore=9).rows(scores.astype(np.float32), labels).dtype == np.float32


def test_the_losses_of_rows_may_be_recorded():
    loss, labels = cl.SoftmaxLoss(ignore=1), np.array([[0, 1], [2, 1]])
    step = cl.capture(lambda scores, labels: cl.Tensor(loss.rows(scores, labels)), np.ones((2, 2, 3)), labels)
    scores = np.random.default_rng(0).normal(size=(2, 2, 3))
    assert_same_bits(step(scores, labels[::-1]), loss.rows(scores, labels[::-1]))


def replayed_and_eager(loss, arrays, bad):
    """Yield what a step of this loss raises for bad arrays, eagerly and in a replay."""
    step = cl.capture(lambda *arrays: loss(*arrays), *arrays)
    for call in (lambda: loss.forward(*bad), lambda: step(*bad)):
        with pytest.raises(ValueError, match=r"row|mean") as raised:
            call()
        yield str(raised.value)


@pytest.mark.parametrize(
    ("loss", "targets", "bad"),
    [
        (cl.SoftmaxLoss(), [0, 1, 2, 0], [0, 1, 3, -1]),
        (cl.SoftmaxLoss(ignore=9), [0, 1, 2, 9], [0, 9, 3, -1]),
        (cl.SoftmaxLoss(ignore=1), [0, 1, 2, 0], [1, 1, 1, 1]),
        (cl.HingeLoss(), [0, 1, 2, 0], [0, 1, 2, 3]),
        (cl.SoftmaxLoss(), [[0.5, 0.5, 0]] * 4, [[0.5, 0.5, 0]] * 3 + [[1, 1, 0]]),
        (cl.SigmoidLoss(), [[0.5, 0.5, 0]] * 4, [[0.5, 0.5, 0]] * 3 + [[1, 1.5, 0]]),
        (cl.FocalLoss(), [0, 1, 2, 0], [0, 1, 3, -1]),
        (cl.PoissonLoss(), [[0.0, 1.0, 2.0]] * 4, [[0.0, 1.0, 2.0]] * 3 + [[1, -1, 0]]),
    ],
    ids=repr,
)
def test_bad_targets_stop_a_replay_with_the_eager_error(loss, targets, bad):
    dtype = np.int64 if isinstance(targets[0], int) else np.float32
    eager, replayed = replayed_and_eager(loss, (SCORES, np.array(targets, dtype)), (SCORES, np.array(bad, dtype)))
    assert eager == replayed


@pytest.mark.parametrize("weights", [[1, 1, -1, 1], [0, 0, 0, 0], [1, np.nan, 1, 1]])
def test_bad_weights_stop_a_replay_with_the_eager_error(weights):
    arrays = SCORES, np.array([0, 1, 2, 0]), np.ones(4, np.float32)
    eager, replayed = replayed_and_eager(cl.SoftmaxLoss(), arrays, (*arrays[:2], np.array(weights, np.float32)))
    assert eager == replayed


@both_dtypes
@pytest.mark.parametrize("scores", [[3e38, -3e38, 0], [-3e38, 3e38, 3e38]])
def test_losses_of_labels_are_finite_for_scores_at_the_end_of_float32(scores, dtype):
    x = np.array([scores] * 100, dtype)
    labels = np.arange(100) % 3
    for loss, targets in [
        (cl.HingeLoss(), labels),
        (cl.SoftmaxLoss(0.1, ignore=2), labels),
        (cl.SoftmaxLoss(0.1), np.full((100, 3), 1 / 3)),
        (cl.SigmoidLoss(), np.eye(3)[labels]),
        (cl.FocalLoss(), labels),
        (cl.QuantileLoss([0.1, 0.5, 0.9]), np.zeros(100)),
    ]:
        assert np.isfinite(loss.forward(x, targets, np.ones(100)))
        assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize("loss", [cl.MSELoss(), cl.MAELoss(), cl.HuberLoss()], ids=repr)
def test_a_target_that_is_not_a_number_makes_a_loss_that_is_not(loss):
    assert np.isnan(loss.forward(SCORES, np.where(SCORES == 3, np.nan, SCORES)))
    assert np.isnan(loss.backward()).tolist() == (SCORES == 3).tolist()


# ---- scores and targets, one by one ----


@pytest.mark.parametrize("loss", [cl.MSELoss(), cl.MAELoss(), cl.HuberLoss(), cl.SigmoidLoss()], ids=repr)
def test_targets_have_the_scores_shape_or_stand_for_a_column(loss):
    column, targets = SCORES[:, :1], np.array([0, 1, 1, 0])
    expected = loss.forward(column, targets[:, np.newaxis])
    for same in (targets, targets.astype(bool), targets.astype(np.float64), targets.tolist()):
        assert_same_bits(loss.forward(column, same), expected)
    for wrong in [(4,), (4, 1), (3,), (1, 3), (4, 3, 1), ()]:
        for check in (loss.forward, lambda scores, y: loss.check_targets(y, scores.shape)):
            with pytest.raises(ValueError, match=type(loss).__name__) as raised:
                check(SCORES, np.zeros(wrong, np.float32))
            assert str(wrong) in str(raised.value)
            assert "(4, 3)" in str(raised.value)
    for empty in [(0, 3), (3, 0), ()]:
        with pytest.raises(ValueError, match=r"[lL]oss got scores"):
            loss.forward(np.ones(empty, np.float32), np.ones(empty, np.float32))


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, np.inf, -np.inf])
def test_targets_of_a_sigmoid_loss_are_probabilities(bad):
    targets = np.zeros((4, 3))
    targets[2, 1] = targets[3] = bad
    for check in (cl.SigmoidLoss().forward, lambda scores, y: cl.SigmoidLoss().check_targets(y, scores.shape)):
        with pytest.raises(ValueError, match=rf"target {bad} in row 2\b"):
            check(SCORES, targets)


def test_pos_weight_is_one_for_each_output_of_the_last_axis():
    targets = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1]])
    each = cl.SigmoidLoss((0.5, 1, 3))
    columns = [cl.SigmoidLoss(w).rows(SCORES[:, j : j + 1], targets[:, j]) for j, w in enumerate([0.5, 1, 3])]
    assert_close(each.rows(SCORES, targets), np.mean(columns, axis=0, dtype=float), np.float32)
    assert_same_bits(cl.SigmoidLoss([2.0] * 3).rows(SCORES, targets), cl.SigmoidLoss(2.0).rows(SCORES, targets))
    for scores in (np.ones((4, 2)), np.ones(3), np.ones((3, 4))):
        for check in (each.forward, lambda scores, y: each.check_targets(y, scores.shape)):
            with pytest.raises(ValueError, match=r"scores of shape \(.*\) and 3 weights in pos_weight"):
                check(scores, np.ones(scores.shape))


@pytest.mark.parametrize("bad", [-1, np.nan, np.inf, -np.inf])
def test_counts_are_0_or_more(bad):
    targets = np.ones((4, 3))
    targets[2, 1] = targets[3, 0] = bad
    for check in (cl.PoissonLoss().forward, lambda scores, y: cl.PoissonLoss().check_targets(y, scores.shape)):
        with pytest.raises(ValueError, match=rf"PoissonLoss takes counts, 0 or more: got {float(bad)} in row 2\b"):
            check(SCORES, targets)


# ---- of distributions ----


def test_the_outputs_that_minimize_a_quantile_loss_are_the_quantiles():
    targets, levels = np.random.default_rng(0).gamma(2.0, size=2001), [0.1, 0.5, 0.9]
    scores, loss = np.ones((2001, 3)), cl.QuantileLoss(levels)
    for step in (np.full(1000, 1.0), np.full(1000, 0.01), np.full(1000, 1e-4)):
        for lr in step:
            loss.forward(scores, targets)
            scores -= lr * loss.backward().sum(axis=0)
    np.testing.assert_allclose(scores[0], np.quantile(targets, levels), atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("column", [(), (1,)])
def test_quantile_losses_of_several_targets_equal_the_single_ones(dtype, column):
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(6, 4, 3)).astype(dtype), rng.normal(size=(6, 4)).astype(dtype)
    loss = cl.QuantileLoss([0.1, 0.5, 0.9])
    of_each = [(loss.forward(scores[:, i].copy(), targets[:, i].copy()), loss.backward() / 4) for i in range(4)]
    value = loss.forward(scores, targets.reshape(6, 4, *column))
    np.testing.assert_allclose(value, np.mean([mean for mean, _ in of_each]), rtol=1e-6)
    np.testing.assert_allclose(loss.backward(), np.stack([slopes for _, slopes in of_each], axis=1), rtol=1e-6)


def test_quantiles_of_the_next_values_of_a_series_are_learned():
    noise = np.random.default_rng(0).normal(0, 0.1, 1000)
    windows = cl.Windows(np.sin(np.arange(1000) / 5) + noise, length=10, horizon=3)
    model = cl.Model([cl.GRU(1, 16), cl.Linear(16, 9), cl.Reshape((3, 3))], seed=0)
    loss, optimizer = cl.QuantileLoss([0.1, 0.5, 0.9]), cl.Adam(model.parameters(), 1e-2)
    model.fit(windows.x, windows.y, loss=loss, optimizer=optimizer, epochs=20, verbose=0)
    below = (windows.y[:][:, :, np.newaxis] < model.predict(windows.x)).mean(axis=(0, 1))
    np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.06)


@pytest.mark.parametrize("loss", [cl.MSELoss(), cl.MAELoss(), cl.HuberLoss()])
def test_targets_of_sequences_need_no_last_axis_of_one_number(loss):
    x, model = np.random.default_rng(0).normal(size=(8, 5, 2)), cl.Model([cl.Linear(2, 1)], seed=0)
    same = [model.evaluate(x, y, loss=loss, metrics=["mae", "r2"]) for y in (x[:, :, 0], x[:, :, :1])]
    assert same[0] == same[1]
    with pytest.raises(ValueError, match=r"targets of shape \(8, 4\) for scores of shape \(8, 5, 1\)"):
        model.evaluate(x, x[:, :4, 0], loss=loss)


def test_a_quantile_loss_of_nan_is_nan_and_has_no_slope_at_its_target():
    loss = cl.QuantileLoss([0.25, 0.75])
    assert np.isnan(loss.rows(np.zeros((3, 2)), np.array([0, np.nan, 1]))).tolist() == [False, True, False]
    loss.forward(np.zeros((3, 2)), np.array([0, np.nan, 1]))
    assert loss.backward().tolist()[::2] == [[0, 0], [-0.25 / 6, -0.75 / 6]]
    assert np.isnan(loss.backward()[1]).all()


@pytest.mark.parametrize(
    ("loss", "scores", "targets", "says"),
    [
        (cl.QuantileLoss([0.1, 0.9]), (4, 3), (4,), r"scores of shape \(4, 3\); expected \(n, 2\)"),
        (cl.QuantileLoss([0.1, 0.9]), (4,), (4,), r"scores of shape \(4,\); expected \(n, 2\)"),
        (cl.QuantileLoss([0.1, 0.9]), (4, 2), (4, 2), r"targets of shape \(4, 2\) for .* expected \(4,\) or \(4, 1\)"),
        (
            cl.QuantileLoss([0.1, 0.9]),
            (4, 3, 2),
            (4, 2),
            r"targets of shape \(4, 2\) .* expected \(4, 3\) or \(4, 3, 1\)",
        ),
        (
            cl.QuantileLoss([0.1, 0.9]),
            (4, 3, 3),
            (4, 3),
            r"scores of shape \(4, 3, 3\); .*, or \(n, h, 2\) for h targets",
        ),
        (cl.QuantileLoss([0.1, 0.9]), (4, 2), (3,), r"targets of shape \(3,\) for scores of shape \(4, 2\)"),
        (cl.GaussianLoss(), (4, 3), (4, 3), r"scores of shape \(4, 3\); expected \(n, 2 k\)"),
        (cl.GaussianLoss(), (4, 4), (4, 4), r"targets of shape \(4, 4\) for .* expected \(4, 2\)"),
        (cl.GaussianLoss(), (4, 4), (4,), r"targets of shape \(4,\) for scores of shape \(4, 4\)"),
        (cl.GaussianLoss(), (0, 4), (0, 2), r"scores of shape \(0, 4\)"),
    ],
)
def test_losses_of_distributions_name_shapes_that_do_not_fit(loss, scores, targets, says):
    for check in (loss.forward, lambda scores, y: loss.check_targets(y, scores.shape)):
        with pytest.raises(ValueError, match=says):
            check(np.zeros(scores), np.zeros(targets))
    with pytest.raises(ValueError, match=says):
        loss.output_shape(scores, targets)


def test_a_gaussian_fit_finds_the_mean_and_the_deviation_of_each_row():
    rng = np.random.default_rng(0)
    x = rng.choice([0.0, 1.0], (400, 1))
    y = np.where(x > 0, 3.0, -1.0) + rng.normal(size=x.shape) * np.where(x > 0, 0.2, 1.5)
    model = cl.Model([cl.Linear(1, 2)], seed=0, dtype=np.float64)
    optimizer = cl.Adam(model.parameters(), lr=0.05)
    model.fit(x, y, loss=cl.GaussianLoss(), optimizer=optimizer, epochs=4000, batch_size=400, verbose=0)
    found = cl.GaussianLoss().link(model.predict(np.array([[0.0], [1.0]])))
    expected = [[y[x == i].mean(), y[x == i].std()] for i in (0, 1)]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_focal_loss_is_the_softmax_loss_times_a_power_and_the_same_without_one():
    labels = np.array([0, 1, 2, 0])
    plain = cl.SoftmaxLoss().rows(SCORES.astype(float), labels)
    assert_same_bits(cl.FocalLoss(0).rows(SCORES.astype(float), labels), plain)
    assert_close(cl.FocalLoss(3).rows(SCORES.astype(float), labels), (1 - np.exp(-plain)) ** 3 * plain, np.float64)


@both_dtypes
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_focal_loss_has_finite_slopes_for_sure_rows(gamma, dtype):
    loss = cl.FocalLoss(gamma)
    loss.forward(np.array([[1000, 0], [-1000, 0], [3e38, -3e38]], dtype), np.array([0, 0, 0]))
    assert_close(loss.backward(), np.array([[0, 0], [-1, 1], [0, 0]]) / 3, dtype)
    assert loss.forward(np.array([[-np.inf, 0]], dtype), np.array([0])) == np.inf
    assert loss.backward().tolist() == [[-1, 1]]
    assert np.isnan(loss.forward(np.array([[np.nan, 0]], dtype), np.array([0])))


@pytest.mark.parametrize("loss", [cl.FocalLoss(), cl.SoftmaxLoss()], ids=repr)
def test_a_softmax_before_a_loss_that_applies_it_warns(loss):
    model = cl.Model([cl.Linear(2, 3), cl.Softmax()])
    with pytest.warns(cl.TrainingWarning, match=rf"{type(loss).__name__} takes scores"):
        train(model, *cl.datasets.spiral(points_per_class=5), loss=loss)


# ---- class weights by hand ----


@pytest.mark.parametrize("given", ["balanced", {0: 3.0, 2: 0.5}])
def test_a_step_by_hand_has_the_class_weights_of_fit(given):
    x, y = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32), np.arange(30) % 7 % 3
    weights = cl.compute_sample_weight(given, y)
    models = [cl.MLP(2, [5, 3], seed=0) for _ in range(2)]
    loss = cl.SoftmaxLoss()
    optimizer = cl.SGD(models[0].parameters(), lr=0.1)
    models[0].fit(x, y, loss=loss, optimizer=optimizer, class_weight=given, epochs=3, shuffle=False, verbose=0)
    optimizer = cl.SGD(models[1].parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(models[1](x), y, weights).backward()
        optimizer.step()
    assert_same_bits(models[1].predict(x), models[0].predict(x))


def test_class_weights_of_rows_are_scikit_learns():
    judge = pytest.importorskip("sklearn.utils.class_weight").compute_sample_weight
    y = np.array([3, 0, 0, 7, 3, 3, 0, 0])
    for given in ("balanced", {0: 2.0, 3: 0.5, 7: 1.0}):
        np.testing.assert_allclose(cl.compute_sample_weight(given, y), judge(given, y), rtol=1e-12)
    with pytest.raises(TypeError, match="class_weight"):
        cl.compute_sample_weight("balanced", y / 2)


# ---- softmax: ignored labels, probabilities, more axes ----


@pytest.mark.parametrize("row", [[0.5, 0.6, 0], [-0.1, 1.1, 0], [np.nan, 1, 0], [0.3, 0.3, 0.3], [np.inf, 0, 0]])
def test_rows_other_than_probabilities_raise_with_their_number(row):
    targets = np.array([[1.0, 0, 0], [0.5004, 0.5004, 0], row, row])
    for check in (cl.SoftmaxLoss().forward, lambda scores, y: cl.SoftmaxLoss().check_targets(y, scores.shape)):
        with pytest.raises(ValueError, match=r"row 2\b.*probabilities"):
            check(SCORES, targets)
    with pytest.raises(ValueError, match=r"\(4, 2\).*\(4, 3\)"):
        cl.SoftmaxLoss().forward(SCORES, targets[:, :2])
    with pytest.raises(ValueError, match="takes labels"):
        cl.SoftmaxLoss(ignore=0).forward(SCORES, targets[:2].repeat(2, axis=0))


def test_a_probability_of_0_adds_nothing_even_if_the_score_is_minus_infinity():
    scores, targets = np.array([[0.0, -np.inf, 0.0]], np.float32), np.array([[0.5, 0, 0.5]])
    assert cl.SoftmaxLoss().forward(scores, targets) == pytest.approx(math.log(2))


def test_ignored_rows_count_nowhere_whatever_their_scores():
    scores, labels = SCORES.copy(), np.array([0, -100, 2, 1])
    scores[1] = np.nan
    loss, of_others = cl.SoftmaxLoss(ignore=-100), cl.SoftmaxLoss()
    value, others = loss.forward(scores, labels), of_others.forward(SCORES[[0, 2, 3]], labels[[0, 2, 3]])
    assert_close(value, np.float64(others), np.float32)
    assert loss.weight == 3
    assert_close(loss.backward()[[0, 2, 3]], of_others.backward().astype(np.float64), np.float32)
    assert not loss.backward()[1].any()
    with pytest.raises(ValueError, match="all 4 labels are 2"):
        cl.SoftmaxLoss(ignore=2).forward(SCORES, [2, 2, 2, 2])


def test_bad_labels_of_more_axes_are_named_by_row_and_place():
    scores, labels = np.zeros((2, 3, 4), np.float32), np.array([[0, 1, 3], [0, 4, -1]], np.int16)
    with pytest.raises(ValueError, match=r"label 4 in row 1, at \(1, 1\), is not one of the classes 0 … 3"):
        cl.SoftmaxLoss().forward(scores, labels)
    with pytest.raises(ValueError, match=r"label -1 in row 1, at \(1, 2\),"):
        cl.SoftmaxLoss(ignore=4).forward(scores, labels)
    for wrong in (labels[:, :2], labels.ravel(), labels[:1]):
        with pytest.raises(ValueError, match=r"\(2, 3, 4\): expected a label for each place, \(2, 3\)"):
            cl.SoftmaxLoss().forward(scores, wrong)
    with pytest.raises(ValueError, match="HingeLoss got scores"):
        cl.HingeLoss().forward(scores, labels)


@pytest.mark.parametrize("labels", BAD_LABELS)
def test_a_hinge_loss_refuses_the_labels_that_softmax_refuses(labels):
    targets, error, row = BAD_LABELS[labels]
    with pytest.raises(error, match=rf"row {row}\b"):
        cl.HingeLoss().forward(SCORES, targets)


# ---- what losses are made of ----


def test_the_link_of_scores_is_what_they_mean():
    assert_close(cl.SoftmaxLoss().link(SCORES), reference.softmax(SCORES), np.float32)
    assert_close(cl.SigmoidLoss().link(SCORES), 1 / (1 + np.exp(-SCORES.astype(float))), np.float32)
    assert_close(cl.FocalLoss().link(SCORES), reference.softmax(SCORES), np.float32)
    assert_close(cl.PoissonLoss().link(SCORES), np.exp(SCORES.astype(float)), np.float32)
    pairs = np.concatenate([SCORES, SCORES], axis=1)
    expected = np.concatenate([SCORES, np.exp(SCORES.astype(float) / 2)], axis=1)
    assert_close(cl.GaussianLoss().link(pairs), expected, np.float32)
    for loss in (cl.MSELoss(), cl.MAELoss(), cl.HuberLoss(), cl.HingeLoss(), cl.QuantileLoss([0.1, 0.5, 0.9])):
        assert_same_bits(loss.link(SCORES), SCORES)
    assert_same_bits(cl.Penalized(cl.SoftmaxLoss(), [cl.Tensor(1.0)]).link(SCORES), cl.SoftmaxLoss().link(SCORES))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: cl.HuberLoss(0), ValueError),
        (lambda: cl.HuberLoss("1"), TypeError),
        (lambda: cl.HingeLoss(-1), ValueError),
        (lambda: cl.SigmoidLoss(np.nan), ValueError),
        (lambda: cl.SigmoidLoss([1, -1]), ValueError),
        (lambda: cl.SigmoidLoss([]), ValueError),
        (lambda: cl.SigmoidLoss([[1.0]]), ValueError),
        (lambda: cl.SigmoidLoss("1"), TypeError),
        (lambda: cl.FocalLoss(-1), ValueError),
        (lambda: cl.FocalLoss(None), TypeError),
        (lambda: cl.QuantileLoss([0.5, 1.0]), ValueError),
        (lambda: cl.QuantileLoss([0.0]), ValueError),
        (lambda: cl.QuantileLoss([]), ValueError),
        (lambda: cl.QuantileLoss(0.5), ValueError),
        (lambda: cl.QuantileLoss("0.5"), TypeError),
        (lambda: cl.SoftmaxLoss(1.5), ValueError),
        (lambda: cl.SoftmaxLoss(ignore=1.0), TypeError),
        (lambda: cl.SoftmaxLoss(ignore=True), TypeError),
        (lambda: cl.Penalized(cl.MSELoss(), []), TypeError),
        (lambda: cl.Penalized(3, [cl.Tensor(1.0)]), TypeError),
        (lambda: cl.Penalized(cl.MSELoss(), [np.ones(2)]), TypeError),
        (lambda: cl.Penalized(cl.MSELoss(), [cl.Tensor(1.0)], l1=-1), ValueError),
    ],
)
def test_arguments_that_make_no_loss_raise(make, error):
    with pytest.raises(error, match=r"Loss|Penalized"):
        make()


def test_losses_say_how_they_were_made():
    for text in (
        *("MSELoss()", "HuberLoss(0.5)", "HingeLoss(2.0)", "SigmoidLoss()", "SigmoidLoss(3.0)", "SoftmaxLoss()"),
        *("SigmoidLoss([1.0, 2.0])", "FocalLoss(0.5)", "QuantileLoss([0.1, 0.9])", "PoissonLoss()", "GaussianLoss()"),
        *("SoftmaxLoss(label_smoothing=0.1)", "SoftmaxLoss(label_smoothing=0.1, ignore=-1)"),
    ):
        assert repr(eval(f"cl.{text}")) == text


def test_a_penalty_is_added_to_the_loss_whose_value_stays_known():
    w = cl.Tensor([[1.0, -2.0]], requires_grad=True)
    loss = cl.Penalized(cl.SoftmaxLoss(), [w], l1=0.5, l2=0.1)
    alone = cl.SoftmaxLoss().forward(SCORES, [0, 1, 2, 0])
    assert loss.forward(SCORES, [0, 1, 2, 0]) == pytest.approx(float(alone) + 0.5 * 3 + 0.1 * 5 / 2)
    assert_same_bits(loss.value, alone)
    loss.backward(2.0)
    np.testing.assert_allclose(w.grad, [[2 * (0.5 + 0.1), 2 * (-0.5 - 0.2)]], 1e-6)


def test_a_penalized_fit_is_weight_decay():
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    weights = []
    for decay in (0.0, 0.1):
        model = cl.Model(seed=0).add(cl.Linear(3, 2))
        loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=0.1 - decay) if decay == 0 else cl.SoftmaxLoss()
        optimizer = cl.SGD(model.parameters(), lr=0.1, weight_decay=decay)
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=5, batch_size=5, verbose=0)
        weights.append(model.parameters()[0].data)
    np.testing.assert_allclose(*weights, 1e-5)


def test_any_number_of_threads_gives_the_same_losses(restored_threads):
    rng = np.random.default_rng(0)
    x, t, labels = rng.normal(size=(70_001, 7)), rng.uniform(size=(70_001, 7)), rng.integers(0, 7, 70_001)
    results = []
    for n in (1, 2, 3):
        cl.set_num_threads(n)
        for loss, targets in [
            *[(loss, t) for loss in (cl.MSELoss(), cl.MAELoss(), cl.HuberLoss(), cl.SigmoidLoss())],
            *[(loss, labels) for loss in (cl.HingeLoss(), cl.SoftmaxLoss(0.1, ignore=3), cl.FocalLoss())],
            *[(loss, t) for loss in (cl.SigmoidLoss(np.arange(7)), cl.PoissonLoss())],
            (cl.QuantileLoss(np.arange(1, 8) / 8), labels),
            (cl.SoftmaxLoss(), t / t.sum(axis=1, keepdims=True)),
        ]:
            results.append((loss.forward(x, targets).tobytes(), loss.backward().tobytes()))
    count = len(results) // 3
    assert results[:count] == results[count : 2 * count] == results[2 * count :]


@both_dtypes
def test_of_a_part_of_the_rows_nothing_has_to_count(dtype):
    losses, none = np.ones(4, dtype), np.zeros(4, dtype)
    with pytest.raises(ValueError, match="no row that counts"):
        kernels.weighted_mean(losses, none)
    assert [x.any() for x in kernels.weighted_mean(losses, none, is_part=True)] == [False] * 3
    for bad in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="weight"):
            kernels.weighted_mean(losses, np.full(4, bad, dtype), is_part=True)


def test_the_loss_of_an_epoch_is_finite_though_its_weights_sum_beyond_float32():
    """Eight weights of 1e38, where float32 ends at 3.4e38: the losses and the bits are those of eight weights of 1."""
    x, y = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32), np.arange(16) % 3
    found = []
    for weight in (1e38, 1.0):
        model = cl.MLP(3, [4, 3], seed=0)
        weights = np.full(16, weight)
        history = train(model, x, y, epochs=3, batch_size=8, sample_weight=weights)
        loss, generator = cl.SoftmaxLoss(), cl.DataGenerator(x, y, sample_weight=weights, shuffle=False)
        found.append([*history["loss"], model.evaluate(x, y, loss=loss, sample_weight=weights)["loss"]])
        found[-1].append(model.evaluate([*generator], loss=loss)["loss"])
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("loss", [cl.MSELoss(), cl.MAELoss(), cl.HuberLoss(), cl.SigmoidLoss(), cl.SoftmaxLoss()])
@pytest.mark.parametrize("what", ["targets", "weights"])
def test_targets_that_require_a_gradient_raise_with_what_to_write_instead(loss, what):
    scores, halves = cl.Tensor(np.ones((3, 2)), requires_grad=True), cl.Tensor(np.full((3, 2), 0.5))
    learned = cl.Tensor(halves.data if what == "targets" else np.ones(3), requires_grad=True)
    inputs = [learned] if what == "targets" else [halves, learned]
    value = loss(scores, *inputs)
    with pytest.raises(ValueError, match=rf"no gradient for its {what}: give it {what}\.detach\(\), or"):
        value.backward()
    assert scores.grad is None
    loss(scores, *[x.detach() for x in inputs]).backward()
    assert scores.grad is not None
