"""Sparse inputs: a CSR matrix gives what its array gives, everywhere, and every lie in it is found."""

import copy
import gc
import hashlib
import pickle
import subprocess
import sys
import threading
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.core.sparse import SparseRows, as_sparse, is_sparse
from caffelite.program.recording import Recording
from tests.conftest import training_step
from tests.reference import WIDE, assert_close, assert_same_bits

sp = pytest.importorskip("scipy.sparse")

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
TOLERANCE = {np.float32: 1e-6, np.float64: 1e-12}
OPTIMIZERS = {
    "SGD": lambda ps: cl.SGD(ps, lr=0.5),
    "momentum": lambda ps: cl.SGD(ps, lr=0.1, momentum=0.9),
    "Nesterov, decay": lambda ps: cl.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "decay": lambda ps: cl.SGD(ps, lr=0.1, weight_decay=0.01),
    "Adagrad": lambda ps: cl.Adagrad(ps),
    "Adagrad, decay": lambda ps: cl.Adagrad(ps, weight_decay=0.01),
    "RMSProp": lambda ps: cl.RMSProp(ps),
    "Adam": lambda ps: cl.Adam(ps),
    "AdamW": lambda ps: cl.AdamW(ps),
}
every_optimizer = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def matrix(n=60, features=90, density=0.05, dtype=np.float32, seed=0, kind=sp.csr_array):
    """Return a random CSR matrix in which the second row and the last column are empty."""
    rng = np.random.default_rng(seed)
    array = np.where(rng.random((n, features)) < density, rng.uniform(-1, 1, (n, features)), 0).astype(dtype)
    array[1:2], array[:, -1:] = 0, 0
    return kind(array)


def labels(n=60, seed=1):
    return np.random.default_rng(seed).integers(0, 3, n)


def net(dtype=np.float32, features=90, hidden=8, seed=0):
    return cl.MLP(features, [hidden, 3], seed=seed, dtype=dtype)


def train(x, y, model, make_optimizer=OPTIMIZERS["SGD"], epochs=4, **options):
    batch_size = None if y is None else 16  # batches have their own
    options = {"loss": cl.SoftmaxLoss(), "batch_size": batch_size, "verbose": 0, **options}
    return model.fit(x, y, optimizer=make_optimizer(model.parameters()), epochs=epochs, **options)


def bits(model):
    return hashlib.sha256(b"".join(p.data.tobytes() for p in model.parameters())).hexdigest()


def assert_alike(one, other, dtype):
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, 0, TOLERANCE[dtype])


# ---- as its array ----


@both_dtypes
@every_optimizer
def test_a_training_on_a_sparse_matrix_is_the_training_on_its_array(make_optimizer, dtype):
    x, y = matrix(dtype=dtype), labels()
    sparse, dense = net(dtype), net(dtype)
    histories = [
        train(a, y, model, make_optimizer, metrics=["accuracy", "f1"], validation_split=0.2, sample_weight=y + 0.5)
        for a, model in ((x, sparse), (x.toarray(), dense))
    ]
    assert_alike(sparse, dense, dtype)
    for name, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][name], 0, 1e-6)
    np.testing.assert_allclose(sparse.predict(x), dense.predict(x.toarray()), 0, TOLERANCE[dtype])
    results = [model.evaluate(a, y, loss=cl.SoftmaxLoss()) for a, model in ((x, sparse), (x.toarray(), dense))]
    assert abs(results[0]["loss"] - results[1]["loss"]) < 1e-6


@every_optimizer
def test_a_step_by_hand_has_the_bits_of_fit(make_optimizer):
    x, y, model, other = matrix(), labels(), net(), net()
    train(x, y, model, make_optimizer, epochs=2, shuffle=False, clip_norm=0.5)
    loss, optimizer = cl.SoftmaxLoss(), make_optimizer(other.parameters())
    for i in [*range(0, 60, 16)] * 2:
        optimizer.zero_grad()
        loss.forward(other.forward(x[i : i + 16]), y[i : i + 16])
        assert other.backward(loss.backward()) is None
        optimizer.step(clip_norm=0.5)
    assert bits(model) == bits(other)


@both_dtypes
@given(
    st.tuples(st.integers(0, 9), st.integers(1, 70), st.integers(1, 9)), st.floats(0, 1), st.booleans(), st.integers(0)
)
def test_product_and_gradient_are_the_judges(dtype, sizes, density, with_bias, seed):
    (n, width, features), rng = sizes, np.random.default_rng(seed)
    array = np.where(rng.random((n, features)) < density, rng.uniform(-1, 1, (n, features)), 0).astype(dtype)
    w, dy = rng.uniform(-1, 1, (features, width)).astype(dtype), rng.uniform(-1, 1, (n, width)).astype(dtype)
    bias = rng.uniform(-1, 1, width).astype(dtype) if with_bias else None
    sparse = as_sparse(sp.csr_array(array))
    rows = sparse.rows
    wide, zero = array.astype(np.float64), 0 if bias is None else bias.astype(np.float64)
    assert_close(kernels.sparse_matmul(rows, w, bias=bias), wide @ w + zero, dtype, scale=features)
    assert_close(kernels.sparse_matmul_grad(rows, dy), wide.T @ dy, dtype, scale=n)
    assert_same_bits(kernels.sparse_to_dense(rows), array)


@both_dtypes
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(90, 4), (90,)], ids=["matrix", "vector"])
def test_the_product_with_a_tensor_and_its_gradient_are_as_of_the_array(kind, shape, dtype):
    x, values = matrix(dtype=np.float64, kind=kind), np.random.default_rng(2).normal(size=shape)
    sparse, dense = (cl.Tensor(values, dtype=dtype, requires_grad=True) for _ in range(2))
    product, expected = cl.matmul(x, sparse), x.toarray() @ dense
    (product**2).sum().backward()
    (expected**2).sum().backward()
    assert_close(product.data, expected.data, dtype, scale=90)
    assert_close(sparse.grad, dense.grad, dtype, scale=90)


def test_an_unfit_product_of_sparse_rows_is_an_error():
    x = matrix()
    with pytest.raises(ValueError, match=r"rows of 90 features and shape \(4, 2\)"):
        cl.matmul(x, cl.Tensor(np.ones((4, 2))))
    with pytest.raises(ValueError, match=r"a Tensor of shape \(2, 90, 1\); expected \(features, k\) or \(features,\)"):
        cl.matmul(x, cl.Tensor(np.ones((2, 90, 1))))
    with pytest.raises(TypeError, match=r"\.toarray\(\) makes an array from it"):
        cl.matmul(cl.Tensor(np.ones((2, 60))), x)


class Graph(cl.Model):
    """Two layers on the nodes of a graph and their neighbours."""

    def __init__(self, dtype):
        super().__init__(seed=0, dtype=dtype)
        self.hidden, self.scores = cl.Linear(5, 8), cl.Linear(8, 3)

    def call(self, x, adjacency):
        return adjacency @ self.scores((adjacency @ self.hidden(x)).relu())


@both_dtypes
def test_a_graph_net_learns_the_same_from_a_sparse_adjacency(dtype, recwarn):
    """The whole graph is a batch. The matrix is in float64, as SciPy makes it."""
    x, adjacency = np.random.default_rng(3).normal(size=(60, 5)), matrix(features=60, density=0.1, dtype=np.float64)
    sparse, dense = Graph(dtype), Graph(dtype)
    for model, a in ((sparse, adjacency), (dense, adjacency.toarray())):
        train((x, a), labels(), model, batch_size=60, shuffle=False)
    assert not recwarn.list  # the step is recorded
    assert_alike(sparse, dense, dtype)
    expected = dense.predict((x, adjacency.toarray()))
    np.testing.assert_allclose(sparse.predict((x, adjacency)), expected, 0, TOLERANCE[dtype])


@both_dtypes
def test_a_matrix_product_takes_sparse_rows_and_their_transpose(dtype):
    x, rng = as_sparse(matrix(dtype=dtype)), np.random.default_rng(0)
    w, dy, bias = (rng.normal(size=shape).astype(dtype) for shape in ((90, 4), (60, 4), 4))
    assert (x.shape, x.T.shape) == ((60, 90), (90, 60))
    assert_same_bits(kernels.matmul(x, w, bias=bias), kernels.sparse_matmul(x.rows, w, bias=bias))
    dw = kernels.sparse_matmul_grad(x.rows, dy)
    assert_same_bits(kernels.matmul(x.T, dy), dw)
    twice = kernels.sparse_matmul_grad(x.rows, dy, dw.copy(), accumulate=True)
    assert_same_bits(kernels.matmul(x.T, dy, dw, accumulate=True), twice)
    with pytest.raises(ValueError, match="adds no bias"):
        kernels.matmul(x.T, dy, bias=bias)
    with pytest.raises(ValueError, match="does not accumulate"):
        kernels.matmul(x, w, kernels.matmul(x, w), accumulate=True)
    with pytest.raises(TypeError, match="ndarray"):
        kernels.matmul([[1.0]], w)


def test_the_transpose_of_sparse_rows_is_good_for_nothing_else():
    x = as_sparse(matrix()).T
    for attempt in (lambda: x + 1, lambda: x @ x, lambda: np.ones(90) * x, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="sparse rows"):
            attempt()
    with pytest.raises(AttributeError, match="sparse rows have no 'sum'"):
        x.sum()


@pytest.mark.parametrize("width", [1, 3, 8, 13, 16, 31, 64, 100, 130])
@both_dtypes
def test_a_row_alone_has_the_bits_of_the_row_in_its_batch(dtype, width):
    x, model = matrix(dtype=dtype, density=0.3), cl.Model([cl.Linear(90, width)], seed=0, dtype=dtype)
    y = model.predict(x, batch_size=17)
    for i in (0, 1, 16, 17, 59):
        assert_same_bits(y[i : i + 1], model.predict(x[[i]]))
    assert_same_bits(y, model(x).data)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "momentum"])
def test_any_number_of_threads_gives_the_same_bits(name):
    x, y, found = matrix(400, 3000, 0.05), labels(400), set()
    before = cl.get_num_threads()
    try:
        for threads in (1, 2, 3, 8):
            cl.set_num_threads(threads)
            model = net(features=3000, hidden=100)
            train(x, y, model, OPTIMIZERS[name], epochs=1, batch_size=200)
            found.add((bits(model), model.predict(x).tobytes()))
    finally:
        cl.set_num_threads(before)
    assert len(found) == 1


@both_dtypes
def test_a_captured_step_on_other_rows_has_eager_bits(dtype):
    x, y = matrix(dtype=dtype), labels()
    models = [net(dtype), net(dtype)]

    eager, step = [training_step(model, OPTIMIZERS["Adam"](model.parameters())) for model in models]
    program = cl.capture(step, x[:20], y[:20])
    eager(x[:20], y[:20])
    for i in (20, 40, 0, 20):
        assert_same_bits(np.asarray(eager(x[i : i + 20], y[i : i + 20]).data), program(x[i : i + 20], y[i : i + 20]))
    gc.collect()
    assert "sparse_matmul_relu" in str(program)
    assert "sparse_matmul" in str(program.profile(1))  # on the rows of the last call, which the Program keeps
    with pytest.raises(ValueError, match=r"argument 0 was recorded with shape \(20, 90\), got \(19, 90\)"):
        program(x[:19], y[:19])
    with pytest.raises(TypeError, match="argument 0 was recorded with sparse rows, got an array"):
        program(x[:20].toarray(), y[:20])
    with pytest.raises(TypeError, match=rf"argument 0 was recorded with dtype {dtype.__name__}, got float"):
        program(sp.csr_array(x[:20], dtype=np.float64 if dtype is np.float32 else np.float32), y[:20])
    with pytest.raises(ValueError, match=r"argument 0 was recorded with shape \(20, 90\), got \(20, 80\)"):
        program(x[:20, :80], y[:20])


# ---- what the matrix may be like ----

FORMS = {
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    **{name: (lambda x, name=name: sp.csr_array(x).asformat(name)) for name in ("csc", "coo", "lil", "dok", "bsr")},
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_every_format_gives_the_same_bits(make):
    x, model = matrix(), net()
    assert_same_bits(model.predict(make(x)), model.predict(x))


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64]
)
@pytest.mark.parametrize("of_model", [np.float32, np.float64])
def test_numbers_of_every_dtype_become_the_models(dtype, of_model):
    x = matrix()
    x.data = (x.data * 5).astype(dtype)
    assert x.data.dtype == dtype
    array = np.zeros(x.shape, of_model)
    array[np.repeat(np.arange(60), np.diff(x.indptr)), x.indices] = x.data
    np.testing.assert_allclose(net(of_model).predict(x), net(of_model).predict(array), 1e-5, 10 * TOLERANCE[of_model])


def rearrange(x, how):
    """Return a matrix of the same numbers, in arrays of another kind."""
    data, indices, indptr = x.data, x.indices, x.indptr
    if how == "int64":
        indices, indptr = indices.astype(np.int64), indptr.astype(np.int64)
    elif how == "mixed":
        indices = indices.astype(np.int64)
    elif how == "uint16":
        indices = indices.astype(np.uint16)
    elif how == "reversed":
        data, indices = np.split(data, indptr[1:-1]), np.split(indices, indptr[1:-1])
        data, indices = (np.concatenate([part[::-1] for part in parts]) for parts in (data, indices))
    elif how == "halves":
        halves = np.repeat(data / 2, 2), np.repeat(indices, 2)
        (data, indices), indptr = halves, 2 * indptr
    elif how == "zeros":
        last = np.full(len(indptr) - 1, x.shape[1] - 1)
        indices, data = np.insert(indices, indptr[1:], last), np.insert(data, indptr[1:], 0)
        indptr = indptr + np.arange(len(indptr))
    elif how == "longer":
        data, indices = np.append(data, [9, 9]).astype(data.dtype), np.append(indices, [10**6, -1])
    elif how == "strided":
        data, indices = np.repeat(data, 2)[::2], np.repeat(indices, 3)[::3]
    elif how == "swapped":
        data, indices = data.astype(data.dtype.newbyteorder()), indices.astype(indices.dtype.newbyteorder())
    elif how == "unaligned":
        buffer = np.zeros(data.nbytes + 1, np.uint8)
        buffer[1:] = data.view(np.uint8)
        data = buffer[1:].view(data.dtype)
    elif how == "read-only":
        data, indices, indptr = (a.copy() for a in (data, indices, indptr))
        for array in (data, indices, indptr):
            array.flags.writeable = False
    other = copy.copy(x)
    other.data, other.indices, other.indptr = data, indices, indptr
    return other


HOW = [
    *("int64", "mixed", "uint16", "reversed", "halves", "zeros", "longer", "strided", "swapped", "unaligned"),
    "read-only",
]


@pytest.mark.parametrize("how", HOW)
@both_dtypes
def test_however_it_is_kept_a_matrix_gives_the_same_bits_and_is_not_written(how, dtype):
    x, y, plain, model = matrix(dtype=dtype), labels(), net(dtype), net(dtype)
    other = rearrange(x, how)
    before = [np.copy(a) for a in (other.data, other.indices, other.indptr)]
    train(x, y, plain)
    train(other, y, model)
    assert bits(plain) == bits(model)
    assert_same_bits(plain.predict(x), model.predict(other))
    for array, same in zip((other.data, other.indices, other.indptr), before, strict=True):
        np.testing.assert_array_equal(array, same)


def test_numbers_of_one_column_add_up_as_in_scipy():
    for dtype in (np.float32, np.int8, np.bool_):
        arrays = np.array([100, 100, 1, 7]).astype(dtype), np.array([3, 3, 1, 0]), np.array([0, 2, 2, 4])
        x = sp.csr_array(arrays, shape=(3, 5))
        np.testing.assert_array_equal(as_sparse(x, np.float32).toarray(), x.toarray().astype(np.float32))


def test_memory_is_shared_if_possible():
    x = matrix(3000, 500, 0.1)
    tracemalloc.start()
    rows = as_sparse(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(rows.numbers.values, x.data)
    assert np.shares_memory(rows.numbers.columns, x.indices)
    assert np.shares_memory(rows[100:200].rows, rows.rows)
    assert peak < 0.5 * (x.data.nbytes + x.indices.nbytes)


def test_a_training_takes_the_memory_of_the_matrix_and_not_of_its_array():
    x, y, model = matrix(2000, 5000, 0.002), labels(2000), net(features=5000, hidden=4)
    train(x, y, model, epochs=1)
    tracemalloc.start()
    train(x, y, model, epochs=1, metrics=["accuracy"])
    model.predict(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000 < 2000 * 5000 * 4


def test_no_training_keeps_the_data():
    x, y, model = matrix(), labels(), net()
    values = weak(x.data)
    train(x, y, model, validation_data=(x, y))
    train(cl.DataGenerator(x, y, transform=lambda x, y: (x, y)), None, model, batch_size=32)
    model.predict(x)
    del x
    gc.collect()
    assert values() is None


def weak(array):
    import weakref

    return weakref.ref(array)


# ---- lies ----


def lying(data=None, indices=None, indptr=None):
    """Return a matrix of 60 × 90 with other arrays than it had."""
    x = matrix()
    x.data = x.data if data is None else data(x.data)
    x.indices = x.indices if indices is None else indices(x.indices)
    x.indptr = x.indptr if indptr is None else indptr(x.indptr)
    return x


def with_number(at, value):
    def change(array):
        array = array.copy()
        array[at] = value
        return array

    return change


X = matrix()
LIES = {
    "a column too far": (
        {"indices": with_number(X.indptr[7], 90)},
        r"row 7 has a number in column 90; expected 0 … 89",
    ),
    "a negative column": ({"indices": with_number(X.indptr[8] - 1, -1)}, "row 7 has a number in column -1"),
    "a far column": (
        {"indices": lambda a: with_number(0, 2**40)(a.astype(np.int64))},
        "row 0 has .* column 1099511627776",
    ),
    "rows that go back": ({"indptr": with_number(5, X.indptr[4] - 1)}, "row 4 goes from"),
    "a row beyond the end": (
        {"indptr": with_number(60, X.nnz + 1)},
        rf"row 59 goes from .* to {X.nnz + 1} of {X.nnz} numbers",
    ),
    "a first row that begins late": ({"indptr": with_number(0, 1)}, "row 0 goes from 1"),
    "a negative end": ({"indptr": with_number(3, -5)}, "row 2 goes from"),
    "values missing": ({"data": lambda a: a[:-3]}, rf"row \d+ goes from .* of {X.nnz - 3} numbers"),
    "columns missing": ({"indices": lambda a: a[:-3]}, rf"row \d+ goes from .* of {X.nnz - 3} numbers"),
    "a row too few": ({"indptr": lambda a: a[:-1]}, r"indptr \(60,\); expected one axis, 61"),
    "columns that are no integers": ({"indices": lambda a: a.astype(float)}, "indices has dtype float64"),
    "values in two axes": ({"data": lambda a: np.stack([a, a])}, "data has shape"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_matrix_raises_before_anything_is_written(lie):
    arrays, message = LIES[lie]
    x, y, model = lying(**arrays), labels(), net()
    before, loss = bits(model), cl.SoftmaxLoss()
    for attempt in (
        lambda: train(x, y, model),
        lambda: train(X, y, model, validation_data=(x, y)),
        lambda: model.predict(x),
        lambda: model.evaluate(x, y, loss=loss),
        lambda: cl.DataGenerator(x, y),
        lambda: model(x),
        lambda: model.forward(x),
        lambda: model.functions[0].forward(x),
        lambda: train([(x, y)], None, model),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()
    assert bits(model) == before


def test_a_lying_csc_matrix_raises():
    x = sp.csc_array(matrix())
    x.indices = with_number(3, 4_000_000)(x.indices)
    with pytest.raises(ValueError, match=r"predict: .*indices"):
        net().predict(x)


def test_a_matrix_that_another_thread_changes_stops_the_step_and_crashes_nothing():
    x, y, model = matrix(), labels(), net()

    def spoil(epoch, history):
        x.indices[40] = 2**31 - 1

    with pytest.raises(IndexError, match="column that is not in 0 … 89"):
        train(x, y, model, callbacks=[spoil])
    assert all(np.isfinite(p.data).all() for p in model.parameters())
    linear, rows = cl.Linear(90, 3), as_sparse(X.copy())
    y = linear(rows).sum()
    rows.numbers.columns[5] = -1
    with pytest.raises(IndexError, match="0 … 89"):
        y.backward()


@pytest.mark.parametrize("dtype", [np.complex64, WIDE, object])
def test_values_that_are_not_real_numbers_raise(dtype):
    x = matrix()
    x.data = x.data.astype(dtype)
    with pytest.raises(TypeError, match=r"x: expected real numbers|x holds Python objects"):
        train(x, labels(), net())


def test_other_shapes_raise():
    x, y, model = matrix(), labels(), net()
    for bad, message in (
        (x[:, :80], r"Linear\(90 → 8\) got rows of 80 features, shape \(n, 80\)"),
        (x[:0], "x has no rows"),
        (x[:50], "x has 50 rows, y has shape"),
        (sp.coo_array(np.arange(3.0)), r"expected a sparse matrix \(n, features\), got shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            train(bad, y, model)
    with pytest.raises(ValueError, match=r"no DataGenerator|DataGenerator or an iterable"):
        train(x, None, model)


def test_float32_and_float64_do_not_mix_by_hand():
    x = matrix(dtype=np.float64)
    for call in (cl.Linear(90, 3), cl.Linear(90, 3).forward, net(), net().forward):
        with pytest.raises(TypeError, match="is float32, got float64"):
            call(x)
    for call in (net(), cl.Linear(90, 3).forward):
        with pytest.raises(TypeError, match="is float32, got int64"):
            call(x.astype(np.int64))


def test_nan_is_found_as_in_an_array():
    x, y = matrix(), labels()
    x.data[[3, 4, -1]] = np.nan
    rows = (~np.isfinite(x.toarray())).any(axis=1).sum()
    model = net()
    before = bits(model)
    with pytest.raises(cl.TrainingDiverged, match=rf"epoch 1, batch 1: .*x is not finite in {rows} of 60 rows"):
        train(x, y, model, batch_size=60)
    assert bits(model) == before
    np.testing.assert_array_equal(np.isnan(model.predict(x)), np.isnan(model.predict(x.toarray())))


# ---- who takes it ----

OTHERS = {
    "ReLU": [cl.ReLU(), cl.Linear(90, 3)],
    "Dropout": [cl.Dropout(), cl.Linear(90, 3)],
    "Embedding": [cl.Embedding(90, 2), cl.Flatten()],
    "LayerNorm": [cl.Model([cl.LayerNorm(90)]), cl.Linear(90, 3)],
    "Flatten": [cl.Flatten(), cl.Linear(90, 3)],
    "Residual": [cl.Residual(cl.Linear(90, 90)), cl.Linear(90, 3)],
    "Parallel": [cl.Parallel([cl.Linear(90, 3), cl.ReLU()])],
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_function_other_than_linear_says_what_to_do(name):
    x, model = matrix(), cl.Model(OTHERS[name])
    for attempt in (
        lambda: train(x, labels(), model),
        lambda: train(cl.DataGenerator(x, labels()), None, model, batch_size=32),
        lambda: model.predict(x),
        lambda: model(x),
        lambda: model.forward(x),
        lambda: model.functions[0](x),
    ):
        with pytest.raises(
            TypeError, match=rf"{name}\(.*takes no sparse matrix: put a Linear first, or give x\.toarray\(\)"
        ):
            attempt()


@pytest.mark.parametrize(
    "use", [lambda x: x * 2, lambda x: 2 - x, lambda x: -x, lambda x: x @ np.ones((90, 90)), lambda x: x.sum(axis=1)]
)
def test_other_operations_on_sparse_rows_say_what_to_do(use):
    class Uses(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.linear = cl.Linear(90, 3)

        def call(self, x):
            return self.linear(use(x))

    with pytest.raises((TypeError, AttributeError), match=r"go into a Linear.*; for anything else, give \.toarray\(\)"):
        train(matrix(), labels(), Uses())


def test_one_row_and_sparse_targets_say_what_is_expected():
    def model():
        return cl.Model([cl.Linear(90, 3)], seed=0)

    x = matrix()
    with pytest.raises(ValueError, match=r"predict: .*got shape \(90,\): x\[i : i \+ 1\] is a matrix of one row"):
        model().predict(x[0])
    targets = sp.csr_array(np.eye(3)[labels()])
    for attempt in (
        lambda: train(x, targets, model()),
        lambda: train(x.toarray(), targets, model()),
        lambda: cl.DataGenerator(x, targets),
        lambda: train([(x, targets)], None, model()),
    ):
        with pytest.raises(TypeError, match=r"expected an array, got a sparse matrix: give its \.toarray\(\)"):
            attempt()


def test_a_function_of_ones_own_is_called_back_and_takes_none():
    class Twice(cl.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(TypeError, match="takes no sparse matrix"):
        train(matrix(), labels(), cl.Model([Twice(90, 3)]))


class WideNet(cl.Model):
    """Scores of x, straight and through a hidden layer, which looks at x twice and at something else."""

    def __init__(self, seed=None, dtype=np.float32):
        super().__init__(seed=seed, dtype=dtype)
        self.straight, self.hidden = cl.Linear(90, 3), cl.Parallel([cl.Linear(90, 4), cl.Linear(90, 2)])
        self.twice, self.scores = cl.Linear(90, 3), cl.Linear(8, 3)

    def call(self, x, z):
        h = cl.concatenate([self.hidden(x).relu(), z], axis=1)
        return self.straight(x) + self.scores(h) + self.twice(x) * self.twice(x).tanh()


@both_dtypes
@every_optimizer
def test_a_model_may_use_sparse_rows_several_times_and_beside_others(make_optimizer, dtype):
    x, z, y = matrix(dtype=dtype), np.random.default_rng(2).normal(size=(60, 2)).astype(dtype), labels()
    sparse, dense = WideNet(0, dtype), WideNet(0, dtype)
    train((x, z), y, sparse, make_optimizer)
    train((x.toarray(), z), y, dense, make_optimizer)
    assert_alike(sparse, dense, dtype)
    np.testing.assert_allclose(sparse.predict((x, z)), dense.predict((x.toarray(), z)), 0, TOLERANCE[dtype])
    assert sparse.forward(x, z).shape == (60, 3)
    assert sparse.backward(np.ones((60, 3), dtype))[0] is None


def test_a_nested_model_and_dropconnect_take_sparse_rows():
    x, y = matrix(), labels()
    for make in (
        lambda: cl.Model([cl.Model([cl.Linear(90, 4), cl.Tanh()]), cl.Linear(4, 3)], seed=0),
        lambda: cl.Model([cl.DropConnect(90, 3, 0.3)], seed=0),
        lambda: cl.Model([cl.Linear(90, 3, bias=False)], seed=0),
    ):
        sparse, dense = make(), make()
        train(x, y, sparse)
        train(x.toarray(), y, dense)
        assert_alike(sparse, dense, np.float32)


def test_inside_a_recorded_step_toarray_makes_an_array():
    class TwoBranchNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.a, self.b = cl.Linear(90, 3), cl.Linear(90, 3)

        def call(self, x):
            return self.a(x) + self.b(x.toarray())

    class Careless(TwoBranchNet):
        def call(self, x):
            return self.a(x) + cl.Tensor(x).mean()

    x, y, model, dense = matrix(), labels(), TwoBranchNet(), cl.Model([cl.Linear(90, 3)], seed=0)
    train(x, y, model)
    np.testing.assert_allclose(model.b.weight.data.shape, (90, 3))
    np.testing.assert_allclose(model.predict(x), model.predict(x, batch_size=7), 0, 0)
    assert dense.predict(x).shape == (60, 3)
    with pytest.raises(TypeError, match=r"\.toarray\(\) makes"):
        train(x, y, Careless())


def test_a_frozen_linear_gets_no_gradient():
    x, model = matrix(), net()
    model.functions[0].requires_grad = False
    before = model.functions[0].weight.data.copy()
    model.fit(x, labels(), loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.functions[2].parameters()), verbose=0)
    assert_same_bits(model.functions[0].weight.data, before)
    assert model.functions[0].weight.grad is None


# ---- which rows of a gradient are used ----


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_sparse_and_dense_steps_on_one_model_take_turns(name):
    """Whatever wrote the gradient last, nothing of it is left in the next."""
    x, y = matrix(density=0.01), labels()
    models = net(), net()
    loss = cl.SoftmaxLoss()
    optimizers = [OPTIMIZERS[name](model.parameters()) for model in models]
    for turn in range(8):
        rows = slice(turn, turn + 3)
        for a, model, optimizer in zip((x, x.toarray()), models, optimizers, strict=True):
            given = a[rows].toarray() if turn % 3 < 2 and is_sparse(a) else a[rows]
            penalized = cl.Penalized(loss, model.parameters(), l2=0.1) if turn % 4 == 2 else loss
            model.fit(given, y[rows], loss=penalized, optimizer=optimizer, verbose=0)
        assert_alike(*models, np.float32)
    assert optimizers[0].segments()[0].used_rows is models[0].functions[0].weight._used_rows is not None


def test_sgd_passes_over_rows_that_were_not_used_and_follows_its_hyperparameters():
    x, y = matrix(density=0.01), labels()
    models = net(), net()
    optimizers = [cl.SGD(model.parameters(), lr=0.5) for model in models]
    for decay in (0, 0, 0.1, 0):
        for a, model, optimizer in zip((x, x.toarray()), models, optimizers, strict=True):
            optimizer.groups[0]["weight_decay"] = decay
            model.fit(a, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=4, verbose=0)
        assert_alike(*models, np.float32)
    weight = models[0].functions[0].weight
    assert optimizers[0].segments()[0].used_rows is weight._used_rows
    assert 0 < weight._used_rows[0] < 90 / 4
    assert not weight.is_sparse


def test_a_caller_may_write_to_the_gradient():
    x, loss = matrix(density=0.002), cl.SoftmaxLoss()
    linear = cl.Linear(90, 3)
    optimizer = cl.SGD(linear.parameters(), lr=1.0)
    before = linear.weight.data.copy()
    loss(linear(x), labels()).backward()
    assert 0 < linear.weight._used_rows[0] < 90 / 4
    gradient = linear.weight.grad
    unused = x.toarray().any(axis=0) == 0
    assert not gradient[unused].any()
    gradient += 1
    optimizer.step()
    np.testing.assert_allclose(linear.weight.data[unused], before[unused] - 1, 1e-6)
    linear.weight.zero_grad()
    loss(linear(x), labels()).backward()
    assert not linear.weight.grad[unused].any()


def test_contributions_add_up():
    x, linear = matrix(density=0.02), cl.Linear(90, 3)
    ones = np.ones((60, 3), np.float32)
    linear.forward(x.toarray())
    linear.backward(ones)
    linear.forward(x)
    linear.backward(ones)
    linear.forward(x[:10])
    linear.backward(ones[:10])
    expected = 2 * x.toarray().T @ ones + x.toarray()[:10].T @ ones[:10]
    np.testing.assert_allclose(linear.weight.grad, expected, 1e-6, 1e-6)


def test_gradients_are_checked_beside_sparse_rows():
    x = matrix(8, 12, 0.3, np.float64)
    rows = as_sparse(x)
    linear = cl.Model([cl.Linear(12, 4), cl.Tanh()], seed=0, dtype=np.float64)
    assert cl.check_gradients(lambda w, b: (linear(rows) * w + b).sum(), np.ones((8, 4)), np.ones(4)) < 1e-6


# ---- data ----


def test_a_generator_gives_matrices_of_the_given_kind():
    y = labels()
    for kind in (sp.csr_matrix, sp.csr_array):
        x = matrix(kind=kind)
        generator, dense = (cl.DataGenerator(a, y, batch_size=25, seed=3) for a in (x, x.toarray()))
        for (a, b), (c, d) in zip(generator, dense, strict=True):
            assert type(a) is kind
            assert a.has_canonical_format
            assert_same_bits(a.toarray(), c)
            assert_same_bits(b, d)
            a.data[:] = 0
        assert abs(x).sum() > 0
        assert [part.shape for part in cl.DataGenerator(x, batch_size=25)] == [(25, 90), (25, 90), (10, 90)]


def test_generators_iterables_and_transforms_are_taken():
    x, y = matrix(), labels()

    def halve(x, y):
        return x * 0.5, y

    def as_array(x, y):
        return x.toarray() * 0.5, y

    expected, dense = net(), net()
    train(x * 0.5, y, expected, seed=7)
    for transform in (halve, as_array):
        model = net()
        data = cl.DataGenerator(x, y, batch_size=16, seed=7, transform=transform)
        train(data, None, model)
        assert_alike(model, expected, np.float32)
    data = cl.DataGenerator(x * 0.5, y, batch_size=16, seed=7)
    train(data, None, dense)
    assert bits(dense) == bits(expected)
    streamed, in_memory = net(), net()
    train([(x[i : i + 16], y[i : i + 16]) for i in range(0, 60, 16)], None, streamed)
    train(x, y, in_memory, shuffle=False)
    assert bits(streamed) == bits(in_memory)


def test_matrices_whose_batches_differ_in_size_share_a_program():
    x, y, model = matrix(), labels(), net()
    train(x, y, model)
    programs = dict(model._model_state.programs._programs)
    train(matrix(density=0.5, seed=5), y, model, OPTIMIZERS["SGD"])
    assert set(programs) - set(model._model_state.programs._programs) == set()
    assert model.predict(x[:40]).shape == (40, 3)


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    x, y, path = matrix(), labels(), tmp_path / "checkpoint.safetensors"
    whole, stopped = net(), net()
    train(x, y, whole, OPTIMIZERS["Adam"], epochs=6, seed=0)
    train(x, y, stopped, OPTIMIZERS["Adam"], epochs=3, seed=0, callbacks=[cl.callbacks.Checkpoint(path)])
    resumed = net(seed=9)
    train(x.copy(), y, resumed, OPTIMIZERS["Adam"], epochs=6, seed=0, resume=path)
    assert bits(resumed) == bits(whole)
    for other in (matrix(seed=3), x * 2, x.toarray(), rearrange(x, "zeros")):
        with pytest.raises(ValueError, match="another data"):
            train(other, y, net(), OPTIMIZERS["Adam"], epochs=6, seed=0, resume=path)


def test_rows_and_trained_models_pickle():
    x, y, model = matrix(), labels(), net()
    train(x, y, model)
    rows = pickle.loads(pickle.dumps(as_sparse(x)[5:9]))
    assert_same_bits(rows.toarray(), x.toarray()[5:9])
    assert_same_bits(copy.deepcopy(as_sparse(x)).toarray(), x.toarray())
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_same_bits(other.predict(x), model.predict(x))
        third = copy.deepcopy(model)
        train(x, y, other)
        train(x, y, third)
        assert bits(other) == bits(third)


def test_other_tools_take_sparse_rows():
    x, y, model = matrix(), labels(), net()
    found = cl.inspect(model, x, y, loss=cl.SoftmaxLoss())
    dense = cl.inspect(model, x.toarray(), y, loss=cl.SoftmaxLoss())
    assert str(found) == str(dense)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    assert cl.find_lr(model, x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, steps=5).losses.size == 5


def test_rows_say_what_they_are_and_do_not_become_an_array():
    rows = as_sparse(matrix())
    assert repr(rows) == "SparseRows(shape=(60, 90), dtype=float32)"
    assert (len(rows), rows.ndim, rows[2:5].shape, rows[[4, 4]].shape) == (60, 2, (3, 90), (2, 90))
    assert rows[rows.rows["count"] > 0].shape[0] < 60
    assert as_sparse(rows) is rows
    assert as_sparse(rows, np.dtype(np.float32)) is rows
    for attempt in (lambda: np.asarray(rows), lambda: cl.Tensor(rows), lambda: cl.Tensor([1.0]) * rows):
        with pytest.raises(TypeError, match=r"\.toarray\(\) makes"):
            attempt()
    with Recording(), pytest.raises(TypeError, match="a replay would not repeat"):
        SparseRows(rows.rows).tocsr()


def test_several_threads_predict_at_once():
    x, model, found = matrix(), net(), []
    expected = model.predict(x).tobytes()

    def predict():
        found.extend(model.predict(x[i:], batch_size=60 - i).tobytes() for i in (0, 1, 0, 2, 0) for _ in range(20))

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(expected) == 3 * 3 * 20


def test_nothing_imports_scipy():
    program = """
import sys, types, numpy as np, caffelite as cl
class Matrix:  # as SciPy's, to a duck
    format, shape = "csr", (2, 3)
    def __init__(self, arrays=(np.ones(2, np.float32), np.array([2, 0]), np.array([0, 1, 2])), shape=None):
        self.data, self.indices, self.indptr = arrays
    def tocsr(self):
        return self
model = cl.MLP(3, [2], seed=0)
model.fit(Matrix(), [0, 1], loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters()), verbose=0)
assert np.array_equal(model.predict(Matrix()), model.predict(np.array([[0, 0, 1], [1, 0, 0]], np.float32)))
print(sorted(name for name in sys.modules if name.startswith("scipy")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
