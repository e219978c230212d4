"""The picture of a Program: its bars are the profile's times and the memory's places, and drawing changes nothing."""

import math
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import caffelite as cl
from caffelite.program import program as programs
from caffelite.program.plot import NAME_ANGLE, plot_stages, spread_labels
from caffelite.program.timeline import _measure, measure_stages
from tests.conftest import training_step

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)


class Double(cl.Function):
    """A user's, in NumPy."""

    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 2 * dy


def net(*more, dtype=np.float32):
    functions = [cl.Linear(2, 16), cl.ReLU(), cl.Dropout(0.2), *more, cl.Linear(16, 3)]
    return cl.Model(functions, seed=0, dtype=dtype)


def capture_step(model=None, optimizer=cl.Adam, x=X, y=Y):
    """Return a training step as a Program, with its model and its optimizer."""
    model = model or net()
    loss, rule = cl.SoftmaxLoss(), optimizer(model.parameters(), lr=0.01)
    return cl.capture(training_step(model, rule, loss), x.astype(model.dtype), y), model, rule


def convolutional():
    images = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    functions = [cl.Conv2d(1, 4, 3), cl.BatchNorm(4), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten(), cl.Linear(36, 3)]
    return capture_step(cl.Model(functions, seed=0), cl.SGD, images, np.arange(8) % 3)


def state(model, rule):
    arrays = [*model.state_dict().values(), *[p.grad for p in model.parameters()], *rule.state_dict().values()]
    return [np.asarray(a).tobytes() for a in arrays]


def time_stages(program, replays=5):
    return measure_stages(program._stages, program.optimize(), replays)


@pytest.mark.parametrize("make", [capture_step, convolutional], ids=["dense", "convolutional"])
def test_bars_are_as_wide_as_the_times_and_are_side_by_side(make):
    stages = time_stages(make()[0])
    figure = plot_stages(stages)
    assert len(figure.axes) == 2 * len(stages) == 8
    for stage, axes in zip(stages, figure.axes[::2], strict=True):
        widths = [bar.get_width() for bar in axes.patches]
        np.testing.assert_allclose(widths, stage.seconds * 1e6)
        assert sum(widths) == pytest.approx(stage.seconds.sum() * 1e6)
        np.testing.assert_allclose([bar.get_x() for bar in axes.patches], np.cumsum([0, *widths])[:-1], atol=1e-9)
        assert f"{len(stage.calls)} kernels, {sum(widths):.1f} µs" in axes.get_title(loc="left")
        assert sum(widths) <= axes.get_xlim()[1]


def test_the_times_are_taken_from_the_profile():
    program, *_ = capture_step(x=np.tile(X, (50, 1)), y=np.tile(Y, 50))
    lines = program.profile(200).splitlines()
    last = time_stages(program, 200)[-1]
    assert last.calls == [line.split()[0] for line in lines[2:-1]] == [call.name for call in calls(program)]
    assert 1 / 3 < last.seconds.sum() * 1e6 / float(lines[-1].split()[1]) < 3


def calls(program):
    return [instruction.call for instruction in program.optimize().instructions]


@pytest.mark.parametrize("make", [capture_step, convolutional], ids=["dense", "convolutional"])
def test_no_two_temporaries_that_live_at_once_overlap_in_memory(make):
    stages = time_stages(make()[0])
    for stage in stages:
        for i, a in enumerate(stage.bars):
            assert a.begin <= a.end < len(stage.calls)
            assert a.offset + a.nbytes <= stage.size
            for b in stage.bars[:i]:
                at_once = a.begin <= b.end and b.begin <= a.end
                overlap = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
                assert not (at_once and overlap)
    before, after = stages[-2:]
    assert after.size < before.size  # they make room for each other
    assert sum(bar.nbytes for bar in after.bars) == sum(bar.nbytes for bar in before.bars)


def test_the_rectangles_are_the_temporaries():
    stages = time_stages(capture_step()[0])
    for stage, axes in zip(stages, plot_stages(stages).axes[1::2], strict=True):
        ends = np.cumsum(stage.seconds) * 1e6
        assert len(axes.patches) == len(stage.bars) > 3
        for rectangle, bar in zip(axes.patches, stage.bars, strict=True):
            assert (rectangle.get_y(), rectangle.get_height()) == (bar.offset, bar.nbytes)
            assert rectangle.get_x() == pytest.approx(ends[bar.begin] - stage.seconds[bar.begin] * 1e6, abs=1e-9)
            assert rectangle.get_x() + rectangle.get_width() == pytest.approx(ends[bar.end])


def test_a_panel_shows_the_step_as_recorded_and_one_after_each_pass(monkeypatch):
    program, *_ = capture_step()
    names = ["as recorded", "after drop_unread", "after fuse_epilogue", "after place_temporaries"]
    stages = time_stages(program)
    assert [stage.name for stage in stages] == names
    assert len(stages[-1].calls) == len(program) < len(stages[0].calls)
    monkeypatch.setattr(programs, "PASSES", [])
    assert time_stages(capture_step()[0])[0].calls == stages[0].calls
    assert len(capture_step()[0].show(1).axes) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_stage_makes_the_very_step(dtype):
    program, model, rule = capture_step(net(dtype=dtype))
    before = [a.copy() for a in (*arrays(program),)]
    program.replay.run()
    expected = state(model, rule)
    for stage in program._stages:
        for array, values in zip(arrays(program), before, strict=True):
            array[...] = values
        _measure(stage, program.optimize().memory, 1)
        assert state(model, rule) == expected


def arrays(program):
    """Return what the step writes and does not lose."""
    buffers = {b for call in program.optimize().instructions for b in call.writes if not b.is_temporary}
    return [b.owner().view(np.ndarray) for b in sorted(buffers, key=lambda b: b.address)]


def test_drawing_changes_nothing():
    program, model, rule = capture_step()
    other, other_model, other_rule = capture_step()
    before = state(model, rule)
    program.show(3)
    assert state(model, rule) == before
    program(X, Y)
    other(X, Y)
    assert state(model, rule) == state(other_model, other_rule)


def test_drawing_changes_nothing_even_if_a_replay_stops():
    program, model, rule = capture_step()
    program.inputs[1][3] = 7  # no label
    before = state(model, rule)
    with pytest.raises(ValueError, match="row 3"):
        program.show(3)
    assert state(model, rule) == before
    program(X, Y)


def test_calls_into_python_are_drawn_too():
    program, model, rule = capture_step(net(Double()))
    before = state(model, rule)
    figure = program.show(2)
    assert "Python: Double" in [text.get_text().split(".")[0] for text in figure.axes[0].texts]
    assert state(model, rule) == before
    program(X, Y)


@pytest.mark.parametrize("make", [capture_step, convolutional], ids=["dense", "convolutional"])
def test_labels_can_be_read(make):
    figure = make()[0].show(3)
    figure.draw_without_rendering()
    for kernels, memory in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        size = 7 * figure.dpi / 72  # pixels
        anchors = np.array([kernels.transData.transform(text.get_position()) for text in kernels.texts])
        assert (np.diff(anchors[:, 0]) * math.sin(math.radians(NAME_ANGLE)) > 0.95 * size).all()
        for text in kernels.texts:
            extent = text.get_window_extent()
            assert extent.x0 >= 0
            assert extent.x1 <= figure.bbox.x1
            assert extent.y1 <= kernels.title.get_window_extent().y0 + 20 or extent.x0 > 0.5 * figure.bbox.x1
        places = [rectangle.get_window_extent() for rectangle in memory.patches]
        for text in memory.texts:
            extent = text.get_window_extent()
            assert any(p.x0 <= extent.x0 and extent.x1 <= p.x1 and p.y0 <= extent.y0 + 1 and extent.y1 <= p.y1 + 1
                       for p in places)  # fmt: skip


def test_names_are_moved_apart_around_their_places():
    np.testing.assert_allclose(spread_labels(np.array([1.0, 5.0, 9.0]), 2, 12), [1, 5, 9])
    np.testing.assert_allclose(spread_labels(np.array([5.0, 5.0, 5.0]), 2, 12), [3, 5, 7])
    np.testing.assert_allclose(spread_labels(np.array([0.0, 0.0]), 2, 12), [0, 2])
    np.testing.assert_allclose(spread_labels(np.array([12.0, 12.0]), 2, 12), [8, 10])
    np.testing.assert_allclose(spread_labels(np.zeros(6), 4, 12), [0, 2, 4, 6, 8, 10])
    assert spread_labels(np.empty(0), 1, 10).size == 0


def test_drawing_leaves_pyplot_alone():
    capture_step()[0].show(1)
    assert plt.get_fignums() == []


def test_a_forward_pass_alone_can_be_drawn():
    model = net()
    figure = cl.capture(model, X).show(2)
    assert len(figure.axes) == 8


@pytest.mark.parametrize(("replays", "error"), [(0, ValueError), (1.5, TypeError)])
def test_replays_are_counted(replays, error):
    with pytest.raises(error, match="replays"):
        capture_step()[0].show(replays)


def test_a_program_without_a_current_recording_cannot_be_drawn():
    model = net()
    model.predict(X)
    (blocks,) = model._model_state.programs._programs.values()
    for program in blocks.programs.values():
        with pytest.raises(RuntimeError, match="show draws a Program that capture has recorded"):
            program.show()
    program, model, _ = capture_step()
    model.functions[0].weight.requires_grad = False
    with pytest.raises(RuntimeError, match="no recording that is up to date: call it before show"):
        program.show()


def test_without_matplotlib_the_error_says_what_is_missing(monkeypatch):
    program, *_ = capture_step()
    monkeypatch.delitem(sys.modules, "caffelite._support.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"drawn by matplotlib, which is not installed: .* -m pip install"):
        program.show(1)
