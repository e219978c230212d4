cdef bint records_graph() noexcept nogil
cdef bint is_training() noexcept nogil


cdef class Node:
    cdef public object _data              # the array
    cdef public list _version             # one element, which all Tensors over the same memory share
    cdef public object name
    cdef public object function           # the applied Function that made this Tensor; None for a leaf
    cdef public tuple inputs              # what it was applied to; None for a plain array
    cdef public bint _requires_grad
    cdef public bint _retains_grad
    cdef public bint _owns_data
    cdef public object _gradient          # the memory for the gradient, which is kept by zero_grad …
    cdef public bint _has_gradient        # … and whether something has contributed to it since
    cdef public object _used_rows         # the rows of that memory that may not be 0; None where this is not known
    cdef public bint _is_sparse           # whether optimizers leave all other rows alone
    cdef public object _versions          # the versions of what `function` was applied to …
    cdef public Py_ssize_t _version_made  # … and that of its result
    cdef public Py_ssize_t _serial_number  # results are numbered as they are made, those of one Function alike; else 0
    cdef public object _place             # which of its Function's outputs this is, of how many; None of a single one
    cdef Py_ssize_t walk                  # the last one that has come by
