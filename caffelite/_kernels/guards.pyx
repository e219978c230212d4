"""Watching the Python values that a recording depends on: have they changed since then?"""
from cpython.dict cimport PyDict_GetItem, PyDict_GetItemWithError
from cpython.ref cimport PyObject
from libc.string cimport memcmp
cimport numpy as cnp

import weakref

cnp.import_array()

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* tp_dict
    object PyObject_GenericGetDict(object owner, void* context)
    PyObject* PyFunction_GetCode(object function)
    PyObject* PyFunction_GetDefaults(object function)
    PyObject* PyFunction_GetKwDefaults(object function)


cdef class AttributeGuard:
    """The values of some attributes of an object, to find out later whether they have changed.

    Values are compared by identity, and lists, tuples and dicts also by their contents. With a `count`, the object must
    also have this many attributes, because a new one may hide an attribute of the class.

    The object is not kept alive. If it no longer exists, this counts as a change only if the object was `needed`.
    """
    def __init__(self, owner, dict attributes, bint needed=False, Py_ssize_t count=-1):
        self.owner, self.needed, self.count = weakref.ref(owner), needed, count
        self.names, self.values = list(attributes), list(attributes.values())
        self.lists, self.dicts = [], []
        self.record_contents(self.values, set())

    cdef record_contents(self, list values, set seen):
        """Note the contents of the lists, tuples and dicts among these values."""
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
            self.record_contents(content, seen)

    cdef bint are_unchanged(self):
        cdef PyObject* value
        cdef Py_ssize_t i
        owner = self.owner()
        if owner is None:
            return not self.needed
        now = PyObject_GenericGetDict(owner, NULL)
        if self.count >= 0 and len(<dict> now) != self.count:
            return False
        for i in range(len(self.names)):
            value = PyDict_GetItemWithError(now, self.names[i])
            if value == NULL:             # perhaps it is an attribute of the class
                if getattr(owner, self.names[i], self) is not self.values[i]:
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


cdef object MISSING = object()
cdef tuple BY_VALUE = (bool, int, float, complex, str, bytes)   # for these types, an equal value is as good as the same


class Reference(weakref.ref):
    """A weak reference of this file's. A value of the user's may be a plain one."""

    __slots__ = ()


cdef bint is_unchanged(now, before):
    """Return whether `now` is `before`, or an equal number, text or tuple. `before` may be a weak reference."""
    if type(before) is Reference:
        return now is before()
    if now is before or type(now) is not type(before):
        return now is before
    if type(now) is tuple:
        return len(now) == len(before) and all([is_unchanged(x, y) for x, y in zip(now, before)])
    return type(now) in BY_VALUE and now == before and (bool(now) or repr(now) == repr(before))   # −0.0 is not 0.0


def resolve_reference(before):
    """Return the value that `make_reference` was called with; None if it no longer exists."""
    return before() if type(before) is Reference else before


def make_reference(value):
    """Return a weak reference to a value, to compare with later, or the value itself if it takes no weak reference."""
    if value is None or isinstance(value, (*BY_VALUE, tuple, list, dict, set)):
        return value
    try:
        return Reference(value)
    except TypeError:
        return value


cdef object cell_content(cell):
    """The value of a variable of an enclosing function; MISSING if it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


cdef inline dict class_attributes(kind):
    """The dict of a class, without a proxy around it."""
    return <dict> (<PyTypeObject*> kind).tp_dict


cdef inline bint has_bytes(cnp.ndarray array, bytes values):
    """Return whether an array has these values."""
    if cnp.PyArray_IS_C_CONTIGUOUS(array):
        return not memcmp(cnp.PyArray_DATA(array), <char*> values, cnp.PyArray_NBYTES(array))
    return array.tobytes() == values


cdef inline bint is_same_function(function, code, defaults, named):
    """Return whether a function has this code and these default arguments, each None without any."""
    return (PyFunction_GetCode(function) == <PyObject*> code
            and (PyFunction_GetDefaults(function) or <PyObject*> None) == <PyObject*> defaults
            and (PyFunction_GetKwDefaults(function) or <PyObject*> None) == <PyObject*> named)


cdef class GuardTable(AttributeGuard):
    """The values that some Python code reads from around it, to find out later whether they have changed.

    They have names in modules, objects, classes and enclosing functions, or are in lists, tuples, dicts and sets.
    `program/guards/state.py` finds out which values these are.
    """
    def __init__(self):
        self.items, self.named, self.cells, self.sets, self.contents, self.arrays = [], [], [], [], [], []
        self.class_items, self.functions, self.kinds, self.buffers = [], [], [], []

    def add_item(self, owner, dict values, str name):
        """Note an attribute of `owner` or, if `owner` is None, an item of the dict `values`. It may be missing."""
        value = values.get(name, MISSING)
        self.items.append((values if owner is None else make_reference(owner), name, make_reference(value)))

    def add_class_item(self, kind, str name):
        """Note what a class itself, without its bases, has under a name: a value, a method, a property, or nothing."""
        self.class_items.append((Reference(kind), name, make_reference(class_attributes(kind).get(name, MISSING))))

    def add_buffer(self, value, str name):
        """Note the bytes of an object, such as a bytearray or an array of the module `array`."""
        self.buffers.append((value, bytes(value), name))

    def add_kind(self, value):
        """Note the class of an object."""
        self.kinds.append((make_reference(value), type(value)))

    def add_function(self, function):
        """Note the code of a function and its default arguments."""
        code, defaults, named = function.__code__, function.__defaults__, function.__kwdefaults__
        self.functions.append((Reference(function), code, defaults, named, function.__name__))

    def add_attribute(self, owner, str name):
        """Note an attribute of an object that has no dict for it. It may be missing."""
        self.named.append((make_reference(owner), name, make_reference(getattr(owner, name, MISSING))))

    def add_cell(self, function, Py_ssize_t i, str name):
        """Note a variable of an enclosing function."""
        self.cells.append((make_reference(function), i, name, make_reference(cell_content(function.__closure__[i]))))

    def add_array(self, array):
        """Note the values in an array."""
        if not array.dtype.hasobject:
            self.arrays.append((array, array.tobytes()))

    def watched_arrays(self):
        """Return the arrays whose values are compared."""
        return [array for array, _ in self.arrays]

    def changed_arrays(self):
        """Return the arrays whose values have changed."""
        return [array for array, before in self.arrays if not has_bytes(array, before)]

    def exclude_arrays(self, arrays):
        """Stop comparing these arrays."""
        self.arrays = [guard for guard in self.arrays if not any([guard[0] is array for array in arrays])]

    def add_contents(self, value, str name):
        """Note the contents of a list, dict or set."""
        if isinstance(value, (set, frozenset)):
            self.sets.append((value, frozenset(value), name))
        elif isinstance(value, dict):
            self.contents.append((value, list(value), [make_reference(x) for x in value.values()], name))
        elif not isinstance(value, tuple):
            self.contents.append((value, None, [make_reference(x) for x in value], name))

    cdef bint are_unchanged(self):
        for owner, name, before in self.items:
            if type(owner) is Reference:
                owner = owner()
                if owner is None:
                    continue
            values = owner if isinstance(owner, dict) else owner.__dict__
            if not is_unchanged((<dict> values).get(name, MISSING), before):
                return False
        for array, bytes_before in self.arrays:
            if not has_bytes(array, bytes_before):
                return False
        for kind, name, before in self.class_items:
            kind = (<object> kind)()
            if kind is not None and not is_unchanged(class_attributes(kind).get(name, MISSING), before):
                return False
        for value, kind in self.kinds:
            value = resolve_reference(value)
            if value is not None and type(value) is not kind:
                return False
        for value, bytes_before, _ in self.buffers:
            if bytes(value) != bytes_before:
                return False
        for function, code, defaults, named, _ in self.functions:
            function = (<object> function)()
            if function is not None and not is_same_function(function, code, defaults, named):
                return False
        if not (self.named or self.cells or self.sets or self.contents):
            return True
        return next(self.changes(), None) is None

    def exclude(self, owners):
        """Stop comparing the attributes of these objects. `AttributeGuard` compares them."""
        self.items = [item for item in self.items if type(item[0]) is not Reference or id(item[0]()) not in owners]

    def changes(self):
        """For each value that has changed: its name, the old value and the new one."""
        for owner, name, before in self.items:
            owner = owner() if type(owner) is Reference else owner
            if owner is not None:
                values = owner if isinstance(owner, dict) else owner.__dict__
                now = (<dict> values).get(name, MISSING)
                if not is_unchanged(now, before):
                    yield name, before, now
        for kind, name, before in self.class_items:
            kind = kind()
            now = before if kind is None else class_attributes(kind).get(name, MISSING)
            if kind is not None and not is_unchanged(now, before):
                yield name, before, now
        for value, before, name in self.buffers:
            if bytes(value) != before:
                yield name, before, value
        for value, kind in self.kinds:
            value = resolve_reference(value)
            if value is not None and type(value) is not kind:
                yield "__class__", kind, type(value)
        for function, code, defaults, named, name in self.functions:
            function = function()
            if function is not None and not is_same_function(function, code, defaults, named):
                yield name, MISSING, function
        for owner, name, before in self.named:
            owner = owner() if type(owner) is Reference else owner
            if owner is not None:
                now = getattr(owner, name, MISSING)
                if not is_unchanged(now, before):
                    yield name, before, now
        for function, i, name, before in self.cells:
            function = function() if type(function) is Reference else function
            if function is not None:
                now = cell_content(function.__closure__[i])
                if not is_unchanged(now, before):
                    yield name, before, now
        for content, before, name in self.sets:
            if type(before)(content) != before:
                yield name, before, content
        for content, keys, before, name in self.contents:
            if len(content) < len(before):
                yield name, before, content
                continue
            now = list(content.values()) if isinstance(content, dict) else content
            if isinstance(content, dict) and list(content)[:len(keys)] != keys:
                yield name, before, content
                continue
            for i in range(len(now)):
                if i >= len(before) or not is_unchanged(now[i], before[i]):
                    yield name, before[i] if i < len(before) else MISSING, now[i]

    def exclude_changed(self):
        """Stop comparing the values that have changed."""
        self.items = [item for item in self.items if self.is_item_unchanged([item], [], [])]
        self.named = [named for named in self.named if self.is_item_unchanged([], [named], [])]
        self.contents = [content for content in self.contents if self.is_item_unchanged([], [], [content])]

    cdef bint is_item_unchanged(self, list items, list named, list contents):
        cdef GuardTable alone = GuardTable()
        alone.items, alone.named, alone.contents = items, named, contents
        return alone.are_unchanged()


cpdef bint are_unchanged(list attributes):
    """Return whether none of these `AttributeGuard` has changed."""
    cdef AttributeGuard guard
    for guard in attributes:
        if not guard.are_unchanged():
            return False
    return True
