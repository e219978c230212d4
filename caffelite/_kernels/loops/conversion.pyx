# Conversions.

from caffelite._kernels.loops.elementwise cimport INNERMOST, PIECE, is_one_row, locate, next_row, offset
from caffelite._kernels.loops.family cimport *

ctypedef fused target:
    float
    double
    int64_t

ctypedef fused number:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float
    double


# y = a in another type; True is 1.
#   source   the type of a
#   size, parts  as for elementwise; size 4 the bytes of an element of a
#   operand      0 y (contiguous), 1 a
cdef int convert(target* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* a = &call.operand[1]
    cdef Py_ssize_t n = call.size[INNERMOST], width = call.size[4], step = a.stride[INNERMOST] * width, i
    cdef Py_ssize_t at[MAX_DIMS]
    if is_one_row(call):
        convert_row(y + begin, a.data + begin * step, step, width, end - begin, call.source)
        return CONTINUE
    locate(call, begin, at)
    for i in range(begin, end):
        convert_row(y + i * n, a.data + offset(a, at) * width, step, width, n, call.source)
        next_row(call, at)
    return CONTINUE


# Elements that are not contiguous are `step` bytes apart. They are copied to a contiguous piece, as in elementwise.pyx.
cdef void convert_row(target* y, const char* a, Py_ssize_t step, Py_ssize_t width, Py_ssize_t n,
                      Type source) noexcept nogil:
    cdef int64_t piece[PIECE]
    cdef Py_ssize_t m
    if step == width:
        convert_contiguous(y, a, n, source)
        return
    while n > 0:
        m = min(n, PIECE)
        if width == 1:
            gather(<int8_t*> piece, a, step, m)
        elif width == 2:
            gather(<int16_t*> piece, a, step, m)
        elif width == 4:
            gather(<int32_t*> piece, a, step, m)
        else:
            gather(piece, a, step, m)
        convert_contiguous(y, <const char*> piece, m, source)
        y += m
        a += m * step
        n -= m


cdef inline void gather(number* piece, const char* a, Py_ssize_t step, Py_ssize_t m) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(m):
        piece[j] = (<const number*> (a + j * step))[0]


cdef void convert_contiguous(target* y, const char* a, Py_ssize_t n, Type source) noexcept nogil:
    if source == BOOL:                    # a True in a bool array may be any byte but 0
        convert_from(y, <const uint8_t*> a, n, True)
    elif source == INT8:
        convert_from(y, <const int8_t*> a, n, False)
    elif source == INT16:
        convert_from(y, <const int16_t*> a, n, False)
    elif source == INT32:
        convert_from(y, <const int32_t*> a, n, False)
    elif source == INT64:
        convert_from(y, <const int64_t*> a, n, False)
    elif source == UINT8:
        convert_from(y, <const uint8_t*> a, n, False)
    elif source == UINT16:
        convert_from(y, <const uint16_t*> a, n, False)
    elif source == UINT32:
        convert_from(y, <const uint32_t*> a, n, False)
    elif source == UINT64:
        convert_from(y, <const uint64_t*> a, n, False)
    elif source == FLOAT32:
        convert_from(y, <const float*> a, n, False)
    else:
        convert_from(y, <const double*> a, n, False)


cdef inline void convert_from(target* y, const number* a, Py_ssize_t n, bint is_bool) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = <target> (a[j] != 0) if is_bool else <target> a[j]


include "../generated/publish_conversion.pxi"
