"""How many threads kernels use, that results do not depend on it, and what happens to them in a forked child."""

import gc
import hashlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from threadpoolctl import threadpool_limits

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite._support import fork as forks
from caffelite.core import threads
from tests.conftest import bits, classifier, posix, train

pytestmark = pytest.mark.usefixtures("restored_threads")

ROOT = str(Path(__file__).parents[2])  # of the project

with_openmp = pytest.mark.skipif(not kernels.OPENMP, reason="compiled without OpenMP")
visible_openmp = pytest.mark.skipif(os.name != "posix", reason="OpenMP is in a module, where threadpoolctl finds none")
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])

# Layers' sizes, batch, rows: steps large enough to be cut among threads, and the last batch is short.
NETS = {
    "256-512-64": ((256, 512, 64), 1024, 1300),  # every kernel of a step is
    "784-512-512-10": ((784, 512, 512, 10), 128, 300),
    "17-333-65-7": ((17, 333, 65, 7), 512, 600),
}
RULES = {"SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}, "Adam": {"lr": 1e-3, "weight_decay": 1e-3}}


def make_training(net, rule, dtype):
    """Return a model, the optimizer, rows, labels and the batch size."""
    sizes, batch, rows = NETS[net]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, sizes[0])).astype(dtype), rng.integers(0, sizes[-1], rows)
    model = classifier(*sizes, dtype=dtype)
    return model, getattr(cl, rule)(model.parameters(), **RULES[rule]), x, y, batch


def train_digest(net="256-512-64", rule="SGD", dtype=np.float32):
    """sha256 of the parameters after a fit."""
    model, optimizer, x, y, batch = make_training(net, rule, dtype)
    train(model, x, y, optimizer=optimizer, batch_size=batch, epochs=2)
    return hashlib.sha256(bits(model)).hexdigest()


# ---- results --------------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("net", NETS)
def test_every_number_of_threads_and_every_run_gives_the_same_weights(net, rule, dtype):
    digests = set()
    for n in (1, 2, 3, 8, 1):
        cl.set_num_threads(n)
        digests.add(train_digest(net, rule, dtype))
    assert len(digests) == 1


@pytest.mark.parametrize("net", NETS)
def test_nearly_all_work_of_these_steps_is_cut_among_threads(net):
    model, optimizer, x, y, batch = make_training(net, "SGD", np.float32)
    loss = cl.SoftmaxLoss()

    def step(x, y):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    work = np.array([entry.call.work for entry in cl.capture(step, x[:batch], y[:batch]).optimize().instructions])
    assert work[work >= kernels.PARALLEL_WORK].sum() > 0.9 * work.sum()


@DTYPES
@pytest.mark.parametrize("isa", kernels.available_instruction_sets())
def test_a_prediction_depends_neither_on_the_rows_beside_it_nor_on_threads(isa, dtype):
    before = kernels.ISA
    kernels.use_instruction_set(isa)
    try:
        for width in (1, 2, 3, 5, 16, 17, 31, 64, 100, 257, 512):
            model = classifier(width, width, 10, dtype=dtype)
            x = np.random.default_rng(0).normal(size=(1100 if width < 64 else 150, width)).astype(dtype)
            cl.set_num_threads(1)
            together = model.predict(x)
            for i in [*range(20), *range(len(x) - 20, len(x))]:
                assert model.predict(x[i : i + 1])[0].tobytes() == together[i].tobytes(), width
            for n, batch_size in [(1, 7), (1, 64), (3, 101), (3, 1024), (8, 1024)]:
                cl.set_num_threads(1)
                model.predict(-x, batch_size=batch_size)  # so no right result is left in memory
                cl.set_num_threads(n)
                assert model.predict(x, batch_size=batch_size).tobytes() == together.tobytes(), width
    finally:
        kernels.use_instruction_set(before)


def test_another_process_gives_the_same_weights():
    program = f"import sys; sys.path.insert(0, {ROOT!r}); import tests.core.test_threads as t; print(t.train_digest())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == train_digest()


@pytest.mark.parametrize("n", [1, 4])
def test_eight_threads_may_predict_at_once(n):
    cl.set_num_threads(n)
    model = classifier(64, 200, 10)
    x = np.random.default_rng(0).normal(size=(8, 500, 64)).astype(np.float32)
    expected_digest = [model.predict(part).tobytes() for part in x]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert [p.tobytes() for p in pool.map(model.predict, x)] == expected_digest


def test_models_may_be_trained_on_several_threads_at_once():
    x, y = cl.datasets.spiral(points_per_class=40, seed=0)

    def train_from_seed(seed):
        model = classifier(2, 64, 3, seed=seed)
        train(model, x, y, epochs=20)
        return bits(model)

    expected_digest = [train_from_seed(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(train_from_seed, range(4))) == expected_digest


def test_labels_that_another_thread_changes_during_a_fit_never_crash():
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

thread = threading.Thread(target=change, daemon=True)
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
        (2**31, ValueError),
        (2**31 - 1, ValueError),
        (100_000, ValueError),
    ],
)
def test_a_number_that_cannot_be_used_raises_and_changes_nothing(n, error):
    before = cl.get_num_threads()
    with pytest.raises(error):
        cl.set_num_threads(n)
    assert cl.get_num_threads() == before


PRODUCT = """
import numpy as np
import caffelite as cl
from caffelite import _kernels as kernels

def product():
    return kernels.matmul(np.ones((2048, 64), np.float32), np.ones((64, 512), np.float32)).sum()
"""


@pytest.mark.parametrize("n", [100_000, 2**31 - 1])
def test_too_many_threads_raise_and_the_next_product_is_right(n):
    program = f"""
try:
    cl.set_num_threads({n})
except ValueError as error:
    print(error)
print(product() == 2048 * 64 * 512)
"""
    refused, right = in_a_process(PRODUCT + program).splitlines()
    assert refused == f"n must be at most {threads._max_threads(Path('/'))} on this machine, got {n}"
    assert right == "True"


@pytest.mark.parametrize("n", [100_000, 2**31 - 1])
def test_too_many_threads_are_not_taken_from_the_environment(n):
    printed = in_a_process(PRODUCT + "print(product() == 2048 * 64 * 512)", CAFFELITE_NUM_THREADS=str(n))
    assert printed.split() == ["True"]


def test_as_many_threads_as_are_allowed_can_be_used():
    program = "cl.set_num_threads(threads._max_threads(Path('/')))\nprint(product() == 2048 * 64 * 512)"
    printed = in_a_process(f"from pathlib import Path\n{PRODUCT}\nfrom caffelite.core import threads\n{program}")
    assert printed.split() == ["True"]


def number_in_a_process(before="", **environment):
    """Return what `get_num_threads` says in a new process, after `before` has run in it."""
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
        ({"CAFFELITE_NUM_THREADS": "2147483648", "OMP_NUM_THREADS": "5"}, 5, "OMP_NUM_THREADS"),
        ({"CAFFELITE_NUM_THREADS": "100000", "OMP_NUM_THREADS": "64"}, 64, "OMP_NUM_THREADS"),
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


# ---- limits through OpenMP ------------------------------------------------------------------------------------------


@visible_openmp
@with_openmp
def test_a_limit_on_the_calling_thread_is_obeyed_and_told_and_ends(capsys):
    def elsewhere():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(kernels.available_threads).result()

    cl.set_num_threads(8)
    for limit in {1, 3} - {len(os.sched_getaffinity(0))}:  # OpenMP's default, which can't be told from no limit
        with threadpool_limits(limit):
            assert (kernels.available_threads(), elsewhere(), cl.get_num_threads()) == (limit, 8, 8)
            cl.show_config()
            assert f"{limit} (limited on this thread" in capsys.readouterr().out
        assert (kernels.available_threads(), elsewhere()) == (8, 8)
    cl.set_num_threads(2)
    with threadpool_limits(3):
        assert kernels.available_threads() == 2


@with_openmp
def test_threads_that_train_at_the_same_time_share_the_number():
    cl.set_num_threads(8)
    ends, seen = threading.Event(), set()

    def train_until_the_other_has_seen_it(net):
        model, optimizer, x, y, batch = make_training(net, "SGD", np.float32)
        while not ends.is_set():
            train(model, x, y, optimizer=optimizer, batch_size=batch, epochs=20)

    with ThreadPoolExecutor(2) as pool:
        trainings = [pool.submit(train_until_the_other_has_seen_it, "784-512-512-10") for _ in range(2)]
        deadline = time.monotonic() + 60
        while 4 not in seen and time.monotonic() < deadline:
            seen.add(kernels.available_threads())
        ends.set()
        for training in trainings:
            training.result()
    assert 4 in seen
    assert kernels.available_threads() == 8


def in_a_process(program, **environment):
    """Return what a program prints in a new process in which one may import this file and OpenMP has two threads by
    itself.
    """
    setting = f"import sys; sys.path.insert(0, {ROOT!r})\n"
    environment = dict(os.environ, OMP_NUM_THREADS="2") | environment
    command = [sys.executable, "-c", setting + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@posix
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list a process's threads")
@with_openmp
def test_no_more_threads_are_started_than_a_limit_allows():
    printed = in_a_process("""
import os, threading
import caffelite as cl
import numpy as np
from tests.core import test_threads
from threadpoolctl import threadpool_limits

def started(work):
    before = len(os.listdir("/proc/self/task"))
    work()
    return len(os.listdir("/proc/self/task")) - before

trained = test_threads.train_digest
cl.set_num_threads(8)
digests = set()
with threadpool_limits(1):
    print(started(lambda: digests.add(trained())))
    def elsewhere():
        print(started(lambda: digests.add(trained())))
        looked.set()
        ended.wait()
    looked, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    looked.wait()
with threadpool_limits(3):
    print(started(lambda: digests.add(trained())))
print(started(lambda: digests.add(trained())), len(digests))
ended.set()
thread.join()
""")
    assert printed.split() == ["0", "7", "2", "5", "1"]


@visible_openmp
@with_openmp
def test_a_limit_from_before_the_import_is_obeyed_and_ends():
    printed = in_a_process(f"""
import ctypes
from threadpoolctl import threadpool_limits
ctypes.CDLL({kernels.launch.__file__!r})  # OpenMP is there, caffelite is not
with threadpool_limits(1):
    from caffelite import _kernels as kernels, set_num_threads
    set_num_threads(8)
    print(kernels.available_threads())
print(kernels.available_threads())
""")
    assert printed.split() == ["1", "8"]


# ---- control groups -------------------------------------------------------------------------------------------------


V2 = ("/sys/fs/cgroup", "cgroup2", "rw,nsdelegate")
V1 = ("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
HYBRID = ("/sys/fs/cgroup/unified", "cgroup2", "rw")
MEMORY = ("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
NOTHING = float("inf")


def tree(root, groups, mounts, limits):
    """Return the files of a process in these groups, where hierarchies are mounted from some top on and set limits."""
    line = "31 23 0:27 {} {} rw,nosuid,noexec shared:9 master:3 - {} cgroup {}\n"
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n"}
    for top, (point, kind, options) in mounts:
        files["proc/self/mountinfo"] += line.format(top, point, kind, options)
    for (mount, folder), limit in limits.items():
        names = ["cpu.max"] if mount[1] == "cgroup2" else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        for name, text in zip(names, [limit] if len(names) == 1 else limit.split(), strict=False):
            files[f"{mount[0]}/{folder}/{name}"] = f"{text}\n"
    for name, text in files.items():
        path = Path(root, name.lstrip("/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(text))
    return Path(root)


@pytest.mark.parametrize(
    ("groups", "mounts", "limits", "quota"),
    [
        ("", [], {}, NOTHING),
        ("no such line\n", [("/", V2)], {}, NOTHING),
        # version 2
        ("0::/\n", [("/", V2)], {(V2, ""): "200000 100000"}, 2),
        ("0::/a/b\n", [("/", V2)], {(V2, "a/b"): "150000 100000"}, 1.5),
        ("0::/a/b\n", [("/", V2)], {(V2, "a/b"): "max 100000"}, NOTHING),
        ("0::/a/b\n", [("/", V2)], {(V2, "a/b"): "max 100000", (V2, "a"): "50000 100000"}, 0.5),
        ("0::/a/b\n", [("/", V2)], {(V2, "a/b"): "4 1", (V2, "a"): "3 1"}, 3),
        ("0::/a/b\n", [("/", V2)], {(V2, "a/b"): "2 1", (V2, "a"): "3 1"}, 2),
        ("0::/a/b\n", [("/", V2)], {(V2, "b"): "2 1", (V2, "a/c"): "3 1"}, NOTHING),
        pytest.param("0::/a:\udcff\n", [("/", V2)], {(V2, "a:\udcff"): "2 1"}, 2, marks=posix),
        # version 1
        ("7:memory:/m\n4:cpu,cpuacct:/a\n", [("/", MEMORY), ("/", V1)], {(V1, "a"): "250000 100000"}, 2.5),
        ("4:cpuacct,cpu:/a/b\n", [("/", V1)], {(V1, "a/b"): "-1 100000", (V1, ""): "100000 100000"}, 1),
        ("4:cpu:/a\n", [("/", V1)], {(V1, "a"): "-1 100000"}, NOTHING),
        # both: version 2 for the hierarchy, version 1 for the processors, or the other way round
        ("1:cpu,cpuacct:/a\n0::/b\n", [("/", HYBRID), ("/", V1)], {(V1, "a"): "2 1", (V1, "b"): "1 1"}, 2),
        ("1:memory:/a\n0::/b\n", [("/", HYBRID), ("/", MEMORY)], {(HYBRID, "b"): "2 1", (MEMORY, "a"): "1 1"}, 2),
        # in a container: with its own namespace, without one, seen from its group on, and only from far above
        ("0::/\n", [("/", V2)], {(V2, ""): "max 100000", (V2, "a"): "1 1"}, NOTHING),
        ("4:cpu,cpuacct:/docker/abc\n", [("/docker/abc", V1)], {(V1, ""): "300000 100000"}, 3),
        ("4:cpu,cpuacct:/docker/abc/d\n", [("/docker/abc", V1)], {(V1, ""): "3 1", (V1, "d"): "2 1"}, 2),
        ("0::/not/visible\n", [("/", V2)], {(V2, ""): "300000 100000"}, 3),
        ("0::/\n", [("/../..", V2)], {(V2, ""): "300000 100000"}, 3),
        ("0::/../abc\n", [("/", V2)], {(V2, ""): "3 1", (V2, "abc"): "1 1"}, 3),
        # the set of processors is another controller
        ("3:cpuset:/a\n", [("/", ("/sys/fs/cgroup/cpuset", "cgroup", "rw,cpuset"))], {(V1, "a"): "1 1"}, NOTHING),
    ],
)
def test_the_quota_is_the_smallest_of_the_groups_around_the_process(tmp_path, groups, mounts, limits, quota):
    assert threads._cgroup_limit("cpu", tree(tmp_path, groups, mounts, limits)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert threads._cgroup_limit("cpu", tmp_path) == NOTHING


@pytest.mark.parametrize("text", ["", "not a limit", "1 0", None])
def test_a_limit_that_cannot_be_read_does_not_count(tmp_path, text):
    limits = {(V2, ""): "200000 100000"} | ({} if text is None else {(V2, "a"): text})
    root = tree(tmp_path, "0::/a\n", [("/", V2)], limits)
    if text is None:
        Path(tmp_path, "sys/fs/cgroup/a/cpu.max").mkdir(parents=True)
    assert threads._cgroup_limit("cpu", root) == 2


def test_half_a_limit_of_version_1_does_not_count(tmp_path):
    root = tree(tmp_path, "4:cpu:/a\n", [("/", V1)], {(V1, "a"): "100000"})
    assert threads._cgroup_limit("cpu", root) == NOTHING


@pytest.mark.parametrize(("quota", "number"), [(0.5, 1), (1.0, 1), (2.9, 2), (10_000.0, None), (float("inf"), None)])
def test_a_quota_below_the_processors_is_rounded_down_but_not_to_none(monkeypatch, quota, number):
    monkeypatch.setattr(threads, "_cgroup_limit", lambda name, root: quota if name == "cpu" else NOTHING)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("CAFFELITE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads._decide()[0] == (number or 8)


PIDS = ("/sys/fs/cgroup/pids", "cgroup", "rw,pids")


@pytest.mark.parametrize(
    ("groups", "mount", "limits", "limit"),
    [
        ("0::/a/b\n", V2, {"a/b": "max", "a": "100"}, 100),
        ("0::/a/b\n", V2, {"a/b": "20", "a": "100"}, 20),
        ("0::/a\n", V2, {"a": "max"}, NOTHING),
        ("5:pids:/a\n4:cpu:/b\n", PIDS, {"a": "33", "b": "22"}, 33),
        ("0::/a\n", V1, {"a": "33"}, NOTHING),
    ],
)
def test_groups_limit_the_number_of_threads_too(tmp_path, groups, mount, limits, limit):
    root = tree(tmp_path, groups, [("/", mount)], {})
    for folder, text in limits.items():
        path = Path(root, mount[0].lstrip("/"), folder, "pids.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert threads._cgroup_limit("pids", root) == limit
    assert threads._cgroup_limit("cpu", root) == NOTHING


@pytest.mark.parametrize(
    ("processors", "allowed", "most"),
    [(1, NOTHING, 64), (2, 1000.0, 64), (2, 50.0, 25), (2, 1.0, 1), (96, NOTHING, 384)],
)
def test_the_bound_is_several_threads_a_processor_or_half_a_groups_limit(monkeypatch, processors, allowed, most):
    monkeypatch.setattr(threads, "_cgroup_limit", lambda name, root: allowed if name == "pids" else NOTHING)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: set(range(96)), raising=False)
    monkeypatch.delenv("CAFFELITE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads._max_threads(Path("/")) == most
    assert threads._decide()[0] == min(most, 96)
    with pytest.raises(ValueError, match=f"n must be at most {most} "):
        cl.set_num_threads(most + 1)


# ---- other processes ------------------------------------------------------------------------------------------------


@pytest.fixture
def expected_digest():
    """Return what `train_digest` gives in this process, whose kernels have then run on several threads."""
    cl.set_num_threads(4)
    return train_digest()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
def test_children_forked_after_a_fit_finish_a_fit_with_the_same_bits_on_one_thread(expected_digest):
    for i in range(20):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
            child = os.fork()
        if child == 0:
            try:
                number = cl.get_num_threads()
                if i % 2:
                    cl.set_num_threads(4)
                os.write(writing, f"{number} {kernels.available_threads()} {train_digest()}".encode())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            assert select.select([reading], [], [], 30)[0], "the child hangs"
            assert os.read(reading, 1000).decode() == f"1 1 {expected_digest}"
        finally:
            os.close(reading)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert (cl.get_num_threads(), train_digest()) == (4, expected_digest)


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
def test_children_forked_beside_threads_that_use_the_same_model_do_not_hang(tmp_path):
    """Whatever another thread held when its process was forked, nobody holds in the child."""
    x, y = cl.datasets.spiral(points_per_class=60, seed=0)
    path, loss, stop = tmp_path / "m.safetensors", cl.SoftmaxLoss(), threading.Event()
    model = classifier(2, 3)
    model.save(path)

    def fit():
        optimizer = cl.SGD(model.parameters(), lr=1e-3)
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=2, verbose=0, validation_data=(x, y))

    uses = [
        lambda: model.predict(x),
        lambda: model.evaluate(x, y, loss=loss),
        fit,
        lambda: model.save(path),
        lambda: cl.load(path).predict(x),
    ]

    def repeat(use):
        while not stop.is_set():
            use()

    workers = [threading.Thread(target=repeat, args=[use]) for use in uses]
    for worker in workers:
        worker.start()
    try:
        for i in range(200):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
                child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # which ends a child that hangs
                done = 1
                try:
                    uses[i % len(uses)]()
                    done = 0
                finally:
                    os._exit(done)
            assert os.waitpid(child, 0)[1] == 0, f"child {i} hangs or fails"
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_garbage_that_notes_things_when_it_is_collected_may_be_collected_at_any_time(monkeypatch):
    """Python collects garbage wherever something is made, and other threads may run there too."""
    noted, left = [], iter(range(1000))

    class Thing:
        def __init__(self):
            self.itself = self  # a cycle, so it is garbage for the collector

        def __del__(self):
            if next(left, None) is not None:
                noted.append(Thing)
                forks.reset_after_fork(kept)
                Thing()

        def _after_fork(self):
            pass

    kept = Thing()
    monkeypatch.setattr(forks, "_registered", {-i: ref(kept) for i in range(1, 5000)})
    thresholds = gc.get_threshold()
    gc.freeze()  # Python without its lock waits for a quarter more objects than there are
    gc.collect()
    gc.set_threshold(1)
    try:
        Thing()
        for _ in range(1000):  # Python 3.14 and later collect in small portions
            monkeypatch.setattr(forks, "_prune_at", 0)  # look for what is gone
            forks.reset_after_fork(kept)
            if len(noted) > 10:
                break
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert noted


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
@with_openmp
def test_a_forked_child_may_use_threads_if_its_parent_used_none():
    printed = in_a_process("""
import os
import caffelite as cl
from tests.core import test_threads
child = os.fork()
cl.set_num_threads(4)
os.write(1, f"{cl._kernels.available_threads()} {test_threads.train_digest()}\\n".encode())
if child:
    os.waitpid(child, 0)
""")
    assert sorted(printed.splitlines()) == [f"4 {train_digest()}"] * 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_started_in_every_way_give_the_same_bits(method, expected_digest):
    with multiprocessing.get_context(method).Pool(2) as pool:
        done = [pool.apply_async(train_digest) for _ in range(3)]
        assert [result.get(timeout=60) for result in done] == [expected_digest] * 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_joblib_gives_the_same_bits(backend, expected_digest):
    try:
        with joblib.Parallel(n_jobs=2, backend=backend, timeout=60) as parallel:
            assert parallel(joblib.delayed(train_digest)() for _ in range(3)) == [expected_digest] * 3
    finally:
        if backend == "loky":
            get_reusable_executor().shutdown()
