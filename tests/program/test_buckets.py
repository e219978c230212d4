"""Blocks: a few Programs predict any number of rows, if each row is known to be computed by itself."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import caffelite as cl
from caffelite.core.modes import inference
from caffelite.program import buckets
from tests.cases import both_dtypes, every_function, make_params
from tests.cases.case import as_tuple
from tests.reference import LAYOUTS

SIZES = [7, 1, 2, 3, 4, 5, 8, 9, 16, 17, 23, 48, 49, 63, 64, 65, 100, 240, 241, 257, 300, 7, 1]


class TwoInputNet(cl.Model):
    """Two outputs of two inputs. It writes `call`, so nobody knows whether its rows are independent."""

    def __init__(self):
        super().__init__(seed=0)
        self.first, self.second = cl.Linear(4, 3), cl.Linear(4, 2)

    def call(self, x, z):
        return self.first(x), self.second(z)


class Last(cl.Function, recordable=True, rowwise=True):
    """The last state of a GRU, of sequences of these lengths."""

    takes_indices = (False, True)

    def __init__(self):
        self.gru = cl.GRU(8, 5)

    def forward(self, x, lengths=None):
        return self.gru.forward(x, lengths=lengths)

    def backward(self, dy):
        return self.gru.backward(dy)


class Halves(cl.Function, recordable=True, rowwise=True):
    """The left and the right half, in two outputs."""

    def forward(self, x):
        return cl._kernels.copy(x[:, :3]), cl._kernels.copy(x[:, 3:])

    def backward(self, dy):
        raise NotImplementedError


class Centering(cl.Function):
    """Rows less their mean: each row depends on all others."""

    def forward(self, x):
        return x - x.mean(axis=0)

    def backward(self, dy):
        return dy - dy.mean(axis=0)


class KernelCentering(cl.Function, recordable=True):
    """As `Centering`, but a step with it can be recorded."""

    def forward(self, x):
        return cl._kernels.subtract(x, cl._kernels.sum(x, axis=0, scale=1 / len(x)))

    def backward(self, dy):
        return dy


class CenteredLinear(cl.Linear, recordable=True):
    """A subclass of a Function that computes by row, which does not."""

    def forward(self, x):
        y = super().forward(x)
        return cl._kernels.subtract(y, cl._kernels.sum(y, axis=0, scale=1 / len(y)))


class CenteredForward(cl.Model):
    """A sequence with a `forward` of its own."""

    def forward(self, x):
        return x - x.mean(axis=0)


class CenteredCall(cl.Model):
    """Tensor operators across the rows."""

    def __init__(self):
        super().__init__(seed=0)
        self.inner = cl.Linear(4, 3)

    def call(self, x):
        return self.inner(x) - x.mean(axis=0).mean()


def mlp(dtype=np.float32):
    return cl.Model(
        [cl.Linear(4, 20), cl.BatchNorm(20), cl.ReLU(), cl.Linear(20, 3), cl.Softmax()], seed=0, dtype=dtype
    )


def cnn(dtype=np.float32):
    layers = [
        cl.Conv2d(1, 4, 3, padding=1),
        cl.ReLU(),
        cl.MaxPool2d(2),
        cl.Flatten(),
        cl.Dropout(0.5),
        cl.Linear(36, 3),
    ]
    return cl.Model(layers, seed=0, dtype=dtype)


def words(dtype=np.float32):
    block = cl.TransformerBlock(8, 2, causal=True)
    layers = [cl.Embedding(20, 8), block, cl.GRU(8, 5, sequences=True), cl.LayerNorm(5), cl.LSTM(5, 4), cl.Linear(4, 2)]
    return cl.Model(layers, seed=0, dtype=dtype)


def composed_net(dtype=np.float32):
    inner = cl.Model([cl.Linear(4, 4), cl.Tanh()])
    return cl.Model([cl.Residual(inner), cl.Parallel([cl.Linear(4, 2), cl.GELU()])], seed=0, dtype=dtype)


RNG = np.random.default_rng(0)
NETS = {
    "mlp": (mlp, RNG.normal(size=(300, 4))),
    "cnn": (cnn, RNG.normal(size=(300, 1, 6, 6))),
    "words": (words, RNG.integers(0, 20, (300, 5))),
    "composed": (composed_net, RNG.normal(size=(300, 4))),
}
every_net = pytest.mark.parametrize(("make", "x"), NETS.values(), ids=NETS)


@pytest.fixture
def recorded_rows(monkeypatch):
    """Return the numbers of rows that are recorded."""
    found, record = [], cl.Program.record
    monkeypatch.setattr(cl.Program, "record", lambda *given: found.append(len(given[2])) or record(*given))
    return found


def eager(model, *inputs):
    """Return the outputs of a call that nothing records."""
    inputs = [x.astype(model.dtype) if x.dtype.kind == "f" else x for x in inputs]
    with inference():
        return tuple([y.data for y in as_tuple(model(*inputs))])


def find_blocks(model):
    """Return the Blocks that a model has, one for each kind of row."""
    return [kept for kept in model._model_state.programs._programs.values() if isinstance(kept, buckets.RowBuckets)]


# ---- bits ----


@every_net
@both_dtypes
def test_any_number_of_rows_has_the_bits_of_the_call(make, x, dtype):
    model = make(dtype)
    assert model._model_state.is_rowwise(model)
    for rows in SIZES:
        for some in (x[:rows], x[300 - rows :]):
            assert model.predict(some).tobytes() == eager(model, some)[0].tobytes(), rows
    assert model.predict(x, batch_size=37).tobytes() == eager(model, x)[0].tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_in_odd_layouts(layout):
    model, x = mlp(), NETS["mlp"][1].astype(np.float32)
    for rows in SIZES:
        odd = layout(x[:rows])
        assert model.predict(odd).tobytes() == eager(model, np.array(odd))[0].tobytes(), rows


def test_sparse_rows():
    sparse = pytest.importorskip("scipy.sparse")
    model = mlp()
    x = sparse.random(300, 4, 0.4, "csr", np.float32, np.random.default_rng(0))
    expected = model.predict(x)
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == expected[:rows].tobytes(), rows


def test_masks_and_lengths():
    rng = np.random.default_rng(0)
    x, mask, lengths = (
        rng.normal(size=(300, 6, 8)).astype(np.float32),
        rng.random((300, 6)) < 0.8,
        np.arange(300) % 6 + 1,
    )
    mask[:, 0] = True
    attention, last = cl.Model([cl.MultiHeadAttention(8, 2)], seed=0), cl.Model([Last()], seed=0)
    last.takes_indices = (False, True)
    for model, other in ((attention, mask), (last, lengths)):
        assert model._model_state.is_rowwise(model)
        for rows in SIZES:
            given = x[:rows], other[:rows]
            assert model.predict(given).tobytes() == eager(model, *given)[0].tobytes(), rows


def test_several_outputs():
    model, x = cl.Model([cl.Linear(4, 6), Halves()], seed=0), NETS["mlp"][1].astype(np.float32)
    assert model._model_state.is_rowwise(model)
    for rows in SIZES:
        found = model.predict(x[:rows])
        assert isinstance(found, tuple)
        assert [y.tobytes() for y in found] == [y.tobytes() for y in eager(model, x[:rows])]


def test_predictions_belong_to_the_caller():
    model, x = mlp(), NETS["mlp"][1]
    for rows in (300, 17, 63, 17):
        first = model.predict(x[:rows])
        kept = first.copy()
        model.predict(-x[:rows])[...] = 0
        assert (first == kept).all()
        assert first.base is None


def test_predictions_follow_the_parameters_and_the_layers():
    model, x = mlp(), NETS["mlp"][1]
    for rows in SIZES:
        model.predict(x[:rows])
    model.load_state_dict({name: array + 0.1 for name, array in model.state_dict().items()})
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes()
    model.functions[0].weight.data = np.ones((4, 20))
    model.functions[-1].axis = 0
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes()
    model.functions.pop()
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes()


def test_several_threads_predict_other_numbers_of_rows_at_once():
    model, x = mlp(), NETS["mlp"][1].astype(np.float32)
    parts = [x[i : i + rows] for i, rows in enumerate(SIZES * 4)]
    expected = [eager(model, part)[0].tobytes() for part in parts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert [y.tobytes() for y in pool.map(model.predict, parts)] == expected


# ---- recordings and memory ----


@every_net
def test_few_numbers_of_rows_are_recorded(make, x, recorded_rows):
    model = make()
    for rows in [*SIZES, *range(1, 301, 3)]:
        model.predict(x[:rows])
    assert set(recorded_rows) <= {7, *buckets.SIZES}
    assert len(recorded_rows) == len(set(recorded_rows))


@every_net
def test_all_programs_have_at_most_twice_the_memory_of_the_largest(make, x):
    model = make()
    for rows in [299, *SIZES, *range(1, 301, 3), *[290] * 10]:
        model.predict(x[:rows])
        (kept,) = find_blocks(model)
        sizes = [program.nbytes for program in kept.programs.values()]
        assert kept.nbytes == sum(sizes) <= 2 * max(sizes), rows


def test_one_number_of_rows_beside_single_rows_is_recorded_as_it_is(recorded_rows):
    model, x = mlp(), NETS["mlp"][1]
    for _ in range(3):
        for rows in (1, 300):
            model.predict(x[:rows])
    assert recorded_rows == [1, 300]


def test_a_number_of_rows_that_comes_again_and_again_gets_a_program_of_its_own(recorded_rows):
    model, x = mlp(), NETS["mlp"][1]
    for rows in (5, *[300] * 10, 5, 1, 300):
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes()
    assert recorded_rows == [5, 256, 16, 300, 4, 1]
    (kept,) = find_blocks(model)
    assert 300 in kept.programs
    assert 5 not in kept.programs


def test_numbers_of_rows_in_turn_are_not_recorded_again_and_again(recorded_rows):
    model, x = mlp(), NETS["mlp"][1]
    for _ in range(200):
        for rows in (300, 299):
            model.predict(x[:rows])
            (kept,) = find_blocks(model)
            assert kept.nbytes <= 2 * max(program.nbytes for program in kept.programs.values())
    assert len(recorded_rows) < 20


def test_no_number_of_rows_is_recorded_again_soon_after_its_program_was_dropped(recorded_rows):
    model, x = mlp(), NETS["mlp"][1]
    for _ in range(3):
        for rows in (200, 299, 100):
            model.predict(x[:rows])
    assert recorded_rows == [200, 256, 16, 64, 4]
    (kept,) = find_blocks(model)
    assert set(kept.programs) == {256, 64, 16, 4}


def test_each_block_has_few_rows_that_are_repeated():
    for rows in range(1, 3000):
        starts, sizes = zip(*buckets._split_rows(rows), strict=True)
        assert [*starts, starts[-1] + sizes[-1]] == [0, *np.cumsum(sizes)]
        assert 0 <= sum(sizes) - rows <= 15
        assert sum(sizes) - rows < sizes[-1] / 2
        assert sorted(sizes, reverse=True) == list(sizes)


def test_rows_of_many_shapes_beyond_the_budget_run_in_python(recorded_rows, monkeypatch):
    monkeypatch.setattr("caffelite.program.cache.MEMORY_BUDGET", 0)
    model = words()
    for length in range(1, 6):
        for rows in (3, 20, 3):
            x = RNG.integers(0, 20, (rows, length))
            assert model.predict(x).tobytes() == eager(model, x)[0].tobytes()
    assert len(find_blocks(model)) == 2


# ---- whose rows may depend on each other ----


@pytest.mark.parametrize(
    "make",
    [
        CenteredCall,
        lambda: cl.Model([cl.Linear(4, 3), Centering()], seed=0),
        lambda: cl.Model([cl.Linear(4, 3), KernelCentering()], seed=0),
        lambda: cl.Model([CenteredLinear(4, 3)], seed=0),
        lambda: cl.Model([cl.Residual(CenteredLinear(4, 4))], seed=0),
        lambda: cl.Model([cl.Linear(4, 3), cl.Softmax(0)], seed=0),
        lambda: cl.Model([cl.Linear(4, 3), cl.LogSoftmax(-2)], seed=0),
        lambda: cl.Model([cl.Linear(4, 1), cl.Reshape(()), cl.Softmax()], seed=0),
        lambda: cl.Model([CenteredCall(), cl.ReLU()], seed=0),
        lambda: CenteredForward([cl.Linear(4, 3)], seed=0),
        lambda: cl.Model([CenteredForward([cl.Linear(4, 3)]), cl.ReLU()], seed=0),
        lambda: cl.Model([cl.Parallel([cl.Linear(4, 4), cl.ReLU()], axis=0)], seed=0),
    ],
)
def test_a_model_whose_rows_are_not_known_to_be_independent_gets_all_rows_at_once(make):
    model, x = make(), NETS["mlp"][1].astype(np.float32)
    assert not model._model_state.is_rowwise(model)
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes(), rows
    assert not find_blocks(model)


def test_a_layer_whose_forward_was_replaced_gets_all_rows_at_once():
    model, x = mlp(), NETS["mlp"][1].astype(np.float32)
    model.functions[2].forward = lambda x: x - x.mean(axis=0)
    with pytest.warns(cl.NotRecorded):
        model.predict(x[:300])
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes(), rows
    assert not find_blocks(model)


def test_numbers_without_an_axis_of_features_are_not_cut_into_blocks():
    model, x = cl.Model([cl.Softmax()], seed=0), np.arange(50, dtype=np.float32)
    for rows in SIZES[:17]:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes(), rows


def test_several_inputs_and_outputs_of_a_call():
    model, x = TwoInputNet(), NETS["mlp"][1].astype(np.float32)
    for rows in SIZES:
        given = x[:rows], x[300 - rows :]
        assert [y.tobytes() for y in model.predict(given)] == [y.tobytes() for y in eager(model, *given)]


@pytest.mark.parametrize("keyword", ["rowwise", "by_row"])  # by_row: its former name
def test_a_function_may_declare_that_it_computes_rowwise(keyword, recorded_rows):
    class Double(cl.Function, recordable=True, **{keyword: True}):
        def forward(self, x):
            return cl._kernels.add(x, x)

        def backward(self, dy):
            return cl._kernels.add(dy, dy)

    class Inheriting(Double):
        pass

    x = NETS["mlp"][1].astype(np.float32)
    inheriting = cl.Model([Inheriting()])
    assert not inheriting._model_state.is_rowwise(inheriting)
    model = cl.Model([Double()])
    for rows in SIZES:
        np.testing.assert_array_equal(model.predict(x[:rows]), 2 * x[:rows])
    assert set(recorded_rows) <= {7, *buckets.SIZES}


def test_a_model_that_writes_call_may_declare_it(recorded_rows):
    class GatedNet(cl.Model, rowwise=True):
        def __init__(self, gate):
            super().__init__(seed=0)
            self.f, self.g = cl.Linear(4, 3), gate

        def call(self, x):
            return self.f(x) * self.g(x).sigmoid()

    class Inheriting(GatedNet):
        pass

    x = NETS["mlp"][1].astype(np.float32)
    for dependent in (Inheriting(cl.Linear(4, 3)), GatedNet(CenteredLinear(4, 3))):
        assert not dependent._model_state.is_rowwise(dependent)
    model = GatedNet(cl.Linear(4, 3))
    for rows in SIZES:
        assert model.predict(x[:rows]).tobytes() == eager(model, x[:rows])[0].tobytes()
    assert set(recorded_rows) <= {7, *buckets.SIZES}


def test_a_function_that_can_t_be_recorded_gets_all_rows_at_once():
    class Counting(cl.Function, recordable=True, rowwise=True):
        seen = ()

        def forward(self, x):
            type(self).seen += (len(x),)
            return cl._kernels.add(x, np.ones_like(x))

        def backward(self, dy):
            return dy

    model, x = cl.Model([Counting()]), NETS["mlp"][1].astype(np.float32)
    with pytest.warns(cl.NotRecorded):
        model.predict(x)
    for rows in (16, 64, 33, 50):
        np.testing.assert_array_equal(model.predict(x[:rows]), x[:rows] + 1)
    assert Counting.seen[-2:] == (33, 50)


def computes_rowwise(case):
    """Whether a case is of a Function that computes by row, with rows as inputs."""
    inputs = case.inputs()
    has_rows = inputs[0].ndim > 1 and all(x.shape[:1] == inputs[0].shape[:1] for x in inputs)
    return has_rows and case.make().is_rowwise()


@pytest.mark.parametrize("case", [case for case in make_params("listed") if computes_rowwise(*case.values)])
@both_dtypes
def test_each_row_of_a_function_that_computes_rowwise_has_its_bits_alone(case, dtype):
    function, inputs = case.function(dtype), case.inputs(dtype)
    rows = len(inputs[0])
    with inference():
        together = as_tuple(function.forward(*inputs))
        for i in range(rows):
            alone = as_tuple(function.forward(*[x[i : i + 1] for x in inputs]))
            assert [y.tobytes() for y in alone] == [y[i : i + 1].tobytes() for y in together]


@every_function
def test_layers_compute_rowwise(function):
    """What only operators use, and losses, are not layers."""
    operators = {"Add", "Subtract", "Multiply", "Divide", "Power", "MatMul", "Where", "Index", "Stack", "ToShape"}
    others = operators | {"Transpose", "Sum", "Mean", "Max", "Min", "Penalized", "WeightedSum", "Losses"}
    others |= {"Maximum", "Minimum", "Prod", "Var", "Std", "LogSumExp", "CumSum"}
    others |= {"TakeAlongAxis", "Split", "PadAxes", "Flip", "Roll", "Repeat"}
    assert function.rowwise == (
        function.__name__ not in others and not issubclass(function, cl.functions.losses.base.Loss)
    )


# ---- errors ----


def test_an_index_that_is_in_no_table_is_named_by_its_row_and_leaves_no_trace():
    model, x = words(), NETS["words"][1].copy()
    expected = [eager(model, x[:rows])[0].tobytes() for rows in SIZES]
    for bad in (0, 5, 299):
        for rows in SIZES:
            wrong = x[:rows].copy()
            wrong[min(bad, rows - 1), 2] = 20
            with pytest.raises(IndexError, match=rf"predict: index 20 in row {min(bad, rows - 1)}"):
                model.predict(wrong)
        assert [model.predict(x[:rows]).tobytes() for rows in SIZES] == expected


def test_an_impossible_length_is_named_by_its_row():
    model, x = cl.Model([Last()], seed=0), np.ones((100, 6, 8), np.float32)
    model.takes_indices = (False, True)
    for rows in (7, 1, 100):
        lengths = np.full(rows, 6)
        model.predict((x[:rows], lengths))
        lengths[-1] = 7
        with pytest.raises(ValueError, match=f"length 7 in row {rows - 1} ") as raised:
            model.predict((x[:rows], lengths))
        assert raised.value.__context__ is None


def test_rows_of_another_shape_raise_after_any_number_of_rows():
    model, x = mlp(), NETS["mlp"][1]
    for rows in SIZES:
        model.predict(x[:rows])
        for width in (3, 5):
            with pytest.raises(ValueError, match=rf"got rows of {width} features"):
                model.predict(np.ones((rows, width)))
        with pytest.raises(ValueError, match="no rows"):
            model.predict(x[:0])


def test_a_prediction_inside_a_recorded_step_is_a_part_of_it():
    model, x = mlp(), NETS["mlp"][1].astype(np.float32)
    for rows in (300, 17, 33, 40):
        program = cl.Program(lambda x: model.predict(x))
        program(x[:rows])
        assert program.is_recorded
        for some in (x[:rows], x[-rows:]):
            assert program(some).tobytes() == eager(model, some)[0].tobytes()
