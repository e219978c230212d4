"""Callbacks: `fit` calls them after each epoch. Some ready-made ones are here.

A callback is a callable (epoch, history). Epochs are counted from 0. If it returns True, training ends. It may also
have any of these methods:

    begin(training)            called before the first step. `training` has `.model`, `.optimizer`, `.loss` and
                               `.history`, and `.write(path)` writes a checkpoint of the training.
    due(epochs)                returns the epoch after which it must be called next, when `epochs` are completed. If
                               data are in memory, `fit` replays the epochs up to there in one go, and calls it for
                               the last completed one. Without this method, it is called after each epoch.
    between_steps()            called now and then between two steps: after a batch, or about every 50 ms of replayed
                               steps. Several processes all call it after the same step. If it returns True, on all
                               processes, the training ends now, in the middle of an epoch.
    steps_until_due()          returns after how many more steps, at least 1, `between_steps` must be called.
    steps_done(count)          called when `count` more steps are done, before the calls that follow them.
    end()                      called at the end, also after an exception, in the order of the callbacks. Each callback
                               that has begun is ended, even if another one raises.
    state_dict()               returns all it needs to continue: numbers, strings, None and arrays, by name. Numbers may
                               be NaN or infinite.
    load_state_dict(state)     restores such a state. It is called after `begin`, which resets the callback.

A training that continues from a checkpoint begins with its old history. Callbacks do not make a step slower.
"""

from caffelite.training.callbacks.averaging import AverageWeights
from caffelite.training.callbacks.base import Training
from caffelite.training.callbacks.checkpoint import Checkpoint
from caffelite.training.callbacks.checkpoint import CheckpointMonitor as _MonitorOfCheckpoint  # noqa: F401 (in old pickles)
from caffelite.training.callbacks.early_stopping import EarlyStopping, Monitor, ReduceLROnPlateau
from caffelite.training.callbacks.every_n_steps import Each
from caffelite.training.callbacks.loggers import CSVLog, TensorBoard
from caffelite.training.callbacks.trackers import MLflow, WandB

__all__ = [
    "AverageWeights",
    "CSVLog",
    "Checkpoint",
    "Each",
    "EarlyStopping",
    "MLflow",
    "Monitor",
    "ReduceLROnPlateau",
    "TensorBoard",
    "Training",
    "WandB",
]
