"""LayerNorm and BatchNorm: what their cases do not say."""

import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.program.recording import Recording
from tests.cases import both_dtypes
from tests.conftest import bits, train
from tests.reference import LAYOUTS, assert_close, assert_same_bits, plain_copy, to_float64, zero_strided

SHAPES = [(7, 5), (100, 3), (4, 5, 9), (3, 2, 4, 5)]


def numbers(*shape, mean=0.0, std=1.0, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(mean, std, shape).astype(dtype)


def with_nan(model):
    """Whether a model's buffers have one."""
    return any(np.isnan(array).any() for f in model.functions if hasattr(f, "mean") for array in (f.mean, f.variance))


# ---- numbers far from 0 ----


@both_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_a_deviation_far_smaller_than_the_mean_is_right(shape, dtype):
    """Mean 10⁴, deviation 10⁻²: float32 tells some twenty numbers apart there, and of those all is exact."""
    x = numbers(*shape, mean=1e4, std=1e-2, dtype=dtype)
    axes = (0, *range(2, len(shape)))
    layers = [(cl.BatchNorm(shape[1], eps=1e-9), axes), (cl.LayerNorm(shape[-1], eps=1e-9), -1)]
    for layer, over in layers:
        model = cl.Model([layer], dtype=dtype)
        truth = to_float64(x) - to_float64(x).mean(over, keepdims=True)
        truth /= np.sqrt((truth**2).mean(over, keepdims=True) + 1e-9)
        assert_close(model(x).data, truth, dtype, scale=10.0)


def test_running_moments_of_float32_far_from_0_are_as_good_as_float32():
    x = numbers(200, 3, mean=1e4, std=1e-2)
    layer = cl.BatchNorm(3, momentum=1.0)
    layer.forward(x)
    np.testing.assert_allclose(layer.mean, to_float64(x).mean(0), 1e-7)
    np.testing.assert_allclose(layer.variance, to_float64(x).var(0, ddof=1), 1e-6)


@both_dtypes
def test_numbers_whose_squares_float32_does_not_hold_are_normalized(dtype):
    x = np.array([[1e38, -1e38], [-1e38, 1e38], [1e38, 1e38]], np.float32).astype(dtype)
    for layer in (cl.BatchNorm(2), cl.LayerNorm(2), cl.RMSNorm(2)):
        y = cl.Model([layer], dtype=dtype)(x).data
        assert np.isfinite(y).all()
        assert (np.sign(y) == np.sign(x))[:2].all()


def test_channels_without_places_stay_such():
    for layer, shape in ((cl.InstanceNorm(3), (2, 3, 0)), (cl.GroupNorm(2, 4), (2, 4, 0, 3))):
        y = layer.forward(np.empty(shape, np.float32))
        assert y.shape == layer.backward(y).shape == shape
        assert not layer.scale.grad.any()
        assert not layer.shift.grad.any()


@both_dtypes
def test_the_default_epsilon_of_rms_norm_depends_on_the_dtype(dtype):
    """A row whose mean of squares is ε as well is divided by the root of 2 ε."""
    eps = np.finfo(dtype).eps
    x = np.full((1, 4), np.sqrt(eps), dtype)
    for layer, added in ((cl.RMSNorm(4), eps), (cl.RMSNorm(4, 3 * eps), 3 * eps), (cl.RMSNorm(4, 0.0), 0)):
        y = cl.Model([layer], dtype=dtype)(x).data
        np.testing.assert_allclose(y, x / np.sqrt(eps + added), 1e-6)


@both_dtypes
def test_an_rms_norm_without_a_scale_has_the_bits_of_a_scale_of_ones_in_files_too(dtype, tmp_path):
    x, labels = np.random.default_rng(0).normal(size=(20, 5)), np.arange(20) % 3
    plain, scaled = [
        cl.Model([cl.Linear(5, 7), cl.RMSNorm(7, scale=scale), cl.Linear(7, 3)], seed=0, dtype=dtype)
        for scale in (False, True)
    ]
    scaled[1].requires_grad = False
    assert repr(plain[1]) == "RMSNorm(7, scale=False)"
    assert plain[1].parameters() == []
    for model in (plain, scaled):
        train(model, x, labels, epochs=3, seed=0)
    np.testing.assert_array_equal(plain.predict(x), scaled.predict(x))
    assert plain.summary().cells[2][3] == "0"
    plain.save(tmp_path / "plain.safetensors")
    loaded = cl.load(tmp_path / "plain.safetensors")
    assert repr(loaded) == repr(plain)
    np.testing.assert_array_equal(loaded.predict(x), plain.predict(x))
    with pytest.raises(TypeError, match="RMSNorm: scale"):
        cl.RMSNorm(7, scale=1)


# ---- BatchNorm's running moments ----


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, 0.37])
def test_running_moments_and_predictions_are_pytorchs(shape, momentum):
    torch = pytest.importorskip("torch")
    mine = cl.BatchNorm(shape[1], momentum)
    mine.mean, mine.variance = mine.mean.astype(float), mine.variance.astype(float)
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
    theirs = kind(shape[1], momentum=momentum, dtype=torch.float64)
    model = cl.Model([mine], dtype=np.float64)
    for seed in range(4):
        x = numbers(*shape, mean=3.0, std=2.0, dtype=float, seed=seed)
        theirs.train()
        np.testing.assert_allclose(model(x).data, theirs(torch.tensor(x)).detach(), 1e-9, 1e-9)
        np.testing.assert_allclose(mine.buffers()["mean"], theirs.running_mean, 1e-9, 1e-9)
        np.testing.assert_allclose(mine.buffers()["variance"], theirs.running_var, 1e-9, 1e-9)
        theirs.eval()
        with cl.inference():
            np.testing.assert_allclose(model(x).data, theirs(torch.tensor(x)).detach(), 1e-9, 1e-9)


@both_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_running_moments_move_towards_the_batchs(shape, dtype):
    x, axes = numbers(*shape, mean=3.0, std=2.0, dtype=dtype), (0, *range(2, len(shape)))
    layer = cl.BatchNorm(shape[1], 0.25)
    cl.Model([layer], dtype=dtype)(x)
    assert_close(layer.mean, 0.25 * to_float64(x).mean(axes), layer.mean.dtype)
    assert_close(layer.variance, 0.75 + 0.25 * to_float64(x).var(axes, ddof=1), layer.mean.dtype)


def test_inference_changes_no_buffer_and_a_row_does_not_depend_on_others():
    layer = cl.BatchNorm(37)
    model = cl.Model([layer, cl.LayerNorm(37)])
    model(numbers(20, 37, mean=1.0))
    before = [array.copy() for array in layer.buffers().values()]
    x = numbers(100, 37, seed=1)
    y = model.predict(x)
    for i in range(100):
        assert_same_bits(model.predict(x[i : i + 1])[0], y[i])
    for array, same in zip(layer.buffers().values(), before, strict=True):
        assert_same_bits(array, same)


def net(seed=0):
    return cl.Model([cl.Linear(3, 8), cl.BatchNorm(8), cl.ReLU(), cl.LayerNorm(8), cl.Linear(8, 4)], seed=seed)


def test_fit_has_the_bits_of_the_loop_by_hand_running_moments_included():
    x, y = numbers(50, 3), np.random.default_rng(0).integers(0, 4, 50)
    model, by_hand = net(), net()
    train(model, x, y, epochs=3, batch_size=20, shuffle=False)
    optimizer, loss = cl.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), cl.SoftmaxLoss()
    for _ in range(3):
        for rows in (slice(0, 20), slice(20, 40), slice(40, 50)):
            optimizer.zero_grad()
            h = x[rows]
            for function in by_hand.functions:
                h = function.forward(h)
            loss.forward(h, y[rows])
            d = loss.backward()
            for function in reversed(by_hand.functions):
                d = function.backward(d)
            optimizer.step()
    assert bits(model) == bits(by_hand)
    for name, array in model.functions[1].buffers().items():
        assert_same_bits(array, by_hand.functions[1].buffers()[name])
    assert_same_bits(model.predict(x), by_hand.predict(x))


def test_a_training_that_diverges_leaves_running_moments_that_can_be_used():
    """In an eager step and in a replay; the parameters are as before that step."""
    x, y = numbers(40, 3), np.zeros(40, int)
    for bad in range(2):
        model = net()
        poisoned = x.copy()
        poisoned[20 * bad + 7, 1] = np.nan
        with pytest.raises(cl.TrainingDiverged, match=f"batch {bad + 1}"):
            train(model, poisoned, y, batch_size=20, shuffle=False)
        assert not with_nan(model)
        assert np.isfinite(model.predict(x)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_moments_that_are_not_finite_leave_their_feature_and_the_others_follow(bad):
    layer, clean = cl.BatchNorm(3), cl.BatchNorm(3)
    x = numbers(10, 3)
    clean.forward(x)
    x[4, 1] = bad
    y = layer.forward(x)
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, [0, 2]]).all()
    assert layer.mean.tolist() == [clean.mean[0], 0, clean.mean[2]]
    assert layer.variance.tolist() == [clean.variance[0], 1, clean.variance[2]]


@both_dtypes
def test_a_running_variance_beyond_its_dtype_stays_finite_in_replays_too(dtype):
    largest = np.finfo(dtype).max
    moments = np.array([[0.0, 1.0], [1.0, 1.0], [min(float(largest) * 4, np.finfo(float).max), 2.0]])
    mean, variance = np.zeros(2, dtype), np.ones(2, dtype)
    with Recording() as recording:
        kernels.update_moments(mean, variance, moments, 4, 0.9)
    kernels.Replay(recording.entries).run()
    assert 0.9 * largest < variance[0] <= largest
    assert 1 < variance[1] < 2.7
    assert mean[1] > 0.9


def test_a_variance_beyond_float32_is_a_warning_and_predictions_follow():
    x = numbers(64, 2) * np.float32([1e20, 1])
    y = (x[:, 0] > 0).astype(int)
    model = cl.Model([cl.BatchNorm(2), cl.Linear(2, 2)], seed=0)
    with pytest.warns(cl.TrainingWarning, match="variance of feature 0 is beyond float32"):
        train(model, x, y, epochs=30, optimizer=cl.Adam(model.parameters(), 0.05))
    assert np.isfinite(model.functions[0].variance).all()
    found = model.evaluate(x, y, loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    assert found["accuracy"] > 0.95
    assert found["loss"] < 1


# ---- a frozen BatchNorm ----


def state_bytes(model):
    return {name: array.tobytes() for name, array in model.state_dict().items()}


@pytest.mark.parametrize("whole", ["layer", "Model", "Residual"])
def test_a_frozen_batch_norm_keeps_its_running_statistics_and_uses_them(whole):
    x, y = numbers(40, 3, mean=2.0), np.random.default_rng(0).integers(0, 4, 40)
    norm = cl.BatchNorm(3)
    block = {"layer": norm, "Model": cl.Model([norm]), "Residual": cl.Residual(norm)}[whole]
    model = cl.Model([block, cl.Linear(3, 4)], seed=0)
    train(model, x, y, epochs=2)
    block.requires_grad = False
    before, output = state_bytes(model), block(x[:5]).data
    with cl.inference():
        assert_same_bits(output, block(x[:5]).data)
    train(model, x, y, epochs=3, batch_size=8)
    after = state_bytes(model)
    assert {name for name in after if after[name] != before[name]} == {"1.weight", "1.bias"}


def test_replays_notice_that_a_batch_norm_is_frozen_or_thawed():
    x, y = numbers(40, 3, mean=2.0), np.random.default_rng(0).integers(0, 4, 40)
    model = cl.Model([cl.BatchNorm(3), cl.Linear(3, 4)], seed=0)
    norm, means = model.functions[0], []

    def freeze_and_thaw(epoch, history):
        means.append(norm.mean.copy())
        norm.requires_grad = epoch % 4 >= 2

    norm.requires_grad = False
    train(model, x, y, epochs=8, optimizer=cl.SGD([*norm.parameters(), *model.functions[1].parameters()], 0.1),
          callbacks=[freeze_and_thaw])  # fmt: skip
    moved = [not np.array_equal(a, b) for a, b in zip([np.zeros(3), *means], means, strict=False)]
    assert moved == [False, False, False, True, True, False, False, True]


def test_a_frozen_batch_norm_trains_on_single_rows_and_is_frozen_in_its_file(tmp_path):
    x, y = numbers(5, 3), np.array([0, 1, 2, 3, 0])
    model = cl.Model([cl.BatchNorm(3), cl.Linear(3, 4)], seed=0)
    model.functions[0].requires_grad = False
    train(model, x, y, batch_size=1)
    model.save(tmp_path / "m.safetensors")
    loaded = cl.load(tmp_path / "m.safetensors")
    before = state_bytes(loaded)
    train(loaded, x, y, batch_size=1)
    assert [name for name in before if before[name] == state_bytes(loaded)[name]] == [
        "0.scale",
        "0.shift",
        "0.mean",
        "0.variance",
    ]


def test_a_frozen_batch_norm_has_the_gradient_of_inference():
    layer = cl.BatchNorm(3)
    layer.forward(numbers(20, 3, mean=1.0, std=3.0))
    layer.requires_grad = False
    assert cl.check_gradients(layer, numbers(4, 3)) < 1e-6


# ---- a last batch of one row ----


def batch_norm_net(seed=0):
    return cl.Model([cl.Linear(3, 8), cl.BatchNorm(8), cl.ReLU(), cl.Linear(8, 4)], seed=seed)


ROWS, LABELS = numbers(33, 3), np.random.default_rng(0).integers(0, 4, 33)


class RowCounter(cl.Function):
    """Notes how many rows it gets."""

    def __init__(self, seen):
        self.seen = seen

    def forward(self, x):
        self.seen.append(len(x))
        return x

    def backward(self, dy):
        return dy


def batch_sizes(x, y=None, **options):
    """How many rows the batches have in which a model with a BatchNorm is trained."""
    seen = []
    model = batch_norm_net()
    model.add(RowCounter(seen))
    train(model, x, y, **options)
    return seen


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("weights", [None, np.arange(33) % 2])
def test_a_last_batch_of_one_row_joins_the_one_before_it(shuffle, weights):
    """And then it has the bits of batches that were cut so by hand."""
    options = {"shuffle": shuffle, "sample_weight": weights, "batch_size": 16, "epochs": 3}
    assert batch_sizes(ROWS, LABELS, **options) == [16, 17] * 3
    assert batch_sizes(ROWS, LABELS, batch_size=32) == [33]
    assert batch_sizes(ROWS[:32], LABELS[:32], batch_size=15) == [15, 15, 2]
    model, by_hand = batch_norm_net(), batch_norm_net()
    history = train(model, ROWS, LABELS, metrics=["accuracy"], **options)
    order = cl.DataGenerator(np.arange(33), shuffle=shuffle, batch_size=33, seed=by_hand._model_state.rng)

    def batches():
        (rows,) = order
        for part in (rows[:16], rows[16:]):
            yield (ROWS[part], LABELS[part], *([] if weights is None else [weights[part]]))

    class Epochs:
        def __iter__(self):
            return batches()

    assert train(by_hand, Epochs(), epochs=3, metrics=["accuracy"]) == history
    assert state_bytes(model) == state_bytes(by_hand)


def test_a_single_row_of_every_kind_of_data_joins_the_batch_before_it():
    def generator(**options):
        return cl.DataGenerator(ROWS, LABELS, batch_size=16, **options)

    sparse = pytest.importorskip("scipy.sparse")
    assert batch_sizes(sparse.csr_matrix(ROWS), LABELS, batch_size=16) == [16, 17]
    assert batch_sizes(generator()) == [16, 17]
    assert batch_sizes(cl.Prefetch(generator())) == [16, 17]
    assert batch_sizes(generator(transform=lambda x, y: (x, y)), epochs=2) == [16, 17] * 2
    assert batch_sizes(generator(drop_last=True)) == [16, 16]


def test_a_generator_keeps_its_batches_and_orders_after_a_training():
    mine, other = [cl.DataGenerator(ROWS, LABELS, batch_size=16, seed=3) for _ in range(2)]
    train(batch_norm_net(), mine, epochs=2)
    for _ in range(2):
        list(other)
    assert len(mine) == 3
    assert [len(y) for _, y in mine] == [16, 16, 1]
    for a, b in zip(mine, [list(other), list(other)][1], strict=True):
        assert_same_bits(a[0], b[0])


def test_a_model_without_a_batch_norm_that_is_trained_keeps_its_batch_of_one_row():
    seen = []
    model = cl.Model([cl.BatchNorm(3), cl.Linear(3, 4), RowCounter(seen)], seed=0)
    model.functions[0].requires_grad = False
    train(model, ROWS, LABELS, batch_size=16)
    assert seen == [16, 16, 1]


def test_many_models_and_the_estimators_join_a_single_row_too():
    def models():
        return [batch_norm_net(seed) for seed in range(3)]

    together, alone = models(), models()
    optimizers = [cl.SGD(m.parameters(), lr=0.1) for m in together]
    cl.fit_many(together, ROWS, LABELS, loss=cl.SoftmaxLoss(), optimizers=optimizers, batch_size=16, epochs=2)
    for one, other in zip(alone, together, strict=True):
        train(one, ROWS, LABELS, batch_size=16, epochs=2, momentum=0.0)
        assert state_bytes(one) == state_bytes(other)
    pytest.importorskip("sklearn")
    from caffelite.sklearn import MLPClassifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few iterations
        MLPClassifier((5,), batch_norm=True, batch_size=16, max_iter=2).fit(ROWS, LABELS)


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 32), (5, 1)])
def test_one_row_in_all_and_batches_of_one_row_raise_before_the_first_step(rows, batch_size):
    model = batch_norm_net()
    before = state_bytes(model)
    with pytest.raises(ValueError, match="at least 2 numbers of each feature"):
        train(model, ROWS[:rows], LABELS[:rows], batch_size=batch_size)
    assert state_bytes(model) == before


# ---- the kernels ----


@both_dtypes
@pytest.mark.parametrize("shape", [(3, 200), (5, 3, 70), (4, 3, 5, 6)])
def test_layouts_change_no_bit_of_a_kernels_result(shape, dtype):
    x, dy = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    features, last = numbers(shape[1], dtype=dtype), numbers(shape[-1], dtype=dtype)

    def everything(layout):
        a, b, c, d = map(layout, (x, dy, features, last))
        y, moments = kernels.batch_norm(a, c, c, 1e-5)
        results = [y, moments, *kernels.batch_norm_grad(b, a, c, moments)]
        sums = kernels.batch_norm_sums(b, a, moments)
        results += [sums, *kernels.batch_norm_grad_of_sums(b, a, c, moments, sums, sums, 99), kernels.feature_sums(a)]
        y, moments = kernels.layer_norm(a, d, d, 1e-5)
        return [
            *results,
            y,
            moments,
            kernels.layer_norm_grad(b, a, d, moments),
            *kernels.layer_norm_sums(b, a, moments),
        ]

    for layout in LAYOUTS:
        if layout is not zero_strided:
            for mine, plain in zip(everything(layout), everything(plain_copy), strict=True):
                assert_same_bits(mine, plain)


@both_dtypes
@pytest.mark.parametrize("size", [1, 8, 64, 70])
def test_rows_of_layer_norm_have_the_bits_they_have_alone(size, dtype):
    x, c = numbers(35, size, dtype=dtype), numbers(size, dtype=dtype, seed=1)
    for shift, centered in itertools.product((c, None), (True, False)):
        y, moments = kernels.layer_norm(x, c, shift, 1e-5, centered)
        for i in range(35):
            alone, own = kernels.layer_norm(x[i : i + 1], c, shift, 1e-5, centered)
            assert_same_bits(alone, y[i : i + 1])
            assert_same_bits(own, moments[:, i : i + 1])


def test_features_have_the_bits_they_have_alone():
    """Threads cut features anywhere, so a feature's place in a block must not matter."""
    x, dy, c = numbers(33, 150), numbers(33, 150, seed=1), numbers(150)
    y, moments = kernels.batch_norm(x, c, c, 1e-5)
    dx, dscale, dshift = kernels.batch_norm_grad(dy, x, c, moments)
    for some in [slice(0, 1), slice(149, 150), slice(63, 65), slice(1, 131)]:
        alone, own = kernels.batch_norm(x[:, some], c[some], c[some], 1e-5)
        assert_same_bits(alone, y[:, some])
        gradients = kernels.batch_norm_grad(dy[:, some], x[:, some], c[some], own)
        for mine, of_all in zip(gradients, (dx[:, some], dscale[some], dshift[some]), strict=True):
            assert_same_bits(mine, of_all)


@both_dtypes
@pytest.mark.parametrize("shape", [(60, 150), (20, 3, 70), (10, 3, 5, 6)])
@pytest.mark.parametrize("mean", [0, 1e4])
def test_parts_of_the_rows_have_the_moments_and_gradients_of_all(shape, mean, dtype):
    x, dy, c = numbers(*shape, mean=mean, dtype=dtype), numbers(*shape, dtype=dtype, seed=1), numbers(shape[1])
    c = c.astype(dtype)
    _, moments = kernels.batch_norm(x, c, c, 1e-5)
    dx, dscale, dshift = kernels.batch_norm_grad(dy, x, c, moments)
    cuts = [slice(0, 3), slice(3, 4), slice(4, None)]
    own = [kernels.feature_sums(x[rows]) for rows in cuts] + [kernels.feature_sums(x, counts=False)]
    joined = kernels.merge_moments(np.array(own), 1e-5)
    np.testing.assert_allclose(joined, moments, rtol=1e-12)
    assert_same_bits(kernels.merge_moments(np.array(own[:1]), 1e-5)[0], own[0][1])
    sums = [kernels.batch_norm_sums(dy[rows], x[rows], moments) for rows in cuts]
    count = x.size // shape[1]
    for i, rows in enumerate(cuts):
        part = kernels.batch_norm_grad_of_sums(dy[rows], x[rows], c, moments, sums[i], sum(sums), count)
        assert_close(part[0], to_float64(dx[rows]), dtype)
        dscale, dshift = dscale - part[1], dshift - part[2]
    assert_close(np.array([dscale, dshift]), np.zeros((2, shape[1])), dtype, scale=len(x))


def test_gradients_add_up_until_they_are_reset():
    for layer in (cl.BatchNorm(3), cl.LayerNorm(3)):
        x = numbers(5, 3)
        for _ in range(2):
            layer.forward(x)
            layer.backward(np.ones((5, 3), np.float32))
        assert layer.shift.grad.tolist() == [10] * 3


def test_a_frozen_scale_gets_no_gradient():
    for layer in (cl.BatchNorm(3), cl.LayerNorm(3)):
        layer.scale.requires_grad = False
        layer(cl.Tensor(numbers(5, 3), requires_grad=True)).sum().backward()
        assert layer.scale.grad is None
        assert layer.shift.grad is not None


# ---- errors, before anything changes ----


@pytest.mark.parametrize("shape", [(1, 3), (0, 3), (1, 3, 1), (4, 3, 0)])
def test_fewer_than_two_numbers_a_feature_raise_in_training(shape):
    layer = cl.BatchNorm(3)
    with pytest.raises(ValueError, match="at least 2 numbers") as raised:
        layer.forward(np.ones(shape, np.float32))
    assert str(shape) in str(raised.value)
    with pytest.raises(ValueError, match="at least 2 numbers"):
        kernels.batch_norm(np.ones(shape), np.ones(3), np.ones(3), 1e-5)
    assert layer.mean.tolist() == [0] * 3
    assert layer.variance.tolist() == [1] * 3
    with cl.inference():
        assert layer.forward(np.ones(shape, np.float32)).shape == shape


@pytest.mark.parametrize("layer", [cl.BatchNorm(3), cl.LayerNorm(3)], ids=repr)
def test_other_shapes_and_dtypes_raise_naming_both(layer):
    for shape in [(), (5,), (3, 4), (3, 4, 5)]:
        with pytest.raises(ValueError, match=r"Norm\(3\) got shape") as raised:
            layer.forward(np.ones(shape, np.float32))
        assert str(shape) in str(raised.value)
    for dtype in (np.float64, np.int64, np.float16):
        with pytest.raises(TypeError, match=np.dtype(dtype).name):
            layer.forward(np.ones((4, 3), dtype))
    with pytest.raises(ValueError, match="Norm"):  # BatchNorm's features may be an axis before Linear's
        cl.Model([cl.Linear(4, 5), layer]).predict(np.ones((2, 4)))


@pytest.mark.parametrize("layer", [cl.BatchNorm, cl.LayerNorm])
def test_options_out_of_range_raise(layer):
    for features, error in [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError), ("3", TypeError)]:
        with pytest.raises(error, match="features"):
            layer(features)
    for eps in (-1e-5, np.nan):
        with pytest.raises(ValueError, match="eps"):
            layer(3, eps=eps)
        x = np.ones((4, 3))
        with pytest.raises(ValueError, match="eps"):
            (kernels.batch_norm if layer is cl.BatchNorm else kernels.layer_norm)(x, x[0], x[0], eps)
    if layer is cl.BatchNorm:
        for momentum in (-0.1, 1.1, np.nan):
            with pytest.raises(ValueError, match="momentum"):
                layer(3, momentum)


def test_moments_of_another_kind_raise():
    x, c = numbers(4, 3), numbers(3)
    for moments, error in [
        (np.ones((3, 3), np.float32), TypeError),
        (np.ones((2, 3)), ValueError),
        (np.ones((3, 4)), ValueError),
        (np.ones((3, 6))[:, ::2], ValueError),
    ]:
        with pytest.raises(error, match="moments"):
            kernels.batch_norm_fixed(x, c, c, moments)
        with pytest.raises(error, match="moments"):
            kernels.batch_norm_grad(x, x, c, moments)
        with pytest.raises(error, match="moments"):
            kernels.update_moments(c, c, moments, 4, 0.1)
        with pytest.raises(error, match="moments"):
            kernels.batch_norm_sums(x, x, moments)
        with pytest.raises(error, match="moments"):
            kernels.batch_norm_grad_of_sums(x, x, c, moments, np.ones((2, 3)), np.ones((2, 3)), 4)
        with pytest.raises(ValueError, match="parts"):
            kernels.merge_moments(moments, 1e-5)


# ---- as parts of models ----


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_has_its_running_moments_and_none_in_common(copied):
    model = net()
    model(numbers(20, 3))
    other = copied(model)
    x = numbers(10, 3, seed=1)
    assert_same_bits(other.predict(x), model.predict(x))
    model(numbers(20, 3, mean=5.0))
    assert (other.functions[1].mean != model.functions[1].mean).any()


def test_drawing_again_makes_parameters_and_buffers_what_they_were():
    model = net()
    first, x = model.predict(numbers(5, 3)), numbers(50, 3)
    train(model, x, np.zeros(50, int), epochs=2)
    model.initialize(0)
    assert_same_bits(model.predict(numbers(5, 3)), first)


def test_norms_say_how_they_are_made():
    layers = [cl.BatchNorm(3), cl.BatchNorm(3, 0.2, 1e-3), cl.LayerNorm(3), cl.LayerNorm(3, 1e-3, bias=False)]
    assert [repr(layer) for layer in layers] == [
        "BatchNorm(3)",
        "BatchNorm(3, momentum=0.2, eps=0.001)",
        "LayerNorm(3)",
        "LayerNorm(3, eps=0.001, bias=False)",
    ]


@pytest.mark.parametrize("norm", [cl.LayerNorm, cl.BatchNorm])
def test_an_eps_beyond_the_floats_raises(norm):
    with pytest.raises(ValueError, match="eps must be 0 or more and finite"):
        norm(3, eps=10**400)


def test_running_moments_have_the_same_bits_wherever_they_lie_in_memory():
    """0.9 a + 0.1 b lies so near to the middle of two floats that it matters which product is rounded by itself."""
    a, b, found = np.float32(0.023249477), -0.055192540399730206, set()
    for order in itertools.permutations(["mean", "variance", "moments"]):
        for gap in range(5):
            memory, place, arrays = np.zeros(1024, np.uint8), 64, {}
            for name in order:
                shape, dtype = ((3, 8), np.float64) if name == "moments" else ((8,), np.float32)
                place += -(memory.ctypes.data + place) % np.dtype(dtype).itemsize
                arrays[name] = np.ndarray(shape, dtype, memory, place)
                place += arrays[name].nbytes + 8 * gap
            arrays["mean"][:], arrays["variance"][:], arrays["moments"][:] = a, 1, b
            arrays["moments"][2] = 1
            kernels.update_moments(arrays["mean"], arrays["variance"], arrays["moments"], 16, 0.1)
            found.add(arrays["mean"].tobytes() + arrays["variance"].tobytes())
    assert len(found) == 1


# ---- groups ----


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cl.GroupNorm(3, 8), ValueError, "8 channels can't be divided into 3 equal groups"),
        (lambda: cl.GroupNorm(0, 8), ValueError, "groups must be at least 1, got 0"),
        (lambda: cl.GroupNorm(2, 4.0), TypeError, "channels must be an integer, got 4.0"),
        (lambda: cl.GroupNorm(2, 8, eps=-1.0), ValueError, "eps must be 0 or more and finite, got -1.0"),
        (
            lambda: cl.GroupNorm(2, 8)(numbers(2, 6, 3)),
            ValueError,
            r"\(2, 8\) got shape \(2, 6, 3\); expected \(n, 8, …\)",
        ),
        (lambda: cl.GroupNorm(2, 8)(numbers(8)), ValueError, r"got shape \(8,\); expected \(n, 8, …\)"),
        (lambda: cl.GroupNorm(2, 8).output_shape((None, 6, None)), ValueError, r"got shape \(n, 6, \?\)"),
        (lambda: cl.GroupNorm(2, 8)(numbers(2, 8, dtype=np.float64)), TypeError, "expected float64, got float32"),
    ],
)
def test_group_norm_names_channels_shapes_and_dtypes_that_do_not_fit(make, error, message):
    with pytest.raises(error, match=message):
        make()


@both_dtypes
def test_one_group_of_each_channel_is_layer_norm_of_its_places(dtype):
    x = numbers(4, 6, 10, dtype=dtype)
    alone = cl.Model([cl.GroupNorm(6, 6)], dtype=dtype).predict(x)
    assert_same_bits(alone, cl.Model([cl.LayerNorm(10)], dtype=dtype).predict(x))


@both_dtypes
def test_group_norm_has_the_same_bits_in_training_and_for_a_row_alone(dtype):
    x = numbers(5, 6, 4, dtype=dtype)
    layer = cl.Model([cl.GroupNorm(2, 6)], dtype=dtype)
    together = layer(x).data
    assert_same_bits(layer.predict(x), together)
    for i in range(len(x)):
        assert_same_bits(layer.predict(x[i : i + 1]), together[i : i + 1])
