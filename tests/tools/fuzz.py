"""Random calls of the public API: none may end in a signal, a hang, a wrong class of exception or a wrong value.

    python tests/tools/fuzz.py 1000000 --seed 0 --processes 2     # the cases of the seeds 0 to 999,999
    python tests/tools/fuzz.py --case 4711                        # one of them, with its traceback
    python tests/tools/fuzz.py 10000 --kind programs              # cases of one kind alone

Design
------
(a) A case is a seed. The Generator of the seed picks a kind of call and then all arguments, so a seed repeats a case.
(b) A kind of call is a function of a Generator (`@kind(weight)`), in fuzz_calls.py and fuzz_programs.py. It makes a
    call, compares the result with a judge in float64 NumPy, and raises `Wrong` if they differ. A call may be refused by
    the exceptions in ALLOWED, with a text. `must_work()` is for calls that are correct: there every exception is wrong.
(c) Cases run in forked children, each with a range of seeds. A child writes a line after each case, so if it dies, the
    number of lines says in which case. The next child begins with the case after it.
(d) A child limits its memory, and the time of each case by an alarm. A hang is a death by SIGALRM.
"""

import argparse
import collections
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

import caffelite as cl

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share

from tests.tools import fuzz_programs  # noqa: F401 (its kind of call)
from tests.tools.fuzz_calls import KINDS, SHARED_MEMORY

ALLOWED = (ValueError, TypeError, IndexError, RuntimeError, OSError, KeyError, MemoryError)
NEVER = (RecursionError, NotImplementedError, UnicodeError)  # subclasses of those that are allowed
MEMORY = 5 * 2**30  # bytes of a child
SECONDS = 20  # for each case
BATCH = 2000  # cases of a child


def draw_case(seed):
    """Return the Generator of a case, and the name of its kind."""
    rng = np.random.default_rng(seed)
    weights = np.cumsum([weight for _, weight in KINDS.values()])
    return rng, list(KINDS)[np.searchsorted(weights, rng.random() * weights[-1], "right")]


def answer(seed):
    """How a case ended: its kind, "done" or the class that refused it, and what is wrong, empty if nothing is."""
    rng, name = draw_case(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[name][0](rng)
    except Exception as error:
        said, ending = str(error), type(error).__name__
        if isinstance(error, ALLOWED) and not isinstance(error, NEVER) and (said or isinstance(error, MemoryError)):
            return name, ending, ""
        where = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        return name, ending, f"{ending}: {said[:5000]} ({Path(where.filename).name}:{where.lineno})"
    return name, "done", ""


def child(seeds, path):
    """Run these cases and write a line about each, in a process that ends here."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for output in (1, 2):  # bars of trainings
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        with open(path, "w", buffering=1) as file:
            for seed in seeds:
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                print(json.dumps(answer(seed)), file=file)
    finally:
        os._exit(0)


def run(seeds, processes=1):
    """All answers, as (seed, kind, ending, fault), while they come."""
    waiting = collections.deque(seeds[i : i + BATCH] for i in range(0, len(seeds), BATCH))
    running = collections.deque()
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        while waiting or running:
            while waiting and len(running) < processes:
                batch = waiting.popleft()
                path = os.path.join(folder, str(batch[0]))
                pid = os.fork()
                if pid == 0:
                    child(batch, path)
                running.append((pid, batch, path))
            pid, batch, path = running.popleft()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            lines = Path(path).read_text().splitlines() if os.path.exists(path) else []
            for seed, line in zip(batch, lines, strict=False):
                yield seed, *json.loads(line)
            if len(lines) < len(batch):  # it died in the case after these
                seed = batch[len(lines)]
                how = signal.Signals(-status).name if status < 0 else f"exit {status}"
                yield seed, draw_case(seed)[1], how, f"{how}, in a process that began with {batch[0]}"
                if rest := batch[len(lines) + 1 :]:
                    waiting.appendleft(rest)


def summary(endings):
    """Return a table: kinds of call, how many ran, how many were done, how many each class refused."""
    lines = [f"{'kind':26}{'calls':>9}{'done':>9}  refused"]
    for name in KINDS:
        counts = endings[name]
        others = ", ".join(f"{ending} {n}" for ending, n in counts.most_common() if ending != "done")
        lines.append(f"{name:26}{counts.total():9}{counts['done']:9}  {others}")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first case")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--case", type=int, help="run the case of this seed alone, in this process")
    parser.add_argument("--kind", choices=KINDS, help="make calls of this kind alone")
    options = parser.parse_args(arguments)
    for name in [name for name in KINDS if name != options.kind] if options.kind else []:
        del KINDS[name]
    cl.set_num_threads(1)
    if options.case is not None:
        rng, name = draw_case(options.case)
        print(f"case {options.case}: {name}")
        KINDS[name][0](rng)
        return 0
    endings, faults = collections.defaultdict(collections.Counter), 0
    for seed, name, ending, fault in run(range(options.seed, options.seed + options.calls), options.processes):
        endings[name][ending] += 1
        if fault:
            faults += 1
            print(f"case {seed}, {name}: {fault}", flush=True)
    print(summary(endings))
    print(f"{options.calls} calls from seed {options.seed}: {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
