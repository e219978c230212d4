import importlib.util
import io
import math
import sys
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure

import caffelite as cl
from caffelite import plots
from tests.conftest import classifier


class Halves(cl.Function):
    """Class 1 where the first coordinate is positive, class 0 elsewhere, sure of it."""

    def forward(self, x):
        return np.column_stack([-50 * x[:, 0], 50 * x[:, 0]])

    def backward(self, dy):
        raise NotImplementedError


def history(epochs, validation=False):
    values = np.linspace(1, 0.1, epochs).tolist()
    names = ["loss", "accuracy"] + (["val_loss", "val_accuracy"] if validation else [])
    return cl.History(dict.fromkeys(names, values))


def images(n):
    return np.random.default_rng(0).random((n, 8, 8)).astype(np.float32)


def tint(k):
    """Return the colour of the region of class k where the model is sure."""
    return 1 - plots.TINT * (1 - np.array(to_rgb(plots.PALETTE[k])))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def everywhere(figure):
    """All axes of a figure, those of its subfigures and theirs included."""
    return [axes for part in figure.subfigs for axes in part.axes + everywhere(part)]


def draw_pixels(figure):
    """Return the pixels of the figure, (height, width, 3) in 0 … 255."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


@pytest.fixture
def axes():
    return Figure().subplots()


X = np.array([[-1, -1], [1, 1], [1, -1], [-1, 1]], np.float32)


def test_the_ground_of_a_character_is_the_darker_the_less_probable_it_was(axes):
    plots.text("ab\n$x\u0378", [1, 0.5, 0.25, 1 / 256, 0, 1], columns=4, axes=axes)
    assert texts(axes) == ["a", "b", "↵", "$", "x", "□"]
    places = [text.get_position() for text in axes.texts]
    assert places == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0, 1, 2, 8], [8, 0, 0, 0]])
    pixels = draw_pixels(axes.figure).reshape(-1, 3)
    assert (pixels == np.round(255 * np.array(to_rgb(plots.PALETTE[1])))).all(axis=1).any()


@pytest.mark.parametrize(("characters", "probabilities"), [("abc", [1, 1]), ("", []), ("ab", [[1, 1]])])
def test_a_text_needs_a_probability_for_each_character(characters, probabilities, axes):
    with pytest.raises(ValueError, match=rf"probabilities of {len(characters)} characters, got shape"):
        plots.text(characters, probabilities, axes=axes)
    assert texts(axes) == []


def test_the_picture_of_a_text_has_as_much_of_it_as_there_is_room_for_and_the_curves():
    figure = plots.text_picture(history(3, validation=True), "x" * 5000, np.full(5000, 0.5))
    page, loss, accuracy = everywhere(figure)
    assert len(page.texts) == plots.MAX_CHARACTERS
    assert [axes.get_title(loc="left") for axes in (loss, accuracy)] == ["loss", "accuracy"]


def test_each_region_is_tinted_with_the_colour_of_the_class_decided_for_there(axes):
    plots.decision_regions(cl.Model([Halves()]), X, [0, 1, 1, 0], axes=axes)
    image = axes.images[0]
    regions, (left, right, _, _) = image.get_array(), image.get_extent()
    assert left < -1
    assert right > 1
    for column, k in ((0, 0), (-1, 1)):
        np.testing.assert_allclose(regions[:, column], [tint(k)] * len(regions), atol=1e-6)


def test_a_region_is_paler_if_the_model_is_less_sure(axes):
    plots.decision_regions(cl.Model([Halves()]), X, [0, 1, 1, 0], axes=axes)
    row = axes.images[0].get_array()[0].sum(axis=-1)
    middle = len(row) // 2
    assert row[middle] > row[-1]
    assert row[middle - 1] > row[0]


def test_the_boundary_runs_between_two_tied_classes(axes):
    plots.decision_regions(cl.Model([Halves()]), X, [0, 1, 1, 0], axes=axes)
    lines = [path.vertices for contours in axes.collections[:2] for path in contours.get_paths()]
    np.testing.assert_allclose(np.concatenate(lines)[:, 0], 0, atol=1e-3)


def test_the_regions_are_not_upside_down(axes):
    model = cl.Model([cl.Linear(2, 2)])
    model.load_state_dict({"0.weight": [[0, 0], [-9, 9]], "0.bias": [0, 0]})  # class 1 above
    plots.decision_regions(model, X, [0, 1, 0, 1], axes=axes)
    image = axes.images[0]
    assert image.origin == "lower"
    np.testing.assert_allclose(image.get_array()[-1, 0], tint(1), atol=1e-3)


def test_points_have_the_colour_of_their_label_and_those_decided_wrongly_a_ring(axes):
    plots.decision_regions(cl.Model([Halves()]), X, [0, 1, 0, 0], axes=axes)
    points, ringed = axes.collections[-2:]
    assert [to_hex(c).upper() for c in points.get_facecolors()] == [plots.PALETTE[k] for k in (0, 1, 0, 0)]
    np.testing.assert_array_equal(ringed.get_offsets(), X[2:3])
    assert to_hex(ringed.get_edgecolors()[0]) == plots.INK


def test_the_plane_is_drawn_to_scale(axes):
    plots.decision_regions(cl.Model([Halves()]), X, [0, 1, 1, 0], axes=axes)
    assert axes.get_aspect() == 1


def test_a_model_that_decides_for_one_class_only_has_no_boundary(axes):
    model = cl.Model([cl.Linear(2, 3)])
    model.load_state_dict({"0.weight": np.zeros((2, 3)), "0.bias": [0, 0, 1]})
    plots.decision_regions(model, X, [0, 1, 2, 2], axes=axes)
    assert len(axes.collections) == 2  # the points, and those with a ring


@pytest.mark.parametrize(("x", "y"), [(np.zeros((4, 3)), [0] * 4), (X, [0] * 3), (np.zeros((0, 2)), [])])
def test_points_that_are_not_in_the_plane_raise(axes, x, y):
    with pytest.raises(ValueError, match="shapes"):
        plots.decision_regions(cl.Model([Halves()]), x, y, axes=axes)


def test_every_mistake_is_drawn_with_its_label_and_its_prediction_and_nothing_else(axes):
    labels, predictions = np.array([1, 2, 3, 4, 5]), np.array([1, 7, 3, 8, 5])
    plots.mistakes(images(5), labels, predictions, axes=axes)
    assert texts(axes) == ["2 → 7", "4 → 8"]
    for image, expected in zip(axes.images, images(5)[[1, 3]], strict=True):
        np.testing.assert_array_equal(image.get_array(), expected)


def test_mistakes_in_colours_are_drawn_with_the_names_of_their_classes(axes):
    photos = np.linspace(0, 1, 2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    plots.mistakes(photos, ["cat", "dog"], ["cat", "cat"], axes=axes)
    assert texts(axes) == ["dog → cat"]
    np.testing.assert_array_equal(axes.images[0].get_array(), photos[1].transpose(1, 2, 0))
    file = io.StringIO()
    plots.mistakes(photos, [0, 1], [1, 0]).savefig(file, format="svg")
    assert file.getvalue().count('id="photo"') == 2  # such images keep their colours on dark pages
    with pytest.raises(ValueError, match="shapes"):
        plots.mistakes(photos[:, :2], [0, 1], [1, 0], axes=axes)


@pytest.mark.parametrize("n", [1, 2, 9, 40, 360])
def test_mistakes_do_not_overlap_and_lie_within_the_axes(axes, n):
    plots.mistakes(images(n), np.zeros(n, int), np.ones(n, int), axes=axes)
    left, right, bottom, top = np.array([image.get_extent() for image in axes.images]).T
    assert len(left) == n
    assert axes.get_xlim()[0] <= left.min() < right.max() <= axes.get_xlim()[1]
    assert axes.get_ylim()[0] <= bottom.min() < top.max() <= axes.get_ylim()[1]
    overlap = (left < right[:, None]) & (left[:, None] < right) & (bottom < top[:, None]) & (bottom[:, None] < top)
    np.testing.assert_array_equal(overlap, np.eye(n, dtype=bool))


def test_without_a_mistake_the_picture_says_none(axes):
    plots.mistakes(images(3), [1, 2, 3], [1, 2, 3], axes=axes)
    assert texts(axes) == ["none"]
    assert len(axes.images) == 0


@pytest.mark.parametrize(("n", "labels", "predictions"), [(3, [1, 2], [1, 2]), (2, [1, 2], [1, 2, 3])])
def test_images_labels_and_predictions_of_different_lengths_raise(axes, n, labels, predictions):
    with pytest.raises(ValueError, match="shapes"):
        plots.mistakes(images(n), labels, predictions, axes=axes)


def convolution(weight):
    """Return a Conv2d of one channel with these filters, (filters, height, width), without padding."""
    weight = np.array(weight, np.float32)
    layer = cl.Conv2d(1, len(weight), weight.shape[1:], bias=False)
    layer.weight.data = weight[:, None]
    return layer


def test_each_filter_is_drawn_over_what_it_makes_of_the_image_beside_the_image(axes):
    image = np.arange(9.0).reshape(3, 3)
    plots.filters(convolution([[[1, 0], [0, 0]], [[0, 0], [0, -2]]]), image, axes=axes)
    shown, *draw_pixels = axes.images
    np.testing.assert_array_equal(shown.get_array(), image)
    expected = [[[1, 0], [0, 0]], [[0, 1], [3, 4]], [[0, 0], [0, -2]], [[-8, -10], [-14, -16]]]
    for values, of in zip(draw_pixels, expected, strict=True):
        np.testing.assert_array_equal(values.get_array(), of)
        assert values.get_clim() == (-np.abs(of).max(), np.abs(of).max())  # 0 is white
    left, right, bottom, top = np.array([values.get_extent() for values in draw_pixels]).T
    assert left[0] == left[1] < right[1] < left[2] == left[3]
    assert top[1] < bottom[0]
    assert shown.get_extent()[1] < left[0]
    assert axes.get_xlim()[0] <= shown.get_extent()[0]
    assert right.max() <= axes.get_xlim()[1]
    assert axes.get_ylim()[0] <= bottom.min() < top.max() <= axes.get_ylim()[1]


@pytest.mark.parametrize(("channels", "shape"), [(1, (1, 8, 8)), (1, (64,)), (3, (8, 8))])
def test_filters_of_several_channels_and_other_shapes_raise(axes, channels, shape):
    with pytest.raises(ValueError, match=r"an image \(height, width\) and a Conv2d of one channel, got shape"):
        plots.filters(cl.Conv2d(channels, 4, 3), np.zeros(shape), axes=axes)


def test_a_filter_of_zeros_is_grey(axes):
    plots.filters(convolution([[[0, 0], [0, 0]]]), np.zeros((4, 4)), axes=axes)
    _, *draw_pixels = axes.images
    for image in draw_pixels:
        np.testing.assert_allclose(
            image.cmap(image.norm(image.get_array())),
            np.broadcast_to(to_rgba("#777777"), (*image.get_array().shape, 4)),
            atol=0.01,
        )


def test_the_spiral_picture_has_the_regions_and_both_curves():
    figure = plots.spiral_picture(cl.Model([Halves()]), history(5), X, np.array([0, 1, 0, 0]))
    main, loss, accuracy = everywhere(figure)
    assert "75.0%" in main.get_title("left")
    assert len(main.images) == 1
    for axes in (loss, accuracy):
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2, 3, 4, 5])
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), history(5)["loss"])
    assert draw_pixels(figure).shape == (700, 1600, 3)


def test_the_digits_picture_has_mistakes_curves_and_filters():
    labels, predictions = np.array([1, 2, 3]), np.array([1, 7, 3])
    filters = convolution(np.ones((2, 3, 3)))
    figure = plots.digits_picture(history(5, validation=True), images(3), labels, predictions, filters)
    main, loss, accuracy, below = everywhere(figure)
    np.testing.assert_array_equal(below.images[0].get_array(), images(3)[1])
    assert len(below.images) == 1 + 2 * 2
    assert "1 of 3" in main.get_title("left")
    assert texts(main) == ["2 → 7"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "held out"]
    assert len(loss.lines) == len(accuracy.lines) == 2
    assert draw_pixels(figure).shape == (700, 1600, 3)


def test_the_digits_picture_without_a_mistake_has_the_filters_on_the_first_image():
    filters = convolution(np.ones((2, 3, 3)))
    figure = plots.digits_picture(history(5, validation=True), images(3), [1, 2, 3], [1, 2, 3], filters)
    main, *_, below = everywhere(figure)
    assert texts(main) == ["none"]
    np.testing.assert_array_equal(below.images[0].get_array(), images(3)[0])


def test_a_single_epoch_is_visible():
    figure = plots.spiral_picture(cl.Model([Halves()]), history(1), X, np.array([0, 1, 1, 0]))
    _, loss, _ = everywhere(figure)
    assert loss.lines[0].get_marker() == "o"


def test_without_axes_a_picture_is_a_figure_of_its_own():
    labels = np.array([0, 1, 0, 0])
    for figure in (
        plots.decision_regions(cl.Model([Halves()]), X, labels),
        plots.mistakes(images(4), labels, 1 - labels),
        plots.filters(convolution(np.ones((2, 3, 3))), images(1)[0]),
    ):
        assert len(figure.axes) == 1
        assert len(figure.axes[0].images) >= 1
        assert draw_pixels(figure).std() > 1


def test_weights_of_a_matrix_are_drawn_with_their_range_in_the_title():
    model = classifier(2, 5, 3)
    figure = plots.weights(model)
    for axes, p in zip(figure.axes, model.parameters()[::2], strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), p.data)
        most = np.abs(p.data).max()
        assert axes.images[0].get_clim() == (-most, most)
        assert f"{p.shape}\n±{most:.2g}" in axes.get_title("left")
    assert figure.axes[1].get_title("left").startswith("2.weight (5, 3)")


@pytest.mark.parametrize(("outputs", "inputs"), [(5, 3), (5, 1), (1, 1)])
def test_weights_of_a_convolution_are_a_table_of_its_filters(outputs, inputs):
    layer = cl.Conv2d(inputs, outputs, (2, 4))
    table = np.ma.filled(plots.weights(layer).axes[0].images[0].get_array(), np.nan)
    columns = outputs if inputs > 1 else math.ceil(math.sqrt(outputs))
    for o in range(outputs):
        for i in range(inputs):
            row, column = (i, o) if inputs > 1 else divmod(o, columns)
            cell = table[3 * row : 3 * row + 2, 5 * column : 5 * column + 4]
            np.testing.assert_array_equal(cell, layer.weight.data[o, i])
    assert np.isfinite(table).sum() == layer.weight.size
    assert np.isnan(table[2::3]).all()
    assert np.isnan(table[:, 4::5]).all()


def test_weights_of_series_are_drawn_and_what_has_none_raises():
    assert len(plots.weights(cl.Conv1d(3, 4, 5)).axes) == 1
    with pytest.raises(ValueError, match=r"ReLU\(\)\]\) has no parameters of two or more axes"):
        plots.weights(cl.Model([cl.ReLU()]))


def test_small_weights_differ_from_negative_ones_without_colours():
    shades = [np.dot(to_rgb(colour), [0.299, 0.587, 0.114]) for colour in plots.SIGNED_COLOURS]
    assert shades[0] + 0.25 < shades[1] < shades[2] - 0.25


def test_a_confusion_matrix_counts_the_predictions_of_each_label():
    pytest.importorskip("sklearn")
    (axes,) = plots.confusion_matrix([0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0]).axes
    assert axes.images[0].get_array().tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert texts(axes) == ["1", "1", "0", "0", "1", "0", "1", "0", "2"]


def test_a_confusion_matrix_of_many_classes_has_no_numbers(axes):
    pytest.importorskip("sklearn")
    assert plots.confusion_matrix(np.arange(40), np.arange(40), axes=axes) is axes.figure
    assert texts(axes) == []


def test_calibration_is_the_share_that_is_so_over_the_probability():
    pytest.importorskip("sklearn")
    curves = [
        plots.calibration([0, 1, 1, 0], [0.12, 0.72, 0.78, 0.74]),
        plots.calibration([0, 2, 1, 2], [[0.12, 0.06, 0.82], [0.1, 0.15, 0.75], [0.1, 0.72, 0.18], [0.71, 0.2, 0.09]]),
    ]
    points = [figure.axes[0].lines[-1].get_xydata() for figure in curves]
    np.testing.assert_allclose(points[0], [[0.12, 0], [2.24 / 3, 2 / 3]])
    np.testing.assert_allclose(points[1], [[2.18 / 3, 2 / 3], [0.82, 0]])
    assert [figure.axes[0].get_ylabel() for figure in curves] == [
        "share of rows of class 1",
        "share of rows of the class decided for",
    ]


def test_residuals_are_drawn_over_predictions_without_numpys_random_stream():
    pytest.importorskip("sklearn")
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    (axes,) = plots.residuals(np.array([[1.0], [2.0]]), [0.5, 4.0]).axes
    assert axes.collections[0].get_offsets().tolist() == [[0.5, 0.5], [4.0, -2.0]]
    big = np.linspace(0, 1, 5000)
    assert len(plots.residuals(big, big).axes[0].collections[0].get_offsets()) == 1000
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.confusion_matrix([0, 1], [0, 1, 1]),
        lambda: plots.confusion_matrix([0, 1], [[0.1, 0.9], [0.9, 0.1]]),
        lambda: plots.confusion_matrix([], []),
        lambda: plots.calibration([0, 1], [0.1, 0.2, 0.3]),
        lambda: plots.calibration([[0], [1]], [0.1, 0.2]),
        lambda: plots.residuals([[1.0, 2.0]], [[1.0, 2.0]]),
    ],
)
def test_labels_and_predictions_of_other_shapes_raise(draw):
    with pytest.raises(ValueError, match="got shapes"):
        draw()


@pytest.mark.parametrize("scores", [[0.5, 1.5], [-0.1, 0.5], [np.nan, 0.5]])
def test_scores_do_not_become_probabilities(scores):
    with pytest.raises(ValueError, match=r"probabilities in 0 … 1; loss\.link\(scores\)"):
        plots.calibration([0, 1], scores)


@pytest.mark.parametrize("name", ["confusion_matrix", "calibration", "residuals"])
def test_without_scikit_learn_it_is_reported_what_to_install(name, monkeypatch):
    for module in ("sklearn", "sklearn.metrics", "sklearn.calibration"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"plots.{name} is drawn by scikit-learn: .* -m pip install scikit-learn"):
        getattr(plots, name)([0, 1], [0, 1])


def test_drawing_leaves_nothing_in_pyplot():
    plots.spiral_picture(cl.Model([Halves()]), history(2), X, np.array([0, 1, 1, 0]))
    plots.weights(classifier(2, 3))
    if importlib.util.find_spec("sklearn"):
        plots.confusion_matrix([0, 1], [0, 1])
        plots.calibration([0, 1], [0, 1])
        plots.residuals([0, 1], [0, 1])
    assert plt.get_fignums() == []


def test_names_with_dollar_signs_are_drawn_as_they_are():
    figure = plots.confusion_matrix(["$\\x$", "$^$"], ["$\\x$", "$\\x$"])
    figure.draw_without_rendering()
    assert {label.get_text() for label in figure.axes[0].get_xticklabels()} == {r"\$\x\$", r"\$^\$"}
    one = history(2)
    figure = plots.table_picture(one, [0, 1], [0, 0], ["$\\x$", "$^$"], {"$p$^": 0.5, "a$\\frac$": 0.25})
    figure.draw_without_rendering()
    assert {label.get_text() for label in figure.axes[-1].get_yticklabels()} == {r"\$p\$^", r"a\$\frac\$"}
    named = cl.Model([cl.Linear(2, 2)])
    named.layers = {"$^$": cl.Linear(2, 3)}
    plots.weights(named).draw_without_rendering()


@pytest.mark.parametrize("last", [1e-5, 0.02, 0.5])
def test_the_numbers_beside_a_loss_do_not_overlap(last):
    falling = cl.History({name: np.geomspace(1, last, 20).tolist() for name in ("loss", "r2", "val_loss", "val_r2")})
    figure = plots.table_picture(falling, [0.0, 1.0], [0.0, 0.5], None, {"x": 0.5})
    figure.draw_without_rendering()
    axis = figure.subfigs[1].axes[0].yaxis
    inside = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_visible()]
    low, high = sorted(figure.subfigs[1].axes[0].bbox.intervaly)
    boxes = sorted([(box.y0, box.y1) for box in inside if low <= (box.y0 + box.y1) / 2 <= high])
    assert len(boxes) > 1
    assert all(below[1] <= above[0] for below, above in pairwise(boxes))


def test_columns_whose_names_begin_alike_have_a_bar_each():
    names = [f"a column with a long name, {i}" for i in range(3)]
    figure = plots.table_picture(history(2), [0.0, 1.0], [0.0, 0.5], None, dict.fromkeys(names, 0.5))
    assert len(figure.axes[-1].patches) == 3
    assert len(figure.axes[-1].get_yticklabels()) == 3


def test_pictures_have_one_style_and_leave_the_settings_alone():
    with plt.rc_context({"axes.spines.top": True, "axes.titlelocation": "center", "font.size": 30}):
        before = dict(plt.rcParams)
        figures = [history(5, validation=True).plot(), plots.weights(cl.Linear(2, 3)), plots.text("ab", [0.5, 0.1])]
        figures.append(plots.spiral_picture(cl.Model([Halves()]), history(5), X, np.array([0, 1, 0, 0])))
        with pytest.raises(ValueError, match="no parameters"):
            plots.weights(cl.ReLU())
        assert dict(plt.rcParams) == before
    for axes in [axes for figure in figures for axes in (*figure.axes, *everywhere(figure))]:
        assert not any(spine.get_visible() for spine in axes.spines.values())
        assert axes.get_title() == ""
        assert axes.xaxis.label.get_fontsize() == 11
        assert axes.title.get_fontsize() == 11


def test_lines_keep_their_colours_when_the_settings_return():
    first, second = history(3).plot(history(4), labels=["a", "b"]).axes[0].lines
    assert [line.get_color() for line in (first, second)] == [plots.PALETTE[0], plots.PALETTE[4]]
