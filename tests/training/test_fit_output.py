"""History, callbacks and what `fit` prints."""

import time

import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import X, Y


def test_the_history_has_a_number_for_each_epoch():
    history = train(classifier(2, 16, 3), X, Y, epochs=4, metrics=["accuracy"])
    assert isinstance(history, cl.History)
    assert list(history) == ["loss", "accuracy"]
    assert history.epochs == len(history["loss"]) == len(history["accuracy"]) == 4
    assert all(type(value) is float for values in history.values() for value in values)


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    model = classifier(2, 16, 3)
    history = train(model, X, Y, lr=1e-300, batch_size=25, metrics=["accuracy"])
    evaluated = model.evaluate(X, Y, loss=cl.SoftmaxLoss(), metrics=["accuracy"])
    assert history["loss"] == pytest.approx([evaluated["loss"]], rel=1e-6)
    assert history["accuracy"] == pytest.approx([evaluated["accuracy"]])


def test_penalties_are_not_in_the_history():
    model, penalized = classifier(2, 16, 3), classifier(2, 16, 3)
    history = train(model, X, Y, lr=1e-300, shuffle=False)
    optimizer = cl.SGD(penalized.parameters(), lr=1e-300, weight_decay=10)
    assert train(penalized, X, Y, shuffle=False, optimizer=optimizer) == history


def test_a_history_can_be_plotted():
    pytest.importorskip("matplotlib")
    history = train(classifier(2, 3), X, Y, epochs=3, metrics=["accuracy"], validation_data=(X, Y))
    figure = history.plot()
    assert [axes.get_title("left") for axes in figure.axes] == ["loss", "accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[i + 1, v] for i, v in enumerate(history["loss"])]
    assert figure.axes[0].lines[1].get_ydata().tolist() == history["val_loss"]


def test_callbacks_are_called_after_each_epoch_counted_from_zero():
    calls = []

    def first(epoch, history):
        calls.append((epoch, history.epochs))

    train(classifier(2, 3), X, Y, epochs=3, callbacks=[first, lambda epoch, history: calls.append("second")])
    assert calls == [(0, 1), "second", (1, 2), "second", (2, 3), "second"]


def test_a_callback_that_returns_true_ends_the_training():
    model, two = classifier(2, 16, 3), classifier(2, 16, 3)
    history = train(model, X, Y, epochs=10, callbacks=[lambda epoch, history: epoch == 1])
    train(two, X, Y, epochs=2)
    assert history.epochs == 2
    assert bits(model) == bits(two)


def test_a_callback_may_set_the_learning_rate():
    model, slowed = classifier(2, 16, 3), classifier(2, 16, 3)
    optimizer = cl.SGD(slowed.parameters(), lr=0.1)

    def stop(epoch, history):
        optimizer.lr = 0

    train(slowed, X, Y, optimizer=optimizer, epochs=3, callbacks=[stop])
    train(model, X, Y, momentum=0)
    assert bits(model) == bits(slowed)


def test_the_exception_of_a_callback_comes_through_and_the_model_stays_usable():
    class Mine(Exception):
        pass

    def fail(epoch, history):
        if epoch == 1:
            raise Mine("here")

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(Mine, match="here"):
        train(model, X, Y, epochs=5, callbacks=[fail], shuffle=False, momentum=0)
    train(model, X, Y, shuffle=False, momentum=0)
    train(other, X, Y, epochs=3, shuffle=False, momentum=0)
    assert bits(model) == bits(other)


def test_the_exception_of_a_generator_comes_through_and_the_model_stays_usable():
    def batches():
        yield X, Y
        raise OSError("gone")

    model, other = classifier(2, 16, 3), classifier(2, 16, 3)
    with pytest.raises(OSError, match="gone"):
        train(model, batches(), momentum=0)
    train(model, [(X, Y)], momentum=0)
    train(other, [(X, Y)], momentum=0, epochs=2)
    assert bits(model) == bits(other)


def test_verbose_0_prints_nothing(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose=0, callbacks=[lambda *_: time.sleep(0.3)])
    assert capsys.readouterr() == ("", "")


def test_verbose_2_prints_a_line_an_epoch_counted_from_one(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose=2, metrics=["accuracy"], validation_data=(X, Y))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all(name in lines[0] for name in ("loss", "accuracy", "val_loss", "val_accuracy"))
    assert printed.err == ""


def test_verbose_1_draws_a_bar(capsys):
    train(classifier(2, 3), X, Y, epochs=4, verbose=1, callbacks=[lambda *_: time.sleep(0.1)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch 4/4" in printed.err
    assert " 75%" in printed.err
    assert "100%" in printed.err
    assert "loss" in printed.err


def test_verbose_auto_is_silent_for_a_short_run(capsys):
    train(classifier(2, 3), X, Y, epochs=3, verbose="auto")
    assert capsys.readouterr() == ("", "")


def test_verbose_auto_prints_lines_without_a_terminal(capsys):
    train(classifier(2, 3), X, Y, epochs=4, verbose="auto", callbacks=[lambda *_: time.sleep(0.3)])
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("epoch 4/4")
    assert 2 <= len(printed.out.splitlines()) < 4
    assert printed.err == ""


def test_verbose_auto_draws_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    train(classifier(2, 3), X, Y, epochs=4, verbose="auto", callbacks=[lambda *_: time.sleep(0.3)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch 4/4" in printed.err


@pytest.mark.parametrize("verbose", [1, 2])
def test_fit_names_the_best_epoch_of_an_early_stopping_at_the_end(capsys, verbose):
    stop = cl.callbacks.EarlyStopping("loss", patience=2)
    history = train(classifier(2, 16, 3), X, Y, lr=1e9, clip_norm=1.0, epochs=50, callbacks=[stop], verbose=verbose)
    best = min(history["loss"])
    assert history.epochs == stop.best_epoch + 3 < 50
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"EarlyStopping: epoch {stop.best_epoch + 1} is the best one, with loss {best:.4g}"
    )
    train(classifier(2, 16, 3), X, Y, callbacks=[cl.callbacks.EarlyStopping("loss")], verbose=0)
    assert capsys.readouterr().out == ""
