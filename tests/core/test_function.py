"""The contract of Function: its representation, output shapes, and what a call takes."""

import numpy as np
import pytest

import caffelite as cl
from caffelite import functions
from tests.cases import DTYPES
from tests.reference import assert_same_bits


def ones(shape, rng):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (cl.Linear(2, 100), "Linear(2, 100)"),
        (cl.Linear(2, 3, bias=False), "Linear(2, 3, bias=False)"),
        (cl.ReLU(), "ReLU()"),
        (cl.SoftmaxLoss(), "SoftmaxLoss()"),
        (functions.Sum((0, 1), keepdims=True), "Sum((0, 1), keepdims=True)"),
        (functions.Mean(), "Mean()"),
        (functions.Min(keepdims=True), "Min(keepdims=True)"),
        (functions.Max(-1), "Max(-1)"),
        (functions.Softmax(), "Softmax()"),
        (functions.LogSoftmax(0), "LogSoftmax(0)"),
        (functions.Concatenate(), "Concatenate()"),
        (functions.Stack(1), "Stack(1)"),
        (cl.Linear(2, 3, initializer=ones), "Linear(2, 3, initializer=ones)"),
        (functions.Clip(0, None), "Clip(0, None)"),
        (functions.ToShape(2, 3), "ToShape(2, 3)"),
        (functions.ToShape(3), "ToShape(3)"),
        (functions.Transpose(1, 0), "Transpose(1, 0)"),
        (functions.Transpose(0), "Transpose(0)"),
    ],
    ids=str,
)
def test_a_repr_is_how_it_is_made(function, text):
    assert repr(function) == text


N = None


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (cl.Linear(2, 5), [(N, 2)], (N, 5)),
        (cl.ReLU(), [(N, 3, 4)], (N, 3, 4)),
        (functions.Add(), [(N, 1), (1, 3)], (N, 3)),
        (functions.Add(), [(N, 3), (5, 1)], (5, 3)),
        (functions.Where(), [(3,), (), (N, 1)], (N, 3)),
        (functions.Sum(), [(N, 3)], ()),
        (functions.Mean(1), [(N, 3)], (N,)),
        (functions.Max(0, keepdims=True), [(N, 3)], (1, 3)),
        (functions.MatMul(), [(N, 3), (3, 4)], (N, 4)),
        (functions.MatMul(), [(N, 2, 3), (N, 3)], (N, 2, 3)),
        (functions.MatMul(), [(N, 2, 3), (3,)], (N, 2)),
        (functions.ToShape(-1, 6), [(N, 2, 3)], (N, 6)),
        (functions.ToShape(4, 3), [(N, 3)], (4, 3)),
        (functions.Transpose(), [(N, 3)], (3, N)),
        (functions.Index(np.s_[:, 0]), [(N, 3, 4)], (N, 4)),
        (functions.Index(np.s_[1:, 1:]), [(N, 3)], (N, 2)),
        (functions.Index([0, 7]), [(N, 3)], (2, 3)),
        (functions.Index([True, False]), [(N, 3)], (1, 3)),
        (functions.Concatenate(1), [(N, 3), (N, 4)], (N, 7)),
        (functions.Concatenate(), [(N, 3), (2, N)], (N, 3)),
        (functions.Stack(1), [(N, 3), (2, N)], (2, 2, 3)),
        (cl.SoftmaxLoss(), [(N, 3), (N,)], ()),
    ],
    ids=str,
)
def test_the_output_shape_has_none_for_unknown_sizes(function, shapes, expected):
    assert function.output_shape(*shapes) == expected


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (functions.Add(), [(N, 2), (N, 3)]),
        (functions.Where(), [(2,), (2,), (N, 3)]),
        (functions.MatMul(), [(N, 2), (3, 4)]),
        (functions.MatMul(), [(), (3, 4)]),
        (functions.MatMul(), [(2, N, 3), (5, 3, 4)]),
        (functions.ToShape(4), [(2, 3)]),
        (functions.ToShape(4, -1), [(2, 3)]),
        (functions.Transpose(1, 0), [(N, 2, 3)]),
        (functions.Index([0, 3]), [(3, N)]),
        (functions.Index(np.s_[0, 0]), [(N,)]),
        (functions.Index([True, False]), [(3, N)]),
        (functions.Index(([0, 1], [0, 1, 2])), [(N, 3)]),
        (functions.Concatenate(1), [(2, 3), (3, 3)]),
        (functions.Concatenate(), [(N, 3), (N, 3, 1)]),
        (functions.Stack(), [(N, 3), (N, 4)]),
        (cl.SoftmaxLoss(), [(4, 3), (5,)]),
        (cl.SoftmaxLoss(), [(N, 3), (N, 1)]),
    ],
    ids=str,
)
def test_the_output_shape_of_what_does_not_fit_raises_with_the_shapes(function, shapes):
    with pytest.raises(ValueError, match="shape") as raised:
        function.output_shape(*shapes)
    assert all(str(shape) in str(raised.value) for shape in shapes if function.__class__ is not functions.MatMul)


@pytest.mark.parametrize("axis", [2, -3])
def test_the_output_shape_along_an_axis_that_does_not_exist_raises(axis):
    for function in (functions.Sum, functions.Softmax, functions.Concatenate):
        with pytest.raises(ValueError, match="axis"):
            function(axis).output_shape((N, 3))


def test_functions_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        cl.Function()

    class Half(cl.Function):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match="backward"):
        Half()


ONE_INPUT = ["sum", "mean", "max", "min", "exp", "log", "sqrt", "abs", "tanh", "sigmoid", "relu"]

ONE_ROW = [*ONE_INPUT, "softmax", "log_softmax", "transpose"]


@pytest.mark.parametrize("name", ONE_ROW)
@pytest.mark.parametrize("data", [[1, 2], (0.5, 3.0), np.array([1, 2]), np.array([True, False]), np.float16([1, 2])])
def test_the_functions_take_what_tensor_takes(name, data):
    function = getattr(cl, name)
    assert_same_bits(function(data).data, function(cl.Tensor(data)).data)
    assert function(np.array(data, float)).dtype == np.float64
    with pytest.raises(TypeError, match="real numbers"):
        function(["a"])


@pytest.mark.parametrize("name", ONE_INPUT)
@pytest.mark.parametrize("number", [2, 0.5, True, np.float64(2)])
def test_the_functions_take_numbers(name, number):
    assert_same_bits(getattr(cl, name)(number).data, getattr(cl, name)(cl.Tensor(number)).data)


def test_the_functions_with_arguments_take_lists():
    assert cl.reshape([[1, 2]], 2).data.tolist() == [1, 2]
    assert cl.clip([1, 5], 2, 3).data.tolist() == [2, 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_on_a_list_takes_the_dtype_of_the_parameters(dtype):
    model = cl.Model([cl.Linear(3, 2), cl.ReLU()], dtype=dtype)
    rows = [[1, 2, 3], [4, 5, 6]]
    assert_same_bits(model(rows).data, model(np.array(rows, dtype)).data)
    assert_same_bits(model.functions[0](rows).data, model.functions[0](np.array(rows, dtype)).data)
    assert_same_bits(cl.ReLU()(rows).data, np.array(rows, np.float32))
    assert cl.SoftmaxLoss()(rows, [0, 1]).data == cl.SoftmaxLoss().forward(np.array(rows, np.float32), [0, 1])


def test_a_users_function_gets_a_list_as_it_is():
    class Rows(cl.Function):
        """The rows of a table with these numbers."""

        def forward(self, numbers):
            assert numbers == [2, 0]
            return np.eye(3)[numbers]

        def backward(self, dy):
            return None

    assert Rows()([2, 0]).data.tolist() == [[0, 0, 1], [1, 0, 0]]


class Blend(cl.Function):
    """y = share · a + (1 − share) · b, 0 for what is not given."""

    def forward(self, a, b=None, share=None):
        self.share = 1.0 if share is None else share
        return self.share * a + (0 if b is None else (1 - self.share) * b)

    def backward(self, dy):
        return self.share * dy, (1 - self.share) * dy


def test_inputs_of_a_call_may_be_given_by_name():
    a, b = (cl.Tensor(np.full(3, n), requires_grad=True) for n in (1.0, 2.0))
    for y in (Blend()(a, b, 0.25), Blend()(a, share=0.25, b=b), Blend()(share=0.25, b=b, a=a)):
        np.testing.assert_array_equal(y.data, 1.75)
        y.sum().backward()
        np.testing.assert_array_equal([a.grad, b.grad], [[0.25] * 3, [0.75] * 3])
        a.zero_grad()
        b.zero_grad()
    np.testing.assert_array_equal(Blend()(a, share=0.5).data, 0.5)


def test_an_input_of_a_name_that_forward_has_not_raises():
    with pytest.raises(TypeError, match=r"Blend\(\): .*'weight'"):
        Blend()(np.ones(3), weight=0.5)


def test_a_replay_follows_an_input_that_was_given_by_name():
    program = cl.capture(lambda a, b: Blend()(a, b=b, share=0.5), np.ones(3), np.zeros(3))
    np.testing.assert_array_equal(program(np.ones(3), np.full(3, 3.0)), 2)


def test_an_input_that_can_be_given_by_name_alone_raises_and_is_not_left_out():
    class KeywordScale(cl.Function):
        def forward(self, x, *, factor=1.0):
            return x * factor

        def backward(self, dy):
            return dy

    with pytest.raises(TypeError, match="factor can only be given by name"):
        KeywordScale()(np.ones(2, np.float32), factor=3.0)


# ---- parameters that declare themselves ----


class Scale(cl.Function):
    """y = g x, with nothing but the Tensor in an attribute."""

    def __init__(self, features, **options):
        self.features = features
        self.g = cl.Tensor(np.linspace(1, 2, features), requires_grad=True, **options)

    def forward(self, x):
        self.x = x
        return x * self.g.data

    def backward(self, dy):
        self.g.add_grad((dy * self.x).sum(axis=0))
        return dy * self.g.data


def test_a_tensor_in_an_attribute_that_requires_a_gradient_is_a_parameter():
    scale = Scale(3)
    assert scale.parameters() == [scale.g]
    assert scale.named_parameters() == {"g": scale.g}
    assert cl.check_gradients(scale, np.ones((4, 3))) > 0  # it is among what is checked


def test_parameters_in_lists_tuples_and_dicts_keep_the_order_of_assignment():
    class Many(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.first = cl.Tensor([1.0], requires_grad=True)
            self.layer = cl.Linear(2, 2)
            self.rest = [cl.Tensor([2.0], requires_grad=True), {"a": (cl.Tensor([3.0], requires_grad=True),)}]
            self.constant = cl.Tensor([4.0])
            self.again = self.first

        def call(self, x):
            return self.layer(x) * self.first

    names = ["first", "layer.weight", "layer.bias", "rest.0", "rest.1.a.0"]
    model = Many()
    assert list(model.named_parameters()) == names
    assert list(model.state_dict()) == names
    assert len({id(p.data.base) for p in model.parameters()}) == 1  # in the model's one vector


def test_a_frozen_parameter_stays_one():
    scale = Scale(3)
    scale.requires_grad = False
    assert scale.parameters() == [scale.g]
    assert list(cl.Model([scale]).state_dict()) == ["0.g"]


def test_inputs_and_outputs_of_a_function_are_not_its_parameters():
    class Keeps(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.layer = cl.Linear(2, 2)

        def call(self, x):
            self.hidden = self.layer(x)
            return self.hidden.relu()

    model, weight = Keeps(), cl.Tensor(np.ones((2, 2), np.float32), requires_grad=True)
    y = model(weight)
    assert model.parameters() == model.layer.parameters()
    assert y.function.parameters() == []


def test_a_tensor_that_is_set_later_is_trained_saved_and_loaded(tmp_path):
    def make_model():
        model = cl.Model([cl.Linear(2, 3)], seed=0)
        model.add(Scale(3))
        return model

    model, x, y = make_model(), *cl.datasets.spiral(20, seed=0)
    model.functions[1].g = cl.Tensor(np.ones(3), requires_grad=True)
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=2, verbose=0)
    assert (model.functions[1].g.data != 1).all()
    with pytest.warns(UserWarning, match=r"Scale.__init__ takes options"):
        model.save(tmp_path / "m.safetensors")
    again = make_model().load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_a_parameters_method_that_leaves_one_out_raises_and_names_the_attribute():
    class Forgot(Scale):
        def parameters(self):
            return []

    for use in (
        lambda f: f.parameters(),
        lambda f: cl.Model([f]),
        lambda f: cl.check_gradients(f, np.ones((4, 3))),
        lambda f: f(cl.Tensor(np.ones((4, 3)))),
    ):
        with pytest.raises(TypeError, match=r"Forgot.parameters\(\) leaves out the attribute g"):
            use(Forgot(3))


def test_a_parameters_method_may_extend_its_bases_and_repeat_some():
    class ExtendedScale(Scale):
        def __init__(self, features):
            super().__init__(features)
            self.h = cl.Tensor(np.ones(features), requires_grad=True)

        def parameters(self):
            return [self.h, *super().parameters(), self.g]

    both = ExtendedScale(3)
    assert [id(p) for p in both.parameters()] == [id(both.h), id(both.g)]


def test_a_function_with_slots_raises_when_its_class_is_made():
    with pytest.raises(TypeError, match="ScaleWithSlots has __slots__"):

        class ScaleWithSlots(cl.Function):
            __slots__ = ("w",)


def test_parameters_with_equal_names_are_named_by_their_attributes():
    class Two(cl.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = (cl.Tensor(np.ones(2), requires_grad=True, name="w") for _ in range(2))

        def call(self, x):
            return x * self.a + self.b

    assert list(Two().named_parameters()) == ["a", "b"]


# ---- what a Function requires, and how it is written ----


@pytest.mark.parametrize(
    ("shape", "required", "fit"),
    [
        ((2, 3), (None, 3), True),
        ((None, None), (None, 3), True),
        ((2, 4), (None, 3), False),
        ((2,), (None, 3), False),
        ((2, 3, 1), (None, 3), False),
        ((2, 3), (None, ..., 3), True),
        ((2, 9, 8, 3), (None, ..., 3), True),
        ((2, 9, 8, None), (None, ..., 3), True),
        ((2, 9, 8), (None, ..., 3), False),
        ((3,), (None, ..., 3), False),
        ((), (None, ...), False),
        ((5,), (None, ...), True),
        ((), None, True),
    ],
)
def test_a_shape_fits_the_required_one_or_raises(shape, required, fit):
    class RequiredShape(cl.Function):
        required_input_shape = required

        def forward(self, x):
            return self.check_input(x)

        def backward(self, dy):
            return dy

    function = RequiredShape()
    if fit:
        function.check_input_shape(shape)
    else:
        with pytest.raises(ValueError, match=r"^RequiredShape\(\) got .*shape .*; expected \(n, .*"):
            function.check_input_shape(shape)
    if None not in shape:
        x = np.ones(shape, np.float32)
        if fit:
            assert function.forward(x) is x
        else:
            with pytest.raises(ValueError, match="expected"):
                function.forward(x)
            with pytest.raises(ValueError, match="expected"):
                function.forward(np.ones(shape, ">f4"))


def test_an_input_is_checked_by_its_dtype_and_comes_in_native_byte_order():
    linear = cl.Linear(3, 2)
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for dtype in (">f4", "<f4"):
        checked = linear.check_input(x.astype(dtype), linear.weight)
        assert checked.dtype == np.float32
        assert_same_bits(checked, x)
    for dtype in (np.float64, ">f8", np.int32, np.float16):
        with pytest.raises(TypeError, match=r"^Linear\(3 → 2\) is float32, got"):
            linear.check_input(x.astype(dtype), linear.weight)
    with pytest.raises(TypeError, match="takes float32 or float64, got int32"):
        linear.check_input(x.astype(np.int32))


def test_a_subclass_of_a_layer_is_written_with_the_layers_arguments():
    class NarrowLinear(cl.Linear):
        def __init__(self, in_features):
            super().__init__(in_features, 1)

    class WideConv2d(cl.Conv2d):
        def __init__(self):
            super().__init__(1, 64, (3, 3), stride=(2, 1), bias=False)

    assert repr(NarrowLinear(5)) == "NarrowLinear(5, 1)"
    assert repr(WideConv2d()) == "WideConv2d(1, 64, 3, stride=(2, 1), bias=False)"
    assert repr(cl.Linear(2, 3, initializer=cl.initializers.he_normal)) == "Linear(2, 3, initializer=he_normal)"
    assert repr(cl.Linear(2, 3, initializer=cl.initializers.normal(0.5))) == "Linear(2, 3, initializer=normal(std=0.5))"
