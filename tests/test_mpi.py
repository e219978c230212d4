"""Training on several ranks: `ranks.py` is what they do, and here is what comes of it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite.checkpoints import Saved

pytest.importorskip("mpi4py")
RANKS = Path(__file__).with_name("ranks.py")
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PYTHONPATH": os.pathsep.join([str(Path(cl.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
}


def start(ranks, *arguments):
    command = [MPIRUN, "-n", str(ranks), sys.executable, str(RANKS), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=os.environ | ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )


def run(ranks, *arguments, seconds=120):
    """The output of so many ranks, which succeed."""
    with start(ranks, *arguments) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    assert process.returncode == 0, output + errors
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
        ("standstill", "rank 1 of 2 waits in MPI's Wait\ncaffelite.mpi: all wait for each other"),
    ],
)
def test_where_one_rank_ends_all_end_and_say_why(how, said):
    started = time.monotonic()
    with start(2, how, 1) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said in errors
    assert time.monotonic() - started < 60


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
    """
    environment = os.environ | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


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
            Saved(path)


def children(pid):
    """The ranks among the processes that `mpirun` has started."""
    found, new = [], [pid]
    while new:
        listed = [Path(f"/proc/{p}/task/{p}/children") for p in new]
        new = [int(p) for file in listed if file.exists() for p in file.read_text().split()]
        found += new
    return [p for p in found if b"ranks.py" in Path(f"/proc/{p}/cmdline").read_bytes()] or found
