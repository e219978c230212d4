"""The nets of the site that learn in the reader's browser: python docs/_wasm/build.py, or `make wasm`.

Each net becomes C by `export_training`, and then WebAssembly by clang. The results, docs/_static/NAME.wasm, are under
version control, because few who build the site have a compiler for WebAssembly. `hashes.txt` has the hashes of the C
files and of the results. The C files are not kept: a net is the same C on every processor.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import caffelite as cl
import caffelite.c

HERE = Path(__file__).parent
STATIC = HERE.parent / "_static"
CLANG = os.environ.get("CLANG") or shutil.which("clang-14") or "clang"
CLANG_VERSION = "14.0.6"  # of Debian 12, as its wasi-libc and lld. Others write other bytes.
FLAGS = ("-Os", "-msimd128")
FUNCTIONS = ("init", "train", "predict", "learning_rate", "state")


class MicroGPT(cl.Model):
    """The net of examples/microgpt.py. Its second output is the attention of each head, (n, heads, 16, 16).

    The loss does not read the second output, so the training step has no kernel for it.
    """

    takes_indices = True

    def __init__(self, size=16, heads=4, seed=None):
        super().__init__(seed=seed)
        settings = {"bias": False, "initializer": cl.initializers.normal(0.08)}
        self.letters, self.places = [cl.Embedding(n, size, initializer=settings["initializer"]) for n in (27, 16)]
        self.attention = cl.MultiHeadAttention(size, heads, causal=True, **settings)
        self.widen, self.narrow = cl.Linear(size, 4 * size, **settings), cl.Linear(4 * size, size, **settings)
        self.scores, self.norm = cl.Linear(size, 27, **settings), cl.RMSNorm(size, eps=1e-5, scale=False)
        self.future = np.where(np.tri(16), 0, -np.inf).astype(np.float32)

    def call(self, x):
        h = self.norm(self.letters(x) + self.places.weight)
        seen = self.norm(h)
        h = h + self.attention(seen)
        h = h + self.narrow(self.widen(self.norm(h)).relu())
        return self.scores(h), self.attend(seen)

    def attend(self, h):
        heads, size = self.attention.heads, self.attention.head_size
        q, k = [
            layer(h).reshape(-1, 16, heads, size).transpose(0, 2, 1, 3)
            for layer in (self.attention.query, self.attention.key)
        ]
        return (q @ k.transpose(0, 1, 3, 2) / size**0.5 + self.future).softmax()


def next_letter_loss(outputs, y):
    scores, _ = outputs
    return cl.SoftmaxLoss(ignore=-1)(scores, y)


def make_spiral():
    """Return what `export_training` takes."""
    model = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return {"model": model, "loss": cl.SoftmaxLoss(), "optimizer": optimizer, "batch_size": 32}


def make_microgpt():
    """Return what `export_training` takes."""
    model = MicroGPT(seed=0)
    for parameter in model.parameters():  # eight bits of a first weight are enough, and the file is a third smaller
        parameter.data.view(np.uint32)[...] &= 0xFFFF0000
    optimizer = cl.Adam(model.parameters(), lr=0.01, betas=(0.85, 0.99))
    options = {"batch_size": 1, "input_shape": (16,), "targets": np.zeros((1, 16), int)}
    return {"model": model, "loss": next_letter_loss, "optimizer": optimizer, **options}


NETS = {"spiral": make_spiral, "microgpt": make_microgpt}


def export_net(name, folder):
    """Write NAME.c to a folder."""
    caffelite.c.export_training(path=folder / f"{name}.c", name=name, check=False, **NETS[name]())


def compile_net(name, folder, flags=FLAGS):
    """Make NAME.wasm of NAME.c in a folder. It imports nothing."""
    exports = ["__heap_base", *[f"{name}_{function}" for function in FUNCTIONS]]
    linker = ["--no-entry", "--strip-all", *[f"--export={export}" for export in exports]]
    command = [CLANG, "--target=wasm32-wasi", "-std=c99", *flags, f"{name}.c", "-lm", "-o", f"{name}.wasm"]
    subprocess.run([*command, "-nostartfiles", f"-Wl,{','.join(linker)}"], check=True, cwd=folder)


def hash_file(path):
    """Return the SHA-256 of a file. Comments and white space in C do not count."""
    content = path.read_bytes()
    if path.suffix == ".c":
        content = b" ".join(re.sub(rb"/\*.*?\*/", b"", content, flags=re.DOTALL).split())
    return hashlib.sha256(content).hexdigest()


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in NETS:
            export_net(name, Path(folder))
            compile_net(name, Path(folder))
            shutil.copyfile(Path(folder, f"{name}.wasm"), STATIC / f"{name}.wasm")
        files = sorted(Path(folder).iterdir())
        lines = [f"{hash_file(path)}  {path.name}\n" for path in files]
        (HERE / "hashes.txt").write_text("".join(lines), encoding="utf-8")
        print(*[f"{path.name}: {path.stat().st_size:,} bytes" for path in files], sep="\n")


if __name__ == "__main__":
    main()
