"""`NetEstimator`: the common part of the estimators of any Model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import StrOptions

from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions import SigmoidLoss
from caffelite.functions.losses.base import Loss
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer
from caffelite.sklearn.base import Estimator

BUILD_PREFIX = "build__"  # begins the names of `build`'s own arguments


@dataclass(eq=False, repr=False)
class NetEstimator(Estimator):
    """Any model: what `build(n_features, n_outputs)` returns."""

    build: Callable[..., Model]
    _: KW_ONLY
    loss: Any = None
    optimizer: Callable[[list[Tensor]], Optimizer] | None = None
    scoring: Any = None

    _model_parameters = ("build",)
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Estimator._parameter_constraints,
        "loss": [Loss, StrOptions({"squared_error", "poisson"}), None],
        "optimizer": [callable, None],
        "scoring": [str, callable, None],
    }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, `build__width` among them."""
        return super().get_params(deep) | {BUILD_PREFIX + name: x for name, x in self._get_build_arguments().items()}

    def set_params(self, **params: Any) -> NetEstimator:
        """Set parameters by name; return the estimator."""
        for name in [name for name in params if name.startswith(BUILD_PREFIX)]:
            self._get_build_arguments()[name.removeprefix(BUILD_PREFIX)] = params.pop(name)
        return super().set_params(**params)

    def _get_build_arguments(self) -> dict[str, Any]:
        return self.__dict__.setdefault("_build_arguments", {})

    def _model_description(self) -> dict[str, Any]:
        return super()._model_description() | self._get_build_arguments()

    def _build(self, n_features: Any, n_outputs: int, dtype: np.dtype, random_state: np.random.RandomState) -> Model:
        if isinstance(self.build, Function):
            raise TypeError(f"build: expected a function (n_features, n_outputs) -> Model, got a model, {self.build!r}")
        return self.build(n_features, n_outputs, **self._get_build_arguments())

    @property
    def _takes_frames(self) -> bool:
        try:
            return next(iter(inspect.signature(self.build).parameters), "") == "frame"
        except (TypeError, ValueError):  # it is not a function, or a function written in C
            return False

    def _data_options(self, X: Any) -> dict[str, Any]:
        axes = np.ndim(X) if isinstance(X, list | tuple) else len(getattr(X, "shape", ()))
        return {"ensure_2d": False, "allow_nd": True} if axes > 2 else {}

    def _learn_targets(self, y: Any, classes: Any) -> None:
        super()._learn_targets(y, classes)
        if self._is_regression or self.loss is None:
            return
        if not isinstance(self.loss, Loss) or type(self.loss).link is Loss.link:
            raise ValueError(f"loss: expected one whose `link` gives probabilities, like FocalLoss, got {self.loss!r}")
        classifier: Any = self
        if not classifier._is_multilabel and not isinstance(self.loss, SigmoidLoss):
            if len(classifier.classes_) < 2:
                raise ValueError(f"{self.loss!r} takes two classes or more, got {classifier.classes_}")
            classifier.n_outputs_, classifier.out_activation_ = len(classifier.classes_), "softmax"

    def _loss(self) -> tuple[Loss, float]:
        return (self.loss, 1.0) if isinstance(self.loss, Loss) else super()._loss()

    def _new_optimizer(self, parameters: list[Tensor]) -> Optimizer | None:
        if self.optimizer is None:
            return super()._new_optimizer(parameters)
        if self.solver == "lbfgs":
            raise ValueError('optimizer: solver="lbfgs" has its own')
        optimizer = self.optimizer(parameters)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected a function (parameters) -> Optimizer, but it returned {optimizer!r}")
        return optimizer


def accept_build_arguments(kind: Any) -> Any:
    """Let the constructor of a class take arguments `build__…`, which `build` gets without `build__`."""
    init = kind.__init__

    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        build_arguments = {name: options.pop(name) for name in [*options] if name.startswith(BUILD_PREFIX)}
        init(self, *arguments, **options)
        self._build_arguments = {name.removeprefix(BUILD_PREFIX): x for name, x in build_arguments.items()}

    kind.__init__ = __init__
    return kind
