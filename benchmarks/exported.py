"""Exported nets: what a row takes in C, compiled by cc, beside `Model.predict` and ONNX Runtime on one thread.

C is called in a loop of C: a program's own call, with nothing of Python around it. `-march=native` lets the compiler
use all that this processor has. The others are called from Python, as they are used; what they return is compared.

    python benchmarks/exported.py
    python benchmarks/exported.py --quick      # only to see that it works

Contestants take turns, in one process; the least of the rounds counts.
"""

import argparse
import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import harness
import numpy as np

LOOP = """\
void predict(const float *x, float *y);
void repeat(int times, const float *x, float *y)
{
    for (int i = 0; i < times; i++)
        predict(x, y);
}
"""


def mlp():
    """64-100-10, and the shape of its rows."""
    import caffelite as cl

    return cl.MLP(64, [100, 10], seed=0), (64,)


def lenet():
    """LeNet-5, and the shape of its rows."""
    import caffelite as cl

    model = cl.Model([cl.Conv2d(1, 6, 5, padding=2), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    model.add(cl.Conv2d(6, 16, 5)).add(cl.ReLU()).add(cl.MaxPool2d(2)).add(cl.Flatten())
    model.add(cl.Linear(400, 120)).add(cl.ReLU()).add(cl.Linear(120, 84)).add(cl.ReLU()).add(cl.Linear(84, 10))
    return model, (1, 28, 28)


def wide():
    """784-512-512-10, whose weights are larger than a core's cache, and the shape of its rows."""
    import caffelite as cl

    return cl.MLP(784, [512, 512, 10], seed=0), (784,)


def gru():
    """Return a GRU of 64 units, and the shape of its rows."""
    import caffelite as cl

    return cl.Model([cl.GRU(32, 64), cl.Linear(64, 10)], seed=0), (50, 32)


NETS = {"MLP 64-100-10": mlp, "LeNet-5, 28 × 28": lenet, "MLP 784-512-512-10": wide, "GRU 32-64-10, 50 steps": gru}


def c_export(net, *flags, quantize=False):
    """Return a contestant: seconds for a row, and what is made of it, in C compiled with these flags."""
    import caffelite.c

    model, shape = NETS[net]()
    x, y = row(shape), np.empty((1, 10), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        caffelite.c.export(model, f"{folder}/net.c", shape, quantize)
        Path(folder, "loop.c").write_text(LOOP)
        command = ["cc", "-std=c99", *flags, "-fPIC", "-shared", "net.c", "loop.c", "-o", "net.so", "-lm"]
        subprocess.run(command, check=True, cwd=folder)
        library = ctypes.CDLL(f"{folder}/net.so")

    arrays = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, y)]
    return lambda: (harness.seconds_per_call("repeat(100, *arrays)", repeat=library.repeat, arrays=arrays) / 100, y)


def caffelite_predict(net):
    """As `c_export`, by `Model.predict`."""
    model, shape = NETS[net]()
    x = row(shape)
    return lambda: (harness.seconds_per_call("predict(x)", predict=model.predict, x=x), model.predict(x))


def onnx_runtime(net):
    """As `c_export`, by ONNX Runtime."""
    import onnxruntime

    import caffelite.onnx

    model, shape = NETS[net]()
    x, options = row(shape), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        caffelite.onnx.export(model, f"{folder}/net.onnx", shape)
        session = onnxruntime.InferenceSession(f"{folder}/net.onnx", options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x}
    return lambda: (
        harness.seconds_per_call("run(None, x)", run=session.run, x=feed),
        session.run(None, feed)[0],
    )


def row(shape):
    return np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32)


def prepare(net, make, *flags):
    """Return what measures a contestant, and None; or None, and the module that is missing."""
    try:
        return make(net, *flags), None
    except ModuleNotFoundError as error:
        return None, error.name


CONTESTANTS = {
    "C, -O3": (c_export, "-O3"),
    "C, -O3 -march=native": (c_export, "-O3", "-march=native"),
    "C, -O3 -march=native, int8": (functools.partial(c_export, quantize=True), "-O3", "-march=native"),
    "caffelite, predict": (caffelite_predict,),
    "ONNX Runtime": (onnx_runtime,),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is timed (20)")
    parser.add_argument("--quick", action="store_true", help="one net, twice")
    options = parser.parse_args()
    harness.use_threads(1)
    print(harness.environment("onnxruntime"))
    left_out = set()
    for net in list(NETS)[: 1 if options.quick else None]:
        prepared = {name: prepare(net, *contestant) for name, contestant in CONTESTANTS.items()}
        left_out |= {f"{name} (no module {missing})" for name, (_, missing) in prepared.items() if missing}
        found = {name: (measure, []) for name, (measure, missing) in prepared.items() if not missing}
        for _ in range(2 if options.quick else options.rounds):
            for measure, measured in found.values():
                measured.append(measure())
        outputs = {name: measured[0][1] for name, (_, measured) in found.items()}
        for name, y in outputs.items():
            np.testing.assert_allclose(y, outputs["C, -O3"], rtol=1e-5, atol=0.02 if "int8" in name else 1e-5)
        best = {name: min(seconds for seconds, _ in measured) for name, (_, measured) in found.items()}
        first = next(iter(best.values()))
        rows = [[name, f"{seconds * 1e6:.2f}", f"{seconds / first:.2f}"] for name, seconds in best.items()]
        print(f"\n{net}: µs for a row, the least of {len(measured)} rounds\n")
        print(harness.table(["", "µs", "C, -O3 = 1"], rows))
    if left_out:
        print(f"\nleft out: {'; '.join(sorted(left_out))}")


if __name__ == "__main__":
    main()
