"""The call of a Program, compiled: check whether it may replay, copy inputs in, replay, copy results out."""
from libc.string cimport memcpy
cimport numpy as cnp

import threading
import weakref

import numpy as np

from caffelite._kernels.launch cimport rounds_products
from caffelite._kernels.record cimport is_recording
from caffelite._kernels.record import recorder
from caffelite._kernels.replay cimport Replay
from caffelite._kernels.guards cimport are_unchanged, get_referent
from caffelite.core.autograd cimport Node, is_training, records_graph
from caffelite._support.fork import reset_after_fork
from caffelite.core.sparse import to_row_array, as_sparse, is_sparse, from_row_array

cnp.import_array()

cdef object ndarray = np.ndarray

cdef extern from "numpy/arrayobject.h":
    int PyArray_CopyInto(cnp.ndarray dest, cnp.ndarray src) except -1
    object PyArray_NewCopy(cnp.ndarray array, cnp.NPY_ORDER order)

cdef int ANY = -1                         # it does not matter whether there is a gradient
cdef Py_ssize_t SMALL_COPY = 65_536          # bytes; fewer are copied faster than NumPy releases the GIL


cdef class TensorGuard:
    """The state that a Tensor must have before a replay: the same as when the step was recorded.

    `had_gradient` is whether it had a gradient; None if that made no difference. If a Tensor is `needed` and no longer
    exists, another one is in its place, so the step must be recorded again.
    """
    cdef object tensor, data, gradient, used_rows
    cdef bint requires_grad, needed
    cdef int had_gradient

    def __init__(self, Node t not None, had_gradient, bint needed):
        self.tensor, self.needed, self.used_rows = weakref.ref(t), needed, t._used_rows
        self.data, self.gradient, self.requires_grad = t._data, t._gradient, t._requires_grad
        self.had_gradient = ANY if had_gradient is None else <bint> had_gradient

    cdef bint holds(self) except -1:
        t = get_referent(self.tensor)
        if t is None:
            return not self.needed
        return ((<Node> t)._data is self.data and (<Node> t)._gradient is self.gradient
                and (<Node> t)._used_rows is self.used_rows and (<Node> t)._requires_grad == self.requires_grad
                and (self.had_gradient == ANY or (<Node> t)._has_gradient == self.had_gradient))


cdef class SideEffect:
    """The changes that a step makes to a Tensor, without the writes of its kernels.

    `has_gradient` is whether the Tensor has a gradient afterwards; None if the step does not change this. `changed` is
    whether the step changes its values.
    """
    cdef object tensor
    cdef int has_gradient
    cdef bint changed

    def __init__(self, Node t not None, has_gradient, bint changed):
        self.tensor, self.changed = weakref.ref(t), changed
        self.has_gradient = ANY if has_gradient is None else <bint> has_gradient

    cdef int apply(self) except -1:
        t = get_referent(self.tensor)
        if t is not None:
            if self.has_gradient != ANY:
                (<Node> t)._has_gradient = self.has_gradient
            if self.changed:
                (<Node> t)._version[0] += 1
        return 0


def tree_map(f, result):
    """A step's result, with f applied to everything in its tuples, lists and dicts."""
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*[tree_map(f, x) for x in result])
    if isinstance(result, (tuple, list)):
        return type(result)([tree_map(f, x) for x in result])
    if isinstance(result, dict):
        return {key: tree_map(f, x) for key, x in result.items()}
    return f(result)


def copy_array(x):
    """A copy of an array; any other value itself."""
    return PyArray_NewCopy(x, cnp.NPY_KEEPORDER) if type(x) is ndarray else x


cdef inline int copy_into(cnp.ndarray buffer, cnp.ndarray array) except -1:
    """Copy an array into a contiguous one of the same shape and dtype."""
    if cnp.PyArray_IS_C_CONTIGUOUS(array) and array.descr is buffer.descr and cnp.PyArray_NBYTES(array) < SMALL_COPY:
        memcpy(cnp.PyArray_DATA(buffer), cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array))
        return 0
    return PyArray_CopyInto(buffer, array)


cdef int copy_rows(cnp.ndarray to, Py_ssize_t at, cnp.ndarray array, Py_ssize_t start, Py_ssize_t count) except -1:
    """Copy rows of an array, from row `start` on, over as many rows of another one, from row `at` on.

    Both have rows of the same shape and dtype.
    """
    cdef Py_ssize_t row_size
    if cnp.PyArray_IS_C_CONTIGUOUS(to) and cnp.PyArray_IS_C_CONTIGUOUS(array) and to.descr is array.descr:
        row_size = cnp.PyArray_NBYTES(to) // cnp.PyArray_DIM(to, 0)
        if count * row_size < SMALL_COPY:
            memcpy(cnp.PyArray_BYTES(to) + at * row_size, cnp.PyArray_BYTES(array) + start * row_size, count * row_size)
            return 0
    return PyArray_CopyInto(to[at:at + count], array[start:start + count])


def to_input(x):
    """Convert an argument that is not a plain array to an array or to sparse rows."""
    if is_sparse(x):
        return as_sparse(x)
    return np.asanyarray(x.data if isinstance(x, Node) else x)


def raise_mismatch(i, before, now):
    """Raise ValueError or TypeError for argument i, whose shape, dtype or kind differs from the recorded one."""
    if is_sparse(before) != is_sparse(now):
        kinds = ["sparse rows" if is_sparse(x) else "an array" for x in (before, now)]
        raise TypeError(f"argument {i} was recorded with {kinds[0]}, got {kinds[1]}")
    if before.shape != now.shape:
        raise ValueError(f"argument {i} was recorded with shape {before.shape}, got {now.shape}")
    raise TypeError(f"argument {i} was recorded with dtype {before.dtype}, got {now.dtype}")


def to_ndarray(x):
    """A view of an array as a plain ndarray, which copies fast."""
    return x.view(ndarray) if isinstance(x, ndarray) else x


def unwrap_tensors(result):
    """A step's result with arrays instead of Tensors."""
    return tree_map(lambda x: x.data if isinstance(x, Node) else x, result)


cdef class Runner:
    """Base class of Program: it holds the recording, and replays it."""
    cdef Replay _replay                   # None: the step was not replayed yet
    cdef readonly list inputs             # the replay reads its arguments here
    cdef readonly object lock
    cdef readonly object _result          # the replay writes its results here
    cdef readonly object function         # the user's function, of `capture`, or None
    cdef public bint runs_eagerly         # because it can't be replayed
    cdef public bint calls_python         # whether a replay calls Python, which may change what the step reads
    cdef list arguments                   # the arguments of the last call, with `function`
    cdef list guards, attributes, effects
    cdef readonly bint is_recorded        # whether there is a recording
    cdef public Py_ssize_t replays_left   # before the step runs in Python again, and is compared with the recording
    cdef bint records_graph, is_training, rounds_products

    def __cinit__(self, function=None, *, strict=False):
        self.function, self.lock = function, threading.RLock()
        self.inputs = []
        reset_after_fork(self)

    def _after_fork(self):
        """Make a new lock in a forked child, where no other thread holds the old one."""
        self.lock = threading.RLock()

    @property
    def replay(self):
        """The recorded calls, ready to run."""
        return self.get_replay()

    cdef Replay get_replay(self):
        with self.lock:
            if self._replay is None:
                self._replay = self.make_replay()
            return self._replay

    def drop_replay(self):
        """Make a new replay when it is needed next, because memory has moved."""
        self._replay = None

    def set_recording(self, list inputs, result, list guards, list attributes, list effects):
        """Keep a recording: its inputs and results, the state that it needs, and the changes that it makes."""
        self._replay, self.inputs, self._result = None, inputs, tree_map(to_ndarray, result)
        self.guards, self.attributes, self.effects = guards, attributes, effects
        self.records_graph, self.is_training, self.rounds_products = records_graph(), is_training(), rounds_products()
        self.is_recorded = True

    def drop_recording(self, result):
        """Drop the recording, and keep only the results of this call."""
        self.is_recorded, self._result = False, tree_map(to_ndarray, result)

    def __call__(self, *arrays):
        if self.function is None:
            raise TypeError("this Program belongs to a Model and has no function; call `run` with one")
        return self.run_on(self.function, arrays)

    def run(self, function, *arrays):
        """Replay on these arrays, or record `function` on them; returns copies of its results."""
        return self.run_on(function, arrays)

    cdef object run_on(self, function, tuple arrays):
        cdef Py_ssize_t i
        cdef list arguments = [x if type(x) is ndarray else to_input(x) for x in arrays]
        if is_recording():                # then this call is a part of another step that is being recorded
            if hasattr(recorder(), "guard_code"):
                recorder().guard_code(function)
            return unwrap_tensors(function(*arguments))
        if self.runs_eagerly:
            return tree_map(copy_array, tree_map(to_ndarray, unwrap_tensors(function(*arguments))))
        self.lock.acquire()               # faster than `with`
        try:
            if self.function is not None:
                self.arguments = arguments    # keeps the memory that sparse rows point to
            arguments = [x if isinstance(x, ndarray) else to_row_array(x) for x in arguments]
            if self.is_recorded:
                self.check_arguments(arguments)
            if self.may_replay():
                for i in range(len(arguments)):
                    copy_into(self.inputs[i], arguments[i])
                self.replay_inputs()
                if self.calls_python:
                    self.check_callbacks()
            else:
                self.record_and_optimize(function, arguments)
            if type(self._result) is ndarray or self._result is None:
                return copy_array(self._result)
            return tree_map(copy_array, self._result)
        finally:
            self.lock.release()

    def run_bucket(self, function, list arrays, Py_ssize_t start, Py_ssize_t size, list results):
        """Compute `size` rows of the arrays, from row `start` on; write the results into the same rows of `results`.

        After the arrays' last row, that row is repeated, and the results of the repeated rows are left out. `results`
        has an array for each of the function's results; an empty list gets new ones. Returns whether the function
        returns a tuple.
        """
        cdef Py_ssize_t i, k, rows = len(arrays[0]), count = min(size, rows - start)
        self.lock.acquire()
        try:
            if self.may_replay():
                for i in range(len(arrays)):
                    copy_rows(self.inputs[i], 0, arrays[i], start, count)
                    for k in range(count, size):
                        copy_rows(self.inputs[i], k, self.inputs[i], count - 1, 1)
                self.replay_inputs()
            else:
                which = np.minimum(np.arange(start, start + size), rows - 1)
                self.record_and_optimize(function, [array[which] for array in arrays])
            is_tuple = isinstance(self._result, tuple)
            outputs = self._result if is_tuple else (self._result,)
            if not results:
                results.extend([np.empty((rows, *result.shape[1:]), result.dtype) for result in outputs])
            for i in range(len(results)):
                copy_rows(results[i], start, outputs[i], 0, count)
            return is_tuple
        finally:
            self.lock.release()

    cdef int record_and_optimize(self, function, list arrays) except -1:
        """Record the function on these arrays, and make the replay: it will probably be needed."""
        self.record(function, *arrays)
        if self.is_recorded and self.replays_left > 0:
            self.get_replay()
        return 0

    cdef int replay_inputs(self) except -1:
        """Replay on the contents of `inputs`. Raise the step's error if it stops."""
        cdef Replay replay = self._replay
        if replay is None:
            replay = self.get_replay()
        self.replays_left -= 1
        try:
            stopped = replay.run_once()
        finally:                          # even a replay that stopped may have changed anything
            self.apply_effects()
        if stopped is not None:
            stopped.raise_error()
        return 0

    cdef int check_arguments(self, list arrays) except -1:
        cdef cnp.ndarray array, buffer
        cdef Py_ssize_t i
        if len(arrays) != len(self.inputs):
            raise TypeError(f"the Program was recorded with {len(self.inputs)} arrays, got {len(arrays)}")
        for i in range(len(arrays)):
            array, buffer = arrays[i], self.inputs[i]
            if not cnp.PyArray_SAMESHAPE(array, buffer) or (
                    array.descr is not buffer.descr and not cnp.PyArray_EquivTypes(array.descr, buffer.descr)):
                raise_mismatch(i, from_row_array(buffer), from_row_array(array))
        return 0

    def is_current(self):
        """Return whether a replay may take the place of the step in Python."""
        with self.lock:                   # another thread may record the step now
            return self.may_replay()

    cdef bint may_replay(self) except -1:
        return self.replays_left > 0 and self.matches_state()

    cpdef bint matches_state(self) except -1:
        """Return whether all that the recording depends on is as it was, as far as it can be seen."""
        cdef TensorGuard guard
        if (not self.is_recorded or self.records_graph != records_graph() or self.is_training != is_training()
                or self.rounds_products != rounds_products()):
            return False
        for guard in self.guards:
            if not guard.holds():
                return False
        return are_unchanged(self.attributes)

    def has_same_attributes(self):
        """Return whether the attributes and variables that the recording depends on are as they were."""
        return are_unchanged(self.attributes)

    cpdef apply_effects(self):
        """After replays, make the step's changes to the Tensors."""
        cdef SideEffect effect
        for effect in self.effects:
            effect.apply()


def row_specs(tuple arrays):
    """The shape of a row, the dtype and the class of each of these arrays, or sparse rows."""
    return tuple([(array.shape[1:], array.dtype, type(array)) for array in arrays])


def array_specs(parts, list arrays):
    """The shapes and dtypes of the arrays in a tuple or list, and in tuples in it; None if there is anything else.

    The arrays are appended to `arrays`.
    """
    cdef list specs = []
    if type(parts) is not tuple and type(parts) is not list:
        return None
    for part in parts:
        if type(part) is ndarray:
            arrays.append(part)
            spec = part.shape, (<cnp.ndarray> part).descr
        elif type(part) is not tuple or (spec := array_specs(part, arrays)) is None:
            return None
        specs.append(spec)
    return tuple(specs)


cdef class LockedArray:
    """Lock an array for this thread, and restore its old content at the end.

    (Compiled code: a Ctrl-C cannot interrupt it halfway.)
    """
    cdef cnp.ndarray array, before
    cdef object lock

    def __init__(self, cnp.ndarray array not None, lock):
        self.array, self.lock = array, lock

    def __enter__(self):
        self.lock.acquire()
        self.before = PyArray_NewCopy(self.array, cnp.NPY_KEEPORDER)

    def __exit__(self, kind, error, traceback):
        copy_into(self.array, self.before)
        self.lock.release()
