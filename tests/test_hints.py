"""What caffelite says of the names that Keras and PyTorch have."""

import re
import subprocess
import sys

import pytest

import caffelite as cl
from caffelite.core.hints import NAMES


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
