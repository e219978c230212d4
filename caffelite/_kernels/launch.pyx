"""Running kernel calls. The bindings call `launch`; `launch` and replays call `run`.

Only `run` starts loops, and it has the only parallel region.
"""
from cython.parallel cimport prange
cimport cython
from libc.limits cimport INT_MAX
cimport numpy as cnp

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.kernel cimport Kernel
from caffelite._kernels.record cimport is_recording, note_operands, record_call

cnp.import_array()

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #include <pthread.h>
    #define COMPILED_WITH_OPENMP 1

    static void *ask(void *number)
    {
        *(int *)number = omp_get_max_threads();
        return NULL;
    }

    /* OpenMP's default number of threads. A new thread is asked, because somebody may have set this thread's number. */
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
    """
    const bint COMPILED_WITH_OPENMP
    int omp_get_max_threads() noexcept nogil
    int untouched_max_threads() noexcept nogil

cdef extern from *:
    """
    #include <limits.h>
    /* On how many threads kernels that this thread calls run at most, and whether their products round operands. */
    static _Thread_local int max_threads = INT_MAX, this_thread_rounds_products = 0, this_thread_is_portable = 0;
    """
    int max_threads
    bint this_thread_rounds_products, this_thread_is_portable

cdef extern from *:
    """
    /* Threads read these without Python's lock while other threads write them. */
    static _Atomic int num_threads = 1, user_has_set = 1, replays = 0, has_run_in_parallel = 0, must_be_serial = 0;

    static void add_to_replays(int n) { replays += n; }
    """
    int num_threads
    bint user_has_set                           # the user has set the number, so replays do not choose their own
    int replays                           # how many threads replay now
    bint has_run_in_parallel, must_be_serial
    void add_to_replays(int n) noexcept nogil   # atomic: Cython's `replays += n` would be a read and a write

cdef object ndarray = np.ndarray
OPENMP = bool(COMPILED_WITH_OPENMP)

cdef int untouched = untouched_max_threads()
must_be_serial = not OPENMP

# A call with at least PARALLEL_WORK is divided among threads. A call with at least RELEASE_WORK releases the GIL. The
# unit is one operation of a matrix product. At 100 GFLOP/s the limits are 40 µs and 2 µs. A single call gains from a
# second thread if it takes more than 5 µs (benchmarks/threshold.py measures this). Inside a step the limit is higher,
# because the operands are in the cache of the core that wrote them, and moving them takes time.
cpdef enum:
    PARALLEL_WORK = 4_000_000
    RELEASE_WORK = 200_000


# ---- threads -------------------------------------------------------------------------------------------------------

def set_num_threads(int n, bint is_users=True):
    """Let kernels use up to n threads. `caffelite.core.threads` decides how many.

    If n is not the user's choice, each replay finds out whether fewer threads are faster.
    """
    global num_threads, user_has_set
    num_threads, user_has_set = n, is_users


def get_num_threads():
    """Return the number that was set."""
    return num_threads


def after_fork():
    """Prepare a forked child. Return whether all calls run on one thread from now on.

    They do if the parent had divided a call among threads: OpenMP would wait for threads that the child does not have.
    """
    global must_be_serial, replays
    replays = 0
    must_be_serial = must_be_serial or has_run_in_parallel
    return has_run_in_parallel


cdef void begin_replay() noexcept:
    """This thread replays until `end_replay`. Threads that replay at the same time share the number that was set."""
    add_to_replays(1)


cdef void end_replay() noexcept:
    add_to_replays(-1)


cpdef int available_threads() noexcept nogil:
    """Among how many threads a call with enough work is divided if this thread makes it.

    This is the number that was set, divided by the number of threads that replay at the same time. It is lower inside
    `thread_limit`, or if threadpoolctl or omp_set_num_threads has lowered OpenMP's number for this thread. OpenMP does
    not tell whether somebody has set its number. So a number that differs from the default counts as set, and the
    default does not.
    """
    cdef int limit, share
    if num_threads == 1 or must_be_serial or max_threads == 1:
        return 1
    limit = omp_get_max_threads()
    share = min(max(num_threads // max(replays, 1), 1), max_threads)
    return share if limit == untouched else min(share, limit)


cdef bint is_user_set() noexcept nogil:
    """Return whether the number of threads is the user's choice."""
    return user_has_set


cdef class thread_limit:
    """Inside, kernels that this thread calls run on at most n threads. Limits inside a limit are lower or equal."""
    cdef int limit, before

    def __cinit__(self, int n):
        self.limit = n

    def __enter__(self):
        global max_threads
        self.before = max_threads
        max_threads = min(self.before, self.limit)

    def __exit__(self, *exception):
        global max_threads
        max_threads = self.before


# ---- the choice of kernels -----------------------------------------------------------------------------------------

cdef bint is_portable() noexcept nogil:
    """Return whether this thread's calls must not depend on the processor."""
    return this_thread_is_portable


cdef class portable_kernels:
    """Inside, the calls of this thread's kernels are the same on every processor: which kernels, sizes and layouts.

    Convolutions compute what their definition says, images last. They may be slower, and round differently.
    """
    cdef bint before

    def __enter__(self):
        global this_thread_is_portable
        self.before, this_thread_is_portable = this_thread_is_portable, True

    def __exit__(self, *exception):
        global this_thread_is_portable
        this_thread_is_portable = self.before


# ---- precision -----------------------------------------------------------------------------------------------------

cdef bint rounds_products() noexcept nogil:
    """Return whether products that this thread calls round their operands to bfloat16."""
    return this_thread_rounds_products


cdef void round_products(bint whether) noexcept:
    global this_thread_rounds_products
    this_thread_rounds_products = whether


def current_precision():
    """Return the precision of this thread's products: "float32" or "bfloat16"."""
    return "bfloat16" if this_thread_rounds_products else "float32"


cdef class precision:
    """`with precision("bfloat16"):` round the operands of matrix products to bfloat16 inside, in this thread.

    A bfloat16 is a float32 with 7 bits of fraction instead of 23: it has float32's range and 2 to 3 decimal digits.
    Processors with instructions for it multiply several times as fast. Parameters, gradients, the optimizer's state,
    sums, and the products' results stay float32. `with precision("float32"):` computes as usual inside.

    The context holds for the products that are computed inside it: write the loss's `backward` inside, too. `fit`,
    `predict` and `evaluate` have the same as an argument. Products of float64 arrays stay float64. Convolutions,
    attention and products of sparse matrices stay float32.

    The results have the same bits on every x86-64 processor with fused multiply-adds.

    None keeps the current precision. Raise ValueError for any other name.
    """
    cdef bint keeps, rounds, before

    def __init__(self, name):
        if name not in ("float32", "bfloat16", None):
            raise ValueError(f'precision: expected "float32" or "bfloat16", got {name!r}')
        self.keeps, self.rounds = name is None, name == "bfloat16"

    # (Compiled code: a Ctrl-C cannot interrupt it halfway.)
    def __enter__(self):
        global this_thread_rounds_products
        if not self.keeps:
            self.before, this_thread_rounds_products = this_thread_rounds_products, self.rounds

    def __exit__(self, *exception):
        global this_thread_rounds_products
        if not self.keeps:
            this_thread_rounds_products = self.before


# ---- the number of threads of a replay -----------------------------------------------------------------------------

cdef double STRETCH = 0.03                # seconds of steps with one number of threads, and then they are compared
cdef double PATIENCE = 100                # 1/PATIENCE of the time may be lost in trials
cdef double SLOWER = 1.5                  # if a stretch is so many times slower, the machine has become busy


@cython.final
cdef class ThreadTuner:
    """The number of threads among which a replay divides its calls, found by measuring.

    On a quiet machine two threads are faster than one. On a busy machine each thread waits for the other while the
    system runs other processes, and a step on two threads may take longer than on one. So a replay measures stretches
    of steps. It begins with all threads. From time to time, for one stretch, it tries half or twice as many, and then
    goes on with the number whose steps took less time. If the steps suddenly become slower, it tries one thread at
    once. The results of a step do not depend on the number.

    The slower of two numbers has lost some time. PATIENCE times this time passes before it is tried again. So trials
    lose at most 1/PATIENCE of the time.

    number : the number in use.
    tried : the number in this stretch. It differs from `number` during a trial.
    """

    def __cinit__(self):
        self.number = self.tried = INT_MAX

    cpdef int begin(self, int limit, double now) noexcept nogil:
        """Return the number of threads for a step that begins now, `limit` at most."""
        self.limit, self.began = limit, now
        self.number, self.tried = min(self.number, limit), min(self.tried, limit)
        return self.tried

    cpdef void end(self, double now) noexcept nogil:
        """End the step now. If a stretch ends with it, choose the number for the next one."""
        cdef double seconds
        self.spent += now - self.began
        self.steps += 1
        if self.spent < STRETCH:
            return
        seconds = self.spent / self.steps
        if self.tried == self.number:
            self.begin_trial(seconds, now)
        else:
            self.end_trial(seconds, now)
        self.spent = self.steps = 0

    cdef void begin_trial(self, double seconds, double now) noexcept nogil:
        """Try another number in the next stretch, if that is due. A step of this stretch took so many seconds."""
        if self.number > 1 and seconds > SLOWER * self.seconds:
            self.tried = 1
        elif self.number > 1 and now >= self.fewer_at:
            self.tried = self.number // 2
        elif self.number < self.limit and now >= self.more_at:
            self.tried = min(2 * self.number, self.limit)
        self.seconds = seconds

    cdef void end_trial(self, double seconds, double now) noexcept nogil:
        """Go on with the faster number, and set when the other one may be tried again."""
        cdef bint is_faster = seconds < self.seconds
        cdef double slower = self.seconds if is_faster else seconds, faster = seconds if is_faster else self.seconds
        cdef double again = now + PATIENCE * self.spent * (1 - faster / slower)
        if is_faster == (self.tried > self.number):
            self.fewer_at = again
        else:
            self.more_at = again
        if is_faster:
            self.number, self.seconds = self.tried, seconds
        self.tried = self.number


# ---- calls ---------------------------------------------------------------------------------------------------------

cdef bint is_divided(const Call* call) noexcept nogil:
    """Return whether a call is divided among threads if there are several."""
    return call.work >= PARALLEL_WORK and call.parts > 1


cdef int run(const Call* call, int threads) noexcept nogil:
    """Run a call: all its parts on this thread or, if the call is divided, a share of them on each of the threads."""
    global has_run_in_parallel
    cdef int stop = 0
    cdef Py_ssize_t shares, share
    # call.loop is what a file of loops/ publishes under the kernel's name, for example `matmul` in loops/matmul.pyx.
    if threads == 1 or not is_divided(call):
        return call.loop(call.operand[0].data, call, 0, call.parts) if call.parts > 0 else CONTINUE
    has_run_in_parallel = True
    shares = min(threads, call.parts)     # still a team of all threads: OpenMP would end those that it leaves out
    for share in prange(shares, num_threads=threads, schedule="static", chunksize=1):
        stop |= call.loop(call.operand[0].data, call,
                          call.parts * share // shares, call.parts * (share + 1) // shares)
    return stop


cdef int launch(Call* call, on_stop=None) except -1:
    """Run a bound call, and note it if this thread is recording. Return CONTINUE, or why the step must stop.

    If the call stops the step, `launch` calls `on_stop`, if there is one, with the array that the kernel names as
    `checked`. `on_stop` must raise. If the call stops a replay later, `on_stop` gets the values of that time.
    """
    cdef int stop
    if is_recording():
        note_operands(call)
    if call.work < RELEASE_WORK:
        stop = run(call, 1)
    else:
        with nogil:
            stop = run(call, available_threads())
    if is_recording():
        record_call(call).on_stop = on_stop
    if stop != CONTINUE and on_stop is not None:
        on_stop((<object> call.operand[(<Kernel> call.kernel).checked].array).view(ndarray))
    return stop
