"""A recorded step, with operands as places in memory: a buffer, an offset, strides.

The reasoning of the passes rests on one distinction. A buffer is *temporary* if the step writes it before it reads it
and nobody else can see it once the recording is over, which weak references tell. All else, parameters, gradients,
results, constants, stays where it lies, and is read and written there.
"""
cimport numpy as cnp

import weakref
from collections import namedtuple

import numpy as np

from caffelite._kernels.record cimport RecordedCall

cnp.import_array()


cdef class Buffer:
    """Memory that a recorded step works on: what one array owns."""
    cdef readonly object owner            # a weak reference to that array
    cdef public object address            # None: to be placed
    cdef readonly Py_ssize_t nbytes
    cdef readonly object written          # whether the step has written it so far: all, nothing, or byte by byte
    cdef readonly object read_early       # the call that read it before all of it was written, its name and line
    cdef public bint temporary

    def __init__(self, cnp.ndarray owner not None):
        self.owner, self.nbytes = weakref.ref(owner), cnp.PyArray_NBYTES(owner)
        self.address, self.written, self.read_early = <Py_ssize_t> cnp.PyArray_DATA(owner), False, None


cdef class Operand:
    """Where an operand of a call lies, and what it is."""
    cdef readonly Buffer buffer
    cdef readonly Py_ssize_t offset       # bytes
    cdef readonly tuple shape
    cdef readonly tuple strides           # bytes
    cdef readonly cnp.dtype dtype
    cdef readonly Py_ssize_t nbytes

    def __init__(self, Buffer buffer not None, cnp.ndarray array not None):
        self.buffer, self.offset = buffer, <Py_ssize_t> cnp.PyArray_DATA(array) - <Py_ssize_t> buffer.address
        self.shape, self.strides = (<object> array).shape, (<object> array).strides
        self.dtype, self.nbytes = array.descr, cnp.PyArray_NBYTES(array)

    def __eq__(self, other):
        return isinstance(other, Operand) and self.is_like(other)

    def __hash__(self):
        return hash((self.offset, self.shape))

    cdef bint is_like(self, Operand other):
        return (self.buffer is other.buffer and self.offset == other.offset and self.shape == other.shape
                and self.strides == other.strides and self.dtype == other.dtype)

    def as_matrix(self):
        """The same elements, all axes but the last made one, or as they are if there are no more than two; None where
        they do not lie so."""
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
        """Whether the step has written all of this operand."""
        if self.nbytes == 0 or isinstance(self.buffer.written, bool):
            return self.nbytes == 0 or self.buffer.written
        return self.bytes_of(self.buffer.written).all()

    cdef int note_written(self) except -1:
        """The step writes all of this operand."""
        if self.nbytes == self.buffer.nbytes:
            self.buffer.written = True
        elif self.buffer.written is not True and self.nbytes > 0:
            if self.buffer.written is False:
                self.buffer.written = np.zeros(self.buffer.nbytes, np.bool_)
            self.bytes_of(self.buffer.written)[...] = True
        return 0

    cdef object bytes_of(self, buffer):
        """Its bytes among those of the buffer, as a view."""
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        return np.ndarray(shape, buffer.dtype, buffer, self.offset, strides)


cdef class Instruction:
    """A recorded call with its operands, output first, None where there is none; and what it reads and writes."""
    cdef readonly RecordedCall call
    cdef readonly list operands, reads, writes

    def __init__(self, RecordedCall call not None, list operands, list reads, list writes):
        self.call, self.operands, self.reads, self.writes = call, operands, reads, writes

    def placed(self):
        """The call, told where its operands lie."""
        cdef Operand operand
        cdef Py_ssize_t i
        for i in range(len(self.operands)):
            operand = self.operands[i]
            if operand is not None:
                self.call.place(i, operand.buffer.address + operand.offset)
        return self.call


class Step(namedtuple("Step", ("instructions", "memory"))):
    """A recorded step: instructions, and calls into Python between them; and what its calls' addresses point into,
    which has to live as long as they do."""

    def operands(self):
        """All operands of kernel calls, each with the number of its instruction, in order."""
        found = []
        for i, instruction in enumerate(self.instructions):
            if isinstance(instruction, Instruction):
                found += [(i, operand) for operand in (<Instruction> instruction).operands if operand is not None]
        return found


def recorded_step(list entries):
    """A recording's entries as a Step, and all buffers that it works on.

    The entries let go of their arrays, so that weak references tell who else holds them.
    """
    cdef dict buffers = {}
    cdef list numbers = [], instructions = [], operands, read, written
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
                numbers.append(array)
                continue
            owner = owner_of(array)
            buffer = buffers.get(id(owner))
            if buffer is None:
                buffer = buffers[id(owner)] = Buffer(owner)
            operand = Operand(buffer, array)
            operands.append(operand)
            if call.reads >> i & 1:
                read.append(buffer)
                if buffer.read_early is None and not operand.is_written():
                    buffer.read_early = call.name, call.line
            if call.writes >> i & 1:
                written.append(operand)
        for operand in written:
            operand.note_written()
        instructions.append(Instruction(call, operands, read, [operand.buffer for operand in written]))
    for entry in entries:
        if isinstance(entry, RecordedCall):
            (<RecordedCall> entry).arrays = ()
    return Step(instructions, numbers), list(buffers.values())


cpdef owner_of(array):
    """The array that owns the memory."""
    while isinstance(base := cnp.get_array_base(array), cnp.ndarray):
        array = base
    return array
