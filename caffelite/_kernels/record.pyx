"""Recording: note kernel calls while they run. A replay can then run them again.

Design
------
(a) A thread that records has a recorder, an object with a list `entries`. The thread runs every call that it launches,
    as always, and adds a `RecordedCall` to the list: a copy of the call, with the arrays of its operands.
(b) While a thread records, its kernels return `RecordedArray`s. Such an array raises TypeError if code other than a
    kernel computes with it or looks at its values, because a replay would not repeat that.
"""
from libc.string cimport memcmp
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF, PyObject, PyTypeObject
cimport numpy as cnp

import sys
from collections import namedtuple

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.kernel cimport Kernel
from caffelite._kernels.operations import OPS

cnp.import_array()

cdef extern from *:
    """
    /* The recorder that notes this thread's kernel calls, or NULL. */
    static _Thread_local PyObject *this_threads_recorder = NULL;
    """
    PyObject* this_threads_recorder

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject* subtype, cnp.dtype descr, int ndim, const cnp.npy_intp* shape,
                                const cnp.npy_intp* strides, void* data, int flags, PyObject* like)

cdef extern from "Python.h":
    object PyObject_GenericGetAttr(object owner, object name)

cdef object ndarray = np.ndarray
cdef frozenset OPEN_ATTRIBUTES = frozenset((
    "shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides", "flags", "base", "T", "view", "reshape",
    "transpose", "swapaxes", "squeeze", "setflags"))


# ---- who records ---------------------------------------------------------------------------------------------------

def recorder():
    """This thread's recorder, or None."""
    return None if this_threads_recorder == NULL else <object> this_threads_recorder


cdef class Recorder:
    """Base class of recorders. Inside the `with` block, this thread's kernel calls are noted in the list `entries`.

    Raise RuntimeError if the thread is recording already. (This is compiled code, so a Ctrl-C cannot interrupt
    entering or leaving halfway.)
    """
    cdef public bint watches_reads        # whether to call `record_read`
    cdef public bint keeps_lines          # whether each call notes the user's line
    cdef public bint keeps_values         # whether to call `record_values`

    def __enter__(self):
        global this_threads_recorder
        if this_threads_recorder != NULL:
            raise RuntimeError("this thread is recording already")
        Py_XINCREF(<PyObject*> self)
        this_threads_recorder = <PyObject*> self
        return self

    def __exit__(self, *exception):
        global this_threads_recorder
        Py_XDECREF(this_threads_recorder)
        this_threads_recorder = NULL

    def record_obstacle(self, reason):
        """Raise TypeError, because a replay would not repeat what the step does."""
        raise TypeError(reason)

    def record_read(self, array, updates):
        """Record that a kernel reads, or `updates`, an array that perhaps no kernel has made."""

    def record_values(self, array):
        """Record an array that a kernel is about to use, before the kernel changes it."""

    def line(self):
        """Return the line of the user's code that runs now."""


cdef class pause_recording:
    """Inside, this thread's recorder notes nothing."""
    cdef PyObject* recorder

    def __enter__(self):
        global this_threads_recorder
        self.recorder, this_threads_recorder = this_threads_recorder, NULL

    def __exit__(self, *exception):
        global this_threads_recorder
        this_threads_recorder = self.recorder


cdef bint is_recording() noexcept nogil:
    """Return whether this thread's kernel calls are noted."""
    return this_threads_recorder != NULL


# ---- the arrays of a step that is being recorded -------------------------------------------------------------------

cdef cnp.ndarray empty(int ndim, cnp.npy_intp* shape, cnp.dtype dtype):
    """Return a new array for a kernel's output, in C order. It is a `RecordedArray` if this thread is recording."""
    return empty_strided(ndim, shape, NULL, dtype)


cdef cnp.ndarray empty_strided(int ndim, cnp.npy_intp* shape, cnp.npy_intp* strides, cnp.dtype dtype):
    """Like `empty`, with these strides in bytes. They must leave no gaps between elements."""
    Py_INCREF(dtype)                      # NewFromDescr takes over one reference
    return PyArray_NewFromDescr(<PyTypeObject*> (ndarray if this_threads_recorder == NULL else RecordedArray),
                                dtype, ndim, shape, strides, NULL, 0, NULL)


class RecordedArray(np.ndarray):
    """An array of a step that is being recorded. While its thread records, only kernels may look at its values.

    Its shape, dtype and views are always available. All other uses raise TypeError. After the recording, it is like
    any other array.
    """

    OPEN_FUNCTIONS = {np.shape, np.ndim, np.size, np.may_share_memory, np.shares_memory, np.result_type, np.reshape,
                      np.transpose, np.broadcast_to, np.squeeze, np.expand_dims, np.swapaxes, np.moveaxis}

    def __getattribute__(self, name):
        if this_threads_recorder != NULL and name not in OPEN_ATTRIBUTES and not name.startswith("__"):
            raise_unrecordable(f"ndarray.{name}", suggest(name))
        return PyObject_GenericGetAttr(self, name)  # `super().__getattribute__` takes ten times as long

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if this_threads_recorder != NULL:
            gives_conditions = all([kind[len(kind) - 1] in "?O" for kind in ufunc.types])
            raise_unrecordable(f"numpy.{ufunc.__name__}", CONDITION if gives_conditions else suggest(ufunc.__name__))
        plain = [x.view(np.ndarray) if isinstance(x, RecordedArray) else x for x in inputs]
        out = tuple([x.view(np.ndarray) if isinstance(x, RecordedArray) else x for x in options.pop("out", ())])
        return getattr(ufunc, method)(*plain, **(options | {"out": out} if out else options))

    def __array_function__(self, function, types, inputs, options):
        if this_threads_recorder != NULL and function not in RecordedArray.OPEN_FUNCTIONS:
            raise_unrecordable(f"numpy.{function.__name__}", suggest(function.__name__))
        return super().__array_function__(function, types, inputs, options)

    def __getitem__(self, index):
        item = super().__getitem__(index)
        if this_threads_recorder != NULL and not is_view(item, self):
            raise_unrecordable("an element's value")
        return item

    def __setitem__(self, index, value):
        if this_threads_recorder != NULL:
            raise_unrecordable("assigning to elements")
        super().__setitem__(index, value)

    def __iter__(self):
        if self.ndim < 2 and this_threads_recorder != NULL:
            raise_unrecordable("an element's value")
        return super().__iter__()

    def __float__(self):
        return float(plain_value(self))

    def __int__(self):
        return int(plain_value(self))

    def __bool__(self):
        return bool(plain_value(self))

    def __index__(self):
        return plain_value(self).__index__()

    def __format__(self, spec):
        return format(plain_value(self), spec)

    def __complex__(self):
        return complex(plain_value(self))


def is_view(item, array):
    """Return whether `item`, the result of indexing an array, is a view of the array, and not a copy or a scalar."""
    return isinstance(item, np.ndarray) and item.base is not None and (item.base is array or item.base is array.base)


def plain_value(array):
    """Return the array as a plain one. Raise TypeError if this thread is recording."""
    if this_threads_recorder != NULL:
        raise_unrecordable("an array's value")
    return array.view(np.ndarray)


CONDITION = ". A mask or condition on the inputs is one more input, `call(self, x, mask)`, predict((x, x != 0))"


def suggest(name):
    """Return the end of a message: caffelite's function for NumPy's function or method of this name."""
    package = sys.modules.get("caffelite")
    if name == "astype":
        return ". caffelite.Tensor(x, dtype=…) makes floats of a mask or of integers"
    if callable(getattr(package, name, None)):
        return f". caffelite.{name} is such a function, and takes masks and integers too"
    return ""


def raise_unrecordable(what, hint=""):
    """Tell the recorder that the step did something that a replay would not repeat.

    The recorder raises TypeError, unless it lets the step go on unrecorded.
    """
    recorder().record_obstacle(
        f"{what} was used on an array of a step that is being recorded; a replay would not repeat it. Compute with "
        f"caffelite's Functions or kernels, or in a Function that is not declared recordable{hint}")


# ---- calls ---------------------------------------------------------------------------------------------------------

cdef int note_operands(const Call* call) except -1:
    """Show the operands of a call to this thread's recorder, if it keeps values, before the call runs."""
    cdef int i
    if (<Recorder> this_threads_recorder).keeps_values:
        for i in range(MAX_OPERANDS):
            if call.operand[i].array != NULL:
                (<Recorder> this_threads_recorder).record_values(<object> call.operand[i].array)
    return 0


cdef RecordedCall record_call(const Call* call):
    """Add a call, with the arrays of its operands, to this thread's recording."""
    cdef RecordedCall recorded = RecordedCall.__new__(RecordedCall)
    cdef int i, bound = 0
    cdef bint needs_line = False
    recorded.call = call[0]
    recorded.kernel = <Kernel> call.kernel
    recorded.name = f"{recorded.kernel.name}_bfloat16" if call.rounds else recorded.kernel.name
    recorded.writes = recorded.kernel.writes
    recorded.constants = call.constants
    recorded.reads = recorded.kernel.updates | ~recorded.writes | call.accumulate
    for i in range(MAX_OPERANDS):
        if call.operand[i].array != NULL:
            bound = i + 1
        else:
            recorded.writes &= ~(1 << i)
            recorded.reads &= ~(1 << i)
        recorded.call.operand[i].array = NULL
    recorded.arrays = tuple([None if call.operand[i].array == NULL else <object> call.operand[i].array
                             for i in range(bound)])
    recorded.numbers = {}
    if call.constants:
        recorded.numbers = {i: recorded.arrays[i] for i in range(bound) if call.constants >> i & 1}
    for i in range(bound):                # NumPy may have made an array that the call reads
        if not (<Recorder> this_threads_recorder).watches_reads:
            break
        if recorded.reads >> i & 1 and type(recorded.arrays[i]) is ndarray:
            (<Recorder> this_threads_recorder).record_read(recorded.arrays[i], bool(recorded.writes >> i & 1))
            needs_line = True
    if needs_line or (<Recorder> this_threads_recorder).keeps_lines:
        recorded.line = (<Recorder> this_threads_recorder).line()
    if recorded.kernel.checked >= 0:
        array = recorded.arrays[recorded.kernel.checked]
        recorded.checked = (array.dtype, array.shape, array.strides)
    (<object> this_threads_recorder).entries.append(recorded)
    return recorded


cdef object copy_values(const Call* call, int operand, cnp.dtype dtype, tuple shape, tuple strides):
    """Return a copy of an operand's values, as a plain array."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef cnp.npy_intp steps[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d], steps[d] = shape[d], strides[d]
    Py_INCREF(dtype)                      # NewFromDescr takes over one reference
    return np.array(PyArray_NewFromDescr(<PyTypeObject*> ndarray, dtype, len(shape), lengths, steps,
                                         call.operand[operand].data, 0, NULL))


Facts = namedtuple("Facts", ("kernel", "op", "sizes", "scalars", "epilogue_scalars", "windows", "strides", "parts",
                             "source", "accumulates", "rounds", "numbers"))
WindowFacts = namedtuple("WindowFacts", ("length", "count", "kernel", "stride", "padding", "dilation"))

# The names of `Type`, in its order
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


cdef class RecordedCall:
    """A recorded kernel call.

    `arrays` are the arrays of its operands, output first (None: no operand). The bits of `reads` and `writes` say which
    operands it reads and writes. The bits of `constants` say which operands a binding made from a number.
    """

    def __repr__(self):
        return f"{self.name}{tuple(array.shape for array in self.arrays if array is not None)}"

    def raise_error(self):
        """Raise the exception of a step that this call has stopped."""
        if self.on_stop is not None:
            dtype, shape, strides = self.checked
            self.on_stop(copy_values(&self.call, self.kernel.checked, dtype, shape, strides))
        raise FloatingPointError(f"{self!r} stopped the step")

    @property
    def facts(self):
        """All that the call says, without the places of its arrays: a namedtuple, `Facts`.

        kernel : the kernel's name.
        op : the operation of an elementwise kernel, of a loss, or of an epilogue; "nothing" for others.
        sizes, scalars : the kernel's file in loops/ tells what they mean. `epilogue_scalars` are the epilogue's.
        windows : the `WindowFacts` along rows and along columns of images.
        strides : of each operand four, in elements, as the loop sees them.
        parts : the independent pieces of the output.
        source : the dtype that `convert` reads.
        accumulates : whether the result is added to the output's values.
        rounds : whether a product rounds its operands to bfloat16.
        numbers : by operand, the arrays that the binding made from numbers.
        """
        cdef const Call* call = &self.call
        return Facts(
            kernel=self.kernel.name, op=OPS[call.op], sizes=tuple([call.size[i] for i in range(MAX_SIZES)]),
            scalars=(call.scalar[0], call.scalar[1]),
            epilogue_scalars=(call.epilogue_scalar[0], call.epilogue_scalar[1]),
            windows=tuple([WindowFacts(call.window[d].length, call.window[d].count, call.window[d].kernel,
                                       call.window[d].stride, call.window[d].padding, call.window[d].dilation)
                           for d in range(2)]),
            strides=tuple([tuple([call.operand[i].stride[d] for d in range(MAX_DIMS)]) for i in range(MAX_OPERANDS)]),
            parts=call.parts, source=TYPES[call.source], accumulates=bool(call.accumulate), rounds=bool(call.rounds),
            numbers=dict(self.numbers))

    @property
    def work(self):
        """How long it takes, in operations of a matrix product. This decides whether threads share the call."""
        return self.call.work

    @work.setter
    def work(self, double work):
        self.call.work = work

    @property
    def accumulates(self):
        """Return whether the call adds its result to the old values of its output."""
        return self.call.accumulate

    @property
    def flops(self):
        """The FLOPs, if the kernel mostly multiplies and adds. None for the others: FLOPs say little of their time."""
        return <Py_ssize_t> self.call.flops or None

    @property
    def has_epilogue(self):
        """Return whether an elementwise kernel is fused into the call."""
        return self.takes_epilogue and self.call.op != NOTHING

    @property
    def takes_epilogue(self):
        """Return whether an elementwise kernel may be fused into the call."""
        return self.kernel.is_product or self.kernel.takes_epilogue

    @property
    def is_elementwise(self):
        """Return whether each element of the output depends only on the elements of the inputs at the same place."""
        return not self.kernel.is_product and self.kernel.op != NOTHING

    @property
    def is_addition(self):
        """Return whether the call computes y = a + b."""
        return self.kernel.op == ADD

    def find_difference(self, RecordedCall other):
        """Return how another call differs, but for the addresses and the order of its arrays; None if it does not."""
        cdef const Call* a = &self.call
        cdef const Call* b = &other.call
        cdef int i
        if self.name != other.name or a.op != b.op or a.source != b.source or a.rounds != b.rounds:
            return f"it calls the kernel {other.name} in place of {self.name}"
        if (memcmp(a.size, b.size, sizeof(a.size)) or memcmp(a.window, b.window, sizeof(a.window))
                or a.accumulate != b.accumulate or self.constants != other.constants):
            return f"it calls the kernel {other.name} with other sizes"
        if memcmp(a.scalar, b.scalar, sizeof(a.scalar)):
            return f"it calls the kernel {other.name} with another number"
        for i in range(MAX_OPERANDS):
            if memcmp(a.operand[i].stride, b.operand[i].stride, sizeof(a.operand[i].stride)):
                return f"it calls the kernel {other.name} with other strides"
        return None

    def release(self):
        """Drop the arrays. The call must not run until every operand is placed again."""
        self.arrays = ()

    def place(self, int operand, Py_ssize_t address):
        """Set the address of an operand."""
        self.call.operand[operand].data = <char*> address

    def with_epilogue(self, RecordedCall after, tuple y, list strides):
        """This call with the elementwise call `after` fused into it. matmul.pyx says which operands it then has.

        `y` are the strides of its own result in elements, rows first. `strides` has the strides of each operand of the
        epilogue, or None if the operand is absent or a number. `y` is None if all operands have the memory layout of
        the result, and it is not the layout of a matrix.
        """
        cdef RecordedCall fused = self.with_strides(y, f"{self.name}_{after.name}")
        cdef Call* call = &fused.call
        cdef int i
        call.op, call.work = after.call.op, self.call.work + after.call.work
        call.epilogue_scalar[0], call.epilogue_scalar[1] = after.call.scalar[0], after.call.scalar[1]
        for i in range(len(strides)):
            if strides[i] is not None and y is None:
                call.operand[EPILOGUE + i].stride[0] = 1
            elif strides[i] is not None:
                call.operand[EPILOGUE + i].stride[0], call.operand[EPILOGUE + i].stride[1] = strides[i]
            elif after.constants >> i & 1:
                call.operand[EPILOGUE + i].data = after.call.operand[i].data
                fused.numbers[EPILOGUE + i] = after.numbers[i]
        return fused

    def with_bias(self, tuple y):
        """This product, prepared for a bias as operand 3. `y` is as in `with_epilogue`."""
        return self.with_strides(y, self.name)

    cdef RecordedCall with_strides(self, tuple y, str name):
        cdef RecordedCall fused = RecordedCall.__new__(RecordedCall)
        fused.call, fused.kernel, fused.name, fused.arrays = self.call, self.kernel, name, ()
        fused.reads, fused.writes, fused.constants = self.reads, self.writes, self.constants
        fused.on_stop, fused.checked, fused.numbers = self.on_stop, self.checked, dict(self.numbers)
        if y is not None:
            fused.call.operand[0].stride[0], fused.call.operand[0].stride[1] = y
        return fused
