from caffelite._kernels.call cimport Call


cdef int run(const Call* call) noexcept nogil
cdef int launch(Call* call, on_stop=*) except -1
cpdef int team_size() noexcept nogil
cdef void begin_replay() noexcept
cdef void end_replay() noexcept
