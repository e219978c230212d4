"""Training steps in C: µs beside `fit` on this machine, and what they take on microcontrollers.

The first table needs a C compiler, `cc`. `fit` replays a recorded step; C is called in a loop of C. The second table
needs arm-none-eabi-gcc with newlib, and qemu-system-arm: packages gcc-arm-none-eabi, libnewlib-arm-none-eabi and
qemu-system-arm of Debian. QEMU counts instructions, and not cycles. Code and constants are of the file alone, without
libm's exp and log. All losses of 50 steps are compared with those of `fit`.

    python benchmarks/exported_training.py
    python benchmarks/exported_training.py --quick      # only to see that it works
"""

import argparse
import ctypes
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np

BOARD = Path(__file__).parents[1] / "examples" / "on_device"
STEPS = 50
HOST_FLAGS = ["-O2", "-O3 -march=native -fno-math-errno"]
ARM_FLAGS = ["-Os", "-O2", "-O3"]
# Boards of QEMU, with the processor and its unit of floats.
BOARDS = {"M4F": ("mps2-an386", "cortex-m4", "fpv4-sp-d16"), "M7": ("mps2-an500", "cortex-m7", "fpv5-sp-d16")}
ARM_TOOLS = ["arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm"]

LOOP = """\
#include <stdint.h>
void net_init(void);
float net_train(const float *x, const int32_t *y);
void repeat(int batch, int row, const float *x, const int32_t *y, float *losses)
{
    net_init();
    for (int i = 0; i < STEPS; i++) losses[i] = net_train(x + i * batch * row, y + i * batch);
}
"""

DEVICE = """\
#include <stdint.h>
#include "board.h"
void net_init(void);
float net_train(const float *x, const int32_t *y);
int main(void)
{
    net_init();
    for (int i = 0; i < STEPS; i++) {
        const uint32_t start = read_clock();
        const float loss = net_train(x + i * BATCH * ROW, y + i * BATCH);
        const uint32_t instructions = count_instructions(start);
        print_number(loss, 9);
        print(" ");
        print_number(instructions, 0);
        print("\\n");
    }
    return 0;
}
"""


class Net(NamedTuple):
    """A net, its optimizer, the size of a batch, the shape of a row, its classes, and the layers that are trained."""

    model: Any
    optimizer: Any
    batch: int
    shape: tuple
    classes: int
    trainable: Any = None

    def batches(self):
        """Return the data of all steps."""
        generator = np.random.default_rng(0)
        x = generator.random((STEPS * self.batch, *self.shape), dtype=np.float32)
        return x, generator.integers(0, self.classes, len(x)).astype(np.int32)

    def fit(self, x, y, epochs=1):
        """Train as users do, and return the history."""
        import caffelite as cl

        return self.model.fit(
            x,
            y,
            loss=cl.SoftmaxLoss(),
            optimizer=self.optimizer,
            batch_size=self.batch,
            epochs=epochs,
            shuffle=False,
            verbose=0,
        )


def spiral():
    import caffelite as cl

    model = cl.MLP(2, [100, 3], seed=0)
    return Net(model, cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), 32, (2,), 3)


def digits():
    import caffelite as cl

    model = cl.MLP(64, [100, 10], seed=0)
    return Net(model, cl.SGD(model.parameters(), lr=0.01), 1, (64,), 10)


def lenet(batch):
    import caffelite as cl

    model = cl.Model([cl.Conv2d(1, 6, 3, padding=1), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    model.add(cl.Conv2d(6, 16, 3, padding=1)).add(cl.ReLU()).add(cl.MaxPool2d(2)).add(cl.Flatten())
    model.add(cl.Linear(64, 32)).add(cl.ReLU()).add(cl.Linear(32, 10))
    return Net(model, cl.SGD(model.parameters(), lr=0.01), batch, (1, 8, 8), 10)


def last_layer():
    """Return the net of examples/on_device."""
    import caffelite as cl

    model = cl.Model([cl.Conv2d(1, 16, 3, padding=1), cl.ReLU(), cl.MaxPool2d(2), cl.Flatten()], seed=0)
    model.add(cl.Linear(256, 10))
    for function in model.functions[:-1]:
        function.requires_grad = False
    return Net(model, cl.SGD(model.functions[-1].parameters(), lr=0.01), 1, (1, 8, 8), 10, model.functions[-1:])


NETS = {
    "spiral 2-100-3, batch 32": spiral,
    "digits 64-100-10, batch 1": digits,
    "LeNet 8 × 8, batch 1": lambda: lenet(1),
    "LeNet 8 × 8, batch 32": lambda: lenet(32),
    "last layer, batch 1": last_layer,
}


def export(net, folder):
    import caffelite as cl
    import caffelite.c

    options = {"batch_size": net.batch, "input_shape": net.shape, "trainable": net.trainable}
    caffelite.c.export_training(
        net.model, folder / "net.c", loss=cl.SoftmaxLoss(), optimizer=net.optimizer, check=False, **options
    )


def losses_of_fit(net, x, y):
    rows = [slice(i * net.batch, (i + 1) * net.batch) for i in range(STEPS)]
    return np.array([net.fit(x[part], y[part])["loss"][0] for part in rows])


# ---- this machine ---------------------------------------------------------------------------------------------------


def prepare_fit(net, x, y):
    """Return a function that returns the seconds of a step."""
    epochs = 20
    return lambda: harness.seconds_per_call("fit(x, y, epochs)", fit=net.fit, x=x, y=y, epochs=epochs) / epochs / STEPS


def prepare_c(net, x, y, flags, folder, expected):
    """As `prepare_fit`, of C with these flags, after a comparison of its losses."""
    (folder / "loop.c").write_text(LOOP)
    command = ["cc", "-std=c99", *flags.split(), f"-DSTEPS={STEPS}", "-fPIC", "-shared", "net.c", "loop.c"]
    library = folder / f"{len(list(folder.glob('*.so')))}.so"
    subprocess.run([*command, "-o", library, "-lm"], check=True, cwd=folder)
    losses = np.empty(STEPS, np.float32)
    arrays = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, y, losses)]
    arguments = [net.batch, x[0].size, *arrays]
    repeat = ctypes.CDLL(str(library)).repeat
    repeat(*arguments)
    np.testing.assert_allclose(losses, expected, 1e-6)
    return lambda: harness.seconds_per_call("repeat(*arguments)", repeat=repeat, arguments=arguments) / STEPS


def time_host(name, folder, rounds):
    """Return the row of a net: µs a step of `fit`, and of C."""
    net = NETS[name]()
    export(net, folder)
    x, y = net.batches()
    expected = losses_of_fit(net, x, y)
    contestants = [prepare_fit(net, x, y), *[prepare_c(net, x, y, flags, folder, expected) for flags in HOST_FLAGS]]
    seconds = np.min([[measure() for measure in contestants] for _ in range(rounds)], axis=0)
    return [name, *[f"{1e6 * s:.1f}" for s in seconds], *[f"{s / seconds[0]:.1f}" for s in seconds[1:]]]


# ---- microcontrollers -----------------------------------------------------------------------------------------------


def write_device(net, x, y, folder):
    """Write the program that trains, with its data."""
    numbers, labels = [", ".join([repr(v) for v in a.ravel().tolist()]) for a in (x, y)]
    sizes = f"enum {{ STEPS = {STEPS}, BATCH = {net.batch}, ROW = {x[0].size} }};\n"
    data = f"static const float x[] = {{{numbers}}};\nstatic const int32_t y[] = {{{labels}}};\n"
    (folder / "main.c").write_text(f"#include <stdint.h>\n{sizes}{data}{DEVICE}")


def run_device(board, flags, folder):
    """Return bytes of code, constants and memory, the instructions of a step, and the losses."""
    machine, cpu, fpu = BOARDS[board]
    options = f"-std=c99 {flags} -fno-math-errno -mcpu={cpu} -mthumb -mfpu={fpu} -mfloat-abi=hard -I{BOARD}"
    compile_c = ["arm-none-eabi-gcc", *options.split()]
    subprocess.run([*compile_c, "-c", "net.c", "-o", "net.o"], check=True, cwd=folder)
    sources = ["main.c", BOARD / "board.c", "net.o", "-lm", "-o", "program.elf"]
    subprocess.run([*compile_c, "-w", "-nostartfiles", "-T", BOARD / "board.ld", *sources], check=True, cwd=folder)
    sections = subprocess.run(["arm-none-eabi-size", "-A", "net.o"], check=True, cwd=folder, capture_output=True)
    sizes = re.findall(r"^\.(text|rodata|data|bss)\S*\s+(\d+)", sections.stdout.decode(), re.MULTILINE)
    code, constants, data, bss = [
        sum(int(size) for kind, size in sizes if kind == section) for section in ("text", "rodata", "data", "bss")
    ]
    emulator = f"qemu-system-arm -machine {machine} -kernel program.elf -icount shift=0 -nographic -monitor none"
    output = "-serial none -chardev stdio,id=out -semihosting-config enable=on,target=native,chardev=out"
    done = subprocess.run(
        [*emulator.split(), *output.split()], check=True, cwd=folder, capture_output=True, timeout=300
    )
    losses, instructions = np.array([line.split() for line in done.stdout.decode().splitlines()], float).T
    return code, constants, data + bss, int(np.median(instructions)), losses


def measure_device(name, folder, boards, flags):
    """Return the rows of a net."""
    net = NETS[name]()
    export(net, folder)
    x, y = net.batches()
    expected = losses_of_fit(net, x, y)
    write_device(net, x, y, folder)
    rows = []
    for board in boards:
        for flag in flags:
            *sizes, losses = run_device(board, flag, folder)
            difference = np.max(np.abs(losses / expected - 1))
            rows.append([f"{name}, {board} {flag}", *[f"{n:,}" for n in sizes], f"{1e6 * difference:.2f}"])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is timed (20)")
    parser.add_argument("--quick", action="store_true", help="one net, twice, on one microcontroller")
    options = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment())
    names = list(NETS)[: 1 if options.quick else None]
    missing = [tool for tool in ARM_TOOLS if shutil.which(tool) is None]
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, str(i)) for i in range(2 * len(names))]
        for folder in folders:
            folder.mkdir()
        if shutil.which("cc"):
            rounds = 2 if options.quick else options.rounds
            rows = [time_host(name, folder, rounds) for name, folder in zip(names, folders, strict=False)]
            header = ["", "fit", *[f"C, {flags}" for flags in HOST_FLAGS], *[f"fit = 1: {x[:3]}" for x in HOST_FLAGS]]
            print(f"\nµs a step, the least of {rounds} rounds\n\n{harness.table(header, rows)}")
        else:
            print("\nleft out: this machine (there is no cc)")
        if missing:
            print(f"\nleft out: microcontrollers (there is no {', no '.join(missing)})")
            return
        boards, flags = (["M4F"], ["-Os"]) if options.quick else (BOARDS, ARM_FLAGS)
        parts = [measure_device(name, f, boards, flags) for name, f in zip(names, folders[len(names) :], strict=True)]
        header = ["", "code, bytes", "constants", "memory", "instructions a step", "largest difference, 10⁻⁶"]
        print(f"\non microcontrollers\n\n{harness.table(header, [row for part in parts for row in part])}")


if __name__ == "__main__":
    main()
