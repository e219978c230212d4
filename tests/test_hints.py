"""What caffelite says of the names that Keras and PyTorch have."""

import inspect
import re
import subprocess
import sys

import pytest

import caffelite as cl
from caffelite.core.hints import ARGUMENTS, NAMES


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("Dense", "cl.Linear"),
        ("CrossEntropyLoss", "cl.SoftmaxLoss"),
        ("BCEWithLogitsLoss", "cl.SigmoidLoss"),
        ("BCELoss", "cl.SigmoidLoss"),
        ("NLLLoss", "cl.SoftmaxLoss"),
        ("Sequential", "cl.Model"),
        ("nn", "cl.Linear"),
        ("optim", "cl.SGD"),
        ("Module", "cl.Model"),
        ("keras", "cl.Model"),
        ("tensor", "cl.Tensor"),
        ("Conv2D", "cl.Conv2d"),
        ("MaxPooling2D", "cl.MaxPool2d"),
        ("BatchNormalization", "cl.BatchNorm"),
        ("BatchNorm2d", "cl.BatchNorm"),
        ("LayerNormalization", "cl.LayerNorm"),
        ("L1Loss", "cl.MAELoss"),
        ("SmoothL1Loss", "cl.HuberLoss"),
        ("RMSprop", "cl.RMSProp"),
    ],
)
def test_a_name_of_keras_or_pytorch_is_an_error_that_says_caffelites(name, here):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; caffelite has .*{here}"):
        getattr(cl, name)


def test_other_names_are_plain_errors():
    with pytest.raises(AttributeError, match=r"^module 'caffelite' has no attribute 'linear'$"):
        _ = cl.linear


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_is_for_what_is_not_here_and_names_what_is(name):
    assert name not in dir(cl)
    for path in re.findall(r"cl\.(\w+(?:\.\w+)*)", NAMES[name]):
        found = cl
        for part in path.split("."):
            found = getattr(found, part)


def test_hints_are_not_imported_before_somebody_needs_one():
    code = "import sys, caffelite; print('caffelite.core.hints' in sys.modules, hasattr(caffelite, 'nn'))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]


@pytest.mark.parametrize(
    ("make", "here"),
    [
        (lambda: cl.GRU(3, 4, num_layers=2), "layers=2"),
        (lambda: cl.LSTM(input_size=3, hidden=4), "in_features="),
        (lambda: cl.LSTM(3, 4, return_sequences=True), "sequences=True"),
        (lambda: cl.Embedding(10, 4, padding_idx=0), "masks of attention"),
        (lambda: cl.TransformerBlock(8, 2, norm_first=True), "the norm comes first"),
        (lambda: cl.MultiHeadAttention(8, num_heads=2), "heads="),
        (lambda: cl.Conv2d(3, 4, 3, strides=2), "stride="),
        (lambda: cl.MaxPool2d(pool_size=2), "kernel_size="),
        (lambda: cl.Linear(3, 4, activation="relu"), r"cl\.ReLU"),
        (lambda: cl.BatchNorm(3, epsilon=1e-3), "eps="),
        (lambda: cl.Dropout(rate=0.5), "p="),
        (lambda: cl.SGD([], learning_rate=0.1), "lr="),
        (lambda: cl.Adam([], lr=0.1, beta_1=0.9), "betas="),
        (lambda: cl.Model([cl.Linear(3, 4)])(cl.Tensor([[1, 2, 3]]), training=True), r"cl\.inference"),
        (lambda: cl.Model([cl.GRU(3, 4)])(cl.Tensor([[[1, 2, 3]]]), lengths=[1]), "call takes x and lengths"),
    ],
)
def test_an_argument_of_keras_or_pytorch_is_an_error_that_says_caffelites(make, here):
    with pytest.raises(TypeError, match=rf"got an unexpected keyword argument '\w+'; caffelite has .*{here}"):
        make()


@pytest.mark.parametrize("argument", [{"widht": 3}, {"self": 3}])
def test_other_arguments_are_plain_errors(argument):
    with pytest.raises(TypeError) as caught:
        cl.Linear(3, 4, **argument)
    assert "caffelite has" not in str(caught.value)


def test_errors_from_inside_of_a_constructor_stay_as_they_are():
    def initializer(shape, rng):
        return cl.GRU(3, 4, num_layers=2)

    with pytest.raises(TypeError, match=r"'num_layers'; caffelite has layers=2$"):
        cl.Linear(3, 4, initializer=initializer)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_hint_about_an_argument_names_what_is_here(name):
    for path in re.findall(r"cl\.(\w+(?:\.\w+)*)", ARGUMENTS[name]):
        found = cl
        for part in path.split("."):
            found = getattr(found, part)


@pytest.mark.parametrize("kind", [cl.Linear, cl.Conv2d, cl.MaxPool2d, cl.GRU, cl.Embedding, cl.SGD])
def test_signatures_are_those_that_were_written(kind):
    assert "options" not in inspect.signature(kind).parameters
    assert "hinting" not in kind.__init__.__qualname__
