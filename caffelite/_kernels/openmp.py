"""How long OpenMP's threads spin before they sleep: a tenth of a millisecond, unless the user says otherwise.

A thread that waits for another one can sleep, or it can spin: look again and again whether the other one is ready. A
thread that spins goes on sooner, but it occupies a processor. On a busy machine this may be the processor that the
other thread needs, and then both lose milliseconds in every parallel region.

By default, gcc's OpenMP looks 300,000 times before a thread sleeps, which is 4 ms or more. It takes another number only
from the environment (OMP_WAIT_POLICY, GOMP_SPINCOUNT), which it reads when it is loaded. So caffelite sets
GOMP_SPINCOUNT while it loads OpenMP, and removes it afterwards.

A thread should not sleep between two parallel regions of a step. To wake it takes long, above all in a virtual machine:
100 µs where this was measured. A pause instruction takes 14 ns there. A step of 784-128-64-10 took 375 µs on one thread
and, on two threads that look so many times before they sleep, while the machine was quiet:

    looks         0     300    1200    3000    10000    300,000
    µs a step   528     510     361     336      289        283

If another package has loaded the same library before, that package's threads and caffelite's spin alike. The wheels of
PyTorch and scikit-learn have a library of their own, which is not the same.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = "6000"  # looks, with a pause instruction after each: 20 to 300 µs by processor, 90 on an Intel Granite Rapids


@contextmanager
def limit_spinning() -> Iterator[None]:
    """If OpenMP is loaded inside, its threads look `SPINS` times, or as often as the environment says."""
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():  # the user's choice
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    _copy_to_mingw(SPINS)
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]
        _copy_to_mingw("")


def _copy_to_mingw(value: str) -> None:
    """On Windows, set the variable for mingw's C library, too: it has an environment of its own. "" removes it."""
    if sys.platform == "win32":
        import ctypes

        ctypes.cdll.msvcrt._putenv(f"GOMP_SPINCOUNT={value}".encode())
