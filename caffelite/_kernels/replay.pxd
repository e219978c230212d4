from caffelite._kernels.call cimport Call


cdef class Replay:
    cdef Call* calls
    cdef Py_ssize_t length, stopped_at
    cdef list entries
    cdef object error, memory

    cdef int run_all(self, double* fastest=*) noexcept nogil
    cdef int call_python(self, Py_ssize_t i) noexcept with gil
    cdef object result(self, int stop)
    cdef object run_once(self)
