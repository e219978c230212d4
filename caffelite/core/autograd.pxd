cdef bint records_graph() noexcept nogil
cdef bint is_training() noexcept nogil


cdef class Node:
    cdef public object _data              # the array
    cdef public list _version             # one element, which all Tensors over the same memory share
    cdef public object name
    cdef public object function           # the applied Function that made this Tensor; None for a leaf
    cdef public tuple inputs              # the inputs of `function`; None for a plain array
    cdef public bint _requires_grad
    cdef public bint _retains_grad
    cdef public bint _owns_data
    cdef public object _gradient          # the memory for the gradient, which zero_grad keeps …
    cdef public bint _has_gradient        # … and whether it has a gradient: False after zero_grad
    cdef public object _used_rows         # the rows of the gradient that may not be 0; None: not known
    cdef public bint _is_sparse           # whether optimizers leave all unused rows alone
    cdef public object _versions          # the versions of the inputs and parameters of `function` …
    cdef public Py_ssize_t _version_made  # … and the version of its result
    cdef public Py_ssize_t _serial_number  # counts applied Functions: their results have their number; otherwise 0
    cdef public Py_ssize_t _leaf_number   # counts the leaves that ever required a gradient; otherwise 0
    cdef public object _place             # (index, count) among its Function's outputs; None for a single one
    cdef Py_ssize_t walk                  # the number of the last walk of `topological_order` that met it
