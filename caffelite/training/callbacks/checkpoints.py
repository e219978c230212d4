"""A training as a file. A training that continues from it gets the same bits as one that never stopped.

The file has the model, arrays whose names begin with `training:`, and a JSON text, `caffelite.training`. The arrays and
the text hold the position in the data, the sums of the current epoch, the optimizer, the history, random streams and
the states of callbacks. They also hold facts, such as the batch size. These must be equal when a training continues.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.core.arrays import FLOATS
from caffelite.core.modes import precision_here
from caffelite.core.sparse import SparseRows
from caffelite.data.generator import DataGenerator, Prefetch
from caffelite.data.out_of_core import Source
from caffelite.files import safetensors as files
from caffelite.files.state import state_arrays, state_specs, freeze, read_frozen, make_texts
from caffelite.optimizers import Optimizer
from caffelite.training import inputs
from caffelite.training.callbacks.base import Callbacks, Training
from caffelite.training.epochs.base import Epochs, State
from caffelite.training.process_group import Team
from caffelite.training.step import Step

TEXT = "caffelite.training"
BIT_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}


def streams_of(model: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return the states of a training's random streams: the model's, and the one of the seed given to `fit`.

    Also those from which the model's validation splits were drawn, with the number of rows of each split.
    """
    splits = [[rows, stream.bit_generator.state] for rows, stream in model._own.splits.items()]
    return {"model": model._own.rng.bit_generator.state, "training": rng.bit_generator.state, "splits": splits}


def _splits_in(streams: dict[str, Any]) -> dict[int, np.random.Generator]:
    """Return the streams of splits, by the number of rows. Raise ValueError for an unknown stream."""
    splits = {}
    for rows, state in streams.get("splits", []):
        if type(rows) is not int or state["bit_generator"] not in BIT_GENERATORS:
            raise ValueError("the split of a validation has an unknown random stream")
        bits = getattr(np.random, state["bit_generator"])(0)
        bits.state = state
        splits[rows] = np.random.Generator(bits)
    return splits


class Checkpoints:
    """Writes a training to a file, at any time between two steps, and restores it.

    `streams` are the states before the training drew any random number.
    """

    def __init__(
        self, training: Training, step: Step, batches: Any, validation: Any, called: Callbacks, streams: Any
    ) -> None:
        self.training, self.step, self.called, self.streams = training, step, called, streams
        self.batches, self.validation = batches, validation
        self.epochs: Epochs | None = None  # of the running training
        self._facts: dict[str, Any] | None = None

    def begin(self) -> None:
        """Remember the frozen parameters and the schedules, because a callback may change them."""
        self._frozen = [p for p in self.training.model.parameters() if not p.requires_grad]
        self._schedules = _digests_of_schedules(self.training.optimizer)

    def loss_so_far(self) -> float:
        """Return the mean loss of the current epoch, or NaN before its first step."""
        return math.nan if self.epochs is None else self.epochs.loss()

    def write(self, path: str | os.PathLike) -> None:
        """Write the training as it is now; see `files.write`. All ranks call this, and rank 0 writes."""
        with self.called.as_at_the_end():
            self._write(path)

    def _write(self, path: str | os.PathLike) -> None:
        model, optimizer, _, history = self.training[:4]
        assert self.epochs is not None
        epoch, batch, arrays = self.epochs.state()
        if not self.training.leads:  # all ranks must call `state` before this
            return
        of_optimizer = optimizer.state_dict()
        callbacks = self.called.states()
        self._facts = self._facts or self.facts()
        parts = {
            "run": arrays,
            "validation": self.validation.state() if isinstance(self.validation, DataGenerator) else {},
            "optimizer": _arrays(of_optimizer),
            "history": {name: np.array(values, np.float64) for name, values in history.items()},
            **{f"callbacks.{i}": _arrays(state) for i, (_, state) in enumerate(callbacks)},
        }
        text = {
            "facts": self._facts,
            "done": {"epoch": epoch, "batch": batch},
            "optimizer": _others(of_optimizer),
            "schedules": self._schedules,
            "streams": self.streams,
            "stream": model._own.rng.bit_generator.state,  # now: a callback may have drawn from it
            "callbacks": [[name, _others(state)] for name, state in callbacks],
            "ended": self.called.ended,
        }
        found = {f"{files.TRAINING_PREFIX}{part}.{name}": x for part, xs in parts.items() for name, x in xs.items()}
        texts = make_texts(model) | {TEXT: json.dumps(text, default=np.ndarray.tolist)}
        files.write(path, {**state_arrays(model), **found}, texts)

    def facts(self) -> dict[str, Any]:
        """Return the facts that must be equal when the training continues, by name."""
        model, optimizer, loss, history = self.training[:4]
        names = {p: name for name, p in model.named_parameters().items()}
        groups = [[names.get(p, ""), i] for p, i in zip(optimizer.parameters, optimizer._group_indices, strict=True)]
        found: dict[str, Any] = {
            "dtype": str(model.dtype),
            "precision": precision_here(),
            "optimizer": type(optimizer).__name__,
            "order of the optimizer's parameters": groups,
            "loss": repr(loss),
            "list of metrics": list(history),
            "list of frozen parameters": [names[p] for p in self._frozen],
            **self.step.facts(),
        }
        if isinstance(self.batches, DataGenerator):
            data = self.batches
            blocks = [] if data.blocks is None else [data.blocks.block, data.blocks.buffer]
            found |= {
                "batch size": data.batch_size,
                "number of rows": data.rows,
                "way of shuffling": [data.shuffle, data.drop_last, *blocks],
                "data": _forms_and_digests(data),
            }
        return found

    def facts_of_fit(self, epochs: int, resumes: bool) -> dict[str, Any]:
        """Return the facts that must be equal on all ranks in a call of `fit`."""
        model = self.training.model
        others = {
            "model": [repr(model), make_texts(model)],
            "number of epochs": epochs,
            "resume": resumes,
        }
        return others | self.facts() | self._facts_of_others()

    def _facts_of_others(self) -> dict[str, Any]:
        """Return further facts that must be equal on all ranks: the callbacks and the validation data."""
        data, callbacks = self.validation, [type(callback).__name__ for callback in self.called.callbacks]
        known = {"validation data": _forms_and_digests(data)} if isinstance(data, DataGenerator) else {}
        return {"list of callbacks": callbacks, **known}

    def resume(self, saved: Saved) -> State:
        """Restore optimizer, model and history. Return the position in the data, for `Epochs.restore`.

        Raises ValueError, before any change, unless `saved` is of the same training. If the optimizer has a new
        schedule, it follows it from the step at which the checkpoint was written.
        """
        model, optimizer, _, history = self.training[:4]
        saved.check_model(model)
        self._facts = self.facts()
        facts = saved.text["facts"]
        for name in (*self._facts, *[name for name in facts if name not in self._facts]):
            if (then := facts.get(name)) != (now := self._facts.get(name)):
                raise saved.refuse(f"is of a training with another {name}: {_short(then)}, now {_short(now)}")
        state = State(saved.text["done"]["epoch"], saved.text["done"]["batch"], saved.arrays("run"))
        state.check(self.step, self.batches)
        measured = saved.arrays("history")
        if {name: x.shape for name, x in measured.items()} != dict.fromkeys(history, (state.epoch,)):
            raise saved.refuse("has a history of other epochs than the training")
        names = [type(callback).__name__ for callback in self.called.with_state()]
        if [name for name, _ in saved.text["callbacks"]] != names:
            raise saved.refuse(f"has states of the callbacks {saved.text['callbacks']}; expected states of {names}")
        if isinstance(self.validation, DataGenerator):
            self.validation.check(saved.arrays("validation"))
            self.validation.restore(saved.arrays("validation"))
        frozen = read_frozen(model, saved.texts)
        optimizer.load_state_dict(self._with_new_schedules(saved, state))
        freeze(model, frozen)
        if "stream" in saved.text:
            model._own.rng.bit_generator.state = saved.text["stream"]
        model.load_state_dict(saved.of_model)
        for name, values in measured.items():
            history[name].extend(values.tolist())
        return state

    def _with_new_schedules(self, saved: Saved, state: State) -> dict[str, Any]:
        """Return the optimizer's state in a checkpoint, but with the schedules that the optimizer got since."""
        optimizer, found = self.training.optimizer, saved.text["optimizer"] | saved.arrays("optimizer")
        then = saved.text.get("schedules", self._schedules)
        for i, (rates_name, t_name) in enumerate(optimizer._schedule_state.names()):
            if self._schedules[i] is None or self._schedules[i] == then[i]:
                continue
            if t_name not in found and not isinstance(self.batches, Sized):
                raise ValueError(
                    "the optimizer has a schedule, which the checkpoint does not have. The schedule's step is unknown, "
                    "because the batches have no length"
                )
            steps = self.step.steps_in
            t = int(found[t_name] if t_name in found else state.epoch * steps(len(self.batches)) + steps(state.batch))
            rates = optimizer._schedule_state[i][0]
            found[rates_name], found[t_name] = rates.copy(), t
            lr = np.array(found["lr"], np.float64)
            lr[i if lr.ndim else ()] = rates[min(t, len(rates) - 1)]
            found["lr"] = lr if lr.ndim else float(lr)
        return found

    def resume_callbacks(self, saved: Saved) -> None:
        """Restore the callbacks' states, after they have begun."""
        for i, callback in enumerate(self.called.with_state()):
            callback.load_state_dict(saved.text["callbacks"][i][1] | saved.arrays(f"callbacks.{i}"))
        self.called.ended = bool(saved.text["ended"])


class Saved:
    """The contents of a checkpoint. Raises the errors of `files.File`, and ValueError for a file with only a model."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        with files.File(path) as file:
            self.specs = file.specs
            if TEXT not in file.texts:
                raise file.error("is not a checkpoint; `load` reads it")
            self.texts = file.texts
            with self.understood():
                self.text = files.strict_json(file.texts[TEXT], finite=False)
                self._found = file.arrays(file.specs)
        self.of_model = {k: x for k, x in self._found.items() if not k.startswith(files.TRAINING_PREFIX)}

    def refuse(self, why: Any) -> ValueError:
        """Return the error to raise for a file with this fault."""
        return files.file_error(self.path, why)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """In this context, errors from the file's contents become a ValueError that names the file."""
        try:
            yield
        except ValueError as error:
            if str(error).startswith(str(self.refuse(""))):
                raise
            raise self.refuse(f"is not a checkpoint of this training: {error}") from error
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise self.refuse(f"is not a checkpoint of this training: {type(error).__name__} {error}") from error

    def arrays(self, part: str) -> dict[str, np.ndarray]:
        """Return the arrays of a part of the training, by name."""
        prefix = f"{files.TRAINING_PREFIX}{part}."
        return {name.removeprefix(prefix): x for name, x in self._found.items() if name.startswith(prefix)}

    def check_model(self, model: Any) -> None:
        """Raise ValueError unless the checkpoint is of a model with this structure and dtype."""
        structure, forms = make_texts(model).get("caffelite.structure"), state_specs(model)
        theirs = {name: self.specs[name] for name in self.of_model}
        others = {
            str(form.dtype)
            for name, form in theirs.items()
            if form.dtype in FLOATS and name in forms and forms[name].dtype == model.dtype
        } - {str(model.dtype)}
        if others:
            raise self.refuse(f"is of a training with another dtype: {min(others)}, now {model.dtype}")
        if structure != self.texts.get("caffelite.structure") or theirs != forms:
            raise self.refuse(f"is of a training with another model; now it is {_short(repr(model))}")

    def restore_streams(self, model: Any, rng: np.random.Generator) -> None:
        """Restore the random streams as they were when the training began."""
        with self.understood():
            of_training, of_model = self.text["streams"]["training"], self.text["streams"]["model"]
            splits = _splits_in(self.text["streams"])
            own = model._own
            for state, stream in ((of_training, rng), (of_model, own.rng), (self.text.get("stream"), own.rng)):
                if state is not None:
                    copy.deepcopy(stream.bit_generator).state = state  # raises if it is not a state
            rng.bit_generator.state = of_training
            model._own.rng.bit_generator.state = of_model
            model._own.splits = splits


def started(path: Any, model: Any, optimizer: Any, called: Callbacks) -> AbstractContextManager[Start | None]:
    """Return the start from the checkpoint at this path, for a `with` block. It is None if there is no path."""
    return nullcontext() if path is None else Start(path, model, optimizer, called)


class Start:
    """The start of a training from a checkpoint.

    If an exception leaves the `with` block before `begun` is set, this restores everything as it was: the model, random
    streams, the optimizer, DataGenerators and callbacks.
    """

    saved: Saved  # the result of `read`

    def __init__(self, path: Any, model: Any, optimizer: Any, called: Callbacks) -> None:
        self.path, self.model, self.optimizer = path, model, optimizer
        self.begun = not isinstance(optimizer, Optimizer)  # then `fit` refuses it before anything changes
        if self.begun:
            return
        self._streams = _states_of(model._own.rng)
        self._state, self._columns, self._splits = model.state_dict(), model._own.column_names, dict(model._own.splits)
        self._frozen = {name for name, p in model.named_parameters().items() if not p.requires_grad}
        self._of_optimizer = optimizer.state_dict()
        self._of_data: list[tuple[DataGenerator, dict[str, np.ndarray]]] = []
        self._of_callbacks = [(x, dict(vars(x))) for x in called.callbacks if hasattr(x, "__dict__")]

    def __enter__(self) -> Start:
        return self

    def read(self, team: Team, rng: np.random.Generator) -> None:
        """Read the checkpoint, and restore the random streams as they were when its training began."""
        self._streams += _states_of(rng)
        self.saved = team.by_first(lambda: Saved(self.path))
        self.saved.restore_streams(self.model, rng)

    def keep(self, *batches: Any) -> None:
        """Keep the states of these DataGenerators, for the case that the training does not begin."""
        generators = [x.batches if isinstance(x, Prefetch) else x for x in batches]
        self._of_data = [(x, x.state()) for x in generators if isinstance(x, DataGenerator)]

    def restore(self, checkpoints: Checkpoints) -> State:
        """Restore optimizer, model and history from the checkpoint. Return the position in the data."""
        with self.saved.understood():
            return checkpoints.resume(self.saved)

    def restore_callbacks(self, checkpoints: Checkpoints) -> None:
        """Restore the callbacks from the checkpoint, after they have begun."""
        with self.saved.understood():
            checkpoints.resume_callbacks(self.saved)
        self.begun = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or self.begun:
            return
        model, optimizer = self.model, self.optimizer
        for stream, state in self._streams:
            stream.state = state
        model._own.splits = self._splits
        inputs.remember_columns(model, self._columns)
        if not _same(model.state_dict(), self._state):
            model.load_state_dict(self._state)
        freeze(model, self._frozen)
        if not _same(optimizer.state_dict(), self._of_optimizer):
            optimizer.load_state_dict(self._of_optimizer)
        for data, state in self._of_data:
            data.restore(state)
        for callback, attributes in self._of_callbacks:
            vars(callback).clear()
            vars(callback).update(attributes)


def _states_of(rng: np.random.Generator) -> list[tuple[np.random.BitGenerator, Any]]:
    return [(rng.bit_generator, rng.bit_generator.state)]


def _same(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two state dicts have the same bits."""
    return state.keys() == other.keys() and all(
        np.asarray(x).tobytes() == np.asarray(other[name]).tobytes() for name, x in state.items()
    )


def _digests_of_schedules(optimizer: Any) -> list[str | None]:
    """Return a hash of each parameter group's schedule, or None for a group without one."""
    followed = [optimizer._schedule_state[i] for i in range(len(optimizer.hyper))]
    return [None if x is None else hashlib.blake2b(x[0].tobytes()).hexdigest()[:32] for x in followed]


def _arrays(state: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: x for name, x in state.items() if isinstance(x, np.ndarray)}


def _others(state: dict[str, Any]) -> dict[str, Any]:
    plain = {name: x for name, x in state.items() if not isinstance(x, np.ndarray)}
    return {name: x.item() if isinstance(x, np.generic) else x for name, x in plain.items()}


def _forms_and_digests(data: DataGenerator) -> list[list[Any]]:
    return [[list(column.shape), column.dtype.str, _digest(column)] for column in data._columns()]


def _digest(column: Any) -> str:
    """Return a hash of all rows. For a source, it covers only some rows from all parts of it."""
    if isinstance(column, Source):
        return column.digest()
    found = hashlib.blake2b()
    for piece in column.bytes() if isinstance(column, SparseRows) else [column.data]:
        found.update(piece)
    return found.hexdigest()[:32]


def _short(value: Any) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value), 150)
