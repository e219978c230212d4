"""Replaying: recorded calls one after the other, in one loop without Python.

Where a call into Python stands between them, the loop takes the GIL, makes it, and goes on.
"""
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
cimport numpy as cnp

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.launch cimport begin_replay, end_replay, run
from caffelite._kernels.record cimport RecordedCall

cnp.import_array()

cdef extern from *:
    """
    #include <time.h>

    static double seconds_now(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    """
    double seconds_now() noexcept nogil


cdef class Replay:
    """Recorded kernels, and callables for calls into Python, run one after the other without the GIL.

    `run()` runs them once: None, or the entry that wants the step to stop. What a callable raises comes through.
    `memory` is kept as long as it is: what the kernels' operands lie in, where the kernels don't hold it themselves.
    """

    def __cinit__(self, list entries, memory=None):
        cdef Py_ssize_t i
        self.entries = entries
        self.memory = memory
        self.length = len(entries)
        self.calls = <Call*> PyMem_Malloc(max(self.length, 1) * sizeof(Call))
        if self.calls == NULL:
            raise MemoryError()
        for i in range(self.length):
            if isinstance(entries[i], RecordedCall):
                self.calls[i] = (<RecordedCall> entries[i]).call
            else:
                self.calls[i].loop = NULL

    def __dealloc__(self):
        PyMem_Free(self.calls)

    def __len__(self):
        return self.length

    cdef int run_all(self, double* fastest=NULL) noexcept nogil:
        """Run all entries; with `fastest`, note there the time in seconds of each that was faster than before."""
        cdef Py_ssize_t i
        cdef int stop
        cdef double before = 0 if fastest == NULL else seconds_now(), after
        for i in range(self.length):
            stop = run(&self.calls[i]) if self.calls[i].loop != NULL else self.call_python(i)
            if stop != CONTINUE:
                self.stopped_at = i
                return stop
            if fastest != NULL:
                after = seconds_now()
                fastest[i] = min(fastest[i], after - before)
                before = after
        return CONTINUE

    cdef int call_python(self, Py_ssize_t i) noexcept with gil:
        end_replay()                      # Python may replay something else meanwhile
        try:
            self.entries[i]()
            return CONTINUE
        except BaseException as error:
            self.error = error
            return PYTHON_ERROR
        finally:
            begin_replay()

    cdef object result(self, int stop):
        if stop == PYTHON_ERROR:
            error, self.error = self.error, None
            raise error
        return None if stop == CONTINUE else self.entries[self.stopped_at]

    cdef object run_once(self):
        cdef int stop
        begin_replay()
        with nogil:
            stop = self.run_all()
        end_replay()
        return self.result(stop)

    def run(self):
        return self.run_once()

    def seconds(self, Py_ssize_t replays):
        """The time in seconds that each entry took, in the fastest of so many replays."""
        cdef cnp.ndarray best = np.full(self.length, np.inf)
        cdef Py_ssize_t _n
        cdef int stop = CONTINUE
        begin_replay()
        with nogil:
            for _n in range(replays):
                stop = self.run_all(<double*> cnp.PyArray_DATA(best))
                if stop != CONTINUE:
                    break
        end_replay()
        stopped = self.result(stop)
        if stopped is not None:
            stopped.raise_why()
        return best


cdef class EpochReplay:
    """Epochs of batches that are in memory: one replay for the full batches, one for a last one of another length.

    `run` goes on from `epoch` and `batch`, which count what is done. The replays find their batch through `cursor`, in
    contiguous `columns`, by `order`, `rows` at a time in the first `full_batches`, and in the last what is left. `sums`
    (epochs, quantities, 2) has a row for each of the last epochs, begun again from its first. `shuffle` is the recorded
    kernel that brings `order` into the next epoch's, or None. `counts`, bool (n,), says which rows count, None that all
    do: a batch of which none does is passed over. A number that is not 0 in `pending` ends `run` after the batch under
    way.
    """
    cdef public Replay full, last
    cdef public Py_ssize_t epoch, batch
    cdef readonly Py_ssize_t batches, full_batches
    cdef bint begun
    cdef Cursor* cursor
    cdef Cursor here                      # what the cursor has to hold; others with the same replays have their own
    cdef const int32_t* pending
    cdef const char* counts
    cdef RecordedCall shuffle
    cdef Py_ssize_t n, rows, sums_length, sums_stride
    cdef char* sums
    cdef char** addresses                 # of the columns
    cdef list columns
    cdef tuple arrays

    def __cinit__(self, list columns, *others):
        self.addresses = <char**> PyMem_Malloc(len(columns) * sizeof(char*))
        if self.addresses == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.addresses)

    def __init__(self, list columns, cnp.ndarray order not None, RecordedCall shuffle, cnp.ndarray sums not None,
                 cnp.ndarray cursor not None, Py_ssize_t rows, Py_ssize_t full_batches, Py_ssize_t batches,
                 cnp.ndarray counts=None, cnp.ndarray pending=None):
        self.arrays = (order, sums, cursor, counts, pending)
        self.columns, self.shuffle = [None] * len(columns), shuffle
        self.sums = <char*> cnp.PyArray_DATA(sums)
        self.sums_length, self.sums_stride = cnp.PyArray_DIM(sums, 0), cnp.PyArray_STRIDE(sums, 0)
        self.pending = NULL if pending is None else <const int32_t*> cnp.PyArray_DATA(pending)
        self.counts = NULL if counts is None else <const char*> cnp.PyArray_DATA(counts)
        self.cursor = <Cursor*> cnp.PyArray_DATA(cursor)
        self.here.columns = self.addresses
        self.here.order = <const int64_t*> cnp.PyArray_DATA(order)
        self.here.position = self.here.measured = 0
        for i, column in enumerate(columns):
            self.place(i, column)
        self.n, self.rows, self.batches, self.full_batches = len(order), rows, batches, full_batches
        self.epoch = self.batch = 0
        self.begun = True                 # `order` is that of the first epoch

    @property
    def measured(self):
        """How many rows of the epoch have been measured."""
        return self.here.measured

    def place(self, Py_ssize_t column, cnp.ndarray array):
        """Say where a column lies; None where that is not known yet. The column after the last one is a new one."""
        cdef char** addresses
        if column == len(self.columns):
            addresses = <char**> PyMem_Realloc(self.addresses, (column + 1) * sizeof(char*))
            if addresses == NULL:
                raise MemoryError()
            if self.cursor.columns == self.addresses:
                self.cursor.columns = addresses
            self.addresses = self.here.columns = addresses
            self.columns.append(None)
        self.columns[column] = array
        self.addresses[column] = NULL if array is None else <char*> cnp.PyArray_DATA(array)

    def go_to(self, Py_ssize_t epoch, Py_ssize_t batch, Py_ssize_t measured):
        """Be where so much is done, in an epoch of which so many rows have been measured.

        `order` is then that of the epoch under way, or of the last one if no batch of the next is done.
        """
        self.epoch, self.batch = epoch, batch
        self.begun = epoch == 0 or batch > 0
        self.here.position, self.here.measured = batch * self.rows, measured

    cdef void begin_batch(self) noexcept nogil:
        """Point the cursor at the batch that is due, in a new order if the epoch is new."""
        self.here.sums = <Mean*> (self.sums + self.epoch % self.sums_length * self.sums_stride)
        if self.batch == 0 and not self.begun:
            if self.shuffle is not None:
                run(&self.shuffle.call)
            memset(self.here.sums, 0, self.sums_stride)
            self.here.position = self.here.measured = 0
            self.begun = True
        self.cursor[0] = self.here

    cdef bint passes_over(self) noexcept nogil:
        """Whether no row of the batch that is due counts; then the cursor is moved on to the next one."""
        cdef Py_ssize_t i, end = self.here.position + self.rows if self.batch < self.full_batches else self.n
        if self.counts == NULL:
            return False
        for i in range(self.here.position, end):
            if self.counts[self.here.order[i]]:
                return False
        self.cursor.position = end
        return True

    cdef bint interrupted(self) noexcept nogil:
        return self.pending != NULL and self.pending[0] != 0

    cdef void end_batch(self) noexcept nogil:
        self.here = self.cursor[0]
        self.batch += 1
        if self.batch == self.batches:
            self.batch = 0
            self.epoch += 1
            self.begun = False

    def step_in_python(self, step):
        """Do the batch that is due by calling `step()`, which finds it through the cursor."""
        self.begin_batch()
        if not self.passes_over():
            step()
        self.end_batch()

    def run(self, Py_ssize_t epochs, double seconds):
        """Go on until so many epochs are done, or for so many seconds, or to a batch that has no replay yet.

        Returns None, or the entry of a replay that wanted the step to stop: that batch is due again.
        """
        cdef double end = seconds_now() + seconds
        cdef Replay replay = None
        cdef int stop = CONTINUE
        cdef Py_ssize_t until
        begin_replay()
        while self.epoch < epochs and stop == CONTINUE and seconds_now() < end and not self.interrupted():
            replay = self.full if self.batch < self.full_batches else self.last
            until = self.full_batches if self.batch < self.full_batches else self.batches
            if replay is None:
                break
            with nogil:
                while True:
                    self.begin_batch()
                    stop = CONTINUE if self.passes_over() else replay.run_all()
                    if stop != CONTINUE:
                        break
                    self.end_batch()
                    if self.batch % until == 0 or seconds_now() >= end or self.interrupted():
                        break
        end_replay()
        return None if replay is None else replay.result(stop)
