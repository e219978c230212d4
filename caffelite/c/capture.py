"""Recording a model's steps for C: the same kernel calls on every processor, and the values before the step.

The steps are real ones. Afterwards, all arrays that they have changed get their values back.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.modes import inference, precision
from caffelite.core.python_callback import PythonCallback
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer
from caffelite.program.comparison import find_difference
from caffelite.program.ir import Buffer, Instruction, get_owner
from caffelite.program.passes.drop_unread import drop_unread
from caffelite.program.program import find_obstacle, mark_temporaries
from caffelite.program.recording import Recording
from caffelite.program.runner import unwrap_tensors
from caffelite.training.objective import Objective
from caffelite.training.step import Step


class Snapshots:
    """The values of arrays before a step, each from before its first use."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, np.ndarray]] = {}  # by the owner's id: a weak reference, and a copy

    def add(self, array: np.ndarray) -> None:
        owner = get_owner(array)
        known = self._values.get(id(owner))
        if known is None or known[0]() is not owner:
            self._values[id(owner)] = weakref.ref(owner), np.array(owner.view(np.ndarray))

    def find(self, owner: np.ndarray) -> np.ndarray:
        """Return the values that an array had before."""
        known = self._values.get(id(owner))
        return owner if known is None or known[0]() is not owner else known[1]

    def restore(self) -> None:
        """Give all arrays that still exist their values back."""
        for reference, values in self._values.values():
            owner = reference()
            if owner is not None and owner.flags.writeable:
                owner.view(np.ndarray)[...] = values


class StepRecording(Recording):
    """A strict Recording that keeps the values of arrays before kernels use them, and notes the layers."""

    def __init__(self, snapshots: Snapshots) -> None:
        super().__init__(strict=True)
        self.snapshots, self.keeps_values = snapshots, True
        self.layers: dict[int, str] = {}  # the Function's text by the number of its last kernel call
        self.observer = self._note_layer

    def record_values(self, array: np.ndarray) -> None:
        self.snapshots.add(array)

    def _note_layer(self, function: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        self.layers.setdefault(len(self.entries) - 1, repr(function))


@dataclass
class Capture:
    """A recorded step: its kernel calls, its inputs and results, and the text of the Function that made a call."""

    instructions: list[Instruction]
    inputs: list[np.ndarray]
    results: list[np.ndarray]
    buffers: list[Buffer]
    layers: dict[int, str]  # by the id of an instruction
    memory: list[Any]  # keeps the arrays of the operands alive


def capture_step(step: Callable[..., Any], arrays: Sequence[np.ndarray], snapshots: Snapshots) -> Capture:
    """Run a step on the arrays, and return it recorded. Raise TypeError if it can't be recorded, or calls Python."""
    inputs = [np.array(array, order="C") for array in arrays]
    captured, layers = _record(step, inputs, snapshots)
    if captured.is_guarded:  # users' Python decides what the step does
        again, _ = _record(step, inputs, snapshots)
        if (difference := find_difference(captured, again)) is not None:
            raise TypeError(
                f"the step can't be written as C, because it changes from one time to the next: {difference[0]}"
            )
        again.tensors = []
    if obstacle := find_obstacle(captured):
        raise TypeError(str(obstacle))
    captured.tensors = []
    mark_temporaries(captured)
    for call in captured.step.instructions:
        if isinstance(call, PythonCallback):
            raise TypeError(f"there is no C for {call.name}, which runs in Python")
    names = {id(call): layers[i] for i, call in enumerate(captured.step.instructions) if i in layers}
    memory = [captured.step.memory, captured.step.instructions]
    results = captured.result if isinstance(captured.result, tuple) else (captured.result,)
    instructions = drop_unread(captured.step).instructions
    return Capture(instructions, inputs, [*results], captured.buffers, names, memory)  # type: ignore[arg-type]


def _record(step: Callable[..., Any], inputs: list[np.ndarray], snapshots: Snapshots) -> tuple[Any, dict[int, str]]:
    recording = StepRecording(snapshots)
    with precision("float32"), kernels.portable_kernels(), np.errstate(all="ignore"), recording:
        recording.guard_code(step)
        result = unwrap_tensors(step(*[x.view(kernels.RecordedArray) for x in inputs]))
    if (change := recording.find_change()) is not None:
        raise TypeError(str(change))
    captured, layers = recording.finish(inputs, result), _spread(recording)
    captured.forget_dead_tensors()
    recording.observer = None  # the cycle would keep the arrays of the step alive
    return captured, layers


def _spread(recording: StepRecording) -> dict[int, str]:
    """Return the Function of each call of the forward."""
    layers: dict[int, str] = {}
    begin = 0
    for last, function in sorted(recording.layers.items()):
        layers |= dict.fromkeys(range(begin, last + 1), function)
        begin = last + 1
    return layers


class TrainingStep:
    """A training step on arrays, first the inputs and then the targets. It returns the loss, without penalties."""

    def __init__(self, model: Model, loss: Any, optimizer: Optimizer, clip_norm: float | None, num_inputs: int) -> None:
        self.model, self.optimizer, self.clip_norm = model, optimizer, clip_norm
        self.objective, self.num_inputs = Objective(loss, {}, set()), num_inputs
        self.step = Step(model, self.objective, optimizer, clip_norm)

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        self.step(Batch(arrays[: self.num_inputs], arrays[self.num_inputs :]))
        loss = self.objective.last_loss()
        for term in self.objective.terms:  # they would keep the arrays of the step alive
            del term.value, term.mean, term.weight
        return loss

    def copy_in_float64(self) -> TrainingStep | None:
        """Return the step of a copy of the model, the loss and the optimizer in float64; None if there is no copy."""
        try:
            model, loss, optimizer = copy.deepcopy((self.model, self.objective.loss, self.optimizer))
        except TypeError:
            return None
        for function in model.all_functions():
            if isinstance(function, Model):
                function.dtype = np.dtype(np.float64)
        model.dtype = np.dtype(np.float64)
        with np.errstate(invalid="ignore"):  # gradients may have any values
            model._model_state.allocate(model, model.all_functions())
        rows = [x.astype(np.float64) for x in (optimizer._state_arrays or {}).values()]
        if rows:
            optimizer._state_arrays = {np.dtype(np.float64): rows[0]}
        optimizer._clear_segments()
        return TrainingStep(model, loss, optimizer, self.clip_norm, self.num_inputs)


def capture_predict(model: Model, inputs: Sequence[np.ndarray], snapshots: Snapshots) -> Capture:
    """Return what the model computes for a batch, recorded."""
    with inference():
        return capture_step(lambda *arrays: model(*arrays), inputs, snapshots)


@contextmanager
def keep_state(model: Model, optimizer: Optimizer, snapshots: Snapshots) -> Iterator[None]:
    """Inside, steps may change anything. Afterwards, parameters, states and gradients are as before."""
    tensors = {id(p): p for p in (*model.parameters(), *optimizer.parameters)}.values()
    flags = [(p, p._has_gradient, p._requires_grad) for p in tensors]
    try:
        yield
    finally:
        snapshots.restore()
        for p, has_gradient, requires_grad in flags:
            p._has_gradient, p._requires_grad = has_gradient, requires_grad
            p._bump_version()
