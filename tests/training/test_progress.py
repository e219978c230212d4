"""What `fit` shows while it runs, with a clock of the test's own."""

import math
import re

import pytest

from caffelite.training.callbacks import progress
from caffelite.training.callbacks.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which pass when the test says so."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "perf_counter", lambda: Clock.now)
    return Clock


def run(clock, verbose, epochs, steps, seconds, known=True, results=None, ends_after=None):
    """Epochs of so many steps, each of so many seconds."""
    with Progress(verbose, epochs, steps if known else None) as shown:
        for _ in range(ends_after or epochs):
            for step in range(steps):
                clock.now += seconds
                shown.step(1, lambda step=step: 9.0 - step)
            shown.epoch(1, results or {"loss": [0.5], "val_loss": [0.25]})


def shown_texts(capsys):
    """Return what a bar showed, one after the other."""
    return [text.strip() for text in re.split(r"[\r\n]+", capsys.readouterr().err) if text.strip()]


def test_lines_say_epoch_results_speed_and_the_time_left(clock, capsys):
    run(clock, "auto", epochs=4, steps=10, seconds=10)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/4  loss 0.5  val_loss 0.25  0.1 steps/s  5:00 left",
        "epoch 2/4  loss 0.5  val_loss 0.25  0.1 steps/s  3:20 left",
        "epoch 3/4  loss 0.5  val_loss 0.25  0.1 steps/s  1:40 left",
        "epoch 4/4  loss 0.5  val_loss 0.25  0.1 steps/s  in 6:40",
    ]


def test_lines_of_short_epochs_are_two_a_second_at_most_and_one_for_the_last_epoch(clock, capsys):
    run(clock, "auto", epochs=1000, steps=10, seconds=0.001)  # ten seconds
    lines = capsys.readouterr().out.splitlines()
    assert 15 <= len(lines) <= 21
    assert lines[-1] == "epoch 1000/1000  loss 0.5  val_loss 0.25  1,000 steps/s  in 10 s"


def test_a_training_that_ends_early_has_a_line_for_its_last_epoch_and_what_it_took(clock, capsys):
    run(clock, "auto", epochs=1000, steps=10, seconds=0.01, ends_after=18)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines][-2:] == ["15/1000", "18/1000"]
    assert re.search(r"steps/s  in \d+ s$", lines[-1])


def test_a_training_that_is_soon_over_prints_nothing(clock, capsys):
    run(clock, "auto", epochs=4, steps=10, seconds=0.01)
    assert capsys.readouterr() == ("", "")


def test_epochs_tell_the_time_if_the_number_of_steps_is_unknown(clock, capsys):
    run(clock, 2, epochs=4, steps=10, seconds=10, known=False)
    assert [line.split("steps/s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "5:00 left",
        "3:20 left",
        "1:40 left",
        "in 6:40",
    ]


def test_a_bar_on_a_terminal_shows_the_loss_so_far_and_the_time_left_first(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run(clock, 1, epochs=2, steps=5, seconds=20)
    bars = shown_texts(capsys)
    assert re.fullmatch(r"10%\|.{6}\| 3:00 left  epoch 0/2  loss 9  0.05 steps/s", bars[0])
    sixty = r"60%\|.*\| 1:20 left  epoch 1/2  loss 9  val_loss 0.25  0.05 steps/s"
    assert any(re.fullmatch(sixty, bar) for bar in bars)
    assert re.fullmatch(r"100%\|.*\| in 3:20  epoch 2/2  loss 0.5  val_loss 0.25  0.05 steps/s", bars[-1])


def test_a_training_that_goes_on_within_an_epoch_has_no_time_left_at_its_end(clock, capsys):
    with Progress(2, 3, 10, epochs_before=1, steps_before=4) as shown:
        for count in (6, 10):
            clock.now += count
            shown.step(count, lambda: 0.5)
            shown.epoch(1, {"loss": [0.5]})
    assert capsys.readouterr().out.splitlines() == [
        "epoch 2/3  loss 0.5  1 steps/s  10 s left",
        "epoch 3/3  loss 0.5  1 steps/s  in 16 s",
    ]


def test_an_epoch_that_has_just_begun_shows_the_loss_of_the_last_one(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(1, 2, 10) as shown:
        shown.epoch(1, {"loss": [0.5]})
        clock.now += 20
        shown.step(10, lambda: math.nan)
    assert "loss 0.5" in shown_texts(capsys)[0]


def test_a_bar_that_goes_into_a_file_is_drawn_once_an_epoch_at_most(clock, capsys):
    run(clock, 1, epochs=5, steps=100, seconds=1)
    bars = shown_texts(capsys)
    assert len(bars) <= 2 * 5  # tqdm may draw one twice as it begins and ends
    assert len(set(bars)) <= 6
    assert "epoch 5/5" in bars[-1]


def test_a_bar_of_many_tiny_epochs_is_rarely_drawn(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    asked = []
    with Progress(1, 100_000, 1) as shown:
        for _ in range(100_000):
            clock.now += 1e-5
            shown.step(1, lambda: asked.append(1) or 0.5)
            shown.epoch(1, {"loss": [0.5]})
    assert len(asked) <= 1 / progress.REFRESH_INTERVAL + 1
    assert len(shown_texts(capsys)) <= 3 / progress.REFRESH_INTERVAL


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (83, "1:23"), (17767, "4:56:07")]
)
def test_durations_are_seconds_minutes_or_hours(seconds, text):
    assert progress._duration(seconds) == text


def test_an_unknown_verbose_is_an_error_before_callbacks_begin():
    import caffelite as cl

    begun = []

    class Begins:
        def begin(self, training):
            begun.append(training)

        def __call__(self, epoch, history):
            pass

    model = cl.MLP(2, [3])
    with pytest.raises(ValueError, match="verbose"):
        model.fit(
            *cl.datasets.spiral(5),
            loss=cl.SoftmaxLoss(),
            optimizer=cl.Adam(model.parameters()),
            callbacks=[Begins()],
            verbose=3,
        )
    assert begun == []
