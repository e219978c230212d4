from cpython.object cimport PyObject

cdef extern from *:
    """
    /* The object of a weak reference, None if it is gone: as the reference itself returns when it is called. */
    static PyObject *get_referent(PyObject *reference)
    {
    #if PY_VERSION_HEX >= 0x030D0000
        PyObject *referent = NULL;
        return PyWeakref_GetRef(reference, &referent) == 0 ? Py_NewRef(Py_None) : referent;
    #else
        return Py_NewRef(PyWeakref_GET_OBJECT(reference));
    #endif
    }
    """
    object get_referent(object reference)


cdef enum Place:                          # the places of values
    CLASS_ITEM                            # in a class itself, without its bases, by name
    ATTRIBUTE                             # of an object that has no dict for it, by name
    CELL                                  # in a variable of an enclosing function, by number
    FUNCTION                              # the code of a function, and its default arguments
    CLASS                                 # the class of an object
    BYTES                                 # the bytes of an object, such as a bytearray
    ELEMENTS                              # the elements of a set


cdef class AttributeGuard:
    cdef object owner
    cdef bint needed
    cdef Py_ssize_t count
    cdef list names, values, lists, dicts

    cdef record_contents(self, list values, set seen)
    cdef bint are_unchanged(self)


cdef class GuardTable(AttributeGuard):
    cdef list items, placed, contents, arrays

    cdef add_value(self, Place place, owner, key, name)
    cdef bint has_same(self, list items, list placed, list contents)


cpdef bint are_unchanged(list attributes)
