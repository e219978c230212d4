"""Program: a step recorded once, replayed without Python.

Recording runs the step and notes every kernel call with its arrays (`recording.py`). The result is a list of calls
whose operands are addresses in memory (`ir.pyx`). A few passes improve the list (`passes/`):

    drop_unread       removes calls whose results nobody reads, such as the gradient of the data
    fuse_epilogue     moves elementwise calls after a matrix product into that product
    place_temporaries puts arrays that only the step uses into one block of memory, and uses its parts several times

`runner.pyx` looks whether a replay would do what the step would, and runs it. The replay is a loop over the calls
(`_kernels/replay.pyx`). No pass changes any bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.text_table import TextTable, text_table
from caffelite._support.warnings import NotRecorded, warn
from caffelite.core.arrays import check_positive_integer
from caffelite.core.autograd import application_count
from caffelite.core.python_callback import PythonCallback
from caffelite.core.sparse import from_row_array, to_row_array
from caffelite.program.captured_step import CapturedStep
from caffelite.program.comparison import Confirmation
from caffelite.program.ir import Instruction, RecordedStep, get_owner
from caffelite.program.labels import describe_call
from caffelite.program.obstacle import Obstacle
from caffelite.program.passes import PASSES
from caffelite.program.passes.place_temporaries import replace_block
from caffelite.program.recording import Recording
from caffelite.program.runner import Runner, SideEffect, TensorGuard, tree_map, unwrap_tensors
from caffelite.program.timeline import Stage, measure_stages

SMALL_MEMORY = 1 << 20  # bytes; Programs that take no more together are all kept as they are


class Program(Runner):
    """A recorded step. A call with new arrays of the same shapes and dtypes replays it, and returns copies of results.

    After a call, parameters, gradients and the optimizer's state are the same as after the step in Python. The Program
    records the step again if a replay would be wrong: if a Tensor's array was moved, or a gradient exists that did not
    exist before (or the reverse). Raise ValueError for other shapes and TypeError for other dtypes.

    `first` is the result of the step that `capture` made, like the result of a replay.

    `print(program)` lists the kernels, and so does a notebook. `profile(replays)` shows how long each takes, and `show`
    draws it, with the memory that the kernels use.
    """

    def __init__(self, function: Callable[..., Any] | None = None, *, strict: bool = False) -> None:
        self._step, self._is_optimized = RecordedStep([], []), True  # as recorded, or after all passes
        self._stages: list[Stage] = []  # for `show`: the step as recorded, and after each pass
        self.dependencies: Any = None  # objects that the Program keeps alive
        self.strict = strict
        self.first: Any = None  # the result of the step that `capture` made
        self.warned_reasons: set[str] = set()  # the obstacles about which the user was warned
        self.nbytes = 0  # bytes of its own memory: its inputs, and arrays between kernels
        self.last_request = 0  # the number of the last request to the model for this Program
        self._confirmation = Confirmation()
        self.is_supervised = False  # whether `supervise` is called before each step
        self._disturbances = 0  # how often a user's Python has run between steps

    def record(self, function: Callable[..., Any], *arrays: np.ndarray) -> None:
        """Run `function` on the arrays, as a real step, and record it.

        If the step can't be replayed, it was made nevertheless. A `strict` Program then raises TypeError. Otherwise the
        Program `runs_eagerly` from now on, and gives the warning `NotRecorded`.

        If a user's Python decides what the step does, its `Confirmation` tells how many replays may follow.
        """
        inputs = [np.array(to_row_array(array), order="C") for array in arrays]
        results_before = application_count()
        if not (self.is_recorded and self.matches_state()):
            self._confirmation.forget()
        captured = self._trace(function, inputs)
        if captured is None:
            return
        captured.forget_dead_tensors()
        obstacle = find_obstacle(captured) or self._confirmation.judge(captured, self.replays_left, self.is_supervised)
        if obstacle is not None:
            captured.tensors = []
            self.drop_recording(captured.result)
            self._fall_back(obstacle)
            return
        self.replays_left = self._confirmation.replays
        guards = [
            TensorGuard(t, s.had_gradient, needed=t._serial_number <= results_before) for t, s in captured.tensors
        ]
        effects = _find_effects(captured, inputs)
        mark_temporaries(captured)
        temporaries = sum(buffer.nbytes for buffer in captured.buffers if buffer.is_temporary)
        with self.lock:
            self._step, self._is_optimized = captured.step, False
            self.nbytes = sum(x.nbytes for x in inputs) + temporaries  # at most: `optimize` uses memory again
            self.set_recording(inputs, captured.result, guards, captured.attributes, effects)
            calls = captured.step.instructions
            self.calls_python = captured.is_guarded and any(isinstance(call, PythonCallback) for call in calls)
        captured.tensors = []  # a Program does not keep Tensors alive

    def supervise(self, disturbances: int) -> None:
        """Note how often a user's Python has run between steps so far. It may have changed what can't be watched."""
        if disturbances != self._disturbances and self._confirmation.disturb():
            self.replays_left = 0
        self._disturbances, self.is_supervised = disturbances, True

    def extend_replays(self, other: Program) -> None:
        """Replay as long as another Program, whose step differs in shapes only, if both are confirmed."""
        if self.is_recorded and self._confirmation.is_confirmed():
            added = max(other.replays_left - self.replays_left, 0)
            self.replays_left += added
            self._confirmation.replays += added

    def check_callbacks(self) -> None:
        """Run in Python from now on if a call into Python, during the last replay, changed a value that is read."""
        if self.calls_python and not self.has_same_attributes():
            text = (
                "a Function or an optimizer that each replay calls changes a value that the step reads. The numbers of "
                "the last step, which was replayed, may be wrong"
            )
            self._fall_back(Obstacle(text))

    def _trace(self, function: Callable[..., Any], inputs: list[np.ndarray]) -> CapturedStep | None:
        """Run the step, and return what it did; None if a replay would not do the same."""
        recording = Recording(False, self._confirmation.previous, self._confirmation.keeps_lines)
        with InterruptsBetweenSteps() as interrupts, interrupts.defer(), recording:
            if self.function is not None:
                recording.guard_code(self.function)
            result = unwrap_tensors(function(*[from_row_array(x.view(kernels.RecordedArray)) for x in inputs]))
        change, obstacles = recording.find_change(), recording.obstacles
        if change is not None or obstacles:
            self.drop_recording(result)
            if self._confirmation.reject() or obstacles or self.strict:
                self._fall_back(*obstacles, *([] if change is None else [change]))
            return None
        return recording.finish(inputs, result)

    def optimize(self) -> RecordedStep:
        """Return the recorded step after all passes. Every temporary has its place.

        The passes run in the first call, at the latest before the first replay: many steps are never made again.
        """
        with self.lock:
            if not self._is_optimized:
                step, num_external = self._step, len(self._step.memory)
                self._stages.clear()
                self._add_stage("as recorded", step)
                for run_pass in PASSES:
                    step = run_pass(step)
                    self._add_stage(f"after {getattr(run_pass, '__name__', repr(run_pass))}", step)
                step, self._num_external = _place_remaining(step), num_external
                self.nbytes = sum(x.nbytes for x in (*self.inputs, *step.memory[num_external:]))
                self._step, self._is_optimized = step, True
            return self._step

    @property
    def _block(self) -> np.ndarray | None:
        """The memory of its temporaries; None if they are not in one block."""
        blocks = self.optimize().memory[self._num_external :]
        return blocks[0] if len(blocks) == 1 else None

    def _move_temporaries(self, block: np.ndarray, is_owner: bool) -> None:
        """Use a block of Programs that never run at the same time. It is as large, and counts for its owner."""
        with self.lock:
            step, old = self.optimize(), self._block
            assert old is not None
            if old is not block:
                temporaries = {operand.buffer for _, operand in step.operands() if operand.buffer.is_temporary}
                if not replace_block(temporaries, old, block):
                    return
                step.memory[self._num_external] = block
                self.drop_replay()
            self.nbytes = sum(x.nbytes for x in self.inputs) + is_owner * block.nbytes

    def make_replay(self) -> kernels.Replay:
        """Return the step's calls, ready to run."""
        step = self.optimize()
        calls = [call.assign_addresses() if isinstance(call, Instruction) else call for call in step.instructions]
        return kernels.Replay(calls, step.memory)

    def _add_stage(self, name: str, step: RecordedStep) -> None:
        if self.function is not None:  # a model's own Programs are never shown
            self._stages.append(Stage.from_step(name, step))

    def _fall_back(self, *obstacles: Obstacle) -> None:
        """Run the step in Python from now on, because it can't be replayed. TypeError if the Program is strict."""
        reason, line = obstacles[0].reason, obstacles[0].line
        if self.strict:
            raise TypeError("\n".join(dict.fromkeys(map(str, obstacles))))
        self.runs_eagerly, self.nbytes, self._confirmation = True, 0, Confirmation()
        if reason in self.warned_reasons:
            return
        self.warned_reasons.add(reason)
        text = "steps run in Python from now on, with the right numbers but slower, since they can't be recorded"
        warn(f"{text}: {reason}", NotRecorded, line)

    def __len__(self) -> int:
        return len(self.optimize().instructions)

    def __str__(self) -> str:
        return self._listing()

    def _repr_html_(self) -> str:
        return self._listing()._repr_html_()

    def _listing(self) -> TextTable:
        rows = list(map(describe_call, self.optimize().instructions))
        return text_table(["kernel", "shapes", "FLOP", "bytes"], rows, "<<>>")

    def profile(self, replays: int = 100) -> TextTable:
        """Return a table of each kernel's least time over the replays, its GFLOP/s and GB/s, and its share of the step.

        The replays are real steps, on the data of the last call: a training step changes the parameters.
        """
        with self.lock:
            self._check_current("profile")
            seconds = self.replay.seconds(replays)
            self.apply_effects()
        rows = []
        for call, time in zip(self.optimize().instructions, seconds, strict=True):
            name, shapes, *amounts = describe_call(call)
            rates = [f"{float(x.replace(',', '')) / time / 1e9:.1f}" if x else "" for x in amounts]
            rows.append([name, shapes, f"{time * 1e6:.2f}", *rates, f"{time / seconds.sum():.0%}"])
        rows.append(["total", "", f"{seconds.sum() * 1e6:.2f}", "", "", ""])
        return text_table(["kernel", "shapes", "µs", "GFLOP/s", "GB/s", "share"], rows, "<<>>>>")

    def show(self, replays: int = 100) -> Any:
        """Draw the kernels in time, over the memory that they use, before and after each pass.

        The first panel is the step as it was recorded. Each other panel shows it after one more pass. Above are the
        kernels in order. The width of a bar is the kernel's least time over the replays, as in `profile`. Below are the
        temporaries, which only the step itself uses. A bar spans the time from the first to the last kernel that uses
        it, and its height is its bytes. Before `place_temporaries` each has its own memory. Afterwards, a temporary
        that is no longer needed makes room for others. A kernel has the colour of the temporary that it writes. Grey
        kernels write parameters, gradients and results, which keep their places and are not drawn.

        The replays are real steps, on the data of the last call. But `show` then restores all values that the kernels
        have written. Only the changes that your own Python code in the step makes remain.

        Returns a matplotlib figure: `program.show().savefig("step.png")`. Needs the extra `plot`. Raise RuntimeError
        without a recording that is up to date, for a step that runs in Python, and for a Program that belongs to a
        model. Raise the errors of the step.
        """
        from caffelite.program.plot import plot_stages

        replays = check_positive_integer("replays", replays)
        with self.lock:
            step = self.optimize()
            if not self._stages:
                raise RuntimeError("show draws a Program that capture has recorded, and this one is not recorded")
            self._check_current("show")
            timelines = measure_stages(self._stages, step, replays)
            if any(isinstance(call, PythonCallback) for call in step.instructions):
                self.apply_effects()
        return plot_stages(timelines)

    def _check_current(self, what: str) -> None:
        if not (self.is_recorded and self.matches_state()):
            raise RuntimeError(f"the Program has no recording that is up to date: call it before {what}")


def capture(function: Callable[..., Any], *example_arrays: Any) -> Program:
    """Run `function` on the arrays, as a real step, and return it as a recorded Program, with the result as `first`.

    `function` gets arrays and may return Tensors, arrays, or tuples or lists of them. It has to compute with
    Functions, Tensors, losses, optimizers and kernels. An array that was made outside is a constant. Each replay reads
    it, so keep it.

    The first two calls run `function` in Python. If they make the same kernel calls, the third is a replay.

    Raise TypeError, with each reason and line, if `function` does one of these, which can't be recorded:

    - NumPy arithmetic on a recorded array, or reading its value;
    - using an array that NumPy makes inside with other values each time;
    - drawing random numbers in Python;
    - changing a variable or an attribute that it also reads in Python.
    """
    program = Program(function, strict=True)
    program.first = program(*example_arrays)
    return program


def share_temporaries(programs: Iterable[Program]) -> None:
    """Let Programs that never run at the same time use one block for temporaries, the largest, unless all are small.

    A Program that calls Python keeps its own: this Python may run another one.
    """
    blocks = {program: block for program in programs if (block := program._block) is not None}
    if len(set(map(id, blocks.values()))) < 2 or sum(map(len, blocks.values())) <= SMALL_MEMORY:
        return
    sharing = [p for p in blocks if all(isinstance(call, Instruction) for call in p.optimize().instructions)]
    for i, program in enumerate(sharing):
        program._move_temporaries(max([blocks[p] for p in sharing], key=len), is_owner=i == 0)


def _place_remaining(step: RecordedStep) -> RecordedStep:
    """Return the step with memory for every temporary that no pass has placed."""
    memory = list(step.memory)
    for _, operand in step.operands():
        if operand.buffer.address is None:
            block = np.full(operand.buffer.nbytes + 1, 0xFF, dtype=np.uint8)
            operand.buffer.address = kernels.address(block)
            memory.append(block)
    return RecordedStep(step.instructions, memory)


def find_obstacle(captured: CapturedStep) -> Obstacle | None:
    """Return why the captured step can't be replayed; None if it can."""
    known: list[np.ndarray | None] = [
        *captured.inputs,
        *[array for t, _ in captured.tensors for array in (t._data, t._gradient)],
    ]
    for call in captured.step.instructions:
        known += call.outputs if isinstance(call, PythonCallback) else ()
    return _find_foreign_result(captured, known) or _find_early_read(captured)


def _find_effects(captured: CapturedStep, inputs: list[np.ndarray]) -> list[SideEffect]:
    """Return how the step changes Tensors, apart from what its kernels write."""
    written_ids = {id(buffer.owner()) for buffer in captured.buffers if buffer.written is not False}
    written_ids.update(map(id, inputs))
    effects = []
    for t, before in captured.tensors:
        is_changed = id(get_owner(t._data)) in written_ids or t._version[0] != before.version
        if is_changed or before.changes_gradient:
            effects.append(SideEffect(t, t._has_gradient if before.changes_gradient else None, is_changed))
    return effects


def mark_temporaries(captured: CapturedStep) -> None:
    """Mark the buffers that only the step uses, and keep the memory of all others alive."""
    for buffer in captured.buffers:
        owner = buffer.owner()
        if owner is None:
            buffer.is_temporary, buffer.address = True, None
        else:
            captured.step.memory.append(owner)


def _find_foreign_result(captured: CapturedStep, known_arrays: list[np.ndarray | None]) -> Obstacle | None:
    """Return the obstacle that NumPy made an array in the result, which a replay would not make; None without one."""
    owners = {id(get_owner(array)) for array in known_arrays if array is not None}
    owners |= {id(buffer.owner()) for buffer in captured.buffers}
    foreign: list[np.ndarray] = []

    def collect(x: Any) -> None:
        if isinstance(x, np.ndarray) and id(get_owner(x)) not in owners:
            foreign.append(x)

    tree_map(collect, captured.result)
    if not foreign:
        return None
    return Obstacle(
        f"the recorded function returns an array of shape {foreign[0].shape} that NumPy made; a replay would not make "
        "it again. Compute it with caffelite's Functions or kernels"
    )


def _find_early_read(captured: CapturedStep) -> Obstacle | None:
    """Return the obstacle that a kernel read a buffer before the step wrote it, and nobody keeps it or the step
    replaced it.

    NumPy made such a buffer, or the step before did.
    """
    for buffer in captured.buffers:
        if buffer.early_read is None or id(buffer.owner()) in captured.foreign:
            continue
        if buffer.owner() is None or id(buffer.owner()) in captured.replaced_ids:
            name, line = buffer.early_read
            return Obstacle(
                f"{name} reads an array that NumPy made inside the recorded function; a replay would not make it "
                "again. Make it outside and keep it, or use caffelite's Functions or kernels",
                line,
            )
    return None
