"""How many threads kernels use, decided in this one place.

In order: what `set_num_threads` says; the environment, CAFFELITE_NUM_THREADS or OMP_NUM_THREADS; the processors that
this process may run on, or fewer where its control group (a container) is given less processor time than that. In a
forked child it is one: OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

from caffelite import _kernels as kernels
from caffelite.data import positive_integer

_reason = ""


def set_num_threads(n: int) -> None:
    """Let kernels use up to n threads; results don't depend on it. ValueError below 1, TypeError for a non-integer."""
    _use(positive_integer("n", n), "set_num_threads")


def get_num_threads() -> int:
    """How many threads kernels may use."""
    return kernels.get_num_threads()


def show_config() -> None:
    """Print the version, the instruction set, and the number of threads and why."""
    from caffelite import __version__

    print(f"caffelite        {__version__}, Python {platform.python_version()} on {platform.machine()}")
    print(f"instruction set  {kernels.ISA} (available: {', '.join(kernels.available_instruction_sets())})")
    print(f"threads          {get_num_threads()} ({_reason})")
    print(f"OpenMP           {'yes' if kernels.OPENMP else 'no: compiled without it, kernels run on one thread'}")


def _use(n: int, reason: str) -> None:
    global _reason
    _reason = reason if kernels.OPENMP else f"{reason}; without OpenMP one runs"
    kernels.set_num_threads(n)


def _decide() -> tuple[int, str]:
    for name in ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").split(",")[0].strip()
        if value.isdecimal() and int(value) >= 1:
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
        membership = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return quota
    for line in membership:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = root / "sys/fs/cgroup", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # The limit of any group above holds too; in a container the path may not be visible, and the top is its own.
        here = top / path.lstrip("/")
        for folder in [top, here, *[p for p in here.parents if top in p.parents]]:
            quota = min(quota, _limit([folder / file for file in files]))
    return quota


def _limit(files: list[Path]) -> float:
    """The quota over the period that files say; infinite where there is no limit, or none that can be read."""
    try:
        limit, period = " ".join(file.read_text() for file in files).split()
        return math.inf if limit in ("max", "-1") else int(limit) / int(period)
    except (OSError, ValueError):
        return math.inf


_use(*_decide())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _use(1, "forked child"))
