"""Print a hash of the outputs and gradients of every Function: `python tests/tools/hash_results.py`.

If two machines print the same lines, they compute the same bits. The environment variable CAFFELITE_ISA selects the
instruction set.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for the cases
from caffelite import _kernels as kernels
from tests.cases import DTYPES, FAMILIES


def hash_function(function):
    """Return a hash of the outputs and gradients of a Function, for all its cases."""
    digest = hashlib.sha256()
    for arguments in FAMILIES[function].listed:
        case = FAMILIES[function].build(*arguments)
        for dtype in DTYPES:
            ys, _, gradients = case.forward_and_backward(case.function(dtype), case.inputs(dtype))
            for array in [*ys, *gradients]:
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def main():
    for function in FAMILIES:
        print(kernels.ISA, function.__name__, hash_function(function))


if __name__ == "__main__":
    main()
