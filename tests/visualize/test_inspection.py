import io
import pickle
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

import caffelite as cl
from caffelite.visualize.inspection import Statistics
from tests.conftest import classifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 50)
IMAGES = RNG.normal(size=(20, 2, 6, 6)).astype(np.float32)


def look(model, x=X, y=Y, loss=None):
    return cl.inspect(model, x, y, loss=loss or cl.SoftmaxLoss())


def layers(found):
    return {layer.name: layer for layer in found.layers}


def dead_net(units, dead):
    """Linear(4, units), ReLU, Linear(units, 3), of which so many units are 0 for all rows."""
    model = classifier(4, units, 3)
    model.parameters()[0].data[:, :dead] = 0
    model.parameters()[1].data[:dead] = -1
    return model


class Double(cl.Function):
    """y = 2 x, by NumPy, with a buffer that counts."""

    def __init__(self):
        self.count = np.zeros(1)
        self.rng = np.random.default_rng(0)

    def buffers(self):
        return {"count": self.count}

    def forward(self, x):
        self.count += 1
        self.rng.random()
        return 2 * x

    def backward(self, dy):
        return 2 * dy


class Net(cl.Model):
    """Two inputs, a layer applied twice, activations as methods."""

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(4, 6), cl.Linear(2, 6)
        self.inner = {"mlp": cl.Model([cl.Linear(6, 6), cl.Tanh()])}

    def call(self, x, z):
        h = (self.a(x) + self.b(z)).relu()
        return self.inner["mlp"](self.inner["mlp"](h)).sigmoid()


def test_outputs_parameters_and_all_gradients_equal_a_step():
    model, loss = classifier(4, 7, 3), cl.SoftmaxLoss()
    found = look(model, loss=loss)
    first, relu, last = model.functions
    h = first.forward(X)
    a = relu.forward(h)
    scores = last.forward(a)
    assert found.loss == float(loss.forward(scores, Y))
    dscores = loss.backward()
    da = last.backward(dscores)
    dh = relu.backward(da)
    first.backward(dh)
    for name, output, gradient in (("0", h, dh), ("1", a, da), ("2", scores, dscores)):
        layer = layers(found)[name]
        for statistics, array in ((layer.output, output), (layer.gradient, gradient)):
            assert statistics.shape == array.shape
            np.testing.assert_allclose(
                [statistics.mean, statistics.std, statistics.min, statistics.max, statistics.norm, statistics.zeros],
                [array.mean(), array.std(), array.min(), array.max(), np.linalg.norm(array), np.mean(array == 0)],
                rtol=1e-4,
                atol=1e-8,
            )
            assert statistics.counts.sum() == array.size
    for name, p in model.named_parameters().items():
        np.testing.assert_allclose(found.parameters[name].value.rms, np.sqrt((p.data**2).mean()), rtol=1e-5)
        np.testing.assert_allclose(found.parameters[name].gradient.rms, np.sqrt((p.grad**2).mean()), rtol=1e-5)
    assert found.rows == 50


def test_gradients_include_the_penalty_and_not_what_was_there_before():
    model = classifier(4, 3)
    loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=0.5)
    loss(model(X), Y).backward()
    found = look(model, loss=loss)
    for name, p in model.named_parameters().items():
        assert found.parameters[name].gradient.norm == pytest.approx(np.linalg.norm(p.grad), rel=1e-5)


@pytest.mark.parametrize("with_gradients", [False, True])
def test_nothing_of_the_model_or_the_loss_changes(with_gradients):
    functions = [
        cl.Linear(4, 6),
        cl.BatchNorm(6),
        cl.ReLU(),
        cl.Dropout(),
        cl.Residual(cl.MLP(6, [6])),
        Double(),
        cl.Linear(6, 3),
    ]
    model = cl.Model(functions, seed=0)
    loss = cl.Penalized(cl.SoftmaxLoss(), model.parameters(), l2=0.1)
    if with_gradients:
        loss(model(X), Y).backward()

    def everything():
        gradients = [None if p.grad is None else p.grad.tobytes() for p in model.parameters()]
        streams = str(model._model_state.rng.bit_generator.state), str(functions[5].rng.bit_generator.state)
        numpys = np.random.get_state()[1].tobytes()  # noqa: NPY002
        versions = [p._version[0] for p in model.parameters()]
        return (
            pickle.dumps(model.state_dict()),
            gradients,
            streams,
            numpys,
            versions,
            list(map(type, model._descendants())),
        )

    before = everything()
    found = look(model, loss=loss)
    assert everything() == before
    assert str(look(model, loss=loss)) == str(found)
    assert cl.is_training()
    with cl.inference():
        assert str(look(model, loss=loss)) == str(found)
        assert not cl.is_training()


def test_the_data_and_a_program_of_the_model_are_left_alone():
    model, x = classifier(4, 5, 3), X.copy()
    before = model.predict(X)
    look(model, x=x)
    assert x.tobytes() == X.tobytes()
    assert model.predict(X).tobytes() == before.tobytes()


def test_dead_units_are_counted_and_said_from_a_tenth_on():
    found = look(dead_net(20, 5))
    assert [(layer.units, layer.dead) for layer in found.layers] == [(20, 0), (20, 5), (3, 0)]
    assert "Layer 1 ReLU(): 5 of 20 units are 0 for all 50 rows; dead units learn nothing." in found.findings
    assert re.search(r"ReLU\(\) .* 5 of 20 ", str(found))
    few = look(dead_net(40, 3))
    assert layers(few)["1"].dead == 3
    assert few.findings == ["Nothing stands out."]


def test_dead_channels_of_a_convolution_are_reported_at_their_layer_only():
    model = cl.Model([cl.Conv2d(2, 8, 3), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten(), cl.Linear(32, 3)], seed=0)
    model.parameters()[0].data[:4] = 0
    model.parameters()[1].data[:4] = -1
    found = look(model, IMAGES, Y[:20])
    assert layers(found)["1"].units == 8
    assert layers(found)["1"].dead == 4
    assert [f for f in found.findings if "units" in f] == [
        "Layer 1 ReLU(): 4 of 8 units are 0 for all 20 rows; dead units learn nothing."
    ]


def test_a_unit_of_a_sequence_of_vectors_is_a_feature():
    model = cl.Model([cl.Linear(4, 10), cl.ReLU(), cl.Linear(10, 3)], seed=0)
    model.parameters()[0].data[:, :6] = 0
    model.parameters()[1].data[:6] = -1
    found = look(model, RNG.normal(size=(5, 8, 4)), RNG.integers(0, 3, (5, 8)))
    assert (layers(found)["1"].units, layers(found)["1"].dead) == (10, 6)


def test_constant_pixels_do_not_count_as_dead_units():
    x = X.reshape(-1, 2, 2).copy()
    x[:, 0, 0] = 0
    assert look(cl.Model([cl.Flatten(), cl.Linear(4, 3)], seed=0), x).findings == ["Nothing stands out."]


@pytest.mark.parametrize(("activation", "centre"), [(cl.Tanh, 0), (cl.Sigmoid, 0.5)])
def test_saturated_values_are_counted_and_said_from_a_half_on(activation, centre):
    model = cl.MLP(4, [30, 3], activation=activation, seed=0)
    calm = look(model)
    assert layers(calm)["1"].saturated < 0.1
    assert layers(calm)["0"].saturated is None
    assert calm.findings == ["Nothing stands out."]
    model.parameters()[0].data *= 100
    found = look(model)
    y = activation().forward(model.functions[0].forward(X))
    half = (y.max() - y.min()) / 2
    share = np.mean(abs(y - centre) > 0.98 * half)
    assert share > 0.8
    assert layers(found)["1"].saturated == pytest.approx(share, abs=0.01)
    assert any(
        re.fullmatch(rf"Layer 1 {activation.__name__}\(\): \d\d% of the values are saturated, .*", f)
        for f in found.findings
    )


def test_vanishing_and_exploding_gradients_name_the_worst_layer():
    deep = cl.MLP(4, [20] * 12 + [3], activation=cl.Sigmoid, seed=0)
    (finding,) = look(deep).findings
    assert re.fullmatch(
        r"Layer 0 Linear\(4, 20\): the gradient has vanished, to \de-\d\d times its norm at .*", finding
    )
    steep = classifier(4, *[20] * 8, 3)
    for p in steep.parameters()[::2]:
        p.data *= 8
    findings = look(steep).findings
    assert any(re.match(r"Layer [01] .*: the gradient has exploded, to \de\+\d\d times", f) for f in findings)


@pytest.mark.parametrize("depth", [2, 10])
def test_a_net_drawn_for_its_activation_gives_no_finding(depth):
    model = cl.Model(seed=0)
    for i in range(depth):
        model.add(cl.Linear(4 if i == 0 else 50, 50, initializer=cl.initializers.he_normal)).add(cl.ReLU())
    model.add(cl.Linear(50, 3))
    x = RNG.normal(size=(500, 4))
    assert not [f for f in look(model, x, RNG.integers(0, 3, 500)).findings if "gradient" in f]


def in_a_row(found):
    return [finding for finding in found.findings if "nothing between them" in finding]


def test_a_forgotten_activation_between_two_linear_layers_is_reported():
    (said,) = in_a_row(look(cl.Model([cl.Linear(4, 16), cl.Linear(16, 3)], seed=0)))
    assert said == (
        "Layers 0 and 1 are Linear, with nothing between them: together they are one Linear. Put ReLU() between them."
    )
    deeper = cl.Model([cl.Linear(4, 9), cl.ReLU(), cl.Model([cl.Linear(9, 9), cl.Linear(9, 9), cl.Linear(9, 3)])])
    assert [said.split(" are ")[0] for said in in_a_row(look(deeper))] == ["Layers 2.0 and 2.1", "Layers 2.1 and 2.2"]


def images_net(*convolutions):
    return cl.Model([*convolutions, cl.GlobalAvgPool(), cl.Linear(convolutions[-1].out_channels, 3)], seed=0)


def test_a_forgotten_activation_between_two_convolutions_is_reported():
    for second, one in (
        (cl.Conv2d(8, 8, 3), "one Conv2d with a larger window, except at the borders."),
        (cl.Conv2d(8, 5, 1), "one Conv2d."),
    ):
        (said,) = in_a_row(look(images_net(cl.Conv2d(2, 8, 3), second), IMAGES, Y[:20]))
        assert said.startswith(f"Layers 0 and 1 are Conv2d, with nothing between them: together they are {one}")


class TwoLayerNet(cl.Model):
    """A model of two Linear layers that a function applies."""

    def __init__(self, apply, second=None):
        super().__init__(seed=0)
        self.a, self.b, self.apply = cl.Linear(4, 4), second or cl.Linear(4, 3), apply

    def call(self, x):
        return self.apply(self.a, self.b, x)


def frozen_net():
    model = cl.Model([cl.Linear(4, 8), cl.Linear(8, 3)], seed=0)
    for p in model.functions[0].parameters():
        p.requires_grad = False
    return model


def test_a_forgotten_activation_in_a_call_is_reported():
    (said,) = in_a_row(look(TwoLayerNet(lambda a, b, x: b(a(x)))))
    assert said.startswith("Layers a and b are Linear")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: cl.Model([cl.Linear(4, 2), cl.Linear(2, 3)], seed=0), id="a factorization"),
        pytest.param(lambda: cl.Model([cl.Linear(4, 8), cl.ReLU(), cl.Linear(8, 3)], seed=0), id="an activation"),
        pytest.param(lambda: cl.Model([cl.Linear(4, 8), cl.Dropout(0.5), cl.Linear(8, 3)], seed=0), id="dropout"),
        pytest.param(lambda: TwoLayerNet(lambda a, b, x: b(a(x).relu())), id="an activation as a method"),
        pytest.param(lambda: TwoLayerNet(lambda a, b, x: b((h := a(x)) + h.tanh())), id="a sum"),
        pytest.param(lambda: TwoLayerNet(lambda a, b, x: b(h := a(x)) + h.tanh() @ np.ones((4, 3))), id="used twice"),
        pytest.param(lambda: TwoLayerNet(lambda a, b, x: b(a(a(x)).relu())), id="one layer, applied twice"),
        pytest.param(lambda: TwoLayerNet(lambda a, b, x: b(a(x)), cl.DropConnect(4, 3)), id="DropConnect"),
        pytest.param(lambda: cl.Model([cl.Model([cl.Linear(4, 8)]), cl.Linear(8, 3)], seed=0), id="two models"),
        pytest.param(frozen_net, id="a frozen layer"),
    ],
)
def test_two_linear_layers_with_a_reason_are_not_named(make):
    assert in_a_row(look(make())) == []


@pytest.mark.parametrize(
    "convolutions",
    [
        pytest.param([cl.Conv2d(2, 8, 3, groups=2), cl.Conv2d(8, 8, 1)], id="depthwise and pointwise"),
        pytest.param([cl.Conv2d(2, 8, 3), cl.Conv2d(8, 8, 3, groups=8)], id="a convolution and depthwise"),
        pytest.param([cl.Conv2d(2, 8, (1, 3)), cl.Conv2d(8, 8, (3, 1))], id="separable in space"),
        pytest.param([cl.Conv2d(2, 2, 3), cl.Conv2d(2, 8, 1)], id="a narrow middle"),
        pytest.param([cl.Conv2d(2, 1, 3), cl.Conv2d(1, 2, 3)], id="a narrow middle of windows"),
        pytest.param([cl.Conv2d(2, 8, 3), cl.BatchNorm(8), cl.Conv2d(8, 8, 3)], id="BatchNorm"),
    ],
)
def test_two_convolutions_with_a_reason_are_not_named(convolutions):
    assert in_a_row(look(images_net(*convolutions), IMAGES, Y[:20])) == []


def test_a_hidden_layer_that_is_an_output_of_the_model_is_not_named():
    model = TwoLayerNet(lambda a, b, x: (h := a(x), b(h)))
    loss = cl.Losses([cl.MSELoss(), cl.SoftmaxLoss()])
    assert in_a_row(look(model, X, (X, Y), loss)) == []


def test_values_that_are_not_finite_name_the_layer_where_they_begin():
    model = cl.Model([cl.Linear(4, 6), cl.ReLU(), cl.Linear(6, 3)], seed=0)
    model.parameters()[2].data[0, 0] = np.nan
    findings = look(model).findings
    assert findings[0] == "The loss is nan."
    assert findings[1] == "2.weight: 1 of 18 numbers is not finite."
    assert findings[2] == "Layer 2 Linear(6, 3): 50 of 150 numbers are not finite, though its inputs are."
    assert findings[3].startswith("Layer 2 Linear(6, 3): its gradient is not finite")
    assert layers(look(model))["2"].output.counts.sum() == 100


def test_gaps_in_a_table_are_reported_only_if_no_layer_fills_them():
    table = {"age": np.where(np.arange(50) % 7, np.arange(50.0), np.nan)}
    columns = cl.Columns(table)
    (numbers,) = columns.arrays(table)
    y, loss = np.arange(50) % 3, cl.SoftmaxLoss()
    filled = cl.inspect(cl.Model([columns, cl.Linear(2, 3)], seed=0), numbers, y, loss=loss)
    assert filled.findings == ["Nothing stands out."]
    open_gaps = cl.inspect(cl.Model([cl.Linear(1, 3)], seed=0), numbers, y, loss=loss)
    assert open_gaps.findings[0] == "Input: 8 of 50 numbers are not finite."


def test_rows_that_are_not_finite_are_reported_first():
    x = X.copy()
    x[3, 1] = np.inf
    assert look(classifier(4, 3), x=x).findings[:2] == ["Input: 1 of 200 numbers is not finite.", "The loss is nan."]
    found = cl.inspect(Net(), (X, x[:, :2]), RNG.random((50, 6)), loss=cl.MSELoss())
    assert found.findings[0] == "Input 1: 1 of 100 numbers is not finite."


@pytest.mark.parametrize(
    "numbers",
    [[1.0, 1 + 2**-52], [-1.7e308, 1.7e308], [5e-324, 0.0], [3.0], [0.0], [np.nan], [], [-np.inf, 2.0, 4.0]],
    ids=str,
)
def test_a_histogram_has_all_finite_numbers_whatever_they_are(numbers):
    with np.errstate(all="ignore"):
        statistics = Statistics(np.array(numbers))
    assert statistics.counts.sum() == np.isfinite(numbers).sum() == statistics.size - statistics.not_finite
    assert (np.diff(statistics.edges) > 0).all() or numbers == [5e-324, 0.0]


def test_a_parameter_without_part_in_the_loss_differs_from_frozen_ones():
    class Half(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.used, self.unused, self.frozen = cl.Linear(4, 3), cl.Linear(4, 3), cl.Linear(4, 4)

        def call(self, x):
            return self.used(self.frozen(x))

    model = Half()
    for p in model.frozen.parameters():
        p.requires_grad = False
    found = look(model)
    assert [f for f in found.findings if "no gradient" in f] == [
        "unused.weight gets no gradient: it has no part in the loss.",
        "unused.bias gets no gradient: it has no part in the loss.",
    ]
    assert layers(found)["frozen"].gradient.norm > 0
    assert re.search(r"frozen.weight +\(4, 4\) +\S+ +frozen", str(found))


def test_no_gradient_at_all_is_reported():
    model = classifier(4, 3)
    found = look(model, y=model.predict(X), loss=cl.MSELoss())
    assert found.findings == ["The gradient of the outputs is 0: there is nothing to learn from these rows."]


def test_all_parameters_may_be_frozen():
    model = classifier(4, 3)
    for p in model.parameters():
        p.requires_grad = False
    assert look(model).layers[0].gradient.norm > 0


def test_functions_in_functions_and_activations_as_methods_are_layers_too():
    residual = cl.Residual(cl.Model([cl.Linear(4, 4), cl.ReLU()]))
    model = cl.Model([residual, cl.Parallel([cl.Linear(4, 2), cl.Tanh()]), cl.Linear(6, 3)], seed=0)
    assert [layer.name for layer in look(model).layers] == [
        *("0.function.0", "0.function.1", "0", "1.functions.0", "1.functions.1", "1.concatenate", "1", "2")
    ]
    found = cl.inspect(Net(), (X, X[:, :2]), RNG.random((50, 6)), loss=cl.MSELoss())
    names = [(layer.name, layer.function) for layer in found.layers]
    inner = [("inner.mlp.0", "Linear(6, 6)"), ("inner.mlp.1", "Tanh()")]
    assert names == [("a", "Linear(4, 6)"), ("b", "Linear(2, 6)"), ("", "ReLU()"), *inner, *inner, ("", "Sigmoid()")]
    assert all(layer.gradient.norm > 0 for layer in found.layers)


def test_an_activation_without_a_name_is_called_by_the_layer_before_it():
    model = Net()
    model.b.parameters()[1].data = np.full(6, -100)
    found = cl.inspect(model, (X, X[:, :2]), RNG.random((50, 6)), loss=cl.MSELoss())
    assert "ReLU() after layer b: 6 of 6 units are 0 for all 50 rows; dead units learn nothing." in found.findings


def test_a_model_in_float64_is_inspected_in_float64():
    model = classifier(4, 3, dtype=np.float64)
    scores = X.astype(np.float64) @ model.parameters()[0].data + model.parameters()[1].data
    assert look(model).layers[0].output.mean == pytest.approx(scores.mean(), rel=1e-12)


def test_inspect_refuses_the_arguments_that_fit_refuses():
    model = classifier(4, 3)
    with pytest.raises(TypeError, match=r"inspect takes a Model, got Linear\(4, 3\)"):
        look(model.functions[0])
    with pytest.raises(TypeError, match="expected a Function such as SoftmaxLoss"):
        look(model, loss="mse")
    with pytest.raises(ValueError, match="label"):
        look(model, y=Y + 5)
    with pytest.raises(ValueError, match="50 rows, y has shape"):
        look(model, y=Y[:3])
    with pytest.raises(ValueError, match="5"):
        look(model, x=np.ones((50, 5)))


def test_it_prints_two_tables_and_the_findings_within_120_columns():
    model = cl.Model([cl.Residual(cl.MLP(4, [4] * 12)), cl.BatchNorm(4), cl.Linear(4, 3)], seed=0)
    found = look(model)
    text = str(found)
    assert text.startswith("50 rows, loss ")
    assert max(map(len, text.splitlines())) <= 120
    assert "\nlayer " in text
    assert "\nparameter " in text
    assert text.endswith("\n".join(found.findings))


def test_a_notebook_shows_it_as_html_with_escaped_texts():
    class Odd(cl.Function):
        def forward(self, x):
            return np.zeros_like(x)

        def backward(self, dy):
            return dy

        def __repr__(self):
            return "<b>&"

    html = look(cl.Model([Odd(), cl.Linear(4, 3)], seed=0))._repr_html_()
    assert "<b>" not in html
    assert "Layer 0 &lt;b&gt;&amp;: 4 of 4 units" in html
    assert html.count("<table>") == html.count("</table>") == 2
    assert "color" not in html


def test_the_picture_has_a_line_for_each_layer_and_each_further_parameter():
    found = look(dead_net(20, 5))
    figure = found.plot()
    assert len(figure.axes) == 4 * 5
    drawn = np.array([bool(axes.patches) for axes in figure.axes]).reshape(5, 4)
    assert drawn.tolist() == [
        [True] * 4,
        [False, False, True, True],
        [True, True, False, False],
        [True] * 4,
        [False, False, True, True],
    ]
    assert [axes.get_ylabel() for axes in figure.axes[::4]] == [
        "0  Linear(4, 20)",
        "",
        "1  ReLU()",
        "2  Linear(20, 3)",
        "",
    ]
    assert [axes.get_ylabel() for axes in figure.axes[2::4]] == ["weight", "bias", "", "weight", "bias"]
    values = figure.axes[0].patches[0].get_data()
    assert values.values.sum() == 50 * 20
    assert plt.get_fignums() == []


def test_the_picture_is_drawn_of_constant_and_of_broken_numbers_too():
    model = cl.Model([cl.Linear(4, 3), cl.BatchNorm(3)], seed=0)
    model.parameters()[0].data[...] = np.nan
    picture = io.BytesIO()
    look(model).plot().savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_a_users_function_gets_what_it_always_gets():
    class Columns(cl.Function):
        def forward(self, columns, x):
            assert columns == [0, 2]
            self.shape = x.shape
            return x[:, columns]

        def backward(self, dy):
            dx = np.zeros(self.shape, dy.dtype)
            dx[:, [0, 2]] = dy
            return None, dx

    class Net(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.columns, self.scores = Columns(), cl.Linear(2, 3)

        def call(self, x):
            return self.scores(self.columns([0, 2], x))

    names = [layer.name for layer in look(Net()).layers]
    assert names == ["columns", "scores"]
    assert "columns" in Net().summary((4,))
