cdef class AttributeGuard:
    cdef object of
    cdef bint needed
    cdef Py_ssize_t count
    cdef list names, values, lists, dicts

    cdef note_contents(self, list values, set seen)
    cdef bint are_unchanged(self)


cdef class GuardTable(AttributeGuard):
    cdef list items, named, cells, sets, contents, arrays

    cdef bint are_unchanged_alone(self, list items, list named, list contents)


cpdef bint are_unchanged(list attributes)
