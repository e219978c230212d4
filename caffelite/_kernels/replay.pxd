from caffelite._kernels.call cimport Call
from caffelite._kernels.launch cimport ThreadTuner


cdef class Replay:
    cdef Call* calls
    cdef Py_ssize_t length, stopped_at
    cdef readonly ThreadTuner tuner
    cdef bint has_divided                 # whether a call is divided among threads
    cdef list entries
    cdef object error, memory

    cdef int run_all(self, double* fastest=*) noexcept nogil
    cdef int run_calls(self, int threads, double* fastest) noexcept nogil
    cdef int call_python(self, Py_ssize_t i) noexcept with gil
    cdef object result(self, int stop)
    cdef object run_once(self)
