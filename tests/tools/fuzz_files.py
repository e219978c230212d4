"""Files as an enemy makes them, and a process that loads them and must not be impressed.

    python tests/tools/fuzz_files.py 1000000 --seed 1

Mutations of good files (bits flipped, pieces cut out, sizes, shapes, offsets, names and structures forged) are loaded
under an audit hook and a limit to the memory. Each has to be a ValueError, or a Model that when it is saved has the
structure that the file has: anything else that happens, and any import, call or file opened on the way, is printed, and
the exit status is 1.
"""

import argparse
import contextlib
import copy
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import caffelite as cl
from caffelite._support import hints  # noqa: F401  which an error would import
from caffelite.files import structure
from caffelite.files.state import make_texts
from caffelite.tables import TableModel

SCALARS = [
    *[None, True, False, -1, 0, 1, 2, 3, 7, 10**9, 2**31, 2**63, 10**30, -(2**70), 0.5, -0.0, 1e308, 1e-320],
    *["", "same", "float64", "object", "f4," * 50, "os.system", "__class__", "x" * 3000, "\U0001f600", "\0"],
    *[[], {}, [[]], [1, 2], [0], [10**9, 10**9], {"#": 0}, {"#": 1}, {"#": -1}, {"#": True}, {"#": 10**9}, {"#": "0"}],
    *[[1] * 2000, [{"#": 0}] * 3000, {"a": {"b": {}}}],
]
SHARED_MEMORY = "/dev/shm" if os.name == "posix" and os.path.isdir("/dev/shm") else None
NAMES = [
    *structure.NAMES,
    "Swish",
    "eval",
    "Tensor",
    "numpy.zeros",
    "MLP",
    "Function",
    "Grouped",
]


def good_files(folder):
    """Return the contents of a few files that are as they should be."""
    layer = cl.Linear(4, 4)
    models = [
        cl.MLP(4, [5, 3], seed=0),
        cl.Model([layer, cl.Dropout(0.3), layer, cl.LayerNorm(4), cl.Residual(cl.Model([layer, cl.Tanh()]))], seed=1),
        cl.Model(
            [
                cl.Conv2d(1, 2, 3, padding="same", initializer=cl.initializers.normal(0.1)),
                *[
                    cl.BatchNorm(2),
                    cl.LeakyReLU(0.1),
                    cl.MaxPool2d(2, padding=1),
                    cl.Reshape((-1,)),
                    cl.DropConnect(18, 4),
                ],
                cl.Parallel([cl.Linear(4, 2, bias=False, initializer=cl.initializers.he_normal), cl.Linear(4, 1)]),
            ],
            dtype=np.float64,
        ),
        cl.Model(
            [
                *[cl.Embedding(5, 4, sparse=True), cl.PositionalEncoding(4, 9)],
                *[cl.TransformerBlock(4, 2, hidden=3, causal=True, dropout=0.1), cl.MultiHeadAttention(4, 1)],
                *[cl.LSTM(4, 3, sequences=True), cl.GRU(3, 2, sequences=True), cl.RNN(2, 2)],
            ]
        ),
    ]
    columns = cl.Columns({"x": np.arange(3.0), "w": np.array(["a", "b", "a"])})
    layers = [columns, cl.Linear(columns.features, 3), cl.ReLU(), cl.Linear(3, 2), cl.Softmax()]
    models.append(TableModel(layers, "y", ["no", "yes"], seed=2))
    models[0].functions[0].requires_grad = False
    path = Path(folder, "good.safetensors")
    contents = []
    for model in models:
        model.save(path)
        contents.append(path.read_bytes())
    return contents


def split_file(content):
    """Return the header, decoded, and the data of a file."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def join_file(header, data):
    """Return the file with this header, JSON or bytes, and these data."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + data


def pick(rng, items):
    return items[rng.integers(len(items))]


def places(x, found=None):
    """All (container, key) in a value of JSON."""
    found = [] if found is None else found
    for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
        found.append((x, key))
        places(x[key], found)
    return found


def forge_value(rng, value):
    """Change something in a value of JSON."""
    found = places(value)
    if not found:
        return
    container, key = pick(rng, found)
    kind = rng.integers(6)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[pick(rng, [pick(rng, NAMES), "dtype", "0.weight", "arguments", "custom", "name", "#"])] = container[
            key
        ]
    elif kind == 2:
        container[key] = pick(rng, NAMES)
    elif kind == 3 and isinstance(container[key], int | float):
        container[key] = container[key] * int(pick(rng, [-1, 2, 3, 10, 10**6, 2**40])) + int(pick(rng, [-1, 0, 1]))
    elif kind == 4:
        other, other_key = pick(rng, found)
        container[key] = json.loads(json.dumps(other[other_key]))
    else:
        container[key] = copy.deepcopy(pick(rng, SCALARS))


def mutate(content, rng):
    """Return a bad file made of a good one."""
    end = 8 + int.from_bytes(content[:8], "little")
    kind = rng.integers(9)
    if kind < 2:  # bits
        changed = bytearray(content)
        for _ in range(rng.integers(1, 9)):
            changed[rng.integers(pick(rng, [8, end, end, len(content)]))] ^= 1 << rng.integers(8)
        return bytes(changed)
    if kind == 2:  # cut, or lengthened
        at = int(rng.integers(len(content) + 1))
        return content[:at] if rng.integers(4) else content + rng.bytes(int(rng.integers(1, 99)))
    if kind == 3:  # a piece taken out, doubled or put elsewhere
        a, b, c = sorted(int(i) for i in rng.integers(end, size=3))
        return pick(
            rng, [content[:a] + content[b:], content[:b] + content[a:], content[:a] + content[b:c] + content[a:]]
        )
    if kind == 4:  # the length of the header
        return (
            int(pick(rng, [0, 1, end, len(content), 2**32, 2**63, 2**64 - 1, 10**8])).to_bytes(8, "little")
            + content[8:]
        )
    header, data = split_file(content)
    texts = header["__metadata__"]
    for _ in range(rng.integers(1, 4)):
        if kind < 7:  # the structure
            entries = json.loads(texts["caffelite.structure"])
            inside = entries and kind > 4 and isinstance(entry := pick(rng, entries), dict)
            forge_value(rng, entry.get("arguments", entry) if inside else entries)
            texts["caffelite.structure"] = json.dumps(entries, separators=(",", ":"))
        else:
            forge_value(rng, header)
            texts = header.get("__metadata__")
            kind = 8
        if not isinstance(texts, dict) or not header or len(json.dumps(header)) > 2**20:
            break
    if kind == 8 and rng.integers(4) == 0:  # a name twice
        pairs = [json.dumps(name) + ":" + json.dumps(entry) for name, entry in header.items()]
        return join_file(("{" + ",".join([*pairs, pick(rng, pairs)]) + "}").encode(), data)
    return join_file(header, data)


class Watch:
    """Notes what Python tells its auditors while a file is loaded, but for that the file is opened."""

    def __init__(self):
        self.path, self.seen = None, []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.path is None or event in ("builtins.id", "object.__getattr__", "sys._getframe"):
            return
        if not (event == "open" and arguments[0] == self.path):
            self.seen.append((event, arguments))

    def load(self, path):
        """Return what loading does: (why it is wrong, the model), one of them None, or both for a ValueError."""
        self.seen, self.path = [], path
        try:
            model, error = cl.load(path), None
        except Exception as raised:
            model, error = None, raised
        finally:
            self.path = None
        if self.seen:
            return f"{self.seen[:3]}", None
        cause = error
        while cause is not None:
            if isinstance(cause, MemoryError) or not isinstance(error, ValueError):
                return f"{type(error).__name__}: {error}, of {cause!r}", None
            cause = cause.__cause__ or cause.__context__
        return None, model


class limited_memory:
    """Inside, the process may have so many bytes more than it has. Other systems than Linux have no such limit."""

    def __init__(self, more):
        self.more = more

    def __enter__(self):
        import resource

        self.resource = resource
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * os.sysconf("SC_PAGESIZE") + self.more
        resource.setrlimit(resource.RLIMIT_AS, (limit, self.before[1]))

    def __exit__(self, *error):
        self.resource.setrlimit(self.resource.RLIMIT_AS, self.before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cl.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    bad, loaded = 0, 0
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        contents = good_files(folder)
        path = os.path.join(folder, "mutated.safetensors")
        watch = Watch()
        for content in contents:
            Path(path).write_bytes(content)
            watch.load(path)  # for all that is needed to be imported
            fault, model = watch.load(path)
            assert model is not None, fault
        for i in range(options.count):
            content = mutate(pick(rng, contents), rng)
            Path(path).write_bytes(content)
            room = 2 * len(content) + 2**23  # and what a short header takes
            with limited_memory(room) if sys.platform == "linux" else contextlib.nullcontext():
                fault, model = watch.load(path)
            if model is not None:
                loaded += 1
                said = split_file(content)[0]["__metadata__"]["caffelite.structure"]
                if make_texts(model)["caffelite.structure"] != structure.to_json(json.loads(said)):
                    fault = f"loaded as {model!r}"
            if fault is not None:
                bad += 1
                print(f"{i}: {fault[:500]}\n{content[:300]!r}", flush=True)
    print(f"{options.count} files, seed {options.seed}: {bad} bad answers, {loaded} still good files")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
