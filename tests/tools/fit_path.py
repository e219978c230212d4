"""How much Python one `fit` of one batch goes through: python tests/tools/fit_path.py [--lines].

It trains a small model once, so that all modules are imported, and then counts the files of the package that a second
model's `fit` enters, and the lines that it executes. `--lines` prints both counts for each file.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import caffelite as cl  # noqa: E402

PACKAGE = f"{ROOT / 'caffelite'}/"


def fit_once() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype(np.float32), rng.integers(0, 3, 32)
    model = cl.Model([cl.Linear(4, 8), cl.ReLU(), cl.Linear(8, 3)], seed=0)
    loss, optimizer = cl.SoftmaxLoss(), cl.SGD(model.parameters(), lr=0.1)
    sys.settrace(trace)
    try:
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=1, batch_size=len(x), verbose=0)
    finally:
        sys.settrace(None)


lines: defaultdict[str, set[int]] = defaultdict(set)


def trace(frame: FrameType, event: str, argument: Any) -> Any:
    """Count the lines of the package's functions."""
    path = frame.f_code.co_filename
    if not path.startswith(PACKAGE) or not path.endswith(".py"):
        return None
    if event == "line":
        lines[path.removeprefix(PACKAGE)].add(frame.f_lineno)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", action="store_true", help="print the files")
    options = parser.parse_args()
    fit_once()
    lines.clear()
    fit_once()
    if options.lines:
        for path, numbers in sorted(lines.items(), key=lambda item: -len(item[1])):
            print(f"{len(numbers):5} {path}")
    print(f"{len(lines)} files, {sum(map(len, lines.values()))} lines")


if __name__ == "__main__":
    main()
