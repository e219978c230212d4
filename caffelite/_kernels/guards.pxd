cdef class AttributeGuard:
    cdef object owner
    cdef bint needed
    cdef Py_ssize_t count
    cdef list names, values, lists, dicts

    cdef record_contents(self, list values, set seen)
    cdef bint are_unchanged(self)


cdef class GuardTable(AttributeGuard):
    cdef list items, named, cells, sets, contents, arrays, class_items, functions, kinds, buffers

    cdef bint is_item_unchanged(self, list items, list named, list contents)


cpdef bint are_unchanged(list attributes)
