"""The next training step, kernel by kernel: what each one reads and writes, how long it takes, and what calls it.

All this happens on copies of the model and the optimizer. So training does not change.
"""

from __future__ import annotations

import copy
import ctypes
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import caffelite
from caffelite import _kernels as kernels
from caffelite.data.generator import DataGenerator
from caffelite.files.state import named_state
from caffelite.functions import Linear
from caffelite.program.ir import Buffer, Instruction, Operand
from caffelite.program.labels import describe_call
from caffelite.program.program import Program, capture
from caffelite.program.recording import Recording
from caffelite.program.timeline import measure_stages
from caffelite.training.callbacks.base import Training

REPLAYS = 50  # for the time of each kernel
MAX_VALUES = 1024  # of an operand that is shown
HOME = Path(caffelite.__file__).parent.parent


class NextStep:
    """The next training step as a Program of its own, whose kernels can be run one at a time.

    `done` is the number of the epoch's steps that are done. `at` is the number of kernels that have run.
    """

    def __init__(self, training: Training, done: int) -> None:
        model, optimizer, loss = training.model, training.optimizer, training.loss
        self.x, self.y = next_batch(training.batches, done, model.dtype)
        self.model, self.optimizer = copy.deepcopy((model, optimizer))

        def step(x: np.ndarray, y: np.ndarray) -> Any:
            self.optimizer.zero_grad()
            value = loss(self.model(x), y)
            value.backward()
            self.optimizer.step()
            return value

        self.program: Program = capture(step, self.x, self.y)  # a real step, as is the next one
        self.calls = [call for call in self.program.optimize().instructions if isinstance(call, Instruction)]
        self.callers = self._find_callers(step)
        self.model.load_state_dict(model.state_dict())
        self.optimizer.load_state_dict(optimizer.state_dict())
        self.at = 0
        self.names = self._name_arrays()
        self._stages = measure_stages(self.program._stages, self.program.optimize(), REPLAYS)

    def timeline(self) -> dict[str, Any]:
        """Return the step as it was recorded and after each pass: kernels in time, temporaries in memory, to draw."""
        buffers = list(dict.fromkeys([bar.buffer for stage in self._stages for bar in stage.bars]))
        number = {buffer: i for i, buffer in enumerate(buffers)}
        stages = [
            {
                "name": stage.name,
                "calls": stage.calls,
                "writes": [-1 if buffer is None else number[buffer] for buffer in stage.writes],
                "microseconds": stage.seconds * 1e6,
                "size": stage.size,
                "bars": [bar._asdict() | {"buffer": number[bar.buffer]} for bar in stage.bars],
            }
            for stage in self._stages
        ]
        return {"stages": stages, "kernels": [self._describe(i) for i in range(len(self.calls))], "at": self.at}

    def run_next(self) -> dict[str, Any]:
        """Run one kernel. Return its operands, and the values of those that it wrote, before and after."""
        call, number = self.calls[self.at], self.at
        operands = [x for x in call.operands if x is not None]
        before = [read_values(x) for x in operands]
        kernels.Replay([call.assign_addresses()], self.program.optimize().memory).run()
        self.at += 1
        entries = []
        for operand, old in zip(operands, before, strict=True):
            new = read_values(operand)
            entry: dict[str, Any] = {"name": self._name_operand(operand, number), "shape": list(operand.shape)}
            entry |= {"written": operand.buffer in call.writes, "values": _preview(new)}
            if old.tobytes() != new.tobytes() and not self._is_new(operand, number):
                entry["before"] = _preview(old)
            entries.append(entry)
        return {**self._describe(number), "at": self.at, "of": len(self.calls), "operands": entries}

    def weight_kernels(self, place: tuple[int, int, int]) -> list[dict[str, Any]]:
        """Return the kernels that read or write a weight or its gradient, (layer, from, to), and what it does."""
        layer, source, target = place
        weight = [f for f in self.model.functions if isinstance(f, Linear)][layer].weight
        offset = source * weight.data.strides[0] + target * weight.data.strides[1]
        users = []
        for number, call in enumerate(self.calls):
            roles = []
            for target_name, array in (("it", weight.data), ("its gradient", weight.grad)):
                address = _address(array) + offset
                for i, operand in enumerate(call.operands):
                    if operand is not None and 0 <= address - _start_address(operand) < operand.nbytes:
                        roles += [f"reads {target_name}"] * (call.call.reads >> i & 1)
                        roles += [f"writes {target_name}"] * (call.call.writes >> i & 1)
            if roles:
                users.append({**self._describe(number), "does": list(dict.fromkeys(roles))})
        return users

    def _describe(self, number: int) -> dict[str, Any]:
        """Name, shapes, time and caller of a kernel."""
        name, shapes, *_ = describe_call(self.calls[number])
        return {
            "number": number,
            "kernel": name,
            "shapes": shapes,
            "microseconds": float(self._stages[-1].seconds[number] * 1e6),
            "callers": self.callers[number],
        }

    def _find_callers(self, step: Callable[..., Any]) -> list[list[dict[str, Any]]]:
        """Return the lines of Python that call each kernel: more than one if it was fused from several."""
        lines = record_callers(step, self.x, self.y)
        recorded = [call.call for call in self.program._stages[0].instructions if isinstance(call, Instruction)]
        remaining = {id(call.call) for call in self.calls}
        fused = [(i, call.name) for i, call in enumerate(recorded) if id(call) not in remaining]
        callers = []
        for call in self.calls:
            numbers = [i for i, original in enumerate(recorded) if original is call.call]
            numbers = numbers or _split_name(call.call.name, fused)
            fused = [(i, name) for i, name in fused if i not in numbers]
            callers.append([lines[i] for i in numbers])
        return callers

    def _name_arrays(self) -> list[tuple[int, int, str]]:
        """Return the names of the arrays in memory: (first address, address after the last, name)."""
        parameters, buffers = named_state(self.model)
        x, y = self.program.inputs
        arrays: dict[str, Any] = {"x, the batch": x, "y, the targets": y}
        for name, tensor in parameters.items():
            arrays |= {name: tensor.data, f"gradient of {name}": tensor.grad}
        arrays |= buffers | {f"{name} of the optimizer": array for name, array in self.optimizer.vectors().items()}
        return [(_address(array), _address(array) + array.nbytes, name) for name, array in arrays.items()]

    def _name_operand(self, operand: Operand, number: int) -> str:
        """Return the name of an operand, from its place in memory, or from the kernel that has written it."""
        first = _start_address(operand)
        names = [name for begin, end, name in self.names if begin < first + operand.nbytes and first < end]
        if names:
            return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        writers = [i for i in range(number) if operand.buffer in self.calls[i].writes]
        if operand.buffer in self.calls[number].writes:
            return "its result"
        return f"result of {writers[-1] + 1}, {self.calls[writers[-1]].call.name}" if writers else "a constant"

    def _is_new(self, operand: Operand, number: int) -> bool:
        """Return whether the operand is a temporary that no kernel has written before this one."""
        return operand.buffer.is_temporary and not any(operand.buffer in call.writes for call in self.calls[:number])


def next_batch(batches: DataGenerator, done: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch that training takes next, after this many steps of the epoch. Nothing changes."""
    ahead = copy.deepcopy(batches)
    if done > 0:
        ahead.shuffle = False  # it keeps the order of the current epoch
    batch = next(iter(ahead.epoch(done)))()
    x, y = [array if array.dtype.kind in "iu" else np.ascontiguousarray(array, dtype) for array in batch]
    return x, y


class _Callers(list):
    """The entries of a recording, with the line of Python that made each."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def append(self, entry: Any) -> None:
        super().append(entry)
        frame = sys._getframe(1)
        while frame.f_code.co_name == "add_grad_of" and frame.f_back is not None:
            frame = frame.f_back
        file, line = Path(frame.f_code.co_filename), frame.f_lineno
        known = str(file.relative_to(HOME)) if file.is_relative_to(HOME) else file.name
        self.lines.append({"file": known, "line": line, "text": linecache.getline(str(file), line).strip()})


def record_callers(step: Callable[..., Any], *arrays: np.ndarray) -> list[dict[str, Any]]:
    """Take a step, and return the line of Python that calls each kernel: file, line and text."""
    recording = Recording()
    recording.entries = entries = _Callers()
    with recording:
        step(*[array.view(kernels.RecordedArray) for array in arrays])
    return entries.lines


def _split_name(name: str, calls: list[tuple[int, str]]) -> list[int]:
    """Return the numbers of the calls, in order, whose names joined by _ are this name; [] if there are none."""
    for place, (i, first) in enumerate(calls):
        if name == first:
            return [i]
        if name.startswith(f"{first}_") and (rest := _split_name(name[len(first) + 1 :], calls[place + 1 :])):
            return [i, *rest]
    return []


def _address(array: Any) -> int:
    return kernels.address(array.view(np.ndarray))


def _start_address(operand: Operand) -> int:
    buffer: Buffer = operand.buffer
    assert buffer.address is not None
    return int(buffer.address) + operand.offset


def read_values(operand: Operand) -> np.ndarray:
    """Return a copy of the values at an operand's place in memory."""
    extent = sum([(n - 1) * stride for n, stride in zip(operand.shape, operand.strides, strict=True)])
    memory = (ctypes.c_ubyte * (extent + operand.dtype.itemsize)).from_address(_start_address(operand))
    return np.ndarray(operand.shape, operand.dtype, memoryview(memory), 0, operand.strides).copy()


def _preview(values: np.ndarray) -> np.ndarray:
    """Return the first values as a matrix of numbers, with as many complete rows as may be shown."""
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 0 else values.reshape(1, 1)
    columns = min(rows.shape[1], MAX_VALUES)
    return rows[: max(1, MAX_VALUES // max(1, columns)), :columns].astype(np.float32)
