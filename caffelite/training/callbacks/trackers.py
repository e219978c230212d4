"""Callbacks that log the history with MLflow, or with Weights & Biases."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from typing import Any

from caffelite._support.extras import install_command
from caffelite.training.callbacks.base import Training, warn_on_write_error
from caffelite.training.history import History


class _Tracker(ABC):
    """Opens a run when training begins, logs each epoch, and ends the run. A run that the user opened stays open."""

    package: str
    options: dict[str, Any]  # of the run to open

    def __init__(self) -> None:
        self._library()
        self._run: Any = None

    def _library(self) -> Any:
        try:
            return importlib.import_module(self.package)
        except ImportError as error:
            command = install_command(self.package)
            raise ImportError(f"{type(self).__name__} needs {self.package}: {command}") from error

    @abstractmethod
    def _errors(self) -> Any:
        """Return the class of the package's exceptions."""

    @abstractmethod
    def _active_run(self) -> Any:
        """Return the run that is active, or None."""

    @abstractmethod
    def _open_run(self, parameters: dict[str, Any]) -> Any:
        """Open a run with `options` and these settings, and return it."""

    @abstractmethod
    def _log(self, metrics: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def _close_run(self, has_failed: bool) -> None: ...

    def begin(self, training: Training) -> None:
        if not training.is_main:
            return
        active = self._active_run()
        if active is not None and self.options:
            name, options = type(self).__name__, ", ".join(self.options)
            raise ValueError(f"a run is active, so {name} can't use {options}; end it first")
        self._handled = sys.exc_info()[1]  # `fit` may be in an except clause
        self._is_own = active is None
        self._run = self._open_run(training.describe_settings()) if active is None else active

    def __call__(self, epoch: int, history: History) -> None:
        if self._run is not None:
            with warn_on_write_error("the epoch was not logged", self._errors()):
                self._log({name: values[-1] for name, values in history.items()}, epoch + 1)

    def end(self) -> None:
        run, self._run = self._run, None
        if run is not None and self._is_own:
            with warn_on_write_error("the run was not ended", self._errors()):
                self._close_run(has_failed=sys.exc_info()[1] is not self._handled)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None, "_handled": None}


class MLflow(_Tracker):
    """Logs the history with MLflow: `mlflow ui` shows its curves and compares runs.

    Each quantity of the history is a metric of the same name (`loss`, `val_loss`, …). The step is the epoch, counted
    from 1. The run also has the settings: model, number of parameters, loss, batch size, dtype, and the optimizer with
    its settings. The run belongs to `experiment`, or to MLflow's current one. `options`, such as `run_name`, are passed
    to `mlflow.start_run`. `mlflow.set_tracking_uri` sets where runs are kept. If training ends with an exception, the
    run has the status FAILED.

    If a run is active when training begins, only the metrics are added to it, and it stays open. Raise ValueError if an
    experiment or options are given as well. If training continues from a checkpoint, only its new epochs are logged.

    Needs MLflow: `pip install mlflow`. Without it, raises ImportError. If an epoch cannot be logged, caffelite gives a
    RuntimeWarning and training continues.
    """

    package = "mlflow"

    def __init__(self, experiment: str | None = None, **options: Any) -> None:
        super().__init__()
        self.options = options if experiment is None else {"experiment": experiment, **options}

    def _errors(self) -> Any:
        return self._library().exceptions.MlflowException

    def _active_run(self) -> Any:
        return self._library().active_run()

    def _open_run(self, parameters: dict[str, Any]) -> Any:
        mlflow, options = self._library(), dict(self.options)
        if name := options.pop("experiment", None):
            known = mlflow.get_experiment_by_name(name)
            options["experiment_id"] = known.experiment_id if known else mlflow.create_experiment(name)
        run = mlflow.start_run(**options)
        mlflow.log_params(parameters)
        return run

    def _log(self, metrics: dict[str, float], step: int) -> None:
        self._library().log_metrics(metrics, step=step, run_id=self._run.info.run_id)

    def _close_run(self, has_failed: bool) -> None:
        self._library().end_run("FAILED" if has_failed else "FINISHED")


class WandB(_Tracker):
    """Logs the history with Weights & Biases, whose pages show its curves and compare runs.

    Each quantity of the history is a metric of the same name (`loss`, `val_loss`, …). The step is the epoch, counted
    from 1. The run's config also has the settings: model, number of parameters, loss, batch size, dtype, and the
    optimizer with its settings. `options`, such as `name`, are passed to `wandb.init`. With the environment variable
    `WANDB_MODE=offline`, runs are kept only in the folder `wandb`. If training ends with an exception, the run has the
    state "failed".

    If a run is active when training begins, only the metrics are added to it, and it stays open. Raise ValueError if a
    project or options are given as well. If training continues from a checkpoint, only its new epochs are logged.

    Needs wandb: `pip install wandb`. Without it, raises ImportError. If an epoch cannot be logged, caffelite gives a
    RuntimeWarning and training continues.
    """

    package = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self.options = options if project is None else {"project": project, **options}

    def _errors(self) -> Any:
        return self._library().Error

    def _active_run(self) -> Any:
        return self._library().run

    def _open_run(self, parameters: dict[str, Any]) -> Any:
        run = self._library().init(**self.options)
        run.config.update({name: value for name, value in parameters.items() if name not in run.config})
        return run

    def _log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def _close_run(self, has_failed: bool) -> None:
        self._library().finish(exit_code=int(has_failed))
