# Products with rows that are nearly all 0.
#
# A sparse row is an element of a dtype from `sparse_row`. It holds the address of the row's nonzero numbers, the
# address of their columns, int32, and their count. So the rows of a batch are copied like any other data, and the
# numbers are not moved, however many there are. The code that makes sparse rows must keep this memory alive.

cdef Kernel SPARSE_MATMUL_KERNEL = Kernel("sparse_matmul", checked=1, work=4, takes_epilogue=True)
cdef Kernel SPARSE_MATMUL_GRAD_KERNEL = Kernel("sparse_matmul_grad", checked=1, work=4)
cdef Kernel SPARSE_TO_DENSE_KERNEL = Kernel("sparse_to_dense", checked=1, work=2)
cdef Kernel USE_COLUMNS_KERNEL = Kernel("use_columns", writes=0b11, updates=0b11, checked=2, work=30)


@lru_cache(maxsize=256)
def sparse_row(dtype, Py_ssize_t features):
    """Return the dtype of sparse rows of `features` numbers of this dtype. Its field `row` stores both, in 0 bytes."""
    return np.dtype([("values", np.intp), ("columns", np.intp), ("count", np.intp), ("row", dtype, (features, 0))])


cdef Py_ssize_t count_features(str name, cnp.ndarray rows, dtype) except -1:
    """Return the number of features of sparse rows. Raise TypeError unless they are of this dtype (None: of any)."""
    cdef cnp.dtype row_dtype
    if not cnp.PyDataType_HASFIELDS(rows.descr) or (<object> rows.descr).names != ("values", "columns", "count", "row"):
        raise TypeError(f"{name} takes sparse rows, got {rows.dtype}")
    row_dtype = rows.dtype["row"]
    if dtype is not None and row_dtype.base != dtype:
        raise TypeError(f"{name} got {row_dtype.base} and {dtype}; both must be float32 or both float64")
    if cnp.PyArray_NDIM(rows) != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(rows):
        raise ValueError(f"{name} takes a contiguous vector of sparse rows, got shape {get_dims(rows)}")
    return row_dtype.shape[0]


cdef struct SparseRow:                    # as in loops/sparse.h
    const void* values
    const void* columns
    Py_ssize_t count


cdef double count_nonzeros(cnp.ndarray rows) noexcept:
    """Return how many nonzero numbers these rows have. Each row counts at least as one."""
    cdef const SparseRow* row = <const SparseRow*> cnp.PyArray_DATA(rows)
    cdef Py_ssize_t i
    cdef double total = 0
    for i in range(cnp.PyArray_SIZE(rows)):
        total += max(row[i].count, 1)
    return total


def raise_bad_column(name, features, rows):
    """Raise IndexError for sparse rows with a column that is out of range."""
    raise IndexError(f"{name} found a column that is not in 0 … {features - 1}: a sparse matrix was changed while it "
                     "was in use")


cdef class SparseMatrix:
    """A matrix (n, features) in which nearly all numbers are 0, as sparse rows; or its transpose, (features, n)."""
    cdef readonly cnp.ndarray rows        # (n,), elements of a dtype of `sparse_row`
    cdef readonly bint is_transposed

    def __init__(self, cnp.ndarray rows not None, bint is_transposed=False):
        self.rows, self.is_transposed = rows, is_transposed

    @property
    def shape(self):
        n, features = cnp.PyArray_SIZE(self.rows), self.rows.dtype["row"].shape[0]
        return (features, n) if self.is_transposed else (n, features)

    @property
    def dtype(self):
        """The dtype of the numbers."""
        return self.rows.dtype["row"].base


cdef cnp.ndarray sparse_product(
    SparseMatrix a, cnp.ndarray b, cnp.ndarray out, cnp.ndarray bias, bint accumulate
):
    """Return the product of a sparse matrix and an array; see `matmul`."""
    if a.is_transposed:
        if bias is not None:
            raise ValueError("matmul adds no bias to a product with a transposed sparse matrix")
        return sparse_matmul_grad(a.rows, b, out, accumulate=accumulate)
    if accumulate:
        raise ValueError("matmul does not accumulate products with a sparse matrix, only with a transposed one")
    return sparse_matmul(a.rows, b, out, bias=bias)


def sparse_matmul(cnp.ndarray rows not None, cnp.ndarray b not None, cnp.ndarray out=None, *, cnp.ndarray bias=None):
    """y = a b (+ bias): the sparse rows of a (M, K), b (K, N), bias (N,) → (M, N). Errors as for `matmul`.

    All functions that take sparse rows raise IndexError for a column that is not in 0 … K − 1.
    """
    cdef Call call
    cdef tuple shape
    cdef int real = real_type("sparse_matmul", b)
    cdef Py_ssize_t features = count_features("sparse_matmul", rows, b.descr)
    if cnp.PyArray_NDIM(b) != 2 or cnp.PyArray_DIM(b, 0) != features:
        raise ValueError(f"sparse_matmul got rows of {features} features and shape {get_dims(b)}; expected (K, N)")
    b, shape = as_contiguous_rows(b), (cnp.PyArray_SIZE(rows), cnp.PyArray_DIM(b, 1))
    if bias is not None:
        same_type("sparse_matmul", b, bias)
        if cnp.PyArray_NDIM(bias) != 1 or cnp.PyArray_DIM(bias, 0) != shape[1]:
            raise ValueError(f"sparse_matmul got a bias of shape {get_dims(bias)}; expected ({shape[1]},)")
        bias = as_contiguous(bias)
    out = as_output("sparse_matmul", out, shape, b)
    if overlap(out, b) or (bias is not None and overlap(out, bias)):
        raise ValueError("sparse_matmul can't write its result into one of its operands")
    begin(&call, SPARSE_MATMUL_KERNEL, real)
    bind_all(&call, 0, out, rows)
    bind_matrix(&call, 2, b)
    if bias is not None:
        bind(&call, 3, bias)
    call.size[0], call.size[1] = shape[1], features
    call.flops = 2.0 * count_nonzeros(rows) * call.size[0]
    launch_parts(&call, cnp.PyArray_SIZE(rows), call.flops, partial(raise_bad_column, "sparse_matmul", features))
    return out


def sparse_matmul_grad(cnp.ndarray rows not None, cnp.ndarray dy not None, cnp.ndarray out=None, *,
                       bint accumulate=False):
    """dW = aᵀ dy: the sparse rows of a (M, K), dy (M, N) → (K, N). If accumulating, dW is added to `out`."""
    cdef Call call
    cdef int real = real_type("sparse_matmul_grad", dy)
    cdef Py_ssize_t features = count_features("sparse_matmul_grad", rows, dy.descr)
    cdef tuple shape
    if cnp.PyArray_NDIM(dy) != 2 or cnp.PyArray_DIM(dy, 0) != cnp.PyArray_SIZE(rows):
        raise ValueError(f"sparse_matmul_grad got {cnp.PyArray_SIZE(rows)} rows and dy of shape {get_dims(dy)}")
    dy, shape = as_contiguous_rows(dy), (features, cnp.PyArray_DIM(dy, 1))
    dy = copy(dy) if out is not None and overlap(dy, out) else dy
    out = as_output("sparse_matmul_grad", out, shape, dy, accumulate)
    begin(&call, SPARSE_MATMUL_GRAD_KERNEL, real)
    bind_all(&call, 0, out, rows)
    bind_matrix(&call, 2, dy)
    call.accumulate = accumulate
    call.size[0], call.size[1], call.size[2] = shape[1], features, cnp.PyArray_SIZE(rows)
    call.parts = (call.size[0] * cnp.PyArray_ITEMSIZE(dy) + LINE - 1) // LINE
    call.flops = 2.0 * count_nonzeros(rows) * call.size[0]
    launch_parts(&call, call.parts, call.flops, partial(raise_bad_column, "sparse_matmul_grad", features))
    return out


def sparse_to_dense(cnp.ndarray rows not None):
    """Return the sparse rows as an array (n, features), float32 or float64."""
    cdef Call call
    cdef Py_ssize_t features = count_features("sparse_to_dense", rows, None)
    cdef cnp.ndarray out = output((cnp.PyArray_SIZE(rows), features), rows.dtype["row"].base)
    begin(&call, SPARSE_TO_DENSE_KERNEL, real_type("sparse_to_dense", out))
    bind_all(&call, 0, out, rows)
    call.size[0] = features
    launch_parts(&call, cnp.PyArray_SIZE(rows), cnp.PyArray_SIZE(out), partial(raise_bad_column, "sparse_to_dense",
                 features))
    return out


def use_columns(cnp.ndarray used not None, cnp.ndarray rows not None, cnp.ndarray x not None, bint accumulate):
    """As `use_rows`, with the columns of these sparse rows as `order`. If they are many, list all rows instead."""
    cdef Call call
    cdef Py_ssize_t features = count_features("use_columns", rows, None)
    begin_use(&call, USE_COLUMNS_KERNEL, used, rows, x, accumulate)
    if call.size[0] != features:
        raise ValueError(f"use_columns got a list of {call.size[0]} rows for sparse rows of {features} features")
    launch_parts(&call, 1, count_nonzeros(rows), partial(raise_bad_column, "use_columns", features))
