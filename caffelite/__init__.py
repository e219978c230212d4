"""caffelite trains small and medium neural networks on CPUs.

    import caffelite as cl

    x, y = cl.datasets.spiral(seed=0)
    model = cl.Model(seed=0)
    model.add(cl.Linear(2, 100)).add(cl.ReLU()).add(cl.Linear(100, 3))
    model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1, momentum=0.9), epochs=300)

A Function is an operator with `forward` and `backward`. A Model is a sequence of Functions. An Optimizer updates
parameters. A Tensor is an array that knows the Function that made it. Compiled code in `caffelite._kernels` does all
the computing.
"""

import sys
from typing import Any

from caffelite import functions, optimizers
from caffelite._support.migration_hints import add_argument_hints, add_name_hints
from caffelite._support.moved_modules import MovedModules
from caffelite._support.warnings import NotRecorded, TrainingWarning
from caffelite.core import initializers
from caffelite.core.function import Function
from caffelite.core.gradcheck import check_gradients, gradient
from caffelite.core.modes import inference, is_training, no_grad, precision
from caffelite.core.tensor import Tensor
from caffelite.core.threads import get_num_threads, set_num_threads, show_config
from caffelite.data import augment, datasets
from caffelite.data import out_of_core as sources
from caffelite.data.conversion import compute_sample_weight
from caffelite.data.generator import DataGenerator, Prefetch
from caffelite.data.vocabulary import Vocabulary
from caffelite.data.windows import Windows
from caffelite.functions import *
from caffelite.model.load import load
from caffelite.model.lr_finder import find_lr
from caffelite.model.many.fit import fit_many, predict_many
from caffelite.model.mlp import MLP
from caffelite.model.model import Model
from caffelite.optimizers import *
from caffelite.program import Program, capture
from caffelite.tables import Columns, Splines
from caffelite.training import callbacks, metrics
from caffelite.training.history import History
from caffelite.visualize import plots
from caffelite.visualize.graph import graph
from caffelite.visualize.inspection import inspect
from caffelite.visualize.machine_code import machine_code
from caffelite.visualize.worked_example import trace

sys.meta_path.append(MovedModules())

# So `from caffelite.callbacks import Checkpoint` works whatever folder the module is in.
sys.modules |= {
    "caffelite.augment": augment,
    "caffelite.callbacks": callbacks,
    "caffelite.datasets": datasets,
    "caffelite.initializers": initializers,
    "caffelite.metrics": metrics,
    "caffelite.plots": plots,
    "caffelite.sources": sources,
}

add_argument_hints(callbacks, DataGenerator, Model)
add_argument_hints(Tensor, methods=("backward",))
add_name_hints(augment, callbacks, datasets, initializers, metrics, optimizers.schedules)

__all__ = [
    "MLP",
    "Columns",
    "DataGenerator",
    "Function",
    "History",
    "Model",
    "NotRecorded",
    "Prefetch",
    "Program",
    "Splines",
    "Tensor",
    "TrainingWarning",
    "Vocabulary",
    "Windows",
    "augment",
    "callbacks",
    "capture",
    "check_gradients",
    "compute_sample_weight",
    "datasets",
    "find_lr",
    "fit_many",
    "get_num_threads",
    "gradient",
    "graph",
    "inference",
    "initializers",
    "inspect",
    "is_training",
    "load",
    "machine_code",
    "metrics",
    "no_grad",
    "plots",
    "precision",
    "predict_many",
    "set_num_threads",
    "show_config",
    "sources",
    "trace",
]
__all__ += functions.__all__
__all__ += optimizers.__all__


def __getattr__(name: str) -> Any:
    """Look up `live`, `playground`, `minimize`, `explain`, `attributions`, `exercises`, `__version__` only on demand.

    `live` and `playground` need the extra `web`, and `minimize` needs SciPy. `explain` and `attributions` are for
    trained models, `exercises` for learners. The metadata with the version takes longer to read than all other imports.
    For a Keras or PyTorch name, the error gives caffelite's name.
    """
    if name in ("attributions", "explain"):
        from caffelite import attribution

        return getattr(attribution, name)
    if name == "minimize":
        from caffelite.model.lbfgs import minimize

        return minimize
    if name in ("live", "playground"):
        import importlib

        try:
            module = importlib.import_module(f"caffelite.web.{'live' if name == 'live' else 'playground.page'}")
        except ModuleNotFoundError as error:
            from caffelite._support.extras import install_command

            missing = f"cl.{name} needs {error.name}, which is not installed: {install_command('web')}"
            raise ImportError(missing) from error

        return getattr(module, name)
    if name == "exercises":
        import importlib

        return importlib.import_module("caffelite.exercises")
    if name != "__version__":
        from caffelite._support import hints

        raise hints.missing_name_error("caffelite", name, hints.name_hint(name, __all__, "cl"))
    from caffelite._support.version import installed_version

    return installed_version()
