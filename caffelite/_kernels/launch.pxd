from caffelite._kernels.call cimport Call


cdef class ThreadTuner:
    cdef public int number, tried
    cdef int limit
    cdef double seconds                   # of a step with `number` threads, in the last stretch; 0 before the first
    cdef double fewer_at, more_at         # when fewer or more threads may be tried
    cdef double began, spent              # of this stretch: when its last step began, the time of its steps
    cdef Py_ssize_t steps

    cpdef int begin(self, int limit, double now) noexcept nogil
    cpdef void end(self, double now) noexcept nogil
    cdef void begin_trial(self, double seconds, double now) noexcept nogil
    cdef void end_trial(self, double seconds, double now) noexcept nogil


cdef int run(const Call* call, int threads) noexcept nogil
cdef bint is_divided(const Call* call) noexcept nogil
cdef int launch(Call* call, on_stop=*) except -1
cpdef int available_threads() noexcept nogil
cdef bint is_user_set() noexcept nogil
cdef bint rounds_products() noexcept nogil
cdef bint is_portable() noexcept nogil
cdef void round_products(bint whether) noexcept
cdef void begin_replay() noexcept
cdef void end_replay() noexcept
