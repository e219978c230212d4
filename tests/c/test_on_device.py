"""Training steps on a Cortex-M: their code, and a training that QEMU runs."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import c
from tests.c.training_nets import NETS
from tests.conftest import run
from tests.tools.fuzz_c_export import STRICT

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "on_device"
PAGE = ROOT / "docs" / "microcontroller.md"
CORTEX_M4 = ["-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-fno-math-errno"]

needs_arm = pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no compiler for microcontrollers")
needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None or shutil.which("make") is None, reason="no emulator of microcontrollers"
)


@needs_arm
@pytest.mark.parametrize("name", ["momentum", "lenet", "gpt_dropout"])
def test_the_compiler_for_microcontrollers_has_no_warning_and_needs_only_its_libraries(name, tmp_path):
    NETS[name](np.float32).write(tmp_path / "net.c")
    for flag in ("-Os", "-O2"):
        run("arm-none-eabi-gcc", *STRICT, flag, *CORTEX_M4, "-c", "net.c", cwd=tmp_path)
        symbols = {name for name in run("arm-none-eabi-nm", "-u", "net.o", cwd=tmp_path).split() if name != "U"}
        numbers = {name for name in symbols if name.startswith("__aeabi_")}  # double, of the compiler
        known = "expf logf powf sqrtf tanhf erfcf sinf cosf log exp pow sqrt memcpy memset memmove"
        assert symbols - numbers <= set(known.split())


@needs_arm
def test_the_spiral_takes_3_kilobytes_of_code(tmp_path):
    spiral = cl.MLP(2, [100, 3], seed=0)
    rule = cl.SGD(spiral.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    c.export_training(spiral, tmp_path / "net.c", loss=cl.SoftmaxLoss(), optimizer=rule, batch_size=32)
    for flag in ("-Os", "-O2"):
        run("arm-none-eabi-gcc", *STRICT, flag, *CORTEX_M4, "-c", "net.c", cwd=tmp_path)
        sizes = run("arm-none-eabi-size", "-A", "net.o", cwd=tmp_path)
        assert 1000 < int(re.search(r"^\.text\s+(\d+)", sizes, re.MULTILINE)[1]) <= 3000


@needs_arm
@needs_emulator
def test_a_microcontroller_learns_a_new_hand_with_the_losses_that_fit_has(tmp_path, monkeypatch):
    folder = shutil.copytree(EXAMPLE, tmp_path / "on_device", ignore=shutil.ignore_patterns("build"))
    output = run("make", "--no-print-directory", f"PYTHON={sys.executable}", cwd=folder)
    before, after, restored = [int(count) for count in re.findall(r": +(\d+) of 260 right", output)]
    assert before < 200
    assert after > 230
    assert restored == after
    assert int(re.search(r"instructions a step: (\d+)", output)[1]) < 400_000

    assert run("make", "--no-print-directory", "check", cwd=folder).endswith("right\n")

    monkeypatch.chdir(folder)
    program = runpy.run_path("on_device.py")
    model, pixels, digits = program["model"], program["pixels"][:100, None], program["test_digits"][:100]
    for function in model.functions[:-1]:
        function.requires_grad = False
    history = model.fit(
        pixels / np.float32(255),
        digits,
        loss=cl.SoftmaxLoss(),
        optimizer=cl.SGD(model.functions[-1].parameters(), lr=0.01),
        epochs=5,
        batch_size=1,
        shuffle=False,
        verbose=0,
    )
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    np.testing.assert_allclose(losses, history["loss"], 1e-6)

    (quoted,) = re.findall(r"```console\n\$ make .*?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"[\d.]+", "0", line) for line in quoted.splitlines()]
    assert [line for line in lines if line not in re.sub(r"[\d.]+", "0", output)] == []


def test_the_page_has_the_program_of_the_example():
    program = (EXAMPLE / "on_device.py").read_text(encoding="utf-8").splitlines()
    text = PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"```{code-cell}\n(?!:tags: \[remove)(?::[^\n]*\n)*(.*?)```", text, re.DOTALL)
    lines = [line for cell in cells for line in cell.splitlines() if line not in program]
    assert len(cells) == 3
    assert all("slanted" in line or "net.c" in line for line in lines), lines


def test_the_page_has_the_memory_of_the_nets_in_the_benchmark(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "exported_training.py"))
    page = PAGE.read_text(encoding="utf-8")
    for name, make in benchmark["NETS"].items():
        benchmark["export"](make(), tmp_path)
        memory = int(re.search(r"#define NET_BYTES (\d+)", (tmp_path / "net.c").read_text(encoding="utf-8"))[1])
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        assert row.split(" | ")[3] == f"{memory / 1000:.1f}"
