"""How many threads kernels use, decided in this one place.

In order: what `set_num_threads` says; the environment, CAFFELITE_NUM_THREADS or OMP_NUM_THREADS; the processors that
this process may run on, or fewer where its control group (a container) is given less processor time than that. In a
forked child it is one, for OpenMP's threads do not survive a fork; a call there for more is obeyed only if kernels had
not yet run on several threads.

OpenMP ends the process when it cannot start a thread. So there is a bound, and a number above it is refused.

Threads of Python that train or predict at the same time, joblib's for one, share that number: two of them use half of
it each. On a thread that is held to fewer by OpenMP's own means, `threadpoolctl.threadpool_limits` for one, it is no
more than that as long as that lasts.
"""

from __future__ import annotations

import math
import os
import platform
import re
from pathlib import Path, PurePosixPath

from caffelite import _kernels as kernels
from caffelite.core.arrays import positive_integer
from caffelite.core.terminal import say

# A processor runs one thread at a time, so more only take turns: several are enough to try out what many would do.
THREADS_PER_PROCESSOR, ALWAYS_ALLOWED = 4, 64
GROUP_LIMITS = {  # the files of control groups in which a limit stands: version 2, and version 1
    "cpu": {"cgroup2": ["cpu.max"], "cgroup": ["cpu.cfs_quota_us", "cpu.cfs_period_us"]},
    "pids": {"cgroup2": ["pids.max"], "cgroup": ["pids.max"]},
}
NAMES = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS")  # of the environment
_reason = ""
_always_one = "" if kernels.OPENMP else "compiled without OpenMP"  # why kernels run on one thread whatever is asked for


def set_num_threads(n: int) -> None:
    """Let kernels use up to n threads; results don't depend on it.

    ValueError below 1 and above 4 for each of the machine's processors (64 where that is more, and half of what its
    control groups allow this process where that is less); TypeError for a non-integer.
    """
    n, most = positive_integer("n", n), _most(Path("/"))
    if n > most:
        raise ValueError(f"n must be at most {most} on this machine, got {n}")
    _use(n, "set_num_threads")


def get_num_threads() -> int:
    """How many threads kernels may use, a limit on the calling thread left aside (`show_config` tells)."""
    return kernels.get_num_threads()


def show_config() -> None:
    """Print the version, the instruction set, and the number of threads and why."""
    from caffelite.core.version import installed_version  # the metadata take long to read

    say(f"caffelite        {installed_version()}, Python {platform.python_version()} on {platform.machine()}")
    say(f"instruction set  {kernels.ISA} (available: {', '.join(kernels.available_instruction_sets())})")
    number, now = get_num_threads(), kernels.team_size()
    limited = _always_one or "limited on this thread through OpenMP, by threadpoolctl say, or shared with other threads"
    say(f"threads          {'' if now == number else f'{now} ({limited}), else '}{number} ({_reason})")
    say(f"OpenMP           {'yes' if kernels.OPENMP else 'no: compiled without it, kernels run on one thread'}")


def share_processors(processes: int) -> None:
    """Leave as much to each of so many processes on the same processors, unless somebody has asked for a number."""
    if processes > 1 and _reason not in ("set_num_threads", *NAMES):
        _use(max(1, get_num_threads() // processes), f"{_reason}, shared by {processes} processes")


def _use(n: int, reason: str) -> None:
    global _reason
    _reason = reason
    kernels.set_num_threads(n)


def _most(root: Path) -> int:
    """The bound on the number of threads. Half of what the control groups allow is left to other threads."""
    most = max(ALWAYS_ALLOWED, THREADS_PER_PROCESSOR * (os.cpu_count() or 1))
    return int(max(1, min(most, _cgroup_limit("pids", root) / 2)))


def _decide() -> tuple[int, str]:
    most = _most(Path("/"))
    for name in NAMES:
        value = os.environ.get(name, "").split(",")[0].strip()
        if value.isdecimal() and 1 <= int(value) <= most:
            return int(value), name
    if hasattr(os, "sched_getaffinity"):
        processors, reason = len(os.sched_getaffinity(0)), "processors this process may use"
    else:
        processors, reason = os.cpu_count() or 1, "processors"
    quota = _cgroup_limit("cpu", Path("/"))
    if quota < min(processors, most):
        return max(1, math.floor(quota)), f"control group: {quota:g} processors' time"
    if most < processors:
        return most, f"control group: {2 * most} threads"
    return processors, reason


def _cgroup_limit(controller: str, root: Path) -> float:
    """What control groups, version 2 or 1, allow this process: how many processors' time ("cpu"), or how many threads
    ("pids"). Infinite without a limit."""
    least = math.inf
    try:
        groups, mounts = [os.fsdecode((root / "proc/self" / name).read_bytes()) for name in ("cgroup", "mountinfo")]
    except OSError:
        return least
    # A line each: hierarchy:controllers:path, without controllers in version 2.
    path_of = {name: path for _, names, path in re.findall("(.*?):(.*?):(.*)", groups) for name in names.split(",")}
    # id parent device root mount-point options … - type source options; a container sees the hierarchy from `root` on.
    for top, mounted, kind, options in re.findall(r"(?m)^\S+ \S+ \S+ (\S+) (\S+) .* - (\S+) \S+ (\S+)", mounts):
        files = GROUP_LIMITS[controller].get(kind, [])
        if not files or (kind == "cgroup" and controller not in options.split(",")):
            continue
        # The limit of any group above holds too; where this process's own can't be seen, the top's does.
        path = PurePosixPath(path_of.get("" if kind == "cgroup2" else controller, top))
        parts = path.relative_to(top).parts if path.is_relative_to(top) else ()
        for depth in range(len(parts) + 1):
            folder = Path(root, mounted.lstrip("/"), *parts[:depth])
            least = min(least, _limit([folder / file for file in files]))
    return least


def _limit(files: list[Path]) -> float:
    """The limit that files say, over the period if they say one; infinite without one that can be read."""
    try:
        limit, *period = " ".join(file.read_text() for file in files).split()
        return math.inf if limit in ("max", "-1") else int(limit) / math.prod(map(int, period))
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _after_fork() -> None:
    global _always_one
    if kernels.after_fork():
        _always_one = "forked from a process whose kernels had run on several"
    _use(1, "forked child")


_use(*_decide())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
