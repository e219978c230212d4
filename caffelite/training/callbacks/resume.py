"""A training run as a file. A run that continues from it gets the same bits as one that never stopped.

The file has the model, arrays whose names begin with `training:`, and a JSON text, `caffelite.training`. The arrays and
the text hold the position in the data, the sums of the current epoch, the optimizer, the history, random streams and
the states of callbacks. They also hold a fingerprint: the batch size, hashes of the data,
and so on, which must be equal when a training continues.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.core.arrays import FLOATS
from caffelite.core.modes import current_precision
from caffelite.core.sparse import SparseRows
from caffelite.data.generator import DataGenerator, Prefetch
from caffelite.data.out_of_core import Source
from caffelite.files.safetensors import TRAINING_PREFIX, File, file_error, strict_json, write_arrays
from caffelite.files.state import BaseModel, freeze, make_texts, read_frozen, state_arrays, state_specs
from caffelite.optimizers import Optimizer
from caffelite.optimizers.schedules import find_rate
from caffelite.training import inputs
from caffelite.training.callbacks.callback_list import CallbackList
from caffelite.training.epochs.base import Epochs, EpochState
from caffelite.training.history import History
from caffelite.training.process_group import ProcessGroup
from caffelite.training.step import Step

TEXT = "caffelite.training"
BIT_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}


def rng_states(model: BaseModel, rng: np.random.Generator) -> dict[str, Any]:
    """Return the states of the random streams of training: the model's, and the one from the seed given to `fit`.

    Also return those from which the model's validation splits were drawn, with the number of rows of each split.
    """
    splits = [[rows, split_rng.bit_generator.state] for rows, split_rng in model._model_state.split_rngs.items()]
    return {"model": model._model_state.rng.bit_generator.state, "training": rng.bit_generator.state, "splits": splits}


def _read_split_rngs(states: dict[str, Any]) -> dict[int, np.random.Generator]:
    """Return the random streams of splits, by the number of rows. Raise ValueError for an unknown stream."""
    split_rngs = {}
    for rows, state in states.get("splits", []):
        if type(rows) is not int or state["bit_generator"] not in BIT_GENERATORS:
            raise ValueError("a validation split has an unknown random stream")
        bits = getattr(np.random, state["bit_generator"])(0)
        bits.state = state
        split_rngs[rows] = np.random.Generator(bits)
    return split_rngs


class TrainingCheckpoint:
    """Writes a training run to a file, at any time between two steps, and restores it.

    `first_rng_states` are the states before the training drew any random number.
    """

    def __init__(
        self,
        step: Step,
        history: History,
        batches: Any,
        validation: Any,
        callback_list: CallbackList,
        is_main: bool,
        first_rng_states: dict[str, Any],
    ) -> None:
        self.step, self.history, self.batches, self.validation = step, history, batches, validation
        self.callback_list, self.is_main, self.first_rng_states = callback_list, is_main, first_rng_states
        self.model, self.optimizer = step.model, step.optimizer
        self.epochs: Epochs | None = None  # of the running training
        self._fingerprint: dict[str, Any] | None = None
        # Callbacks may change these later.
        self._frozen = [p for p in self.model.parameters() if not p.requires_grad]
        self._schedules = _schedule_digests(self.optimizer)

    def loss_so_far(self) -> float:
        """Return the mean loss of the current epoch, or NaN before its first step."""
        return math.nan if self.epochs is None else self.epochs.loss()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the training as it is now; see `write_arrays`. All processes call this, and the first writes."""
        with self.callback_list.averaged_weights():
            self._write(path)

    def _write(self, path: str | os.PathLike[str]) -> None:
        model, optimizer = self.model, self.optimizer
        assert self.epochs is not None
        epoch, batch, arrays = self.epochs.state()
        if not self.is_main:  # all processes must call `state` before this
            return
        optimizer_state = optimizer.state_dict()
        callbacks = self.callback_list.states()
        self._fingerprint = self._fingerprint or self.fingerprint()
        parts = {
            "run": arrays,
            "validation": self.validation.state() if isinstance(self.validation, DataGenerator) else {},
            "optimizer": _arrays(optimizer_state),
            "history": {name: np.array(values, np.float64) for name, values in self.history.items()},
            **{f"callbacks.{i}": _arrays(state) for i, (_, state) in enumerate(callbacks)},
        }
        text = {
            "facts": self._fingerprint,
            "done": {"epoch": epoch, "batch": batch},
            "optimizer": _plain_values(optimizer_state),
            "schedules": self._schedules,
            "streams": self.first_rng_states,
            "stream": model._model_state.rng.bit_generator.state,  # now: a callback may have drawn from it
            "callbacks": [[type(callback).__name__, _plain_values(state)] for callback, state in callbacks],
            "ended": self.callback_list.should_stop,
        }
        training_arrays = {f"{TRAINING_PREFIX}{part}.{name}": x for part, xs in parts.items() for name, x in xs.items()}
        texts = make_texts(model) | {TEXT: json.dumps(text, default=np.ndarray.tolist)}
        write_arrays(path, {**state_arrays(model), **training_arrays}, texts)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal when training continues, by name."""
        model, optimizer = self.model, self.optimizer
        names = {p: name for name, p in model.named_parameters().items()}
        groups = [[names.get(p, ""), i] for p, i in zip(optimizer.parameters, optimizer._group_indices, strict=True)]
        fingerprint: dict[str, Any] = {
            "dtype": str(model.dtype),
            "precision": current_precision(),
            "optimizer": type(optimizer).__name__,
            "order of the optimizer's parameters": groups,
            "loss": repr(self.step.objective.loss),
            "list of metrics": list(self.history),
            "list of frozen parameters": [names[p] for p in self._frozen],
            **self.step.fingerprint(),
        }
        if isinstance(self.batches, DataGenerator):
            data = self.batches
            blocks = [] if data.blocks is None else [data.blocks.block, data.blocks.buffer]
            fingerprint |= {
                "batch size": data.batch_size,
                "number of rows": data.rows,
                "way of shuffling": [data.shuffle, data.drop_last, *blocks],
                "list of lengths": None if data.lengths is None else _digest(data.lengths),
                "data": _data_digests(data),
            }
        return fingerprint

    def fit_fingerprint(self, epochs: int, resumes: bool) -> dict[str, Any]:
        """Return what must be equal on all processes in a call of `fit`, by name."""
        fit_fingerprint = {
            "model": [repr(self.model), make_texts(self.model)],
            "number of epochs": epochs,
            "resume": resumes,
        }
        return fit_fingerprint | self.fingerprint() | self._callback_fingerprint()

    def _callback_fingerprint(self) -> dict[str, Any]:
        """Return the names of the callbacks and hashes of the validation data."""
        data, callbacks = self.validation, [type(callback).__name__ for callback in self.callback_list.callbacks]
        digests = {"validation data": _data_digests(data)} if isinstance(data, DataGenerator) else {}
        return {"list of callbacks": callbacks, **digests}

    def resume(self, saved: CheckpointFile) -> EpochState:
        """Restore optimizer, model and history. Return the position in the data, for `Epochs.restore`.

        Raise ValueError, before any change, unless `saved` is of the same training run. If the optimizer has a new
        schedule, it follows this one from the checkpoint's step on.
        """
        model, optimizer, history = self.model, self.optimizer, self.history
        saved.check_model(model)
        self._fingerprint = self.fingerprint()
        saved_fingerprint = saved.text["facts"]
        for name in dict.fromkeys([*self._fingerprint, *saved_fingerprint]):
            old, new = saved_fingerprint.get(name), self._fingerprint.get(name)
            if old != new:
                raise saved.error(f"is of a training with another {name}: {_shorten(old)}, now {_shorten(new)}")
        state = EpochState(saved.text["done"]["epoch"], saved.text["done"]["batch"], saved.arrays("run"))
        state.check(self.step, self.batches)
        measured = saved.arrays("history")
        if {name: x.shape for name, x in measured.items()} != dict.fromkeys(history, (state.epoch,)):
            raise saved.error("has a history of other epochs than the training")
        names = [type(callback).__name__ for callback, _ in self.callback_list.states()]
        if [name for name, _ in saved.text["callbacks"]] != names:
            raise saved.error(f"has states of the callbacks {saved.text['callbacks']}; expected states of {names}")
        if isinstance(self.validation, DataGenerator):
            self.validation.check(saved.arrays("validation"))
            self.validation.restore(saved.arrays("validation"))
        frozen = read_frozen(model, saved.texts)
        optimizer.load_state_dict(self._merge_schedules(saved, state))
        freeze(model, frozen)
        if "stream" in saved.text:
            model._model_state.rng.bit_generator.state = saved.text["stream"]
        model.load_state_dict(saved.model_arrays)
        for name, values in measured.items():
            history[name].extend(values.tolist())
        return state

    def _merge_schedules(self, saved: CheckpointFile, state: EpochState) -> dict[str, Any]:
        """Return the optimizer's state in a checkpoint, but with the schedules that the optimizer has got since."""
        optimizer = self.optimizer
        optimizer_state: dict[str, Any] = saved.text["optimizer"] | saved.arrays("optimizer")
        old_schedules = saved.text.get("schedules", self._schedules)
        for i, (rates_name, t_name) in enumerate(optimizer._schedule_state.names()):
            schedule = optimizer._schedule_state[i]
            if schedule is None or self._schedules[i] == old_schedules[i]:
                continue
            if t_name not in optimizer_state and not isinstance(self.batches, Sized):
                raise ValueError(
                    "the optimizer has a schedule, which the checkpoint does not have. The schedule's step is unknown, "
                    "because the batches have no length"
                )
            steps = self.step.count_steps
            t = int(
                optimizer_state[t_name]
                if t_name in optimizer_state
                else state.epoch * steps(len(self.batches)) + steps(state.batch)
            )
            rates = schedule[0]
            optimizer_state[rates_name], optimizer_state[t_name] = rates.copy(), t
            lr = np.array(optimizer_state["lr"], np.float64)
            lr[i if lr.ndim else ()] = find_rate(rates, t)
            optimizer_state["lr"] = lr if lr.ndim else float(lr)
        return optimizer_state

    def resume_callbacks(self, saved: CheckpointFile) -> None:
        """Restore the callbacks' states, after they have begun."""
        for i, (callback, _) in enumerate(self.callback_list.states()):
            callback.load_state_dict(saved.text["callbacks"][i][1] | saved.arrays(f"callbacks.{i}"))
        self.callback_list.should_stop = bool(saved.text["ended"])


class CheckpointFile:
    """The contents of a checkpoint. Raise the errors of `File`, and ValueError for a file with only a model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with File(path) as file:
            self.specs = file.specs
            if TEXT not in file.texts:
                raise file.error("is not a checkpoint; `load` reads it")
            self.texts = file.texts
            with self.wrap_errors():
                self.text = strict_json(file.texts[TEXT], finite=False)
                self._all_arrays = file.arrays(file.specs)
        self.model_arrays = {k: x for k, x in self._all_arrays.items() if not k.startswith(TRAINING_PREFIX)}

    def error(self, message: str) -> ValueError:
        """Return the error to raise for a file with this fault."""
        return file_error(self.path, message)

    @contextmanager
    def wrap_errors(self) -> Iterator[None]:
        """In this context, errors from the file's contents become a ValueError that names the file."""
        try:
            yield
        except ValueError as error:
            if str(error).startswith(str(self.error(""))):
                raise
            raise self.error(f"is not a checkpoint of this training: {error}") from error
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise self.error(f"is not a checkpoint of this training: {type(error).__name__} {error}") from error

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """Return the arrays of a part of the training, by name."""
        prefix = f"{TRAINING_PREFIX}{part}."
        return {name.removeprefix(prefix): x for name, x in self._all_arrays.items() if name.startswith(prefix)}

    def check_model(self, model: BaseModel) -> None:
        """Raise ValueError unless the checkpoint is of a model with this structure and dtype."""
        structure, specs = make_texts(model).get("caffelite.structure"), state_specs(model)
        saved_specs = {name: self.specs[name] for name in self.model_arrays}
        other_dtypes = {
            str(spec.dtype)
            for name, spec in saved_specs.items()
            if spec.dtype in FLOATS and name in specs and specs[name].dtype == model.dtype
        } - {str(model.dtype)}
        if other_dtypes:
            raise self.error(f"is of a training with another dtype: {min(other_dtypes)}, now {model.dtype}")
        if structure != self.texts.get("caffelite.structure") or saved_specs != specs:
            raise self.error(f"is of a training with another model; now it is {_shorten(repr(model))}")

    def restore_rngs(self, model: BaseModel, rng: np.random.Generator) -> None:
        """Restore the random streams as they were when the training began."""
        with self.wrap_errors():
            training_state, model_state = self.text["streams"]["training"], self.text["streams"]["model"]
            split_rngs, state = _read_split_rngs(self.text["streams"]), model._model_state
            for target, x in ((rng, training_state), (state.rng, model_state), (state.rng, self.text.get("stream"))):
                if x is not None:
                    copy.deepcopy(target.bit_generator).state = x  # raises if it is not a state
            rng.bit_generator.state, state.rng.bit_generator.state = training_state, model_state
            state.split_rngs = split_rngs


class Resumption:
    """The start of training from a checkpoint.

    If an exception leaves the `with` block before `has_begun` is set, this restores everything: the model, random
    streams, the optimizer, DataGenerators and callbacks.
    """

    saved: CheckpointFile  # the result of `read`

    def __init__(self, path: Any, model: BaseModel, optimizer: Any, callback_list: CallbackList) -> None:
        self.path, self.model, self.optimizer = path, model, optimizer
        self.has_begun = not isinstance(optimizer, Optimizer)  # then `fit` refuses it before anything changes
        if self.has_begun:
            return
        state = model._model_state
        self._rng_states, self._state_dict = [_rng_state(state.rng)], model.state_dict()
        self._column_names, self._split_rngs = state.column_names, dict(state.split_rngs)
        self._frozen = {name for name, p in model.named_parameters().items() if not p.requires_grad}
        self._optimizer_state = optimizer.state_dict()
        self._data_states: list[tuple[DataGenerator, dict[str, np.ndarray]]] = []
        self._callback_states = [(x, dict(vars(x))) for x in callback_list.callbacks if hasattr(x, "__dict__")]

    def __enter__(self) -> Resumption:
        return self

    def read(self, processes: ProcessGroup, rng: np.random.Generator) -> None:
        """Read the checkpoint, and restore the random streams as they were when its training began."""
        self._rng_states.append(_rng_state(rng))
        self.saved = processes.call_on_main(lambda: CheckpointFile(self.path))
        self.saved.restore_rngs(self.model, rng)

    def save_data_states(self, *batches: Any) -> None:
        """Keep the states of these DataGenerators, in case training does not begin."""
        generators = [x.batches if isinstance(x, Prefetch) else x for x in batches]
        self._data_states = [(x, x.state()) for x in generators if isinstance(x, DataGenerator)]

    def restore(self, checkpoints: TrainingCheckpoint) -> EpochState:
        """Restore optimizer, model and history from the checkpoint. Return the position in the data."""
        with self.saved.wrap_errors():
            return checkpoints.resume(self.saved)

    def restore_callbacks(self, checkpoints: TrainingCheckpoint) -> None:
        """Restore the callbacks from the checkpoint, after they have begun."""
        with self.saved.wrap_errors():
            checkpoints.resume_callbacks(self.saved)
        self.has_begun = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or self.has_begun:
            return
        model, optimizer = self.model, self.optimizer
        for bit_generator, state in self._rng_states:
            bit_generator.state = state
        model._model_state.split_rngs = self._split_rngs
        inputs.remember_columns(model, self._column_names)
        if not _have_same_bits(model.state_dict(), self._state_dict):
            model.load_state_dict(self._state_dict)
        freeze(model, self._frozen)
        if not _have_same_bits(optimizer.state_dict(), self._optimizer_state):
            optimizer.load_state_dict(self._optimizer_state)
        for data, state in self._data_states:
            data.restore(state)
        for callback, attributes in self._callback_states:
            vars(callback).clear()
            vars(callback).update(attributes)


def _rng_state(rng: np.random.Generator) -> tuple[np.random.BitGenerator, Any]:
    return rng.bit_generator, rng.bit_generator.state


def _have_same_bits(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two state dicts have the same bits."""
    return state.keys() == other.keys() and all(
        np.asarray(x).tobytes() == np.asarray(other[name]).tobytes() for name, x in state.items()
    )


def _schedule_digests(optimizer: Any) -> list[str | None]:
    """Return a hash of each parameter group's schedule, or None for a group without one."""
    schedules = [optimizer._schedule_state[i] for i in range(len(optimizer.hyper))]
    return [None if x is None else hashlib.blake2b(x[0].tobytes()).hexdigest()[:32] for x in schedules]


def _arrays(state: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: x for name, x in state.items() if isinstance(x, np.ndarray)}


def _plain_values(state: dict[str, Any]) -> dict[str, Any]:
    plain = {name: x for name, x in state.items() if not isinstance(x, np.ndarray)}
    return {name: x.item() if isinstance(x, np.generic) else x for name, x in plain.items()}


def _data_digests(data: DataGenerator) -> list[list[Any]]:
    columns = data._columns() if data.lengths is None else [*data._columns(), data.lengths]
    return [[list(column.shape), column.dtype.str, _digest(column)] for column in columns]


def _digest(column: Any) -> str:
    """Return a hash of all rows. For a source, it covers only some rows from all parts of it."""
    if isinstance(column, Source):
        return column.digest()
    digest = hashlib.blake2b()
    for piece in column.bytes() if isinstance(column, SparseRows) else [column.data]:
        digest.update(piece)
    return digest.hexdigest()[:32]


def _shorten(value: Any) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value), 150)
