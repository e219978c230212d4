"""The framework in NumPy, caffelite/textbook.py: it computes what caffelite computes."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import textbook

CLASSES = [getattr(textbook, name) for name in textbook.__all__]


def train_framework(framework, data, dtype, **options):
    """Return a program of the day one, with one framework or the other: the model and its history."""
    model = framework.Model(seed=0, **dtype)
    model.add(framework.Linear(2, 20)).add(framework.ReLU()).add(framework.Linear(20, 3))
    optimizer = framework.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return model, model.fit(*data(framework), loss=framework.SoftmaxLoss(), optimizer=optimizer, epochs=20, **options)


@pytest.mark.parametrize("batch_size", [7, 30, 100])
@pytest.mark.parametrize("as_generator", [False, True])
def test_both_train_to_the_same_numbers(batch_size, as_generator):
    x, y = cl.datasets.spiral(points_per_class=10, classes=3, seed=0)
    options = {"batch_size": batch_size, "shuffle": False}

    def data(framework):
        return (framework.DataGenerator(x.astype(float), y, **options),) if as_generator else (x.astype(float), y)

    given = {} if as_generator else options
    book, losses = train_framework(textbook, data, {}, **given)
    fast, history = train_framework(cl, data, {"dtype": np.float64}, verbose=0, **given)
    np.testing.assert_allclose(losses["loss"], history["loss"], rtol=0, atol=1e-9)
    assert losses["loss"][-1] < losses["loss"][0]
    for ours, theirs in zip(book.parameters(), fast.parameters(), strict=True):
        np.testing.assert_allclose(ours.data, theirs.data, rtol=0, atol=1e-9)
    np.testing.assert_allclose(book.predict(x), fast.predict(x), rtol=0, atol=1e-9)


def test_each_epoch_has_an_order_of_its_own_in_which_every_row_comes_once():
    batches = textbook.DataGenerator(np.arange(10), np.arange(10) * 2, batch_size=4, seed=0)
    epochs = [[(x.tolist(), y.tolist()) for x, y in batches] for _ in range(2)]
    for epoch in epochs:
        assert [len(x) for x, _ in epoch] == [4, 4, 2]
        assert sorted(i for x, _ in epoch for i in x) == list(range(10))
        assert all(y == [2 * i for i in x] for x, y in epoch)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_class_names_the_file_of_its_namesake_and_takes_no_other_arguments(kind):
    (path,) = re.findall(r"In caffelite.*: ([a-z_/]+\.py)", kind.__doc__)
    name = "Tensor" if kind is textbook.Parameter else kind.__name__
    source = Path(cl.__file__).parent / path
    assert re.search(rf"^class {name}\b", source.read_text(encoding="utf-8"), re.MULTILINE)
    if kind in (textbook.Parameter, textbook.SoftmaxLoss):
        return
    ours, theirs = [inspect.signature(x).parameters for x in (kind, getattr(cl, name, None) or cl.optimizers.Optimizer)]
    for argument, parameter in ours.items():
        assert theirs[argument].kind == parameter.kind


@pytest.mark.sources
def test_every_file_that_is_named_is_there():
    package = Path(cl.__file__).parent
    named = [path for kind in CLASSES for path in re.findall(r"(?:[a-z_]+/)+[a-z_]+\.pyx?", kind.__doc__)]
    assert len(named) > len(CLASSES)
    for path in named:
        assert (package / path).exists(), path


def test_a_model_with_a_seed_trains_to_the_same_numbers_again():
    x, y = cl.datasets.spiral(points_per_class=10, classes=3, seed=0)
    first, second = [train_framework(textbook, lambda _: (x, y), {})[1] for _ in range(2)]
    assert first == second
