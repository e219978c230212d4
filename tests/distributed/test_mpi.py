"""Training on several ranks: `mpi_programs.py` is what they do, and here is what comes of it."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite.training.callbacks.resume import CheckpointFile

pytest.importorskip("mpi4py")
RANKS = Path(__file__).parents[1] / "tools" / "mpi_programs.py"
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PYTHONPATH": os.pathsep.join([str(Path(cl.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
}


def start(ranks, *arguments, program=None):
    """So many ranks that run `mpi_programs.py`, or another program."""
    what = [str(RANKS)] if program is None else ["-c", program]
    command = [MPIRUN, "-n", str(ranks), sys.executable, *what, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=os.environ | ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )


def outcome(ranks, *arguments, seconds=60, program=None):
    """Return the status, output and errors of so many ranks, which end in time."""
    with start(ranks, *arguments, program=program) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return process.returncode, output, errors


def run(ranks, *arguments, seconds=120, program=None):
    """Return the output of so many ranks, which succeed."""
    status, output, errors = outcome(ranks, *arguments, seconds=seconds, program=program)
    assert status == 0, output + errors
    return output


def compare(ranks, epochs):
    (found,) = [json.loads(line) for line in run(ranks, "compare", epochs, seconds=500).splitlines() if line[:1] == "{"]
    assert len(found) > 12
    limits = {"float64": 1e-12, "float32": 1e-6}
    assert {name: off for name, off in found.items() if not off[0] <= limits[name.split()[1]]} == {}


def test_ranks_together_have_what_one_has_alone():
    compare(3, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_many_ranks_have_what_one_has_after_many_steps(ranks):
    compare(ranks, epochs=100)


def test_ranks_agree_on_what_they_do_and_raise(tmp_path):
    assert "checks" in run(3, "check", tmp_path)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ZeroDivisionError: for some reason"),
        ("kill", ""),
        *[
            pytest.param(*given, marks=pytest.mark.slow)
            for given in [
                ("catch", "for some reason"),
                ("exit", "SystemExit"),
                ("leave", "rank 1 of 2 has ended"),
                ("late", "rank 1 of 2 has ended"),
            ]
        ],
        ("step", "rank 1 of 2 has ended"),
        ("standstill", "rank 1 of 2 waits in MPI's Wait\ncaffelite.mpi: all ranks wait for each other"),
    ],
)
def test_if_one_rank_ends_all_end_and_say_why(how, said):
    status, _, errors = outcome(2, how, 1)
    assert status != 0
    assert said in errors


FAIL = {"raise": 1, "exit": 3, "_exit": 3, "kill": None}  # the status with which mpirun ends, if MPI gives one
WHEN = ["before", "made", "between", "predict", "evaluate", "after"]
ORDINARY = [("raise", "before", 2, 1), ("raise", "predict", 3, 0), ("exit", "predict", 2, 1), ("raise", "after", 2, 1)]
FAILURES = ORDINARY + [
    pytest.param(how, when, ranks, who, marks=pytest.mark.slow)
    for how in FAIL
    for when in WHEN
    for ranks, who in [(1, 0), (2, 0), (2, 1), (3, 1)]
    if (how, when, ranks, who) not in ORDINARY
]


@pytest.mark.parametrize(("how", "when", "ranks", "who"), FAILURES)
def test_a_rank_that_fails_outside_of_trainings_ends_all_and_has_the_last_word(how, when, ranks, who):
    status, _, errors = outcome(ranks, "fail", how, when, who)  # others would take longer
    assert status != 0
    if how in ("raise", "exit"):
        assert status == FAIL[how]
    said = own_words(errors)
    if how == "raise":
        assert said.removesuffix("\nin a step of an evaluation").endswith(
            'in fail_by\n    raise ZeroDivisionError("for some reason")\nZeroDivisionError: for some reason'
        )
    elif how == "exit" and ranks > 1 and when != "after":
        assert f"rank {who} of {ranks} has ended with status 3" in said
        assert said.endswith("in fail_by\n    sys.exit(3)\nSystemExit: 3")
    else:
        assert said == ""


def own_words(errors):
    """Return what ranks have printed; `mpirun` may have its own words between lines of - or =."""
    return re.split("^(?:-----|=====)", errors, maxsplit=1, flags=re.MULTILINE)[0].strip()


@pytest.mark.parametrize(
    "when", ["before", *[pytest.param(when, marks=pytest.mark.slow) for when in ("made", "between")]]
)
def test_ranks_that_wait_for_one_that_left_early_report_it_and_end(when):
    status, _, errors = outcome(3, "fail", "end", when, 1)
    assert status == 1
    assert own_words(errors).endswith(
        "waits for ranks that have left, so all ranks end\ncaffelite.mpi: rank 1 of 3 has ended"
    )


def test_a_rank_may_end_before_others_that_do_not_wait_for_it():
    program = """if True:
        import time
        import caffelite.mpi
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 0:
            time.sleep(caffelite.mpi.LEAVE_TIMEOUT + 0.5)
            print("rank 0 has done its work")
    """
    assert "rank 0 has done" in run(2, program=program)


def test_ranks_that_all_exit_with_the_same_error_add_nothing_to_what_they_say():
    status, _, errors = outcome(3, program="import sys, caffelite.mpi; sys.exit('bad news')")
    assert status == 1
    assert own_words(errors).replace("\n", "") == "bad news" * 3


def test_an_exception_ends_all_ranks_whoever_prints_it():
    program = """if True:
        import sys
        import caffelite.mpi
        from mpi4py import MPI
        sys.excepthook = lambda kind, error, traceback: print("for", error, "only", file=sys.stderr)
        MPI.COMM_WORLD.barrier()
        if MPI.COMM_WORLD.rank == 1:
            raise ZeroDivisionError("this reason")
        MPI.COMM_WORLD.barrier()
    """
    status, _, errors = outcome(2, program=program)
    assert status == 1
    assert own_words(errors) == "for this reason only"


def test_one_process_has_the_bits_that_it_has_without():
    program = """if True:
        import sys
        import numpy as np, caffelite as cl, caffelite.mpi
        x, y = cl.datasets.spiral(30, 3, seed=0)
        found = []
        for wrap in (lambda optimizer: optimizer, cl.mpi.DataParallel):
            model = cl.MLP(2, [9, 3], seed=0)
            history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=wrap(cl.Adam(model.parameters())), epochs=3)
            found.append([*history["loss"], *np.concatenate([p.data.ravel() for p in model.parameters()])])
        assert found[0] == found[1]
        assert sys.excepthook is sys.__excepthook__
        assert sys.exit.__module__ == "sys"
    """
    environment = os.environ | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


LIVE = """if True:
    import os, caffelite as cl, caffelite.mpi
    x, y = cl.datasets.spiral(seed=0)
    data = [(x[:100], y[:100]), (x[100:], y[100:])] if {batches} else cl.DataGenerator(x, y, batch_size=32, seed=0)
    model = cl.MLP(2, [20, 3], seed=0)
    optimizer = caffelite.mpi.DataParallel(cl.SGD(model.parameters(), lr=0.1))
    caffelite.mpi.DEADLOCK_TIMEOUT = 1.0
    options = {{"optimizer": optimizer, "loss": cl.SoftmaxLoss(), "epochs": 10**8, "verbose": 0}}
    try:
        history = model.fit(data, callbacks=[cl.callbacks.AverageWeights(0.9), cl.live(open_browser=False)], **options)
    except KeyboardInterrupt as interrupt:
        history = interrupt.history
    bits = b"".join([p.data.tobytes() for p in model.parameters()])
    os.write(1, f"rank {{history.epochs}} {{optimizer.lr}} {{hash(bits)}}\\n".encode())  # in one piece
"""


@pytest.mark.parametrize(
    ("how", "batches"),
    [
        ("stop", False),
        ("Ctrl-C while it is paused", True),
        pytest.param("stop", True, marks=pytest.mark.slow),
        pytest.param("Ctrl-C while it is paused", False, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_obey_the_page_of_rank_0(how, batches, monkeypatch):
    page_client = pytest.importorskip("tests.tools.page_client", exc_type=ImportError)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with start(3, program=LIVE.format(batches=batches)) as process:
        try:
            page = page_client.Page(process.stdout.readline().rpartition(" ")[2].strip())
            page.ask("pause")
            step = page.wait_for_state("paused")["step"]
            for i in range(1, 4):
                page.ask("step")
                assert page.wait_for("status", lambda s, n=step + i: s["step"] >= n)["step"] == step + i
            epoch = page.messages["status"]["epoch"]
            page.ask("epoch")
            page.wait_for("status", lambda s: s["epoch"] == epoch + 1)
            page.ask("rate", value=0.05)
            page.wait_for("status", lambda s: s["lr"] == 0.05)
            page.ask("save")
            page.wait_for("saved")
            if how == "stop":
                page.ask("kernels")
                page.wait_for("refused" if batches else "kernels")
                page.ask("go")
                page.wait_for("status", lambda s: s["epoch"] > epoch + 10)
                page.ask("stop")
            else:
                time.sleep(2)  # longer than a standstill: ranks that pause still talk to each other
                process.send_signal(signal.SIGINT)
            assert page.wait_for_state("stopped")["why"] == ("from a page" if how == "stop" else "Ctrl-C")
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    lines = [line for line in output.splitlines() if line.startswith("rank")]
    assert len(lines) == 3, output + errors
    assert len(set(lines)) == 1
    assert lines[0].split()[2] == "0.05"


@pytest.mark.slow
def test_killed_ranks_leave_a_whole_checkpoint_from_which_any_number_goes_on(tmp_path):
    rng, path, kills = random.Random(0), tmp_path / "checkpoint", 0
    alone = json.loads(run(1, "train", tmp_path / "alone", 0).split("end", 1)[1])
    ends = 0
    while kills < 20 or ends < 2:
        ranks = rng.randint(1, 4)
        with start(ranks, "train", path, 2) as process:
            while not path.exists() and process.poll() is None:
                time.sleep(0.01)
            output = ""
            try:
                output, errors = process.communicate(timeout=rng.uniform(0, 4))
            except subprocess.TimeoutExpired:
                os.kill(rng.choice(children(process.pid)) if kills % 5 else process.pid, signal.SIGKILL)
                kills += 1
                process.communicate(timeout=10)
        if "end" in output:
            found = json.loads(output.split("end", 1)[1])
            off = {name: np.abs(np.subtract(alone[name], x)).max() for name, x in found.items()}
            assert max(x for name, x in off.items() if name not in ("0.bias", "1.mean")) < 1e-12
            path.unlink()
            ends += 1
        else:
            assert process.returncode != 0, errors
            cl.load(path)
            CheckpointFile(path)


def children(pid):
    """Return the ranks among the processes that `mpirun` has started."""
    found, new = [], [pid]
    while new:
        listed = [Path(f"/proc/{p}/task/{p}/children") for p in new]
        new = [int(p) for file in listed if file.exists() for p in file.read_text().split()]
        found += new
    return [p for p in found if b"mpi_programs.py" in Path(f"/proc/{p}/cmdline").read_bytes()] or found
