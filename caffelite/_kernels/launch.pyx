"""Running kernel calls: `launch` from the border, `run` from everywhere.

`run` is the only place where a loop is started, and holds the only parallel region.
"""
from cython.parallel cimport prange
cimport numpy as cnp

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.kernel cimport Kernel
from caffelite._kernels.record cimport is_recording, note

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
    """
    const bint COMPILED_WITH_OPENMP
    int omp_get_max_threads() noexcept nogil
    int untouched_max_threads() noexcept nogil

cdef extern from *:
    """
    /* Whether kernels that this thread calls run on it alone. */
    static _Thread_local int this_thread_is_alone = 0;
    """
    bint this_thread_is_alone

cdef extern from *:
    """
    /* Threads that run kernels read these without Python's lock, while others write them. */
    static _Atomic int num_threads = 1, replays = 0, has_run_in_parallel = 0, must_be_serial = 0;
    """
    int num_threads
    int replays                           # how many threads are in a replay now; written under the GIL
    bint has_run_in_parallel, must_be_serial

cdef object ndarray = np.ndarray
OPENMP = bool(COMPILED_WITH_OPENMP)

cdef int untouched = untouched_max_threads()
must_be_serial = not OPENMP

# From so much work on, in operations of a matrix product, a call is cut among threads, and lets other Python threads
# run. At 100 GFLOP/s it is 40 µs and 2 µs. Alone, a call gains from a second thread after 5 µs, which is what
# benchmarks/threshold.py measures; in a training step its operands lie in the caches of those who wrote them, and
# moving them has to pay too.
cpdef enum:
    PARALLEL_WORK = 4_000_000
    RELEASE_WORK = 200_000


# ---- threads -------------------------------------------------------------------------------------------------------

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
    global must_be_serial, replays
    replays = 0
    must_be_serial = must_be_serial or has_run_in_parallel
    return has_run_in_parallel


cdef void begin_replay() noexcept:
    """This thread is in a replay from now on, until `end_replay`: it shares the number that was set with others."""
    global replays
    replays += 1


cdef void end_replay() noexcept:
    global replays
    replays = max(replays - 1, 0)


cpdef int team_size() noexcept nogil:
    """Among how many threads a call with enough work is cut if it is made on this thread.

    The number that was set, divided by the number of threads that are replaying at the same time; or less, where
    OpenMP's own number for this thread is less and is not what it is by default. Then somebody has lowered it:
    threadpoolctl, or omp_set_num_threads. (To just the default can't be told from not at all.)
    """
    cdef int limit, share
    if num_threads == 1 or must_be_serial or this_thread_is_alone:
        return 1
    limit = omp_get_max_threads()
    share = max(num_threads // max(replays, 1), 1)
    return share if limit == untouched else min(share, limit)


cdef class Alone:
    """Inside, kernels that this thread calls run on it alone: for who has work for each thread, and no part of it."""
    cdef bint before

    def __enter__(self):
        global this_thread_is_alone
        self.before, this_thread_is_alone = this_thread_is_alone, True

    def __exit__(self, *exception):
        global this_thread_is_alone
        this_thread_is_alone = self.before


# ---- calls ---------------------------------------------------------------------------------------------------------

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


cdef int launch(Call* call, on_stop=None) except -1:
    """Run a bound call, and note it if this thread is recording.

    Where the call stops the step, `on_stop`, which has to raise, is called with the array that its kernel names as
    `checked`; without it, why the step must stop is returned, and 0 where it goes on. A replay that the call stops
    calls it likewise, with the values of then.
    """
    cdef int stop
    if call.work < RELEASE_WORK:
        stop = run(call)
    else:
        with nogil:
            stop = run(call)
    if is_recording():
        note(call).on_stop = on_stop
    if stop != CONTINUE and on_stop is not None:
        on_stop((<object> call.operand[(<Kernel> call.kernel).checked].array).view(ndarray))
    return stop
