"""Replaying: one loop runs the recorded calls one after the other, without Python.

If there is a call into Python between them, the loop takes the GIL, makes the call, and goes on.
"""
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.math cimport INFINITY, NAN, isfinite
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset
cimport numpy as cnp

from time import get_clock_info

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.launch cimport (
    ThreadTuner, available_threads, begin_replay, end_replay, is_divided, is_user_set, run
)
from caffelite._kernels.record cimport RecordedCall

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

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
    """A list of recorded kernel calls and Python callables, which `run()` runs in order, the kernels without the GIL.

    `run()` returns None, or the entry that stopped the step. If a callable raises an exception, `run()` raises it too.
    The Replay keeps `memory` alive: the objects that hold the operands, if the recorded calls do not hold them.
    """

    def __cinit__(self, list entries, memory=None):
        cdef Py_ssize_t i
        self.entries = entries
        self.memory = memory
        self.tuner = ThreadTuner()
        self.length = len(entries)
        self.calls = <Call*> PyMem_Malloc(max(self.length, 1) * sizeof(Call))
        if self.calls == NULL:
            raise MemoryError()
        for i in range(self.length):
            if isinstance(entries[i], RecordedCall):
                self.calls[i] = (<RecordedCall> entries[i]).call
                self.has_divided = self.has_divided or is_divided(&self.calls[i])
            else:
                self.calls[i].loop = NULL

    def __dealloc__(self):
        PyMem_Free(self.calls)

    def __len__(self):
        return self.length

    cdef int run_all(self, double* fastest=NULL) noexcept nogil:
        """Run all entries. Element i of `fastest`, if given, becomes the time of entry i in seconds if that is less."""
        cdef int threads = available_threads() if self.has_divided else 1, stop
        if threads == 1 or is_user_set():
            return self.run_calls(threads, fastest)
        threads = self.tuner.begin(threads, seconds_now())
        stop = self.run_calls(threads, fastest)
        self.tuner.end(seconds_now())
        return stop

    cdef int run_calls(self, int threads, double* fastest) noexcept nogil:
        cdef Py_ssize_t i
        cdef int stop
        cdef double before = 0 if fastest == NULL else seconds_now(), after
        for i in range(self.length):
            stop = run(&self.calls[i], threads) if self.calls[i].loop != NULL else self.call_python(i)
            if stop != CONTINUE:
                self.stopped_at = i
                return stop
            if fastest != NULL:
                after = seconds_now()
                fastest[i] = min(fastest[i], after - before)
                before = after
        return CONTINUE

    cdef int call_python(self, Py_ssize_t i) noexcept with gil:
        end_replay()                      # the callable may start a replay of its own
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
        """Return the least time in seconds that each entry took in this many replays, at least a tick of the clock."""
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
            stopped.raise_error()
        tick = get_clock_info("perf_counter").resolution  # 100 ns on Windows
        return np.maximum(best, tick)


cdef class EpochHook:
    """Base class of calls that an EpochReplay makes after each of its epochs, without Python. `next` is called then."""
    cdef public EpochHook next

    cdef bint call(self) noexcept nogil:
        """Do the work. Return False if the replay must not go on."""
        return True

    cdef bint call_all(self) noexcept nogil:
        return self.call() and (self.next is None or self.next.call_all())


cdef class EpochReplay:
    """Epochs of batches that are in memory. Batches of a form have the same shapes, and the same replay.

    `epoch` and `batch` count the epochs and batches that are done, and `run` goes on from there.

    columns : the contiguous arrays that hold the rows.
    order : int64 (n,), the order of the rows in the epoch.
    shuffle : the Replay that writes the next epoch's order into `order`, or None.
    sums : (epochs, quantities, 2). Epoch e adds what it measures to row e modulo the length.
    cursor : through it the replays find their batch.
    rows, full_batches, batches : the first `full_batches` of the batches have `rows` rows, the last one has the rest.
    forms : the number of forms. A last batch of another size has the last form.
    row_forms : int64, for each row the first form that it fits into; a full batch has the largest one of its rows. If
        it is None, all full batches have form 0.
    counted_rows : bool (n,), the rows that count; None if all count. A batch without such a row is passed over.
    pending : if its element is not 0, `run` ends after the current batch.

    `form` is the form of the current batch. `epoch_hook`, if it is not None, is called after each epoch that `run`
    ends. If `needs_python`, `run` has ended before a batch whose form has no replay.
    """
    cdef public EpochHook epoch_hook
    cdef public Py_ssize_t epoch, batch
    cdef readonly Py_ssize_t batches, full_batches, form
    cdef readonly bint needs_python
    cdef bint begun
    cdef const int64_t* row_forms
    cdef void** replays                   # of each form, NULL if it has none
    cdef list replay_list                 # the same
    cdef Cursor* cursor
    cdef Cursor own_cursor                # the cursor's value for these epochs; others may use the same replays
    cdef const int32_t* pending
    cdef const char* counted_rows
    cdef Replay shuffle
    cdef Py_ssize_t n, rows, forms, sums_length, sums_stride
    cdef char* sums
    cdef char** addresses                 # of the columns
    cdef list columns
    cdef tuple arrays

    def __cinit__(self, list columns, *arguments):
        self.addresses = <char**> PyMem_Malloc(len(columns) * sizeof(char*))
        if self.addresses == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.addresses)
        PyMem_Free(self.replays)

    def __init__(self, list columns, cnp.ndarray order not None, Replay shuffle, cnp.ndarray sums not None,
                 cnp.ndarray cursor not None, Py_ssize_t rows, Py_ssize_t full_batches, Py_ssize_t batches,
                 Py_ssize_t forms, cnp.ndarray row_forms=None, cnp.ndarray counted_rows=None, cnp.ndarray pending=None):
        self.arrays = (order, sums, cursor, row_forms, counted_rows, pending)
        self.forms, self.replays = forms, <void**> PyMem_Realloc(self.replays, max(forms, 1) * sizeof(void*))
        if self.replays == NULL:
            raise MemoryError()
        self.set_replays([None] * forms)
        self.row_forms = NULL if row_forms is None else <const int64_t*> cnp.PyArray_DATA(row_forms)
        self.columns, self.shuffle = [None] * len(columns), shuffle
        self.sums = <char*> cnp.PyArray_DATA(sums)
        self.sums_length, self.sums_stride = cnp.PyArray_DIM(sums, 0), cnp.PyArray_STRIDE(sums, 0)
        self.pending = NULL if pending is None else <const int32_t*> cnp.PyArray_DATA(pending)
        self.counted_rows = NULL if counted_rows is None else <const char*> cnp.PyArray_DATA(counted_rows)
        self.cursor = <Cursor*> cnp.PyArray_DATA(cursor)
        self.own_cursor.columns = self.addresses
        self.own_cursor.order = <const int64_t*> cnp.PyArray_DATA(order)
        self.own_cursor.position = self.own_cursor.measured = 0
        for i, column in enumerate(columns):
            self.place(i, column)
        self.n, self.rows, self.batches, self.full_batches = len(order), rows, batches, full_batches
        self.epoch = self.batch = 0
        self.begun = True                 # `order` is already the first epoch's

    @property
    def measured_rows(self):
        """How many rows of this epoch have been measured."""
        return self.own_cursor.measured

    def place(self, Py_ssize_t column, cnp.ndarray array):
        """Set the array of a column, None if there is none yet. The number after the last column adds a column."""
        cdef char** addresses
        if column == len(self.columns):
            addresses = <char**> PyMem_Realloc(self.addresses, (column + 1) * sizeof(char*))
            if addresses == NULL:
                raise MemoryError()
            if self.cursor.columns == self.addresses:
                self.cursor.columns = addresses
            self.addresses = self.own_cursor.columns = addresses
            self.columns.append(None)
        self.columns[column] = array
        self.addresses[column] = NULL if array is None else <char*> cnp.PyArray_DATA(array)

    def set_replays(self, list replays):
        """Set the replay of each form, or None."""
        cdef Replay replay
        assert len(replays) == self.forms
        for i, replay in enumerate(replays):
            self.replays[i] = <void*> replay if replay is not None else NULL
        self.replay_list = replays

    def go_to(self, Py_ssize_t epoch, Py_ssize_t batch, Py_ssize_t measured):
        """Go to the point where `epoch` epochs and `batch` batches of the next are done and `measured` rows measured.

        `order` must be the order of the epoch that is under way. Between two epochs it must be the order of the first.
        """
        self.epoch, self.batch = epoch, batch
        self.begun = epoch == 0 or batch > 0
        self.own_cursor.position, self.own_cursor.measured = batch * self.rows, measured

    cdef void begin_batch(self) noexcept nogil:
        """Find the form of the next batch. If it is the first of an epoch, shuffle and reset the sums."""
        cdef Py_ssize_t i
        self.own_cursor.sums = <Mean*> (self.sums + self.epoch % self.sums_length * self.sums_stride)
        if self.batch == 0 and not self.begun:
            if self.shuffle is not None:
                self.shuffle.run_all()
            memset(self.own_cursor.sums, 0, self.sums_stride)
            self.own_cursor.position = self.own_cursor.measured = 0
            self.begun = True
        self.form = 0
        if self.batch == self.full_batches:
            self.form = self.forms - 1
        elif self.row_forms != NULL:
            for i in range(self.own_cursor.position, self.end()):
                self.form = max(self.form, self.row_forms[self.own_cursor.order[i]])

    cdef Py_ssize_t end(self) noexcept nogil:
        """Return where the next batch ends in the order."""
        return self.own_cursor.position + self.rows if self.batch < self.full_batches else self.n

    cdef bint skips_batch(self) noexcept nogil:
        """Return True, and move the cursor to the next batch, if no row of this batch counts."""
        cdef Py_ssize_t i, end = self.end()
        if self.counted_rows == NULL:
            return False
        for i in range(self.own_cursor.position, end):
            if self.counted_rows[self.own_cursor.order[i]]:
                return False
        self.cursor.position = end
        return True

    cdef bint is_interrupted(self) noexcept nogil:
        return self.pending != NULL and self.pending[0] != 0

    cdef void end_batch(self) noexcept nogil:
        self.own_cursor = self.cursor[0]
        self.batch += 1
        if self.batch == self.batches:
            self.batch = 0
            self.epoch += 1
            self.begun = False

    def run_in_python(self, step):
        """Run the next batch by calling `step(form)`, which finds the batch through the cursor."""
        self.begin_batch()
        self.cursor[0] = self.own_cursor
        if not self.skips_batch():
            step(self.form)
        self.end_batch()

    def run(self, Py_ssize_t epochs, double seconds, Py_ssize_t steps):
        """Go on for `steps` steps, until `epochs` epochs are done, `seconds` are over, or a batch has no replay yet.

        Return None, or the entry that stopped the step. In that case the same batch comes next again.
        """
        cdef int stop
        begin_replay()
        with nogil:
            stop = self.run_on(epochs, seconds_now() + seconds, steps)
        end_replay()
        return self.batch_result(stop)

    cdef object batch_result(self, int stop):
        """Return None, or the entry that stopped the step of the next batch; raise what it raised."""
        return None if stop == CONTINUE else (<Replay> self.replay_list[self.form]).result(stop)

    cdef int run_on(self, Py_ssize_t epochs, double end, Py_ssize_t steps) noexcept nogil:
        """Run as `run` does, until `end` in seconds. Return CONTINUE, or why the step of the next batch stopped."""
        cdef int stop
        self.needs_python = False
        while self.epoch < epochs and steps > 0 and not self.is_interrupted():
            self.begin_batch()
            if self.replays[self.form] == NULL:
                self.needs_python = True
                break
            self.cursor[0] = self.own_cursor
            if not self.skips_batch():
                stop = (<Replay> self.replays[self.form]).run_all()
                if stop != CONTINUE:
                    return stop
            self.end_batch()
            steps -= 1
            if self.batch == 0 and self.epoch_hook is not None and not self.epoch_hook.call_all():
                break
            if seconds_now() >= end:  # asked after a step, because each run takes one
                break
        return CONTINUE


cdef class EvaluationHook(EpochHook):
    """Runs one epoch of other batches. The replay does not go on if that one stops.

    `has_loss_first` says whether the first mean is the loss.
    """
    cdef readonly EpochReplay replay
    cdef readonly bint has_loss_first

    def __init__(self, EpochReplay replay not None, bint has_loss_first):
        self.replay, self.has_loss_first = replay, has_loss_first

    cdef bint call(self) noexcept nogil:
        cdef Py_ssize_t end = self.replay.epoch + 1
        return self.replay.run_on(end, INFINITY, PY_SSIZE_T_MAX) == CONTINUE and self.replay.epoch == end


cdef class BestHook(EpochHook):
    """Copies arrays if the first mean of another replay's last epoch is the least so far.

    The replay does not go on after `patience` epochs in a row that are not better than the best by more than
    `min_delta`. `best` is infinite and `waited` 0 at first; see `training.callbacks.Monitor`.

    arrays : pairs (from, to) of contiguous arrays of the same size.
    """
    cdef EpochReplay replay
    cdef double best, min_delta
    cdef readonly Py_ssize_t calls        # that were made
    cdef Py_ssize_t waited, patience, length
    cdef char** addresses                 # of the arrays, two for each pair
    cdef size_t* sizes                    # in bytes
    cdef list arrays

    def __cinit__(self, replay, double best, Py_ssize_t waited, Py_ssize_t patience, double min_delta, list arrays):
        self.replay, self.best, self.min_delta, self.arrays = replay, best, min_delta, arrays
        self.waited, self.patience, self.length = waited, patience, len(arrays)
        self.addresses = <char**> PyMem_Malloc(2 * max(self.length, 1) * sizeof(char*))
        self.sizes = <size_t*> PyMem_Malloc(max(self.length, 1) * sizeof(size_t))
        if self.addresses == NULL or self.sizes == NULL:
            raise MemoryError()
        for i, (source, target) in enumerate(arrays):
            self.addresses[2 * i] = <char*> cnp.PyArray_DATA(source)
            self.addresses[2 * i + 1] = <char*> cnp.PyArray_DATA(target)
            self.sizes[i] = cnp.PyArray_NBYTES(source)

    def __dealloc__(self):
        PyMem_Free(self.addresses)
        PyMem_Free(self.sizes)

    cdef bint call(self) noexcept nogil:
        cdef Py_ssize_t last = (self.replay.epoch - 1) % self.replay.sums_length
        cdef Mean* sums = <Mean*> (self.replay.sums + last * self.replay.sums_stride)
        cdef double value = sums.total / sums.weight if sums.weight > 0 else NAN
        cdef double better = self.best - value if isfinite(value) else 0
        cdef Py_ssize_t i
        self.calls += 1
        self.waited = 0 if better > self.min_delta else self.waited + 1
        if better > 0:
            self.best = value
            for i in range(self.length):
                memcpy(self.addresses[2 * i + 1], self.addresses[2 * i], self.sizes[i])
        return self.waited < self.patience
