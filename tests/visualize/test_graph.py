"""The drawing of a graph: what stands in its boxes, where its arrows run, and that they keep clear of each other."""

import itertools
import re
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.conftest import classifier

X, Y = cl.datasets.spiral(points_per_class=10, seed=0)


class Box(NamedTuple):
    """A box with its lines of text."""

    label: str
    detail: str
    left: float
    top: float
    right: float
    bottom: float


class Arrow(NamedTuple):
    """The points of an arrow's line, from a box on, the ends of its curves from row to row, and its tip."""

    points: list
    curves: list
    tip: tuple


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def piece(path):
    """Points along a move and a Bézier curve, and whether an arrow's head is at its end, or a line down a row."""
    move, curve, rest = re.fullmatch(r"M (.*) C (.*?) ([mv].*)", path).groups()
    values = numbers(move + " " + curve)
    corners = np.array(list(zip(values[::2], values[1::2], strict=True)))
    t = np.linspace(0, 1, 50)[:, None]
    points = list(map(tuple, np.hstack([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3]) @ corners))
    points[0], points[-1] = tuple(corners[0]), tuple(corners[-1])
    if rest.startswith("m"):
        return points, True
    (down,) = numbers(rest)
    return [*points, (points[-1][0], points[-1][1] + down)], False


def drawing(tensor):
    """Return the boxes and the arrows of a drawing."""
    lines, boxes = ElementTree.fromstring(str(cl.graph(tensor)))
    drawn, arrows, lines_to = [], [], {}
    for element in boxes:
        if element.tag.endswith("rect"):
            x, y, width, height = (float(element.get(name)) for name in ("x", "y", "width", "height"))
            drawn.append(Box("", "", x, y, x + width, y + height))
        else:
            empty = "detail" if drawn[-1].label else "label"
            drawn[-1] = drawn[-1]._replace(**{empty: element.text})
    pieces = [piece(path.get("d")) for path in lines]
    for points, has_head in pieces:
        if not has_head:
            assert points[-1] not in lines_to
            lines_to[points[-1]] = points
    used = set()
    for points, has_head in pieces:
        if has_head:
            whole, curves = points, [(*points[0], *points[-1])]
            while (start := whole[0]) in lines_to:
                used.add(start)
                before = lines_to[start]
                whole, curves = before + whole, [(*before[0], *before[-2]), *curves]
            arrows.append(Arrow(whole, curves, points[-1]))
    assert used == lines_to.keys()  # no line leads nowhere
    return drawn, arrows


def ends(drawn, arrow):
    """Return the boxes on whose borders an arrow starts, below, and ends, above."""
    (x, y), (to_x, to_y) = arrow.points[0], arrow.tip
    sources = [box for box in drawn if box.left < x < box.right and box.bottom == pytest.approx(y, abs=0.1)]
    targets = [box for box in drawn if box.left < to_x < box.right and box.top == pytest.approx(to_y, abs=0.1)]
    assert len(sources) == len(targets) == 1
    return sources[0], targets[0]


def connections(tensor):
    """Return the labels of the boxes that each arrow connects."""
    drawn, arrows = drawing(tensor)
    return sorted(tuple(box.label for box in ends(drawn, arrow)) for arrow in arrows)


def tensor(*shape, name=None, requires_grad=True):
    return cl.Tensor(np.ones(shape, np.float32), requires_grad, name=name)


def two_layers():
    h = cl.Tensor(X, name="x")
    for layer in classifier(2, 100, 3).functions:
        h = layer(h)
    return cl.SoftmaxLoss()(h, Y)


def squared_error():
    x, w, b = tensor(30, 2, name="x", requires_grad=False), tensor(2, 3, name="W"), tensor(3, name="b")
    return ((cl.relu(x @ w + b) - tensor(30, 3, name="target", requires_grad=False)) ** 2).mean()


def residual():
    """Return inputs that are used again further down."""
    h = tensor(5, 4, name="x")
    for _ in range(3):
        h = cl.relu(h @ tensor(4, 4, name="W")) + h
    return (h * h).sum() / h.mean()


def recurrent():
    """Return a weight that is used in every step, and a state that every step adds to."""
    h, w = tensor(5, 4, name="h"), tensor(4, 4, name="W")
    for _ in range(3):
        h = cl.tanh(tensor(5, 4, name="x") @ w) + h
    return h.mean()


class AddAll(cl.Function):
    """The sum of any number of arrays."""

    def forward(self, *arrays):
        self.count = len(arrays)
        return np.sum(arrays, axis=0)

    def backward(self, dy):
        return (dy,) * self.count


def many_inputs():
    return AddAll()(*[tensor(2, name=f"a{i}").exp() for i in range(40)])


def two_branches():
    a, b = tensor(2, name="a"), tensor(2, name="b")
    return (a.exp() * b).log() + (b * a).tanh().exp()


GRAPHS = pytest.mark.parametrize("make", [two_layers, squared_error, residual, recurrent, many_inputs, two_branches])


def test_a_net_is_drawn_as_its_functions_with_their_parameters_and_shapes():
    drawn, _ = drawing(two_layers())
    assert sorted((box.label, box.detail) for box in drawn) == [
        ("Linear(100, 3)", "(30, 3)"),
        ("Linear(2, 100)", "(30, 100)"),
        ("ReLU()", "(30, 100)"),
        ("SoftmaxLoss()", "()"),
        ("bias", "(100,) requires_grad"),
        ("bias", "(3,) requires_grad"),
        ("constant", ""),
        ("weight", "(100, 3) requires_grad"),
        ("weight", "(2, 100) requires_grad"),
        ("x", "(30, 2)"),
    ]
    assert connections(two_layers()) == [
        ("Linear(100, 3)", "SoftmaxLoss()"),
        ("Linear(2, 100)", "ReLU()"),
        ("ReLU()", "Linear(100, 3)"),
        ("bias", "Linear(100, 3)"),
        ("bias", "Linear(2, 100)"),
        ("constant", "SoftmaxLoss()"),
        ("weight", "Linear(100, 3)"),
        ("weight", "Linear(2, 100)"),
        ("x", "Linear(2, 100)"),
    ]


def test_operators_are_drawn_with_what_they_were_applied_to():
    assert connections(squared_error()) == [
        ("Add()", "ReLU()"),
        ("MatMul()", "Add()"),
        ("Power()", repr(cl.functions.Mean())),
        ("ReLU()", "Subtract()"),
        ("Subtract()", "Power()"),
        ("W", "MatMul()"),
        ("b", "Add()"),
        ("constant", "Power()"),
        ("target", "Subtract()"),
        ("x", "MatMul()"),
    ]


@GRAPHS
def test_boxes_do_not_overlap_and_lie_in_the_picture(make):
    svg = ElementTree.fromstring(str(cl.graph(make())))
    left, top, width, height = numbers(svg.get("viewBox"))
    drawn, _ = drawing(make())
    for a, b in itertools.combinations(drawn, 2):
        assert a.right < b.left or b.right < a.left or a.bottom < b.top or b.bottom < a.top
    for box in drawn:
        assert box.left > left
        assert box.top > top
        assert box.right < left + width
        assert box.bottom < top + height


@GRAPHS
def test_arrows_run_from_border_to_border_and_through_no_box(make):
    drawn, arrows = drawing(make())
    for arrow in arrows:
        ends(drawn, arrow)
        for (x, y), box in itertools.product(arrow.points, drawn):
            assert not (box.left < x < box.right and box.top + 0.1 < y < box.bottom - 0.1)
    tips = [arrow.tip for arrow in arrows]
    assert len(set(tips)) == len(tips)


@pytest.mark.parametrize("make", [two_layers, squared_error, residual, recurrent, many_inputs])
def test_arrows_do_not_cross_if_they_need_not(make):
    _, arrows = drawing(make())
    curves = [curve for arrow in arrows for curve in arrow.curves]
    for (x, y, to_x, _), (x_2, y_2, to_x_2, _) in itertools.combinations(curves, 2):
        if y == y_2:
            assert (x - x_2) * (to_x - to_x_2) >= 0


def test_functions_that_follow_each_other_are_in_a_straight_line():
    drawn, _ = drawing(two_layers())
    spine = [box for box in drawn if box.label.endswith(")") or box.label == "x"]
    assert len(spine) == 5
    assert len({round((box.left + box.right) / 2) for box in spine}) == 1


def test_a_weight_is_left_and_a_bias_right_of_the_input_of_their_layer():
    drawn, _ = drawing(two_layers())
    for name, above in (("Linear(2, 100)", "x"), ("Linear(100, 3)", "ReLU()")):
        (middle,) = [(box.left + box.right) / 2 for box in drawn if box.label == name]
        (row,) = [box.bottom for box in drawn if box.label == above]
        sides = {box.label: (box.left + box.right) / 2 < middle for box in drawn if box.bottom == row}
        assert sides["weight"]
        assert not sides["bias"]


def test_a_tensor_that_is_used_twice_is_drawn_once_with_two_arrows():
    w = tensor(3, name="w")
    drawn, _ = drawing(w * w)
    assert [box.label for box in drawn] == ["w", "Multiply()"]
    assert connections(w * w) == [("w", "Multiply()")] * 2


def test_parameters_of_a_function_that_is_applied_twice_are_drawn_once():
    layer = cl.Linear(2, 2)
    drawn, arrows = drawing(layer(layer(X)))
    assert sorted(box.label for box in drawn) == ["Linear(2, 2)"] * 2 + ["bias", "constant", "weight"]
    assert len(arrows) == 6


def test_a_model_is_drawn_as_its_functions_would_be_without_it():
    model, x = classifier(2, 5, 3), cl.Tensor(X)
    first, relu, last = model.functions
    assert cl.graph(model(x)) == cl.graph(last(relu(first(x))))
    assert cl.graph(cl.Model([model, cl.Tanh()])(x)) == cl.graph(cl.Tanh()(model(x)))
    later = model(x)
    before = cl.graph(later)
    model.add(cl.Tanh())
    assert cl.graph(later) == before


def test_a_number_inside_a_model_has_its_shape():
    model = cl.Model([functions.Sum(), functions.Exp()])
    assert cl.graph(model(tensor(2, 3))).count(">()</text>") == 2


def test_a_models_boxes_show_the_shapes_of_its_last_input():
    drawn, _ = drawing(classifier(2, 5, 3)(X))
    assert [box.detail for box in drawn if box.label.endswith(")")] == ["(30, 5)", "(30, 5)", "(30, 3)"]


def test_a_model_with_a_forward_of_its_own_is_a_box_of_its_own():
    class Twice(cl.Model):
        def forward(self, x):
            return 2 * x

    drawn, _ = drawing(Twice([cl.Linear(2, 2)])(X))
    assert [box.label for box in drawn] == ["constant", "weight", "bias", "Model([Linear(2, 2)])"]


def test_a_model_without_functions_is_not_drawn():
    x = tensor(2, name="w")
    assert cl.graph(cl.Model()(x)) == cl.graph(x)


class Halves(cl.Function):
    """The first and the second half of the rows."""

    def forward(self, x):
        return x[: len(x) // 2], x[len(x) // 2 :]

    def backward(self, dy):
        return np.concatenate(dy)


def apply_noting(function, x, *shapes):
    """Tensors that note one application of a Function, as what a Function with several outputs returns does."""
    outputs, number = [cl.Tensor(np.ones(shape, np.float32)) for shape in shapes], x.exp()._serial_number
    for y in outputs:
        y.function, y.inputs, y._requires_grad = function, (x,), True
        y._serial_number = number
    return outputs


def test_a_function_with_several_outputs_is_drawn_once_with_an_arrow_for_each_use():
    first, second = apply_noting(Halves(), tensor(4, 3, name="x"), (1, 3), (3, 3))
    y = (first.exp() * second).sum() + second.mean()
    drawn, _ = drawing(y)
    assert [(box.label, box.detail) for box in drawn if box.label.startswith("Halves")] == [
        ("Halves()", "(1, 3), (3, 3)")
    ]
    assert [target for source, target in connections(y) if source == "Halves()"] == ["Exp()", "Mean()", "Multiply()"]
    assert connections(second) == [("x", "Halves()")]


def test_a_result_that_was_cut_off_is_drawn_as_a_leaf():
    y = tensor(3).exp()
    y.requires_grad, y.name = False, "y"
    assert connections(y * tensor(3, name="w")) == [("w", "Multiply()"), ("y", "Multiply()")]


def test_a_tensor_without_a_graph_is_drawn_alone():
    drawn, arrows = drawing(tensor(2, 3, requires_grad=False))
    assert [(box.label, box.detail) for box in drawn] == [("Tensor", "(2, 3)")]
    assert arrows == []
    with cl.no_grad():
        (drawn,), _ = drawing(tensor(3).exp())
    assert (drawn.label, drawn.detail) == ("Tensor", "(3,)")


def test_the_name_of_a_result_is_beside_its_shape():
    y = tensor(3).exp()
    y.name = "y"
    drawn, _ = drawing(y)
    assert [box.detail for box in drawn] == ["(3,) requires_grad", "y (3,)"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("<a & 'b'> \"c\"", "<a & 'b'> \"c\""),
        ("two\nlines", "two lines"),
        ("bell\a, \ud800, ]]>", "bell\N{REPLACEMENT CHARACTER}, \N{REPLACEMENT CHARACTER}, ]]>"),
        ("W₁ ∂", "W₁ ∂"),
        ("l" * 100, "l" * 47 + "…"),
    ],
)
def test_any_name_makes_a_drawing_that_is_xml(name, label):
    drawn, _ = drawing(tensor(3, name=name).exp())
    assert drawn[0].label == label


def test_a_deep_graph_can_be_drawn():
    y = x = tensor(2, name="x")
    for _ in range(2000):
        y = -y
    drawn, arrows = drawing(y)
    assert len(drawn) == 2001
    assert len(arrows) == 2000
    assert len(drawing((y + x).sum())[1]) == 2003


def test_an_input_of_many_steps_comes_down_to_them_in_one_line():
    h, w = tensor(2, 2, name="h"), tensor(2, 2, name="W")
    for _ in range(100):
        h = h @ w
    drawn, arrows = drawing(h)
    assert (len(drawn), len(arrows)) == (102, 200)
    assert cl.graph(h).count("<path") == 200 + 99


def test_the_drawing_is_text_and_a_notebook_shows_it():
    svg = cl.graph(tensor(2))
    assert isinstance(svg, str)
    assert svg._repr_svg_() == str(svg) == svg
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert 'style="max-width:100%;height:auto"' in svg.splitlines()[0]  # no wider than the page


def test_at_the_prompt_a_drawing_is_its_size_and_it_can_be_saved(tmp_path):
    svg = cl.graph(tensor(2, name="μ"))
    root = ElementTree.fromstring(svg)
    size = f"{root.get('width')} × {root.get('height')}"
    assert repr(svg) == f'SVG({size}; a notebook draws it, .save("graph.svg") writes it)'
    assert re.match(r"SVG\(\d+ × \d+;", repr(svg))
    svg.save(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text(encoding="utf-8") == svg


def test_drawing_leaves_the_graph_to_backward_which_frees_it():
    w = tensor(3, name="w")
    y = (w * w).sum()
    cl.graph(y)
    y.backward()
    np.testing.assert_array_equal(w.grad, [2, 2, 2])
    with pytest.raises(RuntimeError, match="freed"):
        cl.graph(y)


def test_a_graph_of_something_other_than_a_tensor_raises_type_error():
    with pytest.raises(TypeError, match=r"takes a Tensor, such as model\(x\), got 3"):
        cl.graph(3)
