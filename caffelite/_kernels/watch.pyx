"""What a recording depends on besides the arrays it was bound to, and whether that still is what it was."""
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject

import weakref


cdef class Attributes:
    """What some attributes of an object are, to be compared later: by identity, and lists also by what is in them.

    The object is not kept alive. Once it is gone, it has changed if it was `needed`, and else it has not.
    """
    cdef object of
    cdef bint needed
    cdef list names, values, lists

    def __init__(self, of, dict attributes, bint needed=False):
        self.of, self.needed = weakref.ref(of), needed
        self.names, self.values = list(attributes), list(attributes.values())
        self.lists = [(value, list(value)) for value in self.values if isinstance(value, list)]

    cdef bint are_unchanged(self):
        cdef PyObject* value
        cdef Py_ssize_t i
        of = self.of()
        if of is None:
            return not self.needed
        now = of.__dict__
        for i in range(len(self.names)):
            value = PyDict_GetItem(now, self.names[i])
            if value == NULL:             # then the class may have it
                if getattr(of, self.names[i], self) is not self.values[i]:
                    return False
            elif value != <PyObject*> self.values[i]:
                return False
        for content, before in self.lists:
            if len(content) != len(before):
                return False
            for i in range(len(<list> before)):
                if (<list> content)[i] is not (<list> before)[i]:
                    return False
        return True


def are_unchanged(list attributes):
    """Whether all these `Attributes` are what they were."""
    cdef Attributes one
    for one in attributes:
        if not one.are_unchanged():
            return False
    return True
