"""explain: the inputs and outputs that it takes, and its errors."""

import numpy as np
import pytest

import caffelite as cl

RNG = np.random.default_rng(0)


class TwoOutputs(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.first, self.second = cl.Linear(4, 3), cl.Linear(4, 1)

    def call(self, x):
        return self.first(x).relu(), self.second(x)


def test_an_output_is_chosen_by_its_index():
    model, x = cl.MLP(4, [8, 3], seed=0), RNG.normal(size=(10, 4))
    every = cl.explain(model, x[:2], x)
    second = cl.explain(model, x[:2], x, 1)
    np.testing.assert_allclose(second.values, every.values[..., 1], atol=1e-12)
    assert np.isclose(second.base, every.base[1])
    assert isinstance(second.base, float)


def test_one_of_several_outputs_is_chosen_by_the_first_index():
    model, x = TwoOutputs(), RNG.normal(size=(10, 4))
    assert cl.explain(model, x[:2], x, 0).values.shape == (2, 4, 3)
    one = cl.explain(model, x[:2], x, (0, 2))
    np.testing.assert_array_equal(one.outputs, model.predict(x[:2])[0][:, 2])
    np.testing.assert_array_equal(cl.explain(model, x[:2], x, 1).outputs, model.predict(x[:2])[1][:, 0])
    with pytest.raises(ValueError, match="the model has 2 outputs; expected output=0, 1 …, got None"):
        cl.explain(model, x[:2], x)
    with pytest.raises(ValueError, match="the model has 2 outputs"):
        cl.explain(model, x[:2], x, 2)


@pytest.mark.parametrize("output", [3, -4, (0, 0)])
def test_an_output_that_there_is_not_raises(output):
    model, x = cl.MLP(4, [8, 3], seed=0), RNG.normal(size=(10, 4))
    for call in (lambda: cl.explain(model, x[:2], x, output), lambda: cl.attributions(model, x, output)):
        with pytest.raises(ValueError, match=r"there is no output .* in outputs of shape \(\d+, 3\)"):
            call()


def test_outputs_of_more_axes_need_an_index():
    model, x = cl.Model([cl.Linear(4, 6), cl.Reshape((2, 3))], seed=0), RNG.normal(size=(10, 4))
    with pytest.raises(ValueError, match=r"expected outputs \(n,\) or \(n, k\), got shape \(2, 2, 3\): choose some"):
        cl.explain(model, x[:2], x)
    np.testing.assert_array_equal(cl.explain(model, x[:2], x, (1, 2)).outputs, model.predict(x[:2])[:, 1, 2])


def test_each_element_of_a_row_is_a_column_also_of_several_inputs():
    image = cl.Model([cl.Flatten(), cl.Linear(12, 2)], seed=0)
    x = RNG.normal(size=(6, 3, 4))
    e = cl.explain(image, x[:2], x)
    assert e.values.shape == (2, 12, 2)
    weights = image[1].weight.data
    expected = (x[:2] - x.mean(axis=0)).reshape(2, 12, 1) * weights
    np.testing.assert_allclose(e.values, expected, atol=1e-6)

    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.table = cl.Embedding(5, 3)
            self.takes_indices = (True, False)

        def call(self, words, x):
            return (self.table(words).sum(axis=2) * x).sum(axis=1)

    words, x = RNG.integers(0, 5, (9, 2)), RNG.normal(size=(9, 2))
    e = cl.explain(Two(), (words[:3], x[:3]), (words, x))
    assert e.columns == ["x0", "x1", "x2", "x3"]
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), e.outputs, atol=1e-6)
    np.testing.assert_array_equal(e.data["x1"], words[:3, 1])
    np.testing.assert_array_equal(e.data["x2"], x[:3, 0].astype(np.float32))


def test_a_frame_gives_the_names_and_a_date_or_word_is_one_column():
    pandas = pytest.importorskip("pandas")
    n = 60
    frame = pandas.DataFrame(
        {
            "word": RNG.choice(["a", "b"], n),
            "x": RNG.normal(size=n),
            "day": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(RNG.integers(0, 300, n), "D"),
        }
    )
    columns = cl.Columns(frame, robust=True)
    model = cl.Model([columns, cl.Linear(columns.features, 1)], seed=0)
    e = cl.explain(model, frame[:3], frame)
    assert e.columns == ["word", "x", "day"]
    assert e.values.shape == (3, 3)
    np.testing.assert_allclose(e.base + e.values.sum(axis=1), model.predict(frame[:3])[:, 0], atol=1e-6)
    arrays = cl.explain(model, columns.arrays(frame[:3]), columns.arrays(frame))
    np.testing.assert_array_equal(arrays.values, e.values)
    np.testing.assert_array_equal(arrays.data["x"], frame["x"][:3])
    np.testing.assert_array_equal(arrays.data["word"], columns.arrays(frame[:3])[1][:, 0])
    with pytest.raises(ValueError, match="no column 'x'"):
        cl.explain(model, frame[["word", "day"]], frame)
    numbers = cl.MLP(2, [3, 1], seed=0)
    e = cl.explain(numbers, {"u": [1.0, 2.0], "v": [0.0, 1.0]}, {"u": [0.0], "v": [0.0]})
    assert e.columns == ["u", "v"]


def test_inputs_without_an_explanation_raise():
    model, x = cl.MLP(4, [8, 3], seed=0), RNG.normal(size=(10, 4))
    with pytest.raises(
        ValueError, match=r"x has rows of shape \[\(4,\)\], and background has rows of shape \[\(3,\)\]"
    ):
        cl.explain(model, x, x[:, :3])
    with pytest.raises(ValueError, match="background has no rows"):
        cl.explain(model, x, x[:0])
    with pytest.raises(ValueError, match="seed: expected an integer"):
        cl.explain(cl.MLP(9, [1], seed=0), np.zeros((1, 9)), np.ones((2, 9)), seed=-1)
    with pytest.raises(TypeError, match=r"words|strings|numbers"):
        cl.explain(model, [["a"] * 4], x)
    infinite = np.where(np.arange(10)[:, None] == 7, np.inf, x)
    with pytest.raises(ValueError, match="output for row 7 is not finite"):
        cl.explain(model, infinite, x)
    with pytest.raises(ValueError, match="output for background row 7 is not finite"):
        cl.explain(model, x, infinite)
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match="x is a sparse matrix"):
        cl.explain(model, scipy.csr_array(x), x)


def test_an_infinite_output_of_a_mix_of_rows_raises():
    class Logarithm(cl.Model):
        def call(self, x):
            return (x.sum(axis=1)).log()

    with pytest.raises(ValueError, match="a mix of row 0 and a background row"):
        cl.explain(Logarithm(dtype=np.float64), [[3.0, -2.0]], [[-2.0, 3.0]])
