"""What differs from other libraries without a word: the tables of docs/coming-from-*.md, caffelite's side of them."""

import inspect

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import train


def gradients(f, *arrays):
    tensors = [cl.Tensor(np.array(a, np.float64), requires_grad=True) for a in arrays]
    f(*tensors).sum().backward()
    return [t.grad.tolist() for t in tensors]


def default(function, name):
    return inspect.signature(function).parameters[name].default


def test_the_first_of_equal_elements_gets_the_gradient():
    assert gradients(cl.maximum, [1.0], [1.0]) == [[1.0], [0.0]]
    assert gradients(cl.minimum, [1.0], [1.0]) == [[1.0], [0.0]]
    assert gradients(lambda a: a.max(axis=0), [1.0, 1.0, 0.0]) == [[1.0, 0.0, 0.0]]
    assert gradients(lambda a: a.min(axis=0), [1.0, 0.0, 0.0]) == [[0.0, 1.0, 0.0]]


def test_var_and_std_divide_by_n():
    t = cl.Tensor([1.0, 2.0, 3.0], dtype=np.float64)
    np.testing.assert_allclose([t.var().item(), t.std().item()], [np.var([1, 2, 3]), np.std([1, 2, 3])])


def test_a_frozen_batch_norm_uses_its_running_statistics_and_keeps_them():
    norm, x = cl.BatchNorm(1), np.array([[0.0], [2.0], [4.0]], np.float32)
    norm.requires_grad = False
    np.testing.assert_allclose(norm(x).data, x, rtol=1e-4)
    assert [buffer.tolist() for buffer in norm.buffers().values()] == [[0.0], [1.0]]


@pytest.mark.parametrize("better", [0.0, 1e-6])
def test_a_plateau_of_patience_epochs_lowers_the_rate_and_any_progress_is_better(better):
    model = cl.MLP(1, [1], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=1.0)
    plateau = cl.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=3)
    rates = []
    callbacks = [lambda epoch, history: note(history, epoch, better), plateau, lambda *_: rates.append(optimizer.lr)]
    x = np.zeros((4, 1), np.float32)
    train(model, x, x, loss=cl.MSELoss(), optimizer=optimizer, epochs=5, callbacks=callbacks)
    assert rates == ([1.0] * 3 + [0.5] * 2 if better == 0 else [1.0] * 5)  # epoch 0 is the best, 1 to 3 are not better


def note(history, epoch, better):
    history["loss"][epoch] = 1.0 - better * epoch


def test_the_defaults_are_those_that_the_tables_name():
    assert default(cl.callbacks.ReduceLROnPlateau, "patience") == default(cl.callbacks.EarlyStopping, "patience") == 5
    assert default(cl.callbacks.EarlyStopping, "restore_best") is True
    assert default(cl.concatenate, "axis") == 0
    assert default(cl.LayerNorm, "eps") == default(cl.GroupNorm, "eps") == default(cl.BatchNorm, "eps") == 1e-5
    assert default(cl.AdamW, "weight_decay") == 0.01
    assert (default(cl.NAdam, "lr"), default(cl.Lion, "lr")) == (0.002, 0.0001)
    assert default(cl.Adam, "eps") == default(cl.RMSProp, "eps") == 1e-8
    assert (default(cl.RMSProp, "lr"), default(cl.RMSProp, "alpha")) == (0.01, 0.99)
    assert (default(cl.BatchNorm, "eps"), default(cl.BatchNorm, "momentum")) == (1e-5, 0.1)
    assert [default(cl.Adadelta, name) for name in ("lr", "rho", "eps")] == [1.0, 0.9, 1e-6]
    assert default(cl.LeakyReLU, "slope") == default(cl.Adagrad, "lr") == 0.01
    assert default(cl.TransformerBlock, "dropout") == 0
    assert (default(cl.Model.fit, "epochs"), default(cl.Model.fit, "batch_size")) == (1, None)
    generator = cl.DataGenerator(np.zeros((100, 1)), np.zeros(100, int))
    assert generator.batch_size == 32


def test_the_first_weights_have_the_distributions_that_the_tables_name():
    linear, embedding = cl.Linear(100, 200), cl.Embedding(1000, 50)
    lstm = cl.LSTM(3, 25)
    cl.Model([linear], seed=0), cl.Model([embedding], seed=0), cl.Model([lstm], seed=0)
    for parameter, most in ((linear.weight, 0.1), (linear.bias, 0.1), (lstm.bias_ih, 0.2), (lstm.bias_hh, 0.2)):
        assert 0.9 * most < abs(parameter.data).max() <= most
    assert embedding.parameters()[0].data.std() == pytest.approx(1, abs=0.02)
    with_initializer = cl.Linear(100, 200, initializer=cl.initializers.xavier_uniform)
    cl.Model([with_initializer], seed=0)
    assert not with_initializer.bias.data.any()


def test_rmsprop_and_adagrad_are_the_formulas_that_the_tables_name():
    def take_steps(make, gradients):
        w = cl.Tensor(np.array([1.0]), requires_grad=True)
        optimizer = make([w])
        for g in gradients:
            optimizer.zero_grad()
            w.add_grad(np.array([g]))
            optimizer.step()
        return w.data.item()

    square = 0.01 * 4e-16
    expected = 1 - 0.01 * 2e-8 / (np.sqrt(square) + 1e-8)  # a gradient so small that ε counts
    assert take_steps(cl.RMSProp, [2e-8]) == pytest.approx(expected, rel=1e-12)
    assert take_steps(cl.Adagrad, [2.0]) == pytest.approx(1 - 0.01, rel=1e-9)


def test_a_rate_that_is_changed_acts_at_once_on_the_velocity():
    w = cl.Tensor(np.array([1.0]), requires_grad=True)
    optimizer = cl.RMSProp([w], momentum=0.9)
    w.add_grad(np.array([1.0]))
    optimizer.step()
    optimizer.lr, before = 0.0, w.data.copy()
    optimizer.step()
    assert (w.data == before).all()


def test_same_padding_with_a_stride_puts_the_odd_zero_behind():
    strided = cl.Conv1d(1, 1, 3, stride=2, padding="same", bias=False)
    strided.weight.data = np.array([[[1.0, 10.0, 100.0]]], np.float32)
    x = np.arange(1.0, 7.0, dtype=np.float32).reshape(1, 1, 6)
    assert strided.forward(x).ravel().tolist() == [321.0, 543.0, 65.0]


def test_a_call_of_a_model_is_one_of_the_training_and_predict_is_not():
    model, x = cl.Model([cl.BatchNorm(3), cl.Dropout(0.5)], seed=0), np.arange(12.0, dtype=np.float32).reshape(4, 3)
    before = model.predict(x)
    model(x)
    assert (model.predict(x) != before).any()  # the running mean has changed
    assert model[0].variance.tolist() == pytest.approx((0.9 + 0.1 * x.var(axis=0, ddof=1)).tolist())
    assert (model(x).data == 0).any()
    with cl.inference():
        np.testing.assert_array_equal(model(x).data, model.predict(x))


def test_only_the_ratios_of_weights_count():
    def fit_once(lr=0.1, **options):
        model = cl.Model([cl.Linear(2, 2)], seed=0)
        history = train(model, x, y, lr=lr, epochs=1, batch_size=8, shuffle=False, **options)
        return history["loss"][0], model[0].weight.data

    x, y = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32), np.array([0, 1] * 4)
    loss, weight = fit_once(class_weight={0: 1, 1: 4})
    for same in (fit_once(class_weight={0: 3, 1: 12}), fit_once(sample_weight=np.where(y == 1, 4.0, 1.0))):
        assert same[0] == pytest.approx(loss, rel=1e-6)
        np.testing.assert_allclose(same[1], weight, rtol=1e-5)


def test_the_schedules_of_the_table_are_those_of_keras_exponential_decay():
    t = np.arange(5000)
    smooth, stairs = cl.schedules.exponential(0.1, 5000, 0.1 * 0.5**5), cl.schedules.steps(0.1, every=1000, factor=0.5)
    np.testing.assert_allclose([smooth(i) for i in t], 0.1 * 0.5 ** (t / 1000))
    np.testing.assert_allclose([stairs(i) for i in t], 0.1 * 0.5 ** (t // 1000))


def test_what_evaluate_returns_has_names_and_the_numbers_by_name():
    model, x = cl.Model([cl.Linear(2, 2)], seed=0), np.zeros((4, 2), np.float32)
    results = model.evaluate(x, np.zeros(4, int), loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    loss, accuracy = results
    assert (loss, accuracy) == ("loss", "accuracy")
    assert isinstance(results["accuracy"], float)


def test_a_log_counts_epochs_from_1(tmp_path):
    model, x = cl.Model([cl.Linear(2, 2)], seed=0), np.zeros((4, 2), np.float32)
    train(model, x, np.zeros(4, int), epochs=2, callbacks=[cl.callbacks.CSVLog(tmp_path / "log.csv")])
    assert [line[0] for line in (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()[1:]] == ["1", "2"]


def test_a_checkpoint_with_an_epoch_in_its_name_raises_and_gives_a_callback_instead():
    with pytest.raises(
        ValueError, match=r"one file .* 'w-\{epoch:02d\}.keras': .*lambda epoch, history: model.save\(f'w-"
    ):
        cl.callbacks.Checkpoint("weights/w-{epoch:02d}.keras")


def test_a_validation_split_is_drawn_from_the_seed_and_not_the_last_rows():
    x = np.arange(40, dtype=np.float32)[:, None]
    seen = []

    class RowRecorder(cl.Function):
        def forward(self, x):
            seen.append(x.copy())
            return x

        def backward(self, dy):
            return dy

    model = cl.Model([RowRecorder(), cl.Linear(1, 1)], seed=0)
    train(model, x, x, loss=cl.MSELoss(), lr=1e-300, epochs=1, validation_split=0.25, batch_size=10)
    validated = {float(v) for v in seen[-1].ravel()}
    assert validated != set(range(30, 40))
