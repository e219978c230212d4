import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

import caffelite as cl
from caffelite import plots


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
    """The colour of the region of class k where the model is sure."""
    return 1 - plots.TINT * (1 - np.array(to_rgb(plots.PALETTE[k])))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def everywhere(figure):
    """All axes of a figure, those of its subfigures and theirs included."""
    return [axes for part in figure.subfigs for axes in part.axes + everywhere(part)]


def drawn(figure):
    """The pixels of the figure, (height, width, 3) in 0 … 255."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


@pytest.fixture
def axes():
    return Figure().subplots()


X = np.array([[-1, -1], [1, 1], [1, -1], [-1, 1]], np.float32)


def test_each_region_is_tinted_with_the_colour_of_the_class_decided_for_there(axes):
    plots.decision_regions(axes, cl.Model([Halves()]), X, [0, 1, 1, 0])
    image = axes.images[0]
    regions, (left, right, _, _) = image.get_array(), image.get_extent()
    assert left < -1
    assert right > 1
    for column, k in ((0, 0), (-1, 1)):
        np.testing.assert_allclose(regions[:, column], [tint(k)] * len(regions), atol=1e-6)


def test_a_region_is_paler_where_the_model_is_less_sure(axes):
    plots.decision_regions(axes, cl.Model([Halves()]), X, [0, 1, 1, 0])
    row = axes.images[0].get_array()[0].sum(axis=-1)
    middle = len(row) // 2
    assert row[middle] > row[-1]
    assert row[middle - 1] > row[0]


def test_the_boundary_runs_where_two_classes_tie(axes):
    plots.decision_regions(axes, cl.Model([Halves()]), X, [0, 1, 1, 0])
    lines = [path.vertices for contours in axes.collections[:2] for path in contours.get_paths()]
    np.testing.assert_allclose(np.concatenate(lines)[:, 0], 0, atol=1e-3)


def test_the_regions_are_not_upside_down(axes):
    model = cl.Model([cl.Linear(2, 2)])
    model.load_state_dict({"0.weight": [[0, 0], [-9, 9]], "0.bias": [0, 0]})  # class 1 above
    plots.decision_regions(axes, model, X, [0, 1, 0, 1])
    image = axes.images[0]
    assert image.origin == "lower"
    np.testing.assert_allclose(image.get_array()[-1, 0], tint(1), atol=1e-3)


def test_points_have_the_colour_of_their_label_and_those_decided_wrongly_a_ring(axes):
    plots.decision_regions(axes, cl.Model([Halves()]), X, [0, 1, 0, 0])
    points, ringed = axes.collections[-2:]
    assert [to_hex(c).upper() for c in points.get_facecolors()] == [plots.PALETTE[k] for k in (0, 1, 0, 0)]
    np.testing.assert_array_equal(ringed.get_offsets(), X[2:3])
    assert to_hex(ringed.get_edgecolors()[0]) == plots.INK


def test_the_plane_is_drawn_to_scale(axes):
    plots.decision_regions(axes, cl.Model([Halves()]), X, [0, 1, 1, 0])
    assert axes.get_aspect() == 1


def test_a_model_that_decides_for_one_class_only_has_no_boundary(axes):
    model = cl.Model([cl.Linear(2, 3)])
    model.load_state_dict({"0.weight": np.zeros((2, 3)), "0.bias": [0, 0, 1]})
    plots.decision_regions(axes, model, X, [0, 1, 2, 2])
    assert len(axes.collections) == 2  # the points, and those with a ring


@pytest.mark.parametrize(("x", "y"), [(np.zeros((4, 3)), [0] * 4), (X, [0] * 3), (np.zeros((0, 2)), [])])
def test_points_that_are_not_in_the_plane_are_refused(axes, x, y):
    with pytest.raises(ValueError, match="shapes"):
        plots.decision_regions(axes, cl.Model([Halves()]), x, y)


def test_every_mistake_is_drawn_with_its_label_and_its_prediction_and_nothing_else(axes):
    labels, predictions = np.array([1, 2, 3, 4, 5]), np.array([1, 7, 3, 8, 5])
    plots.mistakes(axes, images(5), labels, predictions)
    assert texts(axes) == ["2 → 7", "4 → 8"]
    for image, expected in zip(axes.images, images(5)[[1, 3]], strict=True):
        np.testing.assert_array_equal(image.get_array(), expected)


@pytest.mark.parametrize("n", [1, 2, 9, 40, 360])
def test_mistakes_do_not_overlap_and_lie_within_the_axes(axes, n):
    plots.mistakes(axes, images(n), np.zeros(n, int), np.ones(n, int))
    left, right, bottom, top = np.array([image.get_extent() for image in axes.images]).T
    assert len(left) == n
    assert axes.get_xlim()[0] <= left.min() < right.max() <= axes.get_xlim()[1]
    assert axes.get_ylim()[0] <= bottom.min() < top.max() <= axes.get_ylim()[1]
    overlap = (left < right[:, None]) & (left[:, None] < right) & (bottom < top[:, None]) & (bottom[:, None] < top)
    np.testing.assert_array_equal(overlap, np.eye(n, dtype=bool))


def test_without_a_mistake_the_picture_says_none(axes):
    plots.mistakes(axes, images(3), [1, 2, 3], [1, 2, 3])
    assert texts(axes) == ["none"]
    assert len(axes.images) == 0


@pytest.mark.parametrize(("n", "labels", "predictions"), [(3, [1, 2], [1, 2]), (2, [1, 2], [1, 2, 3])])
def test_images_labels_and_predictions_of_different_lengths_are_refused(axes, n, labels, predictions):
    with pytest.raises(ValueError, match="shapes"):
        plots.mistakes(axes, images(n), labels, predictions)


def convolution(weight):
    """A Conv2d of one channel with these filters, (filters, height, width), without padding."""
    weight = np.array(weight, np.float32)
    layer = cl.Conv2d(1, len(weight), weight.shape[1:], bias=False)
    layer.weight.data = weight[:, None]
    return layer


def test_each_filter_is_drawn_over_what_it_makes_of_the_image_beside_the_image(axes):
    image = np.arange(9.0).reshape(3, 3)
    plots.filters(axes, convolution([[[1, 0], [0, 0]], [[0, 0], [0, -2]]]), image)
    shown, *drawn = axes.images
    np.testing.assert_array_equal(shown.get_array(), image)
    expected = [[[1, 0], [0, 0]], [[0, 1], [3, 4]], [[0, 0], [0, -2]], [[-8, -10], [-14, -16]]]
    for values, of in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(values.get_array(), of)
        assert values.get_clim() == (-np.abs(of).max(), np.abs(of).max())  # 0 is white
    left, right, bottom, top = np.array([values.get_extent() for values in drawn]).T
    assert left[0] == left[1] < right[1] < left[2] == left[3]
    assert top[1] < bottom[0]
    assert shown.get_extent()[1] < left[0]
    assert axes.get_xlim()[0] <= shown.get_extent()[0]
    assert right.max() <= axes.get_xlim()[1]
    assert axes.get_ylim()[0] <= bottom.min() < top.max() <= axes.get_ylim()[1]


@pytest.mark.parametrize(("channels", "shape"), [(1, (1, 8, 8)), (1, (64,)), (3, (8, 8))])
def test_filters_of_several_channels_and_what_is_no_image_are_refused(axes, channels, shape):
    with pytest.raises(ValueError, match=r"an image \(height, width\) and a Conv2d of one channel, got shape"):
        plots.filters(axes, cl.Conv2d(channels, 4, 3), np.zeros(shape))


def test_a_filter_of_zeros_is_white(axes):
    plots.filters(axes, convolution([[[0, 0], [0, 0]]]), np.zeros((4, 4)))
    assert drawn(axes.figure).min() > 240


def test_the_spiral_picture_has_the_regions_and_both_curves():
    figure = plots.spiral_picture(cl.Model([Halves()]), history(5), X, np.array([0, 1, 0, 0]))
    main, loss, accuracy = everywhere(figure)
    assert "75.0%" in main.get_title()
    assert len(main.images) == 1
    for axes in (loss, accuracy):
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2, 3, 4, 5])
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), history(5)["loss"])
    assert drawn(figure).shape == (700, 1600, 3)


def test_the_digits_picture_has_the_mistakes_both_curves_with_validation_and_the_filters_on_the_first_mistake():
    labels, predictions = np.array([1, 2, 3]), np.array([1, 7, 3])
    filters = convolution(np.ones((2, 3, 3)))
    figure = plots.digits_picture(history(5, validation=True), images(3), labels, predictions, filters)
    main, loss, accuracy, below = everywhere(figure)
    np.testing.assert_array_equal(below.images[0].get_array(), images(3)[1])
    assert len(below.images) == 1 + 2 * 2
    assert "1 of 3" in main.get_title()
    assert texts(main) == ["2 → 7"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "held out"]
    assert len(loss.lines) == len(accuracy.lines) == 2
    assert drawn(figure).shape == (700, 1600, 3)


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


def test_drawing_leaves_nothing_in_pyplot():
    plots.spiral_picture(cl.Model([Halves()]), history(2), X, np.array([0, 1, 1, 0]))
    assert plt.get_fignums() == []
