"""Parts of the elementwise loops that other files use: rows of broadcast arrays, and f as a kernel's epilogue."""
from caffelite._kernels.loops.family cimport *

cdef enum:
    PIECE = 256
    INNERMOST = 3                         # MAX_DIMS − 1, which a build with overflow checks cannot compute here

# f on n elements, contiguous (loop_…) or with strides (piecewise_…). Compiled once, in elementwise.pyx.
cdef extern from * nogil:
    """
    #include "loops/vectors.h"
    void loop_float(int op, Py_ssize_t n, float *y, const float *a, const float *b, const float *c, float scalar0,
                    float scalar1);
    void loop_double(int op, Py_ssize_t n, double *y, const double *a, const double *b, const double *c, double scalar0,
                     double scalar1);
    void piecewise_float(int op, Py_ssize_t n, float *y, Py_ssize_t sy, const float *a, Py_ssize_t sa, const float *b,
                         Py_ssize_t sb, const float *c, Py_ssize_t sc, const double *scalar);
    void piecewise_double(int op, Py_ssize_t n, double *y, Py_ssize_t sy, const double *a, Py_ssize_t sa,
                          const double *b, Py_ssize_t sb, const double *c, Py_ssize_t sc, const double *scalar);
    #define run_loop(op, n, y, ...) FOR_TYPE(loop, y)(op, n, y, __VA_ARGS__)
    #define run_pieces(op, n, y, ...) FOR_TYPE(piecewise, y)(op, n, y, __VA_ARGS__)
    """
    # y, a, b and c are float* or double*.
    void run_loop(int op, Py_ssize_t n, void* y, const void* a, const void* b, const void* c, double scalar0,
                  double scalar1)
    void run_pieces(int op, Py_ssize_t n, void* y, Py_ssize_t sy, const void* a, Py_ssize_t sa, const void* b,
                    Py_ssize_t sb, const void* c, Py_ssize_t sc, const double* scalar)


# ---- rows of broadcast arrays ----

cdef inline bint is_one_row(const Call* call) noexcept nogil:
    cdef int d
    for d in range(INNERMOST):
        if call.size[d] != 1:
            return False
    return True


cdef inline void locate(const Call* call, Py_ssize_t i, Py_ssize_t* at) noexcept nogil:
    """Set the indices of row i's first element."""
    cdef int d
    at[INNERMOST] = 0
    for d in range(INNERMOST - 1, 0, -1):
        at[d] = i % call.size[d]
        i //= call.size[d]
    at[0] = i


cdef inline void next_row(const Call* call, Py_ssize_t* at) noexcept nogil:
    """Advance the indices from one row to the next."""
    cdef int d = INNERMOST - 1
    while d > 0 and at[d] + 1 == call.size[d]:
        at[d] = 0
        d -= 1
    at[d] += 1


cdef inline Py_ssize_t offset(const Operand* x, const Py_ssize_t* at) noexcept nogil:
    """Return the offset of the element with these indices."""
    cdef Py_ssize_t elements = 0
    cdef int d
    for d in range(MAX_DIMS):
        elements += at[d] * x.stride[d]
    return elements


# Copies n ≥ 32 bytes in vectors. The last vector may overlap the one before it.
cdef inline void copy_vectors(char* y, const char* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(0, n - 31, 32):
        memcpy(y + j, x + j, 32)
    memcpy(y + n - 32, x + n - 32, 32)


cdef inline void row(Op op, Py_ssize_t n, real* y, Py_ssize_t sy, const real* a, Py_ssize_t sa, const real* b,
                     Py_ssize_t sb, const real* c, Py_ssize_t sc, const double* scalar) noexcept nogil:
    if n == 1 or (sy == 1 and sa == 1 and sb == 1 and sc == 1):      # the usual case
        run_loop(op, n, y, a, b, c, scalar[0], scalar[1])
    else:
        run_pieces(op, n, y, sy, a, sa, b, sb, c, sc, scalar)


# The epilogue: call.op on n contiguous elements from y on, while another kernel's result is still in cache. The
# operands from EPILOGUE on are its output and its inputs. They have the strides of the kernel's output, or are one
# number (stride 0). y takes the place of an absent operand.
cdef inline void apply_epilogue(real* y, const Call* call, Py_ssize_t n) noexcept nogil:
    cdef real* out = y
    cdef const real* inputs[3]
    cdef Py_ssize_t step[3]
    cdef Py_ssize_t at = y - <real*> call.operand[0].data
    cdef int i
    if call.op == NOTHING:
        return
    if call.operand[EPILOGUE].data != NULL:
        out = <real*> call.operand[EPILOGUE].data + at
    for i in range(3):
        inputs[i], step[i] = y, 1
        if call.operand[EPILOGUE + 1 + i].data != NULL:
            step[i] = call.operand[EPILOGUE + 1 + i].stride[0]
            inputs[i] = <const real*> call.operand[EPILOGUE + 1 + i].data + step[i] * at
    row(call.op, n, out, 1, inputs[0], step[0], inputs[1], step[1], inputs[2], step[2], call.epilogue_scalar)
