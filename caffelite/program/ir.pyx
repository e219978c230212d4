"""A recorded step, whose operands are places in memory: a buffer, an offset, strides.

The passes depend on one distinction. A buffer is *temporary* if the step writes it before it reads it, and nobody else
uses its array after the recording. Weak references tell whether somebody does. All other buffers (parameters,
gradients, results, constants) stay at their address, and the step reads and writes them there.
"""
cimport numpy as cnp

import weakref
from collections import namedtuple

import numpy as np

from caffelite._kernels.record cimport RecordedCall

cnp.import_array()


cdef class Buffer:
    """Memory that a recorded step uses: the memory of one array that owns its data."""
    cdef readonly Py_ssize_t number       # in the order in which the step first uses its buffers
    cdef readonly object owner            # a weak reference to that array
    cdef public object address            # None: not placed yet
    cdef readonly Py_ssize_t nbytes
    cdef readonly object written          # whether the step has written it: True, False, or bool for each byte
    cdef readonly object early_read       # (name, line) of the call that read it before it was written
    cdef public bint is_temporary

    def __init__(self, cnp.ndarray owner not None, Py_ssize_t number):
        self.owner, self.nbytes, self.number = weakref.ref(owner), cnp.PyArray_NBYTES(owner), number
        self.address, self.written, self.early_read = <Py_ssize_t> cnp.PyArray_DATA(owner), False, None


cdef tuple make_tuple(int n, const cnp.npy_intp* numbers):
    """The shape or the strides of an array. (The attributes of an array in a recorded step take ten times as long.)"""
    return tuple([numbers[i] for i in range(n)])


cdef class Operand:
    """The place of a call's operand in memory, with its shape and dtype."""
    cdef readonly Buffer buffer
    cdef readonly Py_ssize_t offset       # bytes
    cdef readonly tuple shape
    cdef readonly tuple strides           # bytes
    cdef readonly cnp.dtype dtype
    cdef readonly Py_ssize_t nbytes

    def __init__(self, Buffer buffer not None, cnp.ndarray array not None):
        self.buffer, self.offset = buffer, <Py_ssize_t> cnp.PyArray_DATA(array) - <Py_ssize_t> buffer.address
        self.shape = make_tuple(cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array))
        self.strides = make_tuple(cnp.PyArray_NDIM(array), cnp.PyArray_STRIDES(array))
        self.dtype, self.nbytes = array.descr, cnp.PyArray_NBYTES(array)

    def __eq__(self, other):
        return isinstance(other, Operand) and self.is_like(other)

    def __hash__(self):
        return hash((self.offset, self.shape))

    cdef bint is_like(self, Operand other):
        return (self.buffer is other.buffer and self.offset == other.offset and self.shape == other.shape
                and self.strides == other.strides and self.dtype == other.dtype)

    def as_matrix(self):
        """The same elements as a matrix: all axes but the last become one. None if the strides do not allow it.

        An operand of at most two axes stays as it is.
        """
        cdef Operand matrix
        cdef Py_ssize_t d, last = len(self.shape) - 1, rows = 1
        if last < 2:
            return self
        for d in range(last):
            rows *= self.shape[d]
            if d < last - 1 and self.strides[d] != self.strides[d + 1] * self.shape[d + 1]:
                return None
        matrix = Operand.__new__(Operand)
        matrix.buffer, matrix.offset, matrix.dtype, matrix.nbytes = self.buffer, self.offset, self.dtype, self.nbytes
        matrix.shape, matrix.strides = (rows, self.shape[last]), self.strides[last - 1:]
        return matrix

    cdef bint is_written(self):
        """Return whether the step has written all of this operand."""
        if self.nbytes == 0 or isinstance(self.buffer.written, bool):
            return self.nbytes == 0 or self.buffer.written
        return self.view_bytes(self.buffer.written).all()

    cdef int mark_written(self) except -1:
        """Record that the step writes all of this operand."""
        if self.nbytes == self.buffer.nbytes:
            self.buffer.written = True
        elif self.buffer.written is not True and self.nbytes > 0:
            if self.buffer.written is False:
                self.buffer.written = np.zeros(self.buffer.nbytes, np.bool_)
            self.view_bytes(self.buffer.written)[...] = True
        return 0

    cdef object view_bytes(self, buffer):
        """A view of this operand's bytes in an array with an element for each byte of the buffer."""
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        return np.ndarray(shape, buffer.dtype, buffer, self.offset, strides)


cdef class Instruction:
    """A recorded call with its operands, output first (None: no operand), and the buffers that it reads and writes."""
    cdef readonly RecordedCall call
    cdef readonly list operands, reads, writes

    def __init__(self, RecordedCall call not None, list operands, list reads, list writes):
        self.call, self.operands, self.reads, self.writes = call, operands, reads, writes

    def assign_addresses(self):
        """The call, with the addresses of its operands set."""
        cdef Operand operand
        cdef Py_ssize_t i
        for i in range(len(self.operands)):
            operand = self.operands[i]
            if operand is not None:
                self.call.place(i, operand.buffer.address + operand.offset)
        return self.call

    def find_difference(self, Instruction other):
        """Return how another call differs; None if it computes the same from the buffers of the same numbers."""
        cdef Operand a, b
        difference = self.call.find_difference(other.call)
        if difference is not None:
            return difference
        if len(self.operands) != len(other.operands):
            return f"it calls the kernel {other.call.name} with another number of arrays"
        for a, b in zip(self.operands, other.operands):
            if (a is None) != (b is None):
                return f"it calls the kernel {other.call.name} with a number in place of an array, or the reverse"
            if a is not None and (a.shape != b.shape or a.strides != b.strides or a.dtype != b.dtype):
                return f"it calls the kernel {other.call.name} on shape {b.shape} in place of {a.shape}"
            if a is not None and (a.buffer.number != b.buffer.number or a.offset != b.offset):
                return f"it calls the kernel {other.call.name} on another array"
        return None


class RecordedStep(namedtuple("RecordedStep", ("instructions", "memory"))):
    """A recorded step: its instructions, with calls into Python between them, and its memory.

    `memory` has the objects that the calls' addresses point into, to keep them alive.
    """

    def operands(self):
        """All operands of kernel calls, each with the number of its instruction, in order."""
        pairs = []
        for i, instruction in enumerate(self.instructions):
            if isinstance(instruction, Instruction):
                pairs += [(i, operand) for operand in (<Instruction> instruction).operands if operand is not None]
        return pairs


def lower_entries(list entries):
    """Convert a recording's entries to a RecordedStep, and return it with all its buffers.

    The entries drop their arrays. After that, weak references tell which arrays somebody else still uses.
    """
    cdef dict buffers = {}
    cdef list memory = [], instructions = [], operands, read, written
    cdef RecordedCall call
    cdef Operand operand
    cdef Buffer buffer
    cdef int i
    for entry in entries:
        if not isinstance(entry, RecordedCall):
            instructions.append(entry)
            continue
        call, operands, read, written = entry, [], [], []
        for i in range(len(call.arrays)):
            array = call.arrays[i]
            if array is None or call.constants >> i & 1:
                operands.append(None)
                memory.append(array)
                continue
            owner = get_owner(array)
            buffer = buffers.get(id(owner))
            if buffer is None:
                buffer = buffers[id(owner)] = Buffer(owner, len(buffers))
            operand = Operand(buffer, array)
            operands.append(operand)
            if call.reads >> i & 1:
                read.append(buffer)
                if buffer.early_read is None and not operand.is_written():
                    buffer.early_read = call.name, call.line
            if call.writes >> i & 1:
                written.append(operand)
        for operand in written:
            operand.mark_written()
        instructions.append(Instruction(call, operands, read, [operand.buffer for operand in written]))
    for buffer in buffers.values():
        buffer.written = buffer.written is not False  # an array has a byte for each byte of the buffer
    for entry in entries:
        if isinstance(entry, RecordedCall):
            (<RecordedCall> entry).arrays = ()
    return RecordedStep(instructions, memory), list(buffers.values())


def written_ids(list entries):
    """The ids of the arrays into which these calls write; for a view, the id of its memory's owner."""
    cdef RecordedCall call
    cdef set ids = set()
    cdef int i
    for entry in entries:
        if isinstance(entry, RecordedCall):
            call = entry
            for i in range(len(call.arrays)):
                if call.writes >> i & 1 and call.arrays[i] is not None:
                    ids.add(id(get_owner(call.arrays[i])))
    return ids


cpdef get_owner(array):
    """The array that owns the memory of this array."""
    while isinstance(base := cnp.get_array_base(array), cnp.ndarray):
        array = base
    return array
