import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

import caffelite as cl


def history(epochs=5, *, start=1.0, validation=True, accuracy=True):
    names = ["loss"] + accuracy * ["accuracy"]
    names += [f"val_{name}" for name in names] if validation else []
    return cl.History({name: [start / (i + 1) + k for i in range(epochs)] for k, name in enumerate(names)})


def titles(figure):
    return [axes.get_title("left") for axes in figure.axes]


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def styles(axes):
    return [str(line._unscaled_dash_pattern) for line in axes.lines]


def test_training_and_validation_share_a_panel_and_differ_in_their_lines():
    figure = history().plot()
    assert titles(figure) == ["loss", "accuracy"]
    assert legend(figure) == ["training", "validation"]
    for axes in figure.axes:
        assert len(set(styles(axes))) == len(axes.lines) == 2


def test_a_single_quantity_without_validation_needs_no_legend():
    figure = history(validation=False, accuracy=False).plot()
    assert titles(figure) == ["loss"]
    assert legend(figure) == []


def test_several_runs_have_a_line_each_and_validation_panels_of_their_own():
    runs = [history(), history(9, start=2), history(3, start=3, validation=False)]
    figure = runs[0].plot(*runs[1:], labels=["SGD", "Adam", "RMSProp"])
    assert titles(figure) == ["loss", "accuracy", "validation loss", "validation accuracy"]
    assert legend(figure) == ["SGD", "Adam", "RMSProp"]
    loss, _, val_loss, _ = figure.axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [run["loss"] for run in runs]
    assert [line.get_xdata().tolist() for line in loss.lines] == [list(range(1, n + 1)) for n in (5, 9, 3)]
    assert [line.get_ydata().tolist() for line in val_loss.lines] == [run["val_loss"] for run in runs[:2]]
    assert len(set(styles(loss))) == 3
    assert styles(val_loss) == styles(loss)[:2]
    assert loss.get_ylim() == val_loss.get_ylim()


def test_runs_without_labels_are_numbered_and_what_only_some_measured_is_shown():
    figure = history(validation=False).plot(history(validation=False, accuracy=False))
    assert titles(figure) == ["loss", "accuracy"]
    assert legend(figure) == ["run 1", "run 2"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]


def test_the_line_of_a_run_is_its_own_up_to_six():
    figure = history().plot(*[history() for _ in range(5)])
    assert len(set(styles(figure.axes[0]))) == 6


def test_other_objects_and_a_wrong_number_of_labels_raise():
    with pytest.raises(TypeError, match=r"takes other Histories, got \{'loss'"):
        history().plot({"loss": [1.0]})
    with pytest.raises(ValueError, match="a label for each of 2 runs, got \\['a'\\]"):
        history().plot(history(), labels=["a"])


def test_a_run_of_one_epoch_or_none_can_be_drawn():
    assert history(1).plot().axes[0].lines[0].get_marker() == "o"
    history(0).plot()
    assert history(1).plot(history(0)).axes[0].lines[0].get_marker() == "o"


def test_drawing_leaves_nothing_in_pyplot():
    history().plot(history())
    assert plt.get_fignums() == []


def test_a_notebook_shows_the_curves():
    one = history()
    assert one._repr_html_() is None
    svg = ElementTree.fromstring(re.sub(r"<!DOCTYPE.*?>", "", one._repr_svg_(), flags=re.DOTALL))
    assert svg.tag.endswith("svg")
    assert svg.get("style") == "max-width:100%;height:auto"  # no wider than the page


def test_a_notebook_shows_the_figure_itself():
    assert history().plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.usefixtures("missing_matplotlib")
def test_without_matplotlib_a_notebook_shows_a_table():
    one = history(30)
    assert one._repr_svg_() is None
    html = one._repr_html_()
    assert html.count("<tr>") == 1 + 12 + 1
    for text in ("val_accuracy", ">1<", ">…<", ">20<", ">30<", f">{one['loss'][-1]:.4g}<"):
        assert text in html
    assert history(3)._repr_html_().count("<tr>") == 4


def test_a_terminal_of_ipython_shows_a_line_and_not_all_numbers():
    text = []
    cl.History(loss=[1.0] * 600)._repr_pretty_(SimpleNamespace(text=text.append), False)
    assert text == ["600 epochs, loss 1 → 1; .plot() draws the curves"]


def test_names_with_dollar_signs_are_drawn_as_they_are():
    one = cl.History({"loss": [1.0, 2.0], "$x^$": [1.0, 2.0]})
    assert "<svg" in one._repr_svg_()
    figure = one.plot(one, labels=["$a_$", "b$"])
    figure.draw_without_rendering()
    assert figure.axes[1].get_title("left") == r"\$x^\$"
