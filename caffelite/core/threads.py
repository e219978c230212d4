"""How many threads kernels use: this is the one place that decides it.

The first of these decides:

1. `set_num_threads`;
2. the environment, CAFFELITE_NUM_THREADS or OMP_NUM_THREADS;
3. the processors that this process may run on, or fewer if its control group (a container) gets less processor time.

The first two are the user's choice, which kernels obey. The third is an upper bound: each replay measures whether fewer
threads are faster (`ThreadTuner` in _kernels/launch.pyx), as they may be on a busy machine.

A forked child uses one thread, because OpenMP's threads do not survive a fork. There, `set_num_threads` has an effect
only if the parent's kernels had not yet run on several threads.

OpenMP ends the process if it cannot start a thread. So the number has an upper bound.

Python threads that train or predict at the same time, such as joblib's, share the number: two of them use half of it
each. A thread with a lower OpenMP limit, for example from `threadpoolctl.threadpool_limits`, keeps to that limit. So
does a thread inside `thread_limit` in launch.pyx, which implements the `n_jobs` of an estimator.
"""

from __future__ import annotations

import math
import os
import platform
import re
from pathlib import Path, PurePosixPath

from caffelite import _kernels as kernels
from caffelite._support.terminal import echo
from caffelite.core.arrays import check_positive_integer

# A processor runs one thread at a time. More threads only take turns, but are useful for tests.
THREADS_PER_PROCESSOR, MIN_BOUND = 4, 64
GROUP_LIMITS = {  # the files with the limits of control groups, versions 2 and 1
    "cpu": {"cgroup2": ["cpu.max"], "cgroup": ["cpu.cfs_quota_us", "cpu.cfs_period_us"]},
    "pids": {"cgroup2": ["pids.max"], "cgroup": ["pids.max"]},
}
VARIABLES = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS")  # environment variables
USER_REASONS = ("set_num_threads", *VARIABLES)  # reasons that are the user's choice
_reason = ""
_single_reason = "" if kernels.OPENMP else "compiled without OpenMP"  # why kernels always run on one thread


def set_num_threads(n: int) -> None:
    """Let kernels with enough work use n threads. Results do not depend on n.

    Without this call, and without a number in the environment, each recorded step measures whether fewer threads are
    faster. After it, n is fixed, even on a busy machine.

    Raise ValueError if n is below 1 or above the bound, and TypeError if n is not an integer. The bound is 4 per
    processor of the machine, or 64 if that is more, but at most half the threads that the control groups allow.
    """
    n, max_threads = check_positive_integer("n", n), _max_threads(Path("/"))
    if n > max_threads:
        raise ValueError(f"n must be at most {max_threads} on this machine, got {n}")
    _use(n, "set_num_threads")


def get_num_threads() -> int:
    """Return how many threads kernels may use. This ignores any limit of the calling thread; see `show_config`."""
    return int(kernels.get_num_threads())


def show_config() -> None:
    """Print the version, the instruction set, and the number of threads with the reason for it."""
    from caffelite._support.version import installed_version  # slow: it reads the package's metadata

    echo(f"caffelite        {installed_version()}, Python {platform.python_version()} on {platform.machine()}")
    echo(f"instruction set  {kernels.ISA} (available: {', '.join(kernels.available_instruction_sets())})")
    number, now = get_num_threads(), kernels.available_threads()
    limited = _single_reason or "limited on this thread by OpenMP, e.g. by threadpoolctl, or shared with other threads"
    chosen = "" if _reason in USER_REASONS or number == 1 else "; a replay uses fewer if they are faster"
    echo(f"threads          {'' if now == number else f'{now} ({limited}), else '}{number} ({_reason}{chosen})")
    echo(f"OpenMP           {'yes' if kernels.OPENMP else 'no: compiled without it, kernels run on one thread'}")


def share_processors(processes: int) -> None:
    """Divide the threads among processes on the same processors, unless the user has set a number."""
    if processes > 1 and _reason not in USER_REASONS:
        _use(max(1, get_num_threads() // processes), f"{_reason}, shared by {processes} processes")


def _use(n: int, reason: str) -> None:
    global _reason
    _reason = reason
    kernels.set_num_threads(n, reason in USER_REASONS)


def _max_threads(root: Path) -> int:
    """Return the upper bound on the number of threads. It leaves half of the control groups' limit to others."""
    max_threads = max(MIN_BOUND, THREADS_PER_PROCESSOR * (os.cpu_count() or 1))
    return int(max(1, min(max_threads, _cgroup_limit("pids", root) / 2)))


def _decide() -> tuple[int, str]:
    max_threads = _max_threads(Path("/"))
    for name in VARIABLES:
        value = os.environ.get(name, "").split(",")[0].strip()
        if value.isdecimal() and 1 <= int(value) <= max_threads:
            return int(value), name
    if hasattr(os, "sched_getaffinity"):
        processors, reason = len(os.sched_getaffinity(0)), "processors this process may use"
    else:
        processors, reason = os.cpu_count() or 1, "processors"
    quota = _cgroup_limit("cpu", Path("/"))
    if quota < min(processors, max_threads):
        return max(1, math.floor(quota)), f"control group: {quota:g} processors' time"
    if max_threads < processors:
        return max_threads, f"control group: {2 * max_threads} threads"
    return processors, reason


def _cgroup_limit(controller: str, root: Path) -> float:
    """Return the control groups' limit, version 2 or 1, for this process; infinite if there is none.

    The controller counts processor time ("cpu") or threads ("pids").
    """
    lowest = math.inf
    try:
        groups, mounts = [os.fsdecode((root / "proc/self" / name).read_bytes()) for name in ("cgroup", "mountinfo")]
    except OSError:
        return lowest
    # Each line is hierarchy:controllers:path. Version 2 has no controllers.
    paths = {name: path for _, names, path in re.findall("(.*?):(.*?):(.*)", groups) for name in names.split(",")}
    # id parent device root mount-point options … - type source options; a container sees only what is below `root`.
    for top, mounted, kind, options in re.findall(r"(?m)^\S+ \S+ \S+ (\S+) (\S+) .* - (\S+) \S+ (\S+)", mounts):
        files = GROUP_LIMITS[controller].get(kind, [])
        if not files or (kind == "cgroup" and controller not in options.split(",")):
            continue
        # The limits of all groups above apply too. If this process's own group is not visible, the top's limit applies.
        path = PurePosixPath(paths.get("" if kind == "cgroup2" else controller, top))
        parts = path.relative_to(top).parts if path.is_relative_to(top) else ()
        for depth in range(len(parts) + 1):
            folder = Path(root, mounted.lstrip("/"), *parts[:depth])
            lowest = min(lowest, _limit([folder / file for file in files]))
    return lowest


def _limit(files: list[Path]) -> float:
    """Return the limit in these files, divided by the period if there is one; infinite if they can't be read."""
    try:
        limit, *period = " ".join(file.read_text() for file in files).split()
        return math.inf if limit in ("max", "-1") else int(limit) / math.prod(map(int, period))
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _after_fork() -> None:
    global _single_reason
    if kernels.after_fork():
        _single_reason = "forked from a process whose kernels had run on several"
    _use(1, "forked child")


_use(*_decide())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
