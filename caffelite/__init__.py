"""caffelite trains small and medium neural networks on CPUs.

    import caffelite as cl

    x, y = cl.datasets.spiral(seed=0)
    model = cl.Model(seed=0)
    model.add(cl.Linear(2, 100)).add(cl.ReLU()).add(cl.Linear(100, 3))
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1, momentum=0.9), epochs=300)

A Function is an operator with `forward` and `backward`; a Model is Functions in sequence; an Optimizer updates
parameters; a Tensor is an array that knows the Function that made it. What computes is compiled, in
`caffelite._kernels`.
"""

from typing import Any

from caffelite import augment, callbacks, datasets, functions, initializers, optimizers, plots
from caffelite.cautions import NotRecorded, TrainingWarning
from caffelite.data import DataGenerator, Prefetch
from caffelite.function import Function
from caffelite.functions import *
from caffelite.gradcheck import check_gradients
from caffelite.graph import graph
from caffelite.history import History
from caffelite.inspection import inspect
from caffelite.loading import load
from caffelite.many import fit_many
from caffelite.model import MLP, Model
from caffelite.modes import inference, is_training, no_grad
from caffelite.optimizers import *
from caffelite.program import Program, capture
from caffelite.rates import find_lr
from caffelite.tensor import Tensor
from caffelite.threads import get_num_threads, set_num_threads, show_config

__all__ = [
    "MLP",
    "DataGenerator",
    "Function",
    "History",
    "Model",
    "NotRecorded",
    "Prefetch",
    "Program",
    "Tensor",
    "TrainingWarning",
    "augment",
    "callbacks",
    "capture",
    "check_gradients",
    "datasets",
    "find_lr",
    "fit_many",
    "get_num_threads",
    "graph",
    "inference",
    "initializers",
    "inspect",
    "is_training",
    "load",
    "no_grad",
    "plots",
    "set_num_threads",
    "show_config",
]
__all__ += functions.__all__
__all__ += optimizers.__all__

del tensor  # type: ignore[name-defined]  # noqa: F821 (the module, which would hide what `__getattr__` says of the name)


def __getattr__(name: str) -> Any:
    """What is looked up when somebody asks: `minimize`, which needs SciPy; and `__version__`, since the metadata takes
    longer to read than all else here to import. For names of Keras and PyTorch, the error says caffelite's."""
    if name == "minimize":
        from caffelite.lbfgs import minimize

        return minimize
    if name != "__version__":
        from caffelite.hints import hint

        raise AttributeError(f"module 'caffelite' has no attribute {name!r}{hint(name)}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("caffelite")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
