"""How many threads kernels use, that results do not depend on it, and what happens to them in a forked child."""

import hashlib
import multiprocessing
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import bits, classifier, train

import caffelite as cl
from caffelite import threads

pytestmark = pytest.mark.usefixtures("threads_restored")


def trained(dtype=np.float32, rule=cl.SGD):
    """sha256 of the parameters after a fit with steps large enough for every kernel in them to be cut among threads."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1300, 256)), rng.integers(0, 64, 1300)
    model = classifier(256, 512, 64, dtype=dtype)
    options = {"lr": 0.05, "momentum": 0.9} if rule is cl.SGD else {}
    optimizer = rule(model.parameters(), weight_decay=1e-3, **options)
    train(model, x, y, optimizer=optimizer, batch_size=1024, epochs=2)
    return hashlib.sha256(bits(model)).hexdigest()


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [cl.SGD, cl.Adam])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_of_threads_and_every_run_gives_the_same_weights(dtype, rule):
    digests = set()
    for n in (1, 2, 3, 8, 1):
        cl.set_num_threads(n)
        digests.add(trained(dtype, rule))
    assert len(digests) == 1


def test_another_process_gives_the_same_weights():
    program = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_threads as t; print(t.trained())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == trained()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_prediction_is_the_same_for_every_number_of_threads(dtype):
    model = classifier(300, 257, 10, dtype=dtype)
    x = np.random.default_rng(0).normal(size=(1025, 300))
    predictions = []
    for n in (1, 2, 3, 8):
        cl.set_num_threads(n)
        predictions.append(model.predict(x).tobytes())
    assert len(set(predictions)) == 1


@pytest.mark.parametrize("n", [1, 4])
def test_eight_threads_may_predict_at_once(n):
    cl.set_num_threads(n)
    model = classifier(64, 200, 10)
    x = np.random.default_rng(0).normal(size=(8, 500, 64)).astype(np.float32)
    expected = [model.predict(part).tobytes() for part in x]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert [p.tobytes() for p in pool.map(model.predict, x)] == expected


def test_models_may_be_trained_on_several_threads_at_once():
    x, y = cl.datasets.spiral(points_per_class=40, seed=0)

    def trained_from(seed):
        model = classifier(2, 64, 3, seed=seed)
        train(model, x, y, epochs=20)
        return bits(model)

    expected = [trained_from(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(trained_from, range(4))) == expected


def test_labels_that_another_thread_changes_during_a_fit_raise_or_do_not_but_never_crash():
    program = """
import itertools, sys, threading
import numpy as np
import caffelite as cl

sys.setswitchinterval(1e-5)
x, y = np.ones((6400, 8), np.float32), np.zeros(6400, np.int64)
model = cl.Model([cl.Linear(8, 8)])
options = dict(loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0, batch_size=6400)
stopped = threading.Event()

def change():
    for label in itertools.cycle([1, 10**12]):
        y[...] = label
        if stopped.is_set():
            break

thread = threading.Thread(target=change)
thread.start()
raised = 0
for i in range(300):
    try:
        model.fit(x, y, **options) if i % 2 else model.fit([(x, y)], **options)
    except ValueError:
        raised += 1
stopped.set()
thread.join()
print(raised > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


# ---- the number -----------------------------------------------------------------------------------------------------


def test_the_number_that_was_set_is_the_number():
    for n in (1, 5, np.int64(3)):
        cl.set_num_threads(n)
        assert cl.get_num_threads() == n


@pytest.mark.parametrize(
    ("n", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**40, (ValueError, OverflowError)),
        (1.0, TypeError),
        ("2", TypeError),
        (True, TypeError),
    ],
)
def test_a_number_that_cannot_be_used_raises_and_changes_nothing(n, error):
    before = cl.get_num_threads()
    with pytest.raises(error):
        cl.set_num_threads(n)
    assert cl.get_num_threads() == before


def number_in_a_process(before="", **environment):
    """What `get_num_threads` says in a new process, after `before` has run in it."""
    names = ("CAFFELITE_NUM_THREADS", "OMP_NUM_THREADS")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    program = f"import os\n{before}\nimport caffelite as cl\nprint(cl.get_num_threads())\ncl.show_config()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=inherited | environment, capture_output=True, text=True, check=True
    )
    number, *config = done.stdout.splitlines()
    return int(number), "\n".join(config)


@pytest.mark.parametrize(
    ("environment", "number", "reason"),
    [
        ({"CAFFELITE_NUM_THREADS": "3"}, 3, "CAFFELITE_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "5"}, 5, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, 4, "OMP_NUM_THREADS"),
        ({"CAFFELITE_NUM_THREADS": "2", "OMP_NUM_THREADS": "5"}, 2, "CAFFELITE_NUM_THREADS"),
    ],
)
def test_the_environment_is_obeyed_and_named(environment, number, reason):
    found, config = number_in_a_process(**environment)
    assert found == number
    assert f"{number} ({reason}" in config


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
@pytest.mark.parametrize("environment", [{}, {"CAFFELITE_NUM_THREADS": "0"}, {"CAFFELITE_NUM_THREADS": "many"}])
def test_by_default_there_are_no_more_threads_than_processors_allowed(environment):
    number, config = number_in_a_process("os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])", **environment)
    assert number == 1
    assert "1 (processors" in config


def test_show_config_prints_version_instruction_set_threads_and_openmp(capsys):
    cl.set_num_threads(2)
    cl.show_config()
    printed = capsys.readouterr().out
    for word in (cl.__version__, "instruction set", "2 (set_num_threads", "OpenMP"):
        assert word in printed


# ---- control groups -------------------------------------------------------------------------------------------------


def tree(root, files):
    for name, text in files.items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Path(root)


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, float("inf")),
        ({"proc/self/cgroup": ""}, float("inf")),
        # version 2
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 100000\n"}, float("inf")),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 100000", f"{V2}/a/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "4 1\n", f"{V2}/a/cpu.max": "3 1\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "2 1\n", f"{V2}/a/cpu.max": "3 1\n"}, 2),
        ({"proc/self/cgroup": "0::/not/visible\n", f"{V2}/cpu.max": "300000 100000\n"}, 3),
        # version 1
        (
            {
                "proc/self/cgroup": "7:memory:/m\n4:cpu,cpuacct:/docker/abc\n",
                f"{V1}/docker/abc/cpu.cfs_quota_us": "250000\n",
                f"{V1}/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpuacct,cpu:/docker/abc\n",
                f"{V1}/docker/abc/cpu.cfs_quota_us": "-1\n",
                f"{V1}/docker/abc/cpu.cfs_period_us": "100000\n",
                f"{V1}/cpu.cfs_quota_us": "100000\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/a\n",
                f"{V1}/a/cpu.cfs_quota_us": "-1\n",
                f"{V1}/a/cpu.cfs_period_us": "100000\n",
            },
            float("inf"),
        ),
        ({"proc/self/cgroup": "4:cpu:/a\n", f"{V1}/a/cpu.cfs_quota_us": "100000\n"}, float("inf")),
        # both: version 2 for the hierarchy, version 1 for the processors
        (
            {
                "proc/self/cgroup": "1:cpu:/a\n0::/b\n",
                f"{V1}/a/cpu.cfs_quota_us": "100000\n",
                f"{V1}/a/cpu.cfs_period_us": "50000\n",
            },
            2,
        ),
        # the set of processors is another controller
        ({"proc/self/cgroup": "3:cpuset:/a\n", f"{V1}/a/cpu.cfs_quota_us": "1\n"}, float("inf")),
    ],
)
def test_the_quota_is_the_smallest_of_the_groups_around_the_process(tmp_path, files, quota):
    assert threads._cgroup_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize("text", ["", "not a limit\n", None])
def test_a_limit_that_cannot_be_read_is_none(tmp_path, text):
    tree(tmp_path, {"proc/self/cgroup": "0::/a\n", f"{V2}/cpu.max": "200000 100000\n"})
    if text is None:
        Path(tmp_path, V2, "a/cpu.max").mkdir(parents=True)
    else:
        tree(tmp_path, {f"{V2}/a/cpu.max": text})
    assert threads._cgroup_quota(tmp_path) == 2


@pytest.mark.parametrize(("quota", "number"), [(0.5, 1), (1.0, 1), (2.9, 2), (10_000.0, None), (float("inf"), None)])
def test_a_quota_below_the_processors_is_rounded_down_but_not_to_none(monkeypatch, quota, number):
    monkeypatch.setattr(threads, "_cgroup_quota", lambda root: quota)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("CAFFELITE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads._decide()[0] == (number or 8)


# ---- fork -----------------------------------------------------------------------------------------------------------


def answer(connection):
    """In a forked child: a fit, and the number of threads after the fork, and after one was asked for."""
    inherited = cl.get_num_threads()
    digest = trained()
    connection.send((inherited, digest))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
def test_a_child_forked_after_a_fit_finishes_a_fit_with_the_same_bits_on_one_thread():
    cl.set_num_threads(4)
    expected = trained()
    context = multiprocessing.get_context("fork")
    for _ in range(20):
        here, there = context.Pipe()
        child = context.Process(target=answer, args=(there,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
            child.start()
        try:
            assert here.poll(30), "the child hangs"
            assert here.recv() == (1, expected)
        finally:
            child.kill()
            child.join()
    assert cl.get_num_threads() == 4
    assert trained() == expected


def test_a_spawned_process_gives_the_same_bits():
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply_async(trained).get(timeout=60) == trained()
