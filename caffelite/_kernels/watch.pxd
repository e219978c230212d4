cdef class Attributes:
    cdef object of
    cdef bint needed
    cdef Py_ssize_t count
    cdef list names, values, lists, dicts

    cdef note_contents(self, list values, set seen)
    cdef bint are_unchanged(self)


cpdef bint are_unchanged(list attributes)
