"""Watching the Python values that a recording depends on: have they changed since then?"""
cimport cython
from cpython.dict cimport PyDict_GetItem, PyDict_GetItemWithError, PyDict_Next
from cpython.object cimport PyObject
from libc.string cimport memcmp
cimport numpy as cnp

import weakref

cnp.import_array()

cdef extern from *:
    """
    /* Since Python 3.12, classes of the interpreter itself have no tp_dict. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define get_class_dict(kind) PyType_GetDict((PyTypeObject *) kind)
    #else
    #define get_class_dict(kind) Py_NewRef(((PyTypeObject *) kind)->tp_dict)
    #endif
    """
    dict get_class_dict(object kind)  # without a proxy around it

cdef extern from "Python.h":
    object PyObject_GenericGetDict(object owner, void* context)
    PyObject* PyList_GET_ITEM(list values, Py_ssize_t i)


cdef bint has_items(dict values, list names, list items):
    """Return whether a dict has these names in this order, and the same items. There may be others between them.

    A loop over a dict is faster than to look each name up.
    """
    cdef Py_ssize_t place = 0, i = 0, count = len(names)
    cdef PyObject* name
    cdef PyObject* value
    with cython.critical_section(values):
        while i < count and PyDict_Next(values, &place, &name, &value):
            if name == PyList_GET_ITEM(names, i):
                if value != PyList_GET_ITEM(items, i):
                    return False
                i += 1
    return i == count


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
        owner = get_referent(self.owner)
        if owner is None:
            return not self.needed
        now = PyObject_GenericGetDict(owner, NULL)
        if self.count >= 0 and len(<dict> now) != self.count:
            return False
        for i in range(0 if has_items(now, self.names, self.values) else len(self.names)):
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
    cdef Py_ssize_t i
    if type(before) is Reference:
        return now is get_referent(before)
    if now is before or type(now) is not type(before):
        return now is before
    if type(now) is tuple:
        if len(<tuple> now) != len(<tuple> before):
            return False
        for i in range(len(<tuple> now)):
            if not is_unchanged((<tuple> now)[i], (<tuple> before)[i]):
                return False
        return True
    if type(now) is frozenset:
        return now == before
    return type(now) in BY_VALUE and now == before and (bool(now) or repr(now) == repr(before))   # −0.0 is not 0.0


def resolve_reference(before):
    """Return the value that `make_reference` was called with; None if it no longer exists."""
    return get_referent(before) if type(before) is Reference else before


def make_reference(value):
    """Return a weak reference to a value, to compare with later, or the value itself if it takes no weak reference."""
    if value is None or isinstance(value, (*BY_VALUE, tuple, list, dict, set, frozenset)):
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


cdef inline bint has_bytes(cnp.ndarray array, bytes values):
    """Return whether an array has these values."""
    if cnp.PyArray_IS_C_CONTIGUOUS(array):
        return not memcmp(cnp.PyArray_DATA(array), <char*> values, cnp.PyArray_NBYTES(array))
    return array.tobytes() == values


cdef bint has_contents(content, list keys, list before):
    """Return whether a list has these elements, or a dict these keys, with these values."""
    cdef Py_ssize_t i
    if len(content) != len(before) or (keys is not None and list(content) != keys):
        return False
    now = content if keys is None else list(content.values())
    for i in range(len(before)):
        if not is_unchanged(now[i], before[i]):
            return False
    return True


cdef object read_value(int place, owner, key):
    """The value at a place now; MISSING if there is none."""
    if place == CLASS_ITEM:
        return get_class_dict(owner).get(key, MISSING)
    if place == ATTRIBUTE:
        return getattr(owner, key, MISSING)
    if place == CELL:
        return cell_content(owner.__closure__[key])
    if place == FUNCTION:
        return owner.__code__, owner.__defaults__, owner.__kwdefaults__
    if place == CLASS:
        return type(owner)
    return bytes(owner) if place == BYTES else frozenset(owner)


cdef class GuardTable(AttributeGuard):
    """The values that some Python code reads from around it, to find out later whether they have changed.

    They have names in modules, objects, classes and enclosing functions, or are in lists, tuples, dicts and sets.
    `program/guards/state.py` finds out which values these are.
    """
    def __init__(self):
        self.items, self.placed, self.contents, self.arrays = [], [], [], []

    def add_item(self, owner, dict values, str name):
        """Note an attribute of `owner` or, if `owner` is None, an item of the dict `values`. It may be missing."""
        value = values.get(name, MISSING)
        self.items.append((values if owner is None else make_reference(owner), name, make_reference(value)))

    cdef add_value(self, Place place, owner, key, name):
        """Note the value at a place, and its name in messages."""
        value = make_reference(read_value(place, owner, key))
        self.placed.append((<int> place, make_reference(owner), key, name, value))

    def add_class_item(self, kind, str name):
        """Note what a class itself, without its bases, has under a name: a value, a method, a property, or nothing."""
        self.add_value(CLASS_ITEM, kind, name, name)

    def add_buffer(self, value, str name):
        """Note the bytes of an object, such as a bytearray or an array of the module `array`."""
        self.add_value(BYTES, value, None, name)

    def add_kind(self, value):
        """Note the class of an object."""
        self.add_value(CLASS, value, None, "__class__")

    def add_function(self, function):
        """Note the code of a function and its default arguments."""
        self.add_value(FUNCTION, function, None, function.__name__)

    def add_attribute(self, owner, str name):
        """Note an attribute of an object that has no dict for it. It may be missing."""
        self.add_value(ATTRIBUTE, owner, name, name)

    def add_cell(self, function, Py_ssize_t i, str name):
        """Note a variable of an enclosing function."""
        self.add_value(CELL, function, i, name)

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
            self.add_value(ELEMENTS, value, None, name)
        elif isinstance(value, dict):
            self.contents.append((value, list(value), [make_reference(x) for x in value.values()], name))
        elif not isinstance(value, tuple):
            self.contents.append((value, None, [make_reference(x) for x in value], name))

    cdef bint are_unchanged(self):
        for owner, name, before in self.items:
            if type(owner) is Reference:
                owner = get_referent(owner)
                if owner is None:
                    continue
            values = owner if isinstance(owner, dict) else owner.__dict__
            if not is_unchanged((<dict> values).get(name, MISSING), before):
                return False
        for array, bytes_before in self.arrays:
            if not has_bytes(array, bytes_before):
                return False
        for place, owner, key, _, before in self.placed:
            owner = resolve_reference(owner)
            if owner is not None and not is_unchanged(read_value(place, owner, key), before):
                return False
        for content, keys, before, _ in self.contents:
            if not has_contents(content, keys, before):
                return False
        return True

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
        for place, owner, key, name, before in self.placed:
            owner = resolve_reference(owner)
            if owner is not None and not is_unchanged(now := read_value(place, owner, key), before):
                yield name, before, now
        yield from self.content_changes()

    def content_changes(self):
        """For each list or dict whose elements have changed: its name, and an old and a new element."""
        for content, keys, before, name in self.contents:
            if has_contents(content, keys, before):
                continue
            if len(content) < len(before) or (keys is not None and list(content)[:len(keys)] != keys):
                yield name, before, content
                continue
            now = list(content.values()) if keys is not None else content
            for i in range(len(now)):
                if i >= len(before) or not is_unchanged(now[i], before[i]):
                    yield name, before[i] if i < len(before) else MISSING, now[i]

    def exclude_changed(self):
        """Stop comparing the values that have changed."""
        self.items = [item for item in self.items if self.has_same([item], [], [])]
        self.placed = [placed for placed in self.placed if self.has_same([], [placed], [])]
        self.contents = [content for content in self.contents if self.has_same([], [], [content])]

    cdef bint has_same(self, list items, list placed, list contents):
        cdef GuardTable alone = GuardTable()
        alone.items, alone.placed, alone.contents = items, placed, contents
        return alone.are_unchanged()


cpdef bint are_unchanged(list attributes):
    """Return whether none of these `AttributeGuard` has changed."""
    cdef AttributeGuard guard
    for guard in attributes:
        if not guard.are_unchanged():
            return False
    return True
