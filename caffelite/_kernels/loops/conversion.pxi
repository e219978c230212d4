# Conversions.

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
#   size, parts  as of elementwise
#   operand      0 y (contiguous), 1 a
cdef int convert(target* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const void* a = call.operand[1].data
    cdef Py_ssize_t n = 1 if is_one_row(call) else call.size[INNERMOST], i
    if call.source == BOOL:               # a byte of a bool array may be any: all but 0 are True
        convert_from(y, <const uint8_t*> a, call, begin, end)
        for i in range(begin * n, end * n):
            y[i] = <target> 1 if y[i] != 0 else <target> 0
    elif call.source == INT8:
        convert_from(y, <const int8_t*> a, call, begin, end)
    elif call.source == INT16:
        convert_from(y, <const int16_t*> a, call, begin, end)
    elif call.source == INT32:
        convert_from(y, <const int32_t*> a, call, begin, end)
    elif call.source == INT64:
        convert_from(y, <const int64_t*> a, call, begin, end)
    elif call.source == UINT8:
        convert_from(y, <const uint8_t*> a, call, begin, end)
    elif call.source == UINT16:
        convert_from(y, <const uint16_t*> a, call, begin, end)
    elif call.source == UINT32:
        convert_from(y, <const uint32_t*> a, call, begin, end)
    elif call.source == UINT64:
        convert_from(y, <const uint64_t*> a, call, begin, end)
    elif call.source == FLOAT32:
        convert_from(y, <const float*> a, call, begin, end)
    else:
        convert_from(y, <const double*> a, call, begin, end)
    return CONTINUE


cdef void convert_from(target* out, const number* a, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* x = &call.operand[1]
    cdef Py_ssize_t stride = x.stride[INNERMOST], y_stride = y.stride[INNERMOST], n = call.size[INNERMOST], i, j
    cdef Py_ssize_t at[MAX_DIMS]
    cdef const number* from_row
    cdef target* to_row
    locate(call, 0, at)
    at[INNERMOST] = 0
    if is_one_row(call):
        at[INNERMOST] = begin
        n, begin, end = end - begin, 0, 1
    for i in range(begin, end):
        if i > 0:
            locate(call, i, at)
        from_row, to_row = a + offset(x, at), out + offset(y, at)
        if stride == 1 and y_stride == 1:
            for j in range(n):
                to_row[j] = <target> from_row[j]
        else:
            for j in range(n):
                to_row[j * y_stride] = <target> from_row[j * stride]


publish("convert", <Loop> convert[float], <Loop> convert[double], <Loop> convert[int64_t])
