"""How many threads kernels use, decided in this one place.

In order: what `set_num_threads` says; the environment, CAFFELITE_NUM_THREADS or OMP_NUM_THREADS; the processors that
this process may run on, or fewer where its control group (a container) is given less processor time than that. In a
forked child it is one, for OpenMP's threads do not survive a fork; a call there for more is obeyed only if kernels had
not yet run on several threads.

On a thread that is held to fewer by OpenMP's own means, `threadpoolctl.threadpool_limits` for one, it is no more than
that as long as that lasts.
"""

from __future__ import annotations

import math
import os
import platform
import re
from pathlib import Path, PurePosixPath

from caffelite import _kernels as kernels
from caffelite.arrays import positive_integer

MOST = 2**31 - 1  # threads, to OpenMP
_reason = ""
_always_one = "" if kernels.OPENMP else "compiled without OpenMP"  # why kernels run on one thread whatever is asked for


def set_num_threads(n: int) -> None:
    """Let kernels use up to n threads; results don't depend on it.

    ValueError below 1 and above 2³¹ − 1, TypeError for a non-integer.
    """
    n = positive_integer("n", n)
    if n > MOST:
        raise ValueError(f"n must be at most {MOST}, got {n}")
    _use(n, "set_num_threads")


def get_num_threads() -> int:
    """How many threads kernels may use, a limit on the calling thread left aside (`show_config` tells)."""
    return kernels.get_num_threads()


def show_config() -> None:
    """Print the version, the instruction set, and the number of threads and why."""
    from caffelite import __version__

    print(f"caffelite        {__version__}, Python {platform.python_version()} on {platform.machine()}")
    print(f"instruction set  {kernels.ISA} (available: {', '.join(kernels.available_instruction_sets())})")
    number, now = get_num_threads(), kernels.team_size()
    limited = _always_one or "limited on this thread through OpenMP, by threadpoolctl say"
    print(f"threads          {'' if now == number else f'{now} ({limited}), else '}{number} ({_reason})")
    print(f"OpenMP           {'yes' if kernels.OPENMP else 'no: compiled without it, kernels run on one thread'}")


def _use(n: int, reason: str) -> None:
    global _reason
    _reason = reason
    kernels.set_num_threads(n)


def _decide() -> tuple[int, str]:
    for name in ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").split(",")[0].strip()
        if value.isdecimal() and 1 <= int(value) <= MOST:
            return int(value), name
    if hasattr(os, "sched_getaffinity"):
        processors, reason = len(os.sched_getaffinity(0)), "processors this process may use"
    else:
        processors, reason = os.cpu_count() or 1, "processors"
    quota = _cgroup_quota(Path("/"))
    if quota < processors:
        return max(1, math.floor(quota)), f"control group: {quota:g} processors' time"
    return processors, reason


def _cgroup_quota(root: Path) -> float:
    """How many processors' time this process's control groups allow, version 2 or 1; infinite without a limit."""
    quota = math.inf
    try:
        groups, mounts = [os.fsdecode((root / "proc/self" / name).read_bytes()) for name in ("cgroup", "mountinfo")]
    except OSError:
        return quota
    # A line each: hierarchy:controllers:path, without controllers in version 2.
    path_of = {name: path for _, names, path in re.findall("(.*?):(.*?):(.*)", groups) for name in names.split(",")}
    # id parent device root mount-point options … - type source options; a container sees the hierarchy from `root` on.
    for top, mounted, kind, options in re.findall(r"(?m)^\S+ \S+ \S+ (\S+) (\S+) .* - (\S+) \S+ (\S+)", mounts):
        if kind == "cgroup2":
            controller, files = "", ["cpu.max"]
        elif kind == "cgroup" and "cpu" in options.split(","):
            controller, files = "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # The limit of any group above holds too; where this process's own can't be seen, the top's does.
        path = PurePosixPath(path_of.get(controller, top))
        parts = path.relative_to(top).parts if path.is_relative_to(top) else ()
        for depth in range(len(parts) + 1):
            folder = Path(root, mounted.lstrip("/"), *parts[:depth])
            quota = min(quota, _limit([folder / file for file in files]))
    return quota


def _limit(files: list[Path]) -> float:
    """The quota over the period that files say; infinite where there is no limit, or none that can be read."""
    try:
        limit, period = " ".join(file.read_text() for file in files).split()
        return math.inf if limit in ("max", "-1") else int(limit) / int(period)
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
