"""What a recording depends on besides the arrays it was bound to, and whether that still is what it was."""
from cpython.dict cimport PyDict_GetItem, PyDict_GetItemWithError
from cpython.ref cimport PyObject

import weakref

cdef extern from "Python.h":
    object PyObject_GenericGetDict(object of, void* context)


cdef class Attributes:
    """What some attributes of an object are, to be compared later: by identity, and lists, tuples and dicts also by
    what is in them. With a `count`, also that the object has so many attributes: one more may hide one of its class.

    The object is not kept alive. Once it is gone, it has changed if it was `needed`, and else it has not.
    """
    def __init__(self, of, dict attributes, bint needed=False, Py_ssize_t count=-1):
        self.of, self.needed, self.count = weakref.ref(of), needed, count
        self.names, self.values = list(attributes), list(attributes.values())
        self.lists, self.dicts = [], []
        self.note_contents(self.values, set())

    cdef note_contents(self, list values, set seen):
        """Note what is in the lists, tuples and dicts among these values."""
        for value in values:
            if not isinstance(value, (list, tuple, dict)) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                content = list(value.values())
                self.dicts.append((value, list(value), content))
            else:
                content = list(value)
                if isinstance(value, list):
                    self.lists.append((value, content))
            self.note_contents(content, seen)

    cdef bint are_unchanged(self):
        cdef PyObject* value
        cdef Py_ssize_t i
        of = self.of()
        if of is None:
            return not self.needed
        now = PyObject_GenericGetDict(of, NULL)
        if self.count >= 0 and len(<dict> now) != self.count:
            return False
        for i in range(len(self.names)):
            value = PyDict_GetItemWithError(now, self.names[i])
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
        for content, keys, before in self.dicts:
            if len(content) != len(before):
                return False
            for i in range(len(<list> before)):
                if PyDict_GetItem(content, (<list> keys)[i]) != <PyObject*> (<list> before)[i]:
                    return False
        return True


cpdef bint are_unchanged(list attributes):
    """Whether all these `Attributes` are what they were."""
    cdef Attributes one
    for one in attributes:
        if not one.are_unchanged():
            return False
    return True
