"""Trace: the numbers on the drawing are those of `predict` and `backward`, its formulas are right, nothing changes."""

import re
from itertools import pairwise
from math import cos, exp, log, sin, sqrt, tanh
from xml.etree import ElementTree

import numpy as np
import pytest

import caffelite as cl
from caffelite.visualize.formulas import BACKWARD_FORMULAS, FORWARD_FORMULAS, format_number
from caffelite.visualize.graph import LETTER

X, Y = cl.datasets.spiral(points_per_class=10, seed=0)


def boxes(svg):
    """Return the lines of text of each box, the upper boxes first, each line as a text."""
    _, drawn = ElementTree.fromstring(str(svg))
    found = []
    for element in drawn:
        if element.tag.endswith("rect"):
            found.append([])
        elif element.get("text-anchor") is None:
            found[-1].append("".join(element.itertext()))
    return found


def box(svg, title):
    (lines,) = [lines for lines in boxes(svg) if lines[0] == title]
    return lines


def numbers(text):
    found = re.findall(r"−?\d+\.?\d*(?:e−?\d+)?", text)
    return [float(x.replace("−", "-")) for x in found]


def evaluate_formula(formula):
    """Return what the left side of a formula comes to."""
    python = formula.replace("−", "-").replace("·", "*").replace("²", "**2").replace("√", "sqrt ")
    python = re.sub(r"e\^(-?[\d.]+(?:e-?\d+)?)", r"exp(\1)", python)
    python = re.sub(r"\|(.*?)\|", r"abs(\1)", re.sub(r"sqrt (-?[\d.]+)", r"sqrt(\1)", python))
    scope = {"exp": exp, "log": log, "tanh": tanh, "sin": sin, "cos": cos, "sqrt": sqrt, "max": max, "abs": abs}
    return eval(python, scope)


def small(*functions, seed=3, dtype=np.float32):
    return cl.Model(functions, seed=seed, dtype=dtype)


def classifier(dtype=np.float32):
    return small(cl.Linear(2, 3), cl.ReLU(), cl.Linear(3, 3), dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_numbers_equal_predict_and_backward(dtype):
    model, loss = classifier(dtype), cl.SoftmaxLoss()
    svg = cl.trace(model, X[4], Y[4], loss)
    x = cl.Tensor(X[4:5].astype(dtype), requires_grad=True)
    value = loss(model(x), Y[4:5])
    value.backward()
    scores = [numbers(line.split("=")[1])[0] for line in box(svg, "Linear(3, 3)") if " = " in line][:3]
    np.testing.assert_allclose(scores, model.predict(X[4:5])[0], rtol=5e-3)
    assert box(svg, "SoftmaxLoss()")[2].endswith(f"= {format_number(value.item())}")
    assert box(svg, "target") == ["target", str(Y[4])]
    assert box(svg, "x")[1:] == [
        "(1, 2)",
        f"[{' '.join([format_number(a) for a in X[4].astype(dtype).tolist()])}]",
        f"gradient [{' '.join([format_number(a) for a in x.grad[0].tolist()])}]",
    ]
    of_weights = [lines for lines in boxes(svg) if lines[0] == "weight"]
    for lines, p in zip(of_weights, model.parameters()[::2], strict=True):
        rows = len(p.data)
        expected = [[format_number(a) for a in row] for row in [*p.data.tolist(), *p.grad.tolist()]]
        assert [re.search(r"\[(.*)\]", line)[1].split() for line in lines[2:]] == expected
        assert [line.startswith("gradient") for line in lines[2:]] == [i == rows for i in range(2 * rows)]


CASES = {
    "relu": (lambda: classifier(), 1, cl.SoftmaxLoss),
    "tanh": (lambda: small(cl.Linear(2, 4), cl.Tanh(), cl.Linear(4, 1)), [0.5], cl.MSELoss),
    "sigmoid": (lambda: small(cl.Linear(2, 3), cl.Sigmoid(), cl.Linear(3, 2)), [0.5, -2], cl.MSELoss),
    "mae": (lambda: small(cl.Linear(2, 2, bias=False)), [-1, 2], cl.MAELoss),
    "of one": (lambda: small(cl.Linear(2, 1)), [1], cl.SigmoidLoss),
    "of none": (lambda: small(cl.Linear(2, 1)), [0], cl.SigmoidLoss),
    "softmax": (lambda: small(cl.Linear(2, 3), cl.Softmax()), [0, 1, 0], cl.MSELoss),
}


@pytest.mark.parametrize("case", CASES)
def test_the_left_side_of_each_formula_comes_to_its_right_side(case):
    make, target, loss = CASES[case]
    svg = cl.trace(make(), X[7], target, loss())
    lines = [line for lines in boxes(svg) for line in lines if " = " in line]
    assert len(lines) > 3
    for line in lines:
        left, right = line.removeprefix("back: ").split(" = ")
        assert evaluate_formula(left) == pytest.approx(numbers(right)[0], rel=0.03, abs=0.01), line


class OperatorNet(cl.Model):
    """Operators on two numbers."""

    def call(self, x):
        a, b = x[:, :1], x[:, 1:]
        y = cl.exp(a) + cl.log(b) * cl.sqrt(b) - cl.sin(a) / cl.cos(b)
        return y + cl.functions.Abs()(a)


def test_operators_have_formulas_too():
    lines = [line for lines in boxes(cl.trace(OperatorNet(), [-0.5, 0.7])) for line in lines if " = " in line]
    assert len(lines) == 11
    for line in lines:
        left, right = line.split(" = ")
        assert evaluate_formula(left) == pytest.approx(numbers(right)[0], rel=0.03, abs=0.01), line


@pytest.mark.parametrize("case", CASES)
def test_the_way_back_through_a_box_gives_the_gradient_of_the_box_above(case):
    make, target, loss = CASES[case]
    svg = cl.trace(make(), X[7], target, loss())
    chain = [lines for lines in reversed(boxes(svg)) if re.match(r"[A-Z]\w+\(", lines[0])]
    assert len(chain) > 1
    for below, above in pairwise(chain):
        on_the_way = [numbers(line.split(" = ")[1])[0] for line in below if line.startswith("back: ")]
        (gradient,) = [line for line in above if line.startswith("gradient")]
        if on_the_way:
            assert on_the_way == numbers(gradient)


def test_the_letters_of_a_small_nets_drawing_are_not_shrunk_to_the_column_of_a_page():
    svg = cl.trace(small(cl.Linear(2, 2), cl.Tanh(), cl.Linear(2, 1)), [0.5, -1.0], [1.0], cl.MSELoss())
    (width,) = re.findall(r'<svg[^>]* width="(\d+)"', svg)
    assert int(width) <= 750
    assert 'font-size="14"' in svg


def test_without_a_target_it_goes_forward_only():
    svg = cl.trace(classifier(), X[0])
    assert "gradient" not in svg
    assert "back" not in svg
    assert [lines[0] for lines in boxes(svg)][-1] == "Linear(3, 3)"


def test_many_numbers_are_shown_by_their_count_and_their_ends():
    model = cl.MLP(2, [100, 3], seed=0)
    svg = cl.trace(model, X[0], Y[0], cl.SoftmaxLoss())
    weight = model.parameters()[0].data
    ends = f"200 numbers, {format_number(weight.min().item())} … {format_number(weight.max().item())}"
    assert boxes(svg)[1][2] == ends
    assert box(svg, "ReLU()")[2].startswith("100 numbers, 0 … ")
    assert re.fullmatch(r"gradient −[\d.]+ … [\d.]+", box(svg, "ReLU()")[3])  # their number stands above
    assert "max(" not in svg


def state(model):
    return [
        *[a.tobytes() for a in model.state_dict().values()],
        *[None if p.grad is None else p.grad.tobytes() for p in model.parameters()],
        str(model._model_state.rng.bit_generator.state),
    ]


def test_nothing_in_the_model_changes():
    model = small(cl.Linear(2, 8), cl.BatchNorm(8), cl.ReLU(), cl.Dropout(0.5), cl.Linear(8, 3))
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1)
    model.fit(X, Y, loss=loss, optimizer=optimizer, epochs=2, verbose=0)
    loss(model(X), Y).backward()
    before, value = state(model), loss.value
    program = model._model_state.programs._programs.copy()
    svg = cl.trace(model, X[3], Y[3], loss)
    assert state(model) == before
    assert loss.value is value
    assert model._model_state.programs._programs == program
    assert cl.is_training()
    scores = box(svg, "Linear(8, 3)")[2]
    np.testing.assert_allclose(numbers(scores), model.predict(X[3:4])[0], rtol=5e-3, atol=1e-3)  # no number dropped
    with cl.no_grad():
        assert "gradient" in cl.trace(model, X[3], Y[3], loss)
        assert not model(X).requires_grad


def test_a_recording_goes_on():
    model = classifier()

    def step(x):
        cl.trace(model, X[0])
        return model(x)

    program = cl.capture(step, X)
    np.testing.assert_array_equal(program(X), model.predict(X))


def test_indices_several_inputs_and_several_outputs():
    words = small(cl.Embedding(10, 2), cl.Flatten(), cl.Linear(6, 2))
    assert box(cl.trace(words, [1, 2, 3], 0, cl.SoftmaxLoss()), "x") == ["x", "[1 2 3]"]

    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f, self.g = cl.Linear(2, 2), cl.Linear(1, 2)

        def call(self, a, b):
            return self.f(a) + self.g(b), self.g(b)

    svg = cl.trace(Two(), (X[0], [0.5]), ([1, 0], [0, 1]), (cl.MSELoss(), cl.MSELoss()))
    assert box(svg, "x1")[2] == "0.5"
    svg = cl.trace(Two(), (X[0], [0.5]))
    assert [lines[0] for lines in boxes(svg)].count("Linear(1, 2)") == 2


def test_a_loss_that_is_a_function_is_drawn_by_its_operators():
    svg = cl.trace(small(cl.Linear(2, 1)), X[0], [0.5], lambda p, t: ((p - t) ** 2).mean())
    assert [lines[0] for lines in boxes(svg)][-1] == "Mean()"


def test_a_subclass_has_no_formula_since_it_may_compute_anything():
    class Twice(cl.ReLU):
        def forward(self, x):
            return 2 * super().forward(x)

    assert "max(" not in cl.trace(small(cl.Linear(2, 2), Twice()), X[0])
    assert "log(" not in cl.trace(classifier(), X[0], 1, cl.SoftmaxLoss(label_smoothing=0.1))


def test_text_fits_into_its_box_and_boxes_do_not_overlap():
    svg = cl.trace(classifier(), X[4], Y[4], cl.SoftmaxLoss())
    _, drawn = ElementTree.fromstring(str(svg))
    places, place = [], None
    for element in drawn:
        if element.tag.endswith("rect"):
            x, y, width, height = (float(element.get(name)) for name in ("x", "y", "width", "height"))
            place = (x, y, x + width, y + height)
            places.append(place)
        elif element.get("text-anchor") is None:
            half = LETTER / 2 * len("".join(element.itertext()))
            assert place[0] < float(element.get("x")) - half
            assert float(element.get("x")) + half < place[2]
            assert place[1] + 10 < float(element.get("y")) < place[3] - 3
    for i, a in enumerate(places):
        for b in places[:i]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
    left, top, width, height = (float(x) for x in ElementTree.fromstring(str(svg)).get("viewBox").split())
    assert left <= min(p[0] for p in places)
    assert max(p[2] for p in places) <= left + width
    assert top <= min(p[1] for p in places)
    assert max(p[3] for p in places) + 20 <= top + height  # the legend is below


@pytest.mark.parametrize(("text", "x"), [("−0.25", -0.25), ("1.23e−5", 1.23e-5), ("1.23e10", 1.23e10), ("3", 3)])
def test_a_number_has_three_digits(text, x):
    assert format_number(x) == text


def test_all_formulas_are_of_functions_of_caffelites():
    assert BACKWARD_FORMULAS.keys() <= FORWARD_FORMULAS.keys()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((cl.ReLU(), X[0]), TypeError, r"trace takes a Model, got ReLU\(\)"),
        ((classifier(), X[0], 1), ValueError, "a target and a loss, or neither: got a target without a loss"),
        ((classifier(), X[0], None, cl.SoftmaxLoss()), ValueError, "got a loss without a target"),
        ((classifier(), np.ones(3, np.float32)), ValueError, r"Linear\(2 → 3\) got rows of 3 features|\(1, 3\)"),
        ((classifier(), X[0], 3, cl.SoftmaxLoss()), ValueError, "0 … 2"),
        ((classifier(), X[0], 1, cl.SoftmaxLoss), TypeError, "SoftmaxLoss"),
        ((classifier(), ["a", "b"]), TypeError, "numbers|dtype"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        cl.trace(*arguments)
