"""What the benchmark scripts share: a process for each contestant, the machine's own speed, and tables.

A contestant is a function `make(*arguments)` that imports what it needs, prepares, and returns a function that does the
work when it is called. `Process` runs it in a process of its own, so that no framework's threads disturb another's.
"""

import ctypes
import os
import platform
import re
import time
import timeit
import traceback
from contextlib import suppress
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

import numpy as np

SPAWN = get_context("spawn")


def use_threads(count):
    """Let processes started from now on compute with so many threads, and OpenBLAS choose its kernels by itself."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "CAFFELITE_NUM_THREADS"):
        os.environ.pop(name, None)


class Process:
    """Runs `make(*arguments)` in a new process, and then the function that it returned each time it is called.

    It runs on so many `cores`, the same for all, with None on any. `missing` says which module could not be imported,
    if one could not; there is nothing to call then.
    """

    def __init__(self, make, *arguments, cores=1):
        self.pipe, other_end = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(other_end, make, arguments, cores), daemon=True)
        self.process.start()
        other_end.close()
        self.missing = self._answer()

    def __call__(self, *question):
        self.pipe.send(question)
        return self._answer()

    def close(self):
        """End the process, and wait until it has: while it ends, it takes time that others want."""
        self.pipe.close()
        self.process.join()

    def _answer(self):
        failure, answer = self.pipe.recv()
        if failure:
            raise RuntimeError(f"in the process of a contestant:\n{failure}")
        return answer


def _serve(pipe, make, arguments, cores):
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    try:
        try:
            work = make(*arguments)
        except ModuleNotFoundError as error:
            pipe.send((None, error.name))
            return
        pipe.send((None, None))
        while True:
            pipe.send((None, work(*pipe.recv())))
    except EOFError:
        pass  # the parent has finished
    except Exception:
        pipe.send((traceback.format_exc(), None))


def keep_memory():
    """Let this process's malloc keep what is freed, where it is glibc's, instead of handing it back to the system.

    As MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and MALLOC_TOP_PAD_ do, set high.
    """
    with suppress(AttributeError, TypeError):  # another malloc; Windows
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((-3, 2**30), (-1, 2**30), (-2, 2**28)):  # M_MMAP_THRESHOLD, M_TRIM_…, M_TOP_PAD
            assert mallopt(parameter, value) == 1


def memory_growth(work):
    """Bytes that the process has more, at the peak, while work() runs; None where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None

    def kilobytes(name):
        return int(re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)[1])

    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is what there is now
    work()
    return 1024 * (kilobytes("VmHWM") - before)


def seconds_per_call(statement, at_least=0.01, **names):
    """Return the mean seconds that a statement takes, over calls that last `at_least` seconds together, after a first
    one.
    """
    timer = timeit.Timer(statement, globals=names)
    timer.timeit(1)
    number = 1
    while (seconds := timer.timeit(number)) < at_least:
        number = max(2 * number, int(1.2 * number * at_least / max(seconds, 1e-9)))
    return seconds / number


def epochs_to_time(train, argument, first=1, at_least=0.1):
    """Return the first of the numbers first, 2 · first, 4 · first … with which train(epochs, argument)[0] is
    `at_least`.
    """
    epochs = first
    while min(train(epochs, argument)[0] for _ in range(2)) < at_least:  # one alone may have had to wait
        epochs *= 2
    return epochs


def machine_speed(dtype="float32"):
    """Return a contestant: the cores' GFLOP/s in NumPy's matmul of 1536 × 1536 matrices, and GB/s copied in 64 MiB
    arrays.

    The first stands in for the peak, of which it reaches nearly all. The second counts bytes read and bytes written.
    """
    a, source = np.ones((1536, 1536), dtype), np.ones(2**23)
    product, target = np.empty_like(a), np.empty_like(source)

    def measure():
        flops = 2 * len(a) ** 3 / seconds_per_call("matmul(a, a, out)", matmul=np.matmul, a=a, out=product)
        copied = 2 * source.nbytes / seconds_per_call("copyto(to, x)", copyto=np.copyto, to=target, x=source)
        return flops / 1e9, copied / 1e9

    return measure


def environment(*packages):
    """Two lines: the processor, and versions of Python, NumPy, caffelite and those of `packages` that are installed."""
    from caffelite._kernels import ISA

    versions = {"Python": platform.python_version()}
    versions |= {package: version(package) for package in ("numpy", "caffelite", *packages) if version(package)}
    return (
        f"{processor()}, {os.cpu_count()} cores, {platform.system()}, caffelite's loops for {ISA}\n"
        f"{', '.join(map(' '.join, versions.items()))}, {time.strftime('%Y-%m-%d')}"
    )


def processor():
    """Return the processor's name, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version(package):
    """Return the installed version of a package, None without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def table(header, rows):
    """Text in columns, the first to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)]])
        for line in lines
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])
