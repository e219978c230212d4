"""Running kernel calls, recording them, and replaying what was recorded.

Design
------
(a) `run` is the only place where a loop is started, and holds the only parallel region.
(b) A thread that records has a recorder, any object with a list `entries`. Every call it launches is run, as always,
    and added to that list as a `Kernel`: a copy of the call, and the arrays it was bound to.
(c) A `Tape` is the recorded calls, one after the other in memory, run in one loop without Python. Where a call into
    Python stands between them, the loop takes the GIL, makes it, and goes on.
(d) What kernels return while their thread records is `Recorded`, an array that refuses whatever would compute with it
    or look at its values outside kernels, since a replay would not repeat that.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF, PyObject, PyTypeObject
from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t
cimport numpy as cnp

import weakref

import numpy as np

from caffelite._kernels.call cimport *

cnp.import_array()

cdef extern from *:
    """
    #include <time.h>

    #ifdef _OPENMP
    #include <omp.h>
    #include <pthread.h>
    #define COMPILED_WITH_OPENMP 1

    static void *ask(void *number)
    {
        *(int *)number = omp_get_max_threads();
        return NULL;
    }

    /* OpenMP's number for a thread that nobody has set it for: a new one is asked, since this one's may be set. */
    static int untouched_max_threads(void)
    {
        pthread_t thread;
        int number = omp_get_max_threads();
        if (pthread_create(&thread, NULL, ask, &number) == 0)
            pthread_join(thread, NULL);
        return number;
    }
    #else
    #define COMPILED_WITH_OPENMP 0
    static int omp_get_max_threads(void) { return 1; }
    static int untouched_max_threads(void) { return 1; }
    #endif

    /* What this thread's kernel calls are noted in, or NULL. */
    static _Thread_local PyObject *this_threads_recorder = NULL;

    static double seconds_now(void)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    """
    const bint COMPILED_WITH_OPENMP
    int omp_get_max_threads() noexcept nogil
    int untouched_max_threads() noexcept nogil
    PyObject* this_threads_recorder
    double seconds_now() noexcept nogil

cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(PyTypeObject* subtype, cnp.dtype descr, int ndim, const cnp.npy_intp* shape,
                                const cnp.npy_intp* strides, void* data, int flags, PyObject* like)

OPENMP = bool(COMPILED_WITH_OPENMP)

cdef object ndarray = np.ndarray
cdef int num_threads = 1
cdef int untouched = untouched_max_threads()
cdef bint has_run_in_parallel = False
cdef bint must_be_serial = not OPENMP

# From so much work on, in operations of a matrix product, a call is cut among threads, and lets other Python threads
# run. At 100 GFLOP/s it is 40 µs and 2 µs. Alone, a call gains from a second thread after 5 µs, which is what
# benchmarks/threshold.py measures; in a training step its operands lie in the caches of those who wrote them, and
# moving them has to pay too.
cpdef enum:
    PARALLEL_WORK = 4_000_000
    RELEASE_WORK = 200_000


# ---- running -----------------------------------------------------------------------------------------------------

def set_num_threads(int n):
    """Let kernels use up to n threads; `caffelite.threads` decides how many."""
    global num_threads
    num_threads = n


def get_num_threads():
    """The number that was set."""
    return num_threads


def after_fork():
    """In a forked child: if calls were cut among threads before, none is any more, since OpenMP would wait for threads
    that are not there. Returns whether that is so."""
    global must_be_serial
    must_be_serial = must_be_serial or has_run_in_parallel
    return has_run_in_parallel


cpdef int team_size() noexcept nogil:
    """Among how many threads a call with enough work is cut if it is made on this thread.

    The number that was set; or less, where OpenMP's own number for this thread is less and is not what it is by
    default. Then somebody has lowered it: threadpoolctl, or omp_set_num_threads. (To just the default can't be told
    from not at all.)
    """
    cdef int limit
    if num_threads == 1 or must_be_serial:
        return 1
    limit = omp_get_max_threads()
    return num_threads if limit == untouched else min(num_threads, limit)


cdef int run(const Call* call) noexcept nogil:
    """Run a call: all its parts here, or a share of them on each thread."""
    global has_run_in_parallel
    cdef int threads = 1 if call.work < PARALLEL_WORK or call.parts <= 1 else team_size(), stop = 0
    cdef Py_ssize_t shares, share
    if threads == 1:
        return call.loop(call.operand[0].data, call, 0, call.parts) if call.parts > 0 else CONTINUE
    has_run_in_parallel = True
    shares = min(threads, call.parts)     # in a team of all threads: those of a smaller one would have to be made anew
    for share in prange(shares, num_threads=threads, schedule="static", chunksize=1):
        stop |= call.loop(call.operand[0].data, call,
                          call.parts * share // shares, call.parts * (share + 1) // shares)
    return stop


cdef int launch(str name, Call* call, int writes, int constants, y, a=None, b=None, c=None, d=None) except -1:
    """Run a bound call, and note it if this thread is recording. Returns 0, or why a step must stop.

    Bit i of `writes` says that operand i is written, of `constants` that the border made it, from a number. Operands
    that are not written are read; so are all that are written by a call that accumulates.
    """
    cdef int stop, i
    cdef Kernel kernel
    if call.work < RELEASE_WORK:
        stop = run(call)
    else:
        with nogil:
            stop = run(call)
    if this_threads_recorder != NULL:
        kernel = Kernel.__new__(Kernel)
        kernel.call = call[0]
        kernel.name = name
        kernel.arrays = (y, a, b, c, d)
        kernel.writes = writes
        kernel.constants = constants
        kernel.reads = writes if call.accumulate else 0
        for i in range(MAX_OPERANDS):
            if kernel.arrays[i] is not None and not writes >> i & 1:
                kernel.reads |= 1 << i
        (<object> this_threads_recorder).entries.append(kernel)
    return stop


def address(cnp.ndarray array not None):
    """Where the array's first element lies in memory."""
    return <Py_ssize_t> cnp.PyArray_DATA(array)


def alike(a, cnp.ndarray b not None):
    """Whether a is an array of b's shape and dtype."""
    return (isinstance(a, cnp.ndarray) and cnp.PyArray_SAMESHAPE(a, b)
            and cnp.PyArray_EquivTypes((<cnp.ndarray> a).descr, b.descr))


# ---- recording ---------------------------------------------------------------------------------------------------

def recorder():
    """This thread's recorder, or None."""
    return None if this_threads_recorder == NULL else <object> this_threads_recorder


cdef class Recorder:
    """Base of what notes a thread's kernel calls, in its list `entries`, from entering to leaving.

    RuntimeError if the thread is recording already. (Compiled, so that no Ctrl-C comes between half of entering or
    leaving and the other half.)
    """

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


cdef class Paused:
    """Inside, this thread notes nothing."""
    cdef PyObject* recorder

    def __enter__(self):
        global this_threads_recorder
        self.recorder, this_threads_recorder = this_threads_recorder, NULL

    def __exit__(self, *exception):
        global this_threads_recorder
        this_threads_recorder = self.recorder


cdef cnp.ndarray empty(int ndim, cnp.npy_intp* shape, cnp.dtype dtype):
    """An array for a kernel's output: `Recorded` if this thread is recording."""
    Py_INCREF(dtype)                      # which the new array takes over
    return PyArray_NewFromDescr(<PyTypeObject*> (ndarray if this_threads_recorder == NULL else Recorded),
                                dtype, ndim, shape, NULL, NULL, 0, NULL)


class Recorded(np.ndarray):
    """An array of a step that is being recorded. While its thread records, only kernels may look at its values.

    Shapes, dtypes and views are open to everybody. All else raises TypeError; after the recording it is an array as
    any other.
    """

    OPEN = {"shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides", "flags", "base", "T", "view",
            "reshape", "transpose", "swapaxes", "squeeze", "setflags"}
    OPEN_FUNCTIONS = {np.shape, np.ndim, np.size, np.may_share_memory, np.shares_memory, np.result_type, np.reshape,
                      np.transpose, np.broadcast_to, np.squeeze, np.expand_dims, np.swapaxes, np.moveaxis}

    def __getattribute__(self, name):
        if not name.startswith("__") and name not in Recorded.OPEN and this_threads_recorder != NULL:
            refuse(f"ndarray.{name}")
        return super().__getattribute__(name)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if this_threads_recorder != NULL:
            refuse(f"numpy.{ufunc.__name__}")
        plain = [x.view(np.ndarray) if isinstance(x, Recorded) else x for x in inputs]
        out = tuple([x.view(np.ndarray) if isinstance(x, Recorded) else x for x in options.pop("out", ())])
        return getattr(ufunc, method)(*plain, **(options | {"out": out} if out else options))

    def __array_function__(self, function, types, inputs, options):
        if this_threads_recorder != NULL and function not in Recorded.OPEN_FUNCTIONS:
            refuse(f"numpy.{function.__name__}")
        return super().__array_function__(function, types, inputs, options)

    def __getitem__(self, index):
        item = super().__getitem__(index)
        if this_threads_recorder != NULL and not is_view(item, self):
            refuse("an element's value")
        return item

    def __setitem__(self, index, value):
        if this_threads_recorder != NULL:
            refuse("assigning to elements")
        super().__setitem__(index, value)

    def __iter__(self):
        if self.ndim < 2 and this_threads_recorder != NULL:
            refuse("an element's value")
        return super().__iter__()

    def __float__(self):
        return float(value_of(self))

    def __int__(self):
        return int(value_of(self))

    def __bool__(self):
        return bool(value_of(self))

    def __index__(self):
        return value_of(self).__index__()

    def __format__(self, spec):
        return format(value_of(self), spec)

    def __complex__(self):
        return complex(value_of(self))


def is_view(item, array):
    """Whether what an array's index gave is a view of it, and not a copy or a scalar."""
    return isinstance(item, np.ndarray) and item.base is not None and (item.base is array or item.base is array.base)


def value_of(array):
    if this_threads_recorder != NULL:
        refuse("an array's value")
    return array.view(np.ndarray)


def refuse(what):
    raise TypeError(f"{what} was used on an array of a step that is being recorded; a replay would not repeat it. "
                    "Compute with caffelite's Functions or kernels, or in a Function that is not declared recordable")


def require(bint condition, otherwise, cnp.ndarray checked=None):
    """Call `otherwise`, which raises, unless the condition holds that the last kernel was launched to find out.

    Where this thread records, the replay calls it when that kernel stops the step. With `checked` it is given that
    array; a replay gives it the values of operand 1, int64, as they then are.
    """
    cdef Kernel kernel
    if not condition:
        otherwise() if checked is None else otherwise(checked)
    if this_threads_recorder != NULL:
        entries = (<object> this_threads_recorder).entries
        kernel = entries[len(entries) - 1]
        kernel.otherwise = otherwise
        kernel.checked = None if checked is None else (kernel.arrays[1].shape, kernel.arrays[1].strides)


cdef object int64_values(char* data, tuple shape, tuple strides):
    """A copy of the int64 array at this address."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef cnp.npy_intp steps[NUMPY_MAX_DIMS]
    cdef int d
    cdef cnp.dtype int64 = np.dtype(np.int64)
    for d in range(len(shape)):
        lengths[d], steps[d] = shape[d], strides[d]
    Py_INCREF(int64)                      # which the new array takes over
    return np.array(PyArray_NewFromDescr(<PyTypeObject*> ndarray, int64, len(shape), lengths, steps, data, 0, NULL))


cdef class Kernel:
    """A recorded kernel call: its name, the arrays it was bound to (output first, None where there is none), which of
    them it reads and writes, as bits, and which a border made from a number (`constants`)."""

    def __repr__(self):
        return f"{self.name}{tuple(array.shape for array in self.arrays if array is not None)}"

    def raise_why(self):
        """Raise what the step raises where this call stops it."""
        if self.checked is not None:
            shape, strides = self.checked
            self.otherwise(int64_values(self.call.operand[1].data, shape, strides))
        elif self.otherwise is not None:
            self.otherwise()
        raise FloatingPointError(f"{self!r} stopped the step")

    @property
    def work(self):
        """The FLOPs of a matmul, or of one that takes about as long; it decides whether threads share the call."""
        return self.call.work

    @work.setter
    def work(self, double work):
        self.call.work = work

    @property
    def stops(self):
        """Whether the call may stop a step."""
        return self.name in ("all_finite", "check_labels", "ravel_index")

    def copy(self, str name=None):
        """The same call, by another name, to be changed."""
        cdef Kernel kernel = Kernel.__new__(Kernel)
        kernel.call, kernel.name, kernel.arrays = self.call, name or self.name, self.arrays
        kernel.reads, kernel.writes, kernel.constants = self.reads, self.writes, self.constants
        kernel.otherwise, kernel.checked = self.otherwise, self.checked
        return kernel

    def release(self):
        """Let go of the arrays. Until every operand is placed again, the call must not run."""
        self.arrays = ()

    def place(self, int operand, Py_ssize_t address):
        """Say where an operand lies."""
        self.call.operand[operand].data = <char*> address

    def lay(self, int operand, tuple strides):
        """Say how an operand of a matmul lies: its strides in elements."""
        self.call.operand[operand].stride[0], self.call.operand[operand].stride[1] = strides

    def set_relu(self):
        """Let a matmul store max(y, 0)."""
        self.call.relu = True

    def set_mask(self):
        """Let a matmul have a mask, operand 4."""
        self.reads |= 1 << 4


# ---- what a recording depends on ---------------------------------------------------------------------------------

cdef class Attributes:
    """What some attributes of an object are, to be compared later: by identity, and lists, tuples and dicts also by
    what is in them. With a `count`, also that the object has so many attributes: one more may hide one of its class.

    The object is not kept alive. Once it is gone, it has changed if it was `needed`, and else it has not.
    """
    cdef object of
    cdef bint needed
    cdef Py_ssize_t count
    cdef list names, values, lists, dicts

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
        now = of.__dict__
        if self.count >= 0 and len(<dict> now) != self.count:
            return False
        for i in range(len(self.names)):
            value = PyDict_GetItem(now, self.names[i])
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


def are_unchanged(list attributes):
    """Whether all these `Attributes` are what they were."""
    cdef Attributes one
    for one in attributes:
        if not one.are_unchanged():
            return False
    return True


# ---- replaying ---------------------------------------------------------------------------------------------------

cdef class Tape:
    """Recorded kernels, and callables for calls into Python, run one after the other without the GIL.

    `replay()` runs them once: None, or the entry that wants the step to stop. What a callable raises comes through.
    `memory` is kept as long as the tape: what the kernels' operands lie in, where the kernels don't hold it themselves.
    """
    cdef Call* calls
    cdef Py_ssize_t length, stopped_at
    cdef list entries
    cdef object error, memory

    def __cinit__(self, list entries, memory=None):
        cdef Py_ssize_t i
        self.entries = entries
        self.memory = memory
        self.length = len(entries)
        self.calls = <Call*> PyMem_Malloc(max(self.length, 1) * sizeof(Call))
        if self.calls == NULL:
            raise MemoryError()
        for i in range(self.length):
            if isinstance(entries[i], Kernel):
                self.calls[i] = (<Kernel> entries[i]).call
            else:
                self.calls[i].loop = NULL

    def __dealloc__(self):
        PyMem_Free(self.calls)

    def __len__(self):
        return self.length

    cdef int run_all(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef int stop
        for i in range(self.length):
            stop = run(&self.calls[i]) if self.calls[i].loop != NULL else self.call_python(i)
            if stop != CONTINUE:
                self.stopped_at = i
                return stop
        return CONTINUE

    cdef int call_python(self, Py_ssize_t i) noexcept with gil:
        try:
            self.entries[i]()
            return CONTINUE
        except BaseException as error:
            self.error = error
            return PYTHON_ERROR

    cdef object result(self, int stop):
        if stop == PYTHON_ERROR:
            error, self.error = self.error, None
            raise error
        return None if stop == CONTINUE else self.entries[self.stopped_at]

    def replay(self):
        cdef int stop
        with nogil:
            stop = self.run_all()
        return self.result(stop)

    def seconds(self, Py_ssize_t replays):
        """The time in seconds that each entry took, in the fastest of so many replays."""
        cdef cnp.ndarray best = np.full(self.length, np.inf)
        cdef double* fastest = <double*> cnp.PyArray_DATA(best)
        cdef double before, after
        cdef Py_ssize_t i, _n
        cdef int stop = CONTINUE
        with nogil:
            for _n in range(replays):
                before = seconds_now()
                for i in range(self.length):
                    stop = run(&self.calls[i]) if self.calls[i].loop != NULL else self.call_python(i)
                    if stop != CONTINUE:
                        self.stopped_at = i
                        break
                    after = seconds_now()
                    fastest[i] = min(fastest[i], after - before)
                    before = after
                if stop != CONTINUE:
                    break
        stopped = self.result(stop)
        if stopped is not None:
            stopped.raise_why()
        return best


cdef class Epochs:
    """Epochs of batches that are in memory: one tape for the full batches, one for a short last one.

    `run` goes on from `epoch` and `batch`, which count what is done. The tapes find their batch through `cursor`; `x`,
    `y` and `order` are contiguous, `sums` has a row for each epoch. `shuffle` is the recorded kernel that brings
    `order` into the next epoch's, or None. A number that is not 0 in `pending` ends `run` after the batch under way.
    """
    cdef public Tape full, last
    cdef public Py_ssize_t epoch, batch
    cdef readonly Py_ssize_t batches, full_batches
    cdef bint begun
    cdef int64_t* cursor
    cdef const int32_t* pending
    cdef int64_t[5] here                  # what the cursor has to hold; others with the same tapes have their own
    cdef Kernel shuffle
    cdef Py_ssize_t sums_address, sums_stride
    cdef tuple arrays

    def __init__(self, cnp.ndarray x not None, cnp.ndarray y not None, cnp.ndarray order not None, Kernel shuffle,
                 cnp.ndarray sums not None, cnp.ndarray cursor not None, Py_ssize_t batches, Py_ssize_t full_batches,
                 cnp.ndarray pending=None):
        self.arrays = (x, y, order, sums, cursor, pending)
        self.pending = NULL if pending is None else <const int32_t*> cnp.PyArray_DATA(pending)
        self.cursor = <int64_t*> cnp.PyArray_DATA(cursor)
        self.here = [<int64_t> cnp.PyArray_DATA(x), <int64_t> cnp.PyArray_DATA(y), <int64_t> cnp.PyArray_DATA(order),
                     0, 0]
        self.shuffle = shuffle
        self.sums_address = <Py_ssize_t> cnp.PyArray_DATA(sums)
        self.sums_stride = cnp.PyArray_STRIDE(sums, 0)
        self.batches, self.full_batches = batches, full_batches
        self.epoch = self.batch = 0
        self.begun = True                 # `order` is that of the first epoch

    cdef void begin_batch(self) noexcept nogil:
        """Point the cursor at the batch that is due, in a new order if the epoch is new."""
        cdef int i
        if self.batch == 0 and not self.begun:
            if self.shuffle is not None:
                run(&self.shuffle.call)
            self.here[3] = 0
            self.begun = True
        self.here[4] = self.sums_address + self.epoch * self.sums_stride
        for i in range(5):
            self.cursor[i] = self.here[i]

    cdef bint interrupted(self) noexcept nogil:
        return self.pending != NULL and self.pending[0] != 0

    cdef void end_batch(self) noexcept nogil:
        self.here[3] = self.cursor[3]
        self.batch += 1
        if self.batch == self.batches:
            self.batch = 0
            self.epoch += 1
            self.begun = False

    def by_hand(self, step):
        """Do the batch that is due by calling `step()`, which finds it through the cursor."""
        self.begin_batch()
        step()
        self.end_batch()

    def run(self, Py_ssize_t epochs, double seconds):
        """Go on until so many epochs are done, or for so many seconds, or to a batch that has no tape yet.

        Returns None, or the entry of a tape that wanted the step to stop: that batch is due again.
        """
        cdef double end = seconds_now() + seconds
        cdef Tape tape = None
        cdef int stop = CONTINUE
        cdef Py_ssize_t until
        while self.epoch < epochs and stop == CONTINUE and seconds_now() < end and not self.interrupted():
            tape = self.full if self.batch < self.full_batches else self.last
            until = self.full_batches if self.batch < self.full_batches else self.batches
            if tape is None:
                break
            with nogil:
                while True:
                    self.begin_batch()
                    stop = tape.run_all()
                    if stop != CONTINUE:
                        break
                    self.end_batch()
                    if self.batch % until == 0 or seconds_now() >= end or self.interrupted():
                        break
        return None if tape is None else tape.result(stop)
