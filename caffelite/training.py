"""The steps that `fit` and `evaluate` take: recorded for each shape of batch, replayed after that.

A step is an ordinary function of a batch, written with Functions, a loss and an optimizer. It adds what it measures
to the sums of its epoch, in memory. Where the data are in memory too, it also fetches its batch by itself, so that
many epochs are replayed in one go; and what is read from a source, buffer by buffer, is in memory, too, while it is
trained on. A batch whose weights are all 0 is passed over: there is no step.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from caffelite import _kernels as kernels
from caffelite.arrays import flat_int64, in_shape_of
from caffelite.cautions import warn
from caffelite.data import Batch, Buffer, DataGenerator, as_inputs, as_targets, as_weights, epoch_of
from caffelite.frames import names_of_inputs
from caffelite.function import Function
from caffelite.functions.activation import Sigmoid, Softmax
from caffelite.functions.loss import Loss, Penalized, SigmoidLoss, SoftmaxLoss
from caffelite.functions.shape import reshaped
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.metrics import (
    Metric,
    OfEpoch,
    OfPredictions,
    accuracy,
    accuracy_above,
    assumed_threshold,
    check_shapes,
    number,
    threshold_of,
    warn_of_probabilities,
)
from caffelite.modes import inference
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.program import Program, Programs
from caffelite.progress import Progress
from caffelite.recording import PythonCall, Recording, call_python
from caffelite.sharing import Share, share, sharing
from caffelite.sources import Source
from caffelite.sparse import are_finite, given_as, stored
from caffelite.tensor import Tensor
from caffelite.together import Summation, Together, weighed

ATTENTION = 0.05  # seconds of replay after which Python gets to see to the bar and to Ctrl-C
AT_ONCE = 1024  # epochs whose sums are kept until they go into the history


class Trainer:
    """Takes a model through batches, step by step; trains it if there is an optimizer, else evaluates it."""

    def __init__(
        self,
        model: Any,
        loss: Any,
        metrics: dict[str, Metric],
        optimizer: Optimizer | None = None,
        clip_norm: float | None = None,
        together: Together | None = None,
    ) -> None:
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.clip_norm, self.together = clip_norm, together
        self.names = ["loss", *metrics]
        self.of_epoch = {name: metric for name, metric in metrics.items() if metric is not accuracy}
        self.counts_correct = len(self.of_epoch) < len(metrics)
        # The score above which class 1 is, if there is one score a row. None: the loss does not say.
        self.threshold: float | None = 0.0
        if any(metric is accuracy or isinstance(metric, OfPredictions) for metric in metrics.values()):
            self.threshold = threshold_of(loss)
        self.has_warned = False  # that it took scores for probabilities
        # What is added up: the loss, and the accuracy. If the threshold is not known, the accuracy with 0, that with ½,
        # and how far scores are outside 0 … 1.
        self.quantities = 1 + self.counts_correct * (1 if self.threshold is not None else 3)
        self.programs: Programs = model._programs
        self.cursor = self.programs.cursor
        self.run: InMemory | Buffered | Streamed | None = None  # the training under way

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, weighted: bool, *columns: np.ndarray, share: Share | None = None) -> Tensor | None:
        """One step on the columns of a batch, or of a share of it; returns the outputs if a metric of the epoch needs
        them."""
        batch = Batch.of(list(columns), weighted)
        if self.optimizer is None:
            with inference(), sharing(share):
                outputs, loss, value = self.forward(batch)
                if share is None or share.counts:
                    self.measure(self.cursor, outputs, loss, value, batch)
        elif share is None:
            self.optimizer.zero_grad()
            outputs, loss, value = self.forward(batch)
            guard(value.data)
            value.backward()
            self.warn_of_untrained(self.optimizer)
            self.optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]  # every step has it: `_guarded`
            self.measure(self.cursor, outputs, loss, value, batch)
        else:
            self.optimizer.zero_grad()
            with sharing(share):
                outputs = self.step_of_share(share, batch)
        return outputs if self.of_epoch else None

    def step_of_share(self, share: Share, batch: Batch) -> Any:
        """One step of all ranks, on a share of their batch; returns its outputs. See `together.py`."""
        together, optimizer = self.together, self.optimizer
        assert together is not None
        assert optimizer is not None
        outputs, loss, value = self.forward(batch)
        weights = self.weights_of(loss, batch)
        part = together.part_of_mean(share, None if weights is None else kernels.sum(weights), value.data)
        summation = Summation(together, share, self.quantities)
        value.backward(part)
        self.warn_of_untrained(optimizer)
        summation.of(optimizer.runs(), optimizer.parameters, weights is None)
        summation.begin_early()
        kernels.copy(summation.nothing, summation.own)
        if share.counts:
            self.measure(summation.cursor, outputs, loss, value, batch)
        call_python("add up over ranks", summation, value.data, part)
        guard(summation.value)
        optimizer.step(clip_norm=self.clip_norm)  # type: ignore[call-arg]
        for slot in range(len(summation.means)):
            here = slice(slot, slot + 1)
            kernels.add_weighted_mean(self.cursor, slot, summation.means[here], summation.weights[here])
        return outputs

    def warn_of_untrained(self, optimizer: Optimizer) -> None:
        """Warn of parameters that get a gradient and that the optimizer does not have.

        While a step is recorded, these are all that take part in it, and else the model's.
        """
        recording = kernels.recorder()
        if isinstance(recording, Recording):
            untrained = recording.untrained(optimizer.parameters)
        else:
            trained = set(optimizer.parameters)
            parameters = self.model.parameters()
            untrained = [p for p in parameters if p.requires_grad and p.grad is not None and p not in trained]
        if untrained:
            names = {p: name for name, p in self.model.named_parameters().items()}
            named = ", ".join([names.get(p, p.name or repr(p)) for p in untrained])
            text = (
                f"not trained: {named}. A gradient is computed for each, but the optimizer does not have them. Make "
                "a new optimizer, or freeze them: requires_grad = False"
            )
            self.warn_once(text)

    def warn_of_two_links(self, outputs: Any) -> None:
        """Warn of a model that ends with what the loss begins with: it would learn little, and say nothing of it."""
        last = outputs.function if isinstance(outputs, Tensor) else None
        for kind, of_loss in ((Softmax, SoftmaxLoss), (Sigmoid, SigmoidLoss)):
            if isinstance(last, kind) and isinstance(getattr(self.loss, "loss", self.loss), of_loss):
                self.warn_once(
                    f"{of_loss.__name__} takes scores: leave out {last!r} at the end; loss.link gives probabilities"
                )

    def warn_once(self, text: str) -> None:
        """Warn, unless this model has been the reason for the same warning."""
        if text not in self.programs.told:
            self.programs.told.add(text)
            warn(text)

    def share(self, rows: int) -> Share | None:
        """The share of a batch of so many rows; None where it is not shared."""
        return None if self.together is None else self.together.ranks.share_of(rows)

    def forward(self, batch: Batch) -> tuple[Any, Function, Tensor]:
        """The outputs, a tuple of them where the model has several; the loss, applied, and what it gave."""
        outputs = self.model(*batch.inputs)
        self.warn_of_two_links(outputs)
        for name, metric in self.metrics.items():
            if isinstance(metric, OfEpoch) or metric is accuracy:
                if isinstance(outputs, tuple):
                    raise ValueError(f"the metric {name} is of one output; the model returned {len(outputs)}")
                check_shapes(metric, outputs.shape, batch.targets.shape)
            else:
                for shape in [x.shape for x in (outputs if isinstance(outputs, tuple) else (outputs,))]:
                    if shape[:1] != batch.targets.shape[:1]:
                        raise ValueError(
                            f"the metric {name} is of the outputs of all rows; the model returned outputs of shape "
                            f"{shape} for {len(batch.targets)} rows"
                        )
        weights = () if batch.weights is None else (batch.weights,)
        judged = outputs
        if weights and share() is not None and (self.loss.called_back or not isinstance(self.loss, Loss)):
            judged = weighed(outputs, *weights)
        if not isinstance(self.loss, Loss | Penalized):
            return outputs, self.loss, self.judge(judged, batch.targets, *weights)
        applied = self.loss.copy()  # what a call would make, to be asked what it measured
        return outputs, applied, applied.applied_to(judged, batch.targets, *weights)

    def judge(self, outputs: Any, targets: np.ndarray, *weights: np.ndarray) -> Tensor:
        """What a loss of the user's gives; TypeError or ValueError unless it is a Tensor with a single element.

        It gets targets (n,) as (n, 1) if the outputs are. A warning if arithmetic would broadcast one to the other.
        """
        if isinstance(outputs, Tensor):
            targets = in_shape_of(targets, outputs.shape)
            if targets.dtype.kind == "f" and _would_grow(outputs.shape, targets.shape):
                self.warn_once(
                    f"the loss {self.loss!r} gets outputs of shape {outputs.shape} and targets of shape "
                    f"{targets.shape}: their difference is larger than either. Give the targets the outputs' shape"
                )
        value = self.loss(outputs, targets, *weights)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the loss {self.loss!r} has to return a Tensor, computed from the outputs by caffelite's functions; "
                f"got {type(value).__name__}"
            )
        if value.size != 1:
            raise ValueError(f"the loss {self.loss!r} has to return a single element, got shape {value.shape}")
        return value

    @staticmethod
    def weights_of(loss: Function, batch: Batch) -> np.ndarray | None:
        """What the mean of a batch was divided by, in parts; None where all rows counted alike."""
        known = _knows_what_counts(loss) and loss.weight is not None
        return loss.weight.reshape(1) if known else batch.weights  # type: ignore[attr-defined]

    def measure(self, cursor: np.ndarray, outputs: Any, loss: Function, value: Tensor, batch: Batch) -> None:
        """Add the loss and the metrics of a batch to the sums that a cursor points to."""
        y, rows = batch.targets, len(batch.targets)
        mean, weights = without_penalties(loss, value), self.weights_of(loss, batch)
        if weights is None:
            kernels.add_mean(cursor, 0, mean, rows)
        else:
            kernels.add_weighted_mean(cursor, 0, mean, weights)
        if not self.counts_correct:
            return
        if self.threshold is not None:
            self.add_correct(cursor, 1, outputs.data, y, self.threshold)
        elif outputs.size > y.size:  # scores of several classes
            self.add_correct(cursor, 1, outputs.data, y, 0.0)
        else:
            self.add_correct(cursor, 1, outputs.data, y, 0.0)
            self.add_correct(cursor, 2, outputs.data, y, 0.5)
            scores = reshaped(outputs.data, (y.size, 1))
            outside = kernels.mae_loss(scores, kernels.clip(scores, 0.0, 1.0))
            kernels.add_mean(cursor, 3, kernels.sum(outside), rows)

    def add_correct(self, cursor: np.ndarray, slot: int, outputs: np.ndarray, y: np.ndarray, threshold: float) -> None:
        """Add how many labels of a batch are predicted to the sum of a slot."""
        if y.dtype.kind in "iu":
            scores = reshaped(outputs, (y.size, outputs.size // y.size))
            kernels.add_correct(cursor, slot, scores, flat_int64(y), getattr(self.loss, "ignore", None), threshold)
        else:
            share = call_python("accuracy", functools.partial(_accuracy_above, threshold), outputs, y)
            kernels.add_mean(cursor, slot, np.asarray(share), len(y))

    def program(self, name: str, weighted: bool, columns: list[np.ndarray], rows: int) -> Program:
        """The Program for steps of this name on batches of so many rows of these columns."""
        used = (*self.model.all_functions(), self.loss, self.optimizer, *self.metrics.values())
        if self.together is not None:
            used += (self.together,)
        forms = [(column.shape[1:], column.dtype) for column in map(stored, columns)]
        return self.programs.find(used, name, self.model.structure(), rows, weighted, self.clip_norm, *forms)

    # ---- many steps ---------------------------------------------------------------------------------------------

    def train(
        self,
        batches: Iterable,
        epochs: int,
        interrupts: InterruptsBetweenSteps,
        progress: Progress,
        due: Callable[[int], float],
        completed: Callable[[np.ndarray], bool],
        between_steps: Callable[[], None] | None = None,
        resumed: State | None = None,
    ) -> None:
        """Train for so many epochs, and tell `completed` their results, a row of loss and metrics for each epoch.

        It says whether the training ends there. `due` says, of how many epochs are done, after how many it has to be
        told next: if that is one more, a row comes before the next epoch begins; else many may come at once.
        `between_steps` is called now and then, when the results of all epochs that are done have been told: then, and
        in `completed`, `run.state()` is what a later training takes as `resumed` to go on there. `epochs` includes what
        was done before.
        """
        if is_replayed(batches):
            self.run = run = self._run(batches, epochs, interrupts)
            with closing(run):
                if resumed is not None:
                    run.restore(resumed)
                self._replay_epochs(run, epochs, progress, due, completed, between_steps)
            return
        self.run = stream = Streamed(self, batches)
        with closing(stream):
            if resumed is not None:
                stream.restore(resumed)
            while stream.epoch < epochs:
                while stream.step(interrupts):
                    progress.steps_done(1, stream.loss)
                    if between_steps is not None:
                        between_steps()
                if completed(stream.end_epoch()):
                    return

    def _replay_epochs(
        self,
        run: InMemory | Buffered,
        epochs: int,
        progress: Progress,
        due: Callable[[int], float],
        completed: Callable[[np.ndarray], bool],
        between_steps: Callable[[], None] | None,
    ) -> None:
        done, ends = run.epoch, False
        while done < epochs and not ends:
            stopped, steps, told_next = None, run.steps, due(done)
            attended = told_next <= done + 1
            one_by_one = attended or bool(self.of_epoch) or isinstance(run, Buffered)
            try:
                run.go(done + 1 if one_by_one else int(min(told_next, epochs, done - done % AT_ONCE + AT_ONCE)))
            except (KeyboardInterrupt, TrainingDiverged) as error:
                stopped = error
            progress.steps_done(run.steps - steps, run.loss)
            if done < run.epoch and (stopped is None or not attended):
                ends = completed(run.results(done))
                done = run.epoch
            if stopped is not None:
                raise stopped
            if between_steps is not None and not ends:
                between_steps()

    def _run(self, data: DataGenerator, epochs: int, interrupts: InterruptsBetweenSteps | None) -> InMemory | Buffered:
        return (InMemory if data.blocks is None else Buffered)(self, data, epochs, interrupts)

    def evaluate(self, batches: Iterable) -> dict[str, float]:
        """The means over all batches, and the metrics of the epoch."""
        if is_replayed(batches):
            with closing(self._run(batches, 1, None)) as run:
                results = epoch_more(run)
        else:
            sums = Sums(self)
            for given in epoch_of(batches):
                self._replay(self.batch(given()), sums)
            results = sums.results("to evaluate")
        return dict(zip(self.names, results[0].tolist(), strict=True))

    def batch(self, given: Any) -> Batch:
        """A batch (x, y) or (x, y, weights) of an iterable, as the model and the loss can take it."""
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            what = f"{len(given)} parts" if isinstance(given, tuple | list) else type(given).__name__
            raise TypeError(f"x without y is taken for batches (x, y) or (x, y, weights), got one that is {what}")
        dtype = self.model.dtype
        inputs = self.model.as_inputs("a batch's x", given[0])
        if self.optimizer is not None:
            self.model.remember_columns(names_of_inputs(given[0]))
        y = as_targets(given[1], dtype)
        rows = len(y) if y.ndim > 0 else 0
        shapes = [x.shape for x in inputs]
        if rows == 0 or [shape[:1] for shape in shapes] != [(rows,)] * len(shapes):
            raise ValueError(
                "expected batches with as many rows in x as in y, got one with x of shape "
                f"{' and '.join(map(str, shapes))} and y of shape {y.shape}"
            )
        self.model.check_indices("a batch's x", inputs)
        if hasattr(self.loss, "check_targets"):
            self.loss.check_targets(y, self.model.shape_for(inputs, rows))
        if len(given) == 2:
            return Batch(inputs, y)
        check_takes_weights(self.loss)
        return Batch(inputs, y, as_weights(given[2], len(y), dtype, "a batch's weights"))

    def _replay(self, batch: Batch, sums: Sums) -> None:
        sums.batches += 1
        if batch.weights is not None and not batch.weights.any():
            return
        weighted, columns, rows = batch.weights is not None, batch.columns(), len(batch.targets)
        share = self.share(rows)
        if share is not None:
            columns = [column[share.own] for column in columns]
        with self.programs.using_cursor():
            self.cursor["sums"] = kernels.address(sums.means)
            program = self.program("step", weighted, columns, rows)
            outputs = program.run(functools.partial(self.step, weighted, share=share), *columns)
        if self.of_epoch:
            targets = batch.targets.copy()  # whoever made the batch may fill it again
            kept = [*(outputs if isinstance(outputs, tuple) else (outputs,)), targets]
            if share is not None:
                kept = [among_others(share, rows) for rows in (*kept[:-1], columns[len(batch.inputs)])]
            sums.keep(kept)

    def of_all(self, rows: np.ndarray) -> np.ndarray:
        """Rows of which each rank has its own, and 0 for those of others."""
        return rows if self.together is None else self.together.ranks.total(rows)

    def summed(self, sums: np.ndarray) -> np.ndarray:
        """The sums over all ranks. What a step of the training adds is so already."""
        return sums if self.together is None or self.optimizer is not None else self.together.ranks.total(sums)

    def of_one(self, rows: np.ndarray) -> np.ndarray:
        """Rows that all ranks have as what `of_all` takes."""
        return rows if self.together is None or self.together.leads else np.zeros_like(rows)

    def means(self, sums: np.ndarray) -> np.ndarray:
        """The mean loss, and the accuracy if it is asked for, a row for each epoch, of sums (epochs, quantities, 2)."""
        found = means(sums)
        if found.shape[1] == 4:
            are_probabilities = found[:, 3] == 0
            self.warn_of_probabilities(bool((are_probabilities & (found[:, 1] != found[:, 2])).any()))
            found = np.column_stack([found[:, 0], np.where(are_probabilities, found[:, 2], found[:, 1])])
        return found

    def warn_of_probabilities(self, matters: bool) -> None:
        """Warn once that scores were taken for probabilities, if it matters."""
        if matters and not self.has_warned:
            self.has_warned = True
            warn_of_probabilities()

    def results(self, sums: np.ndarray, *kept: np.ndarray) -> np.ndarray:
        """A row of loss and metrics for one epoch, given the outputs and the targets of all its rows."""
        values = dict(zip(["loss", "accuracy"], self.means(sums)[0].tolist(), strict=False))
        *outputs, targets = [self.of_all(rows) for rows in kept]
        with inference() if self.optimizer is None else nullcontext():
            for name, metric in self.of_epoch.items():
                values[name] = self.of_rows(name, metric, outputs, targets) if len(targets) else np.nan
        return np.array([[values[name] for name in self.names]])

    def of_rows(self, name: str, metric: Metric, outputs: list[np.ndarray], targets: np.ndarray) -> float:
        """A metric of the outputs and targets of all rows. A user's gets copies, which are its own."""
        if not isinstance(metric, OfEpoch):
            given = [x.copy() for x in outputs]
            if len(given) > 1:
                return number(name, metric(tuple(given), targets.copy()))  # type: ignore[arg-type]
            return number(name, metric(given[0], in_shape_of(targets, given[0].shape).copy()))
        (scores,), ignore, threshold = outputs, getattr(self.loss, "ignore", None), self.threshold
        if ignore is not None and targets.shape == scores.shape[:-1]:
            scores, targets = scores[targets != ignore], targets[targets != ignore]
            if len(targets) == 0:
                return np.nan
        if threshold is None and isinstance(metric, OfPredictions) and scores.size == targets.size:
            threshold, matters = assumed_threshold(scores.reshape(-1))
            self.warn_of_probabilities(matters)
        return metric.above(threshold, scores, targets)


class Evaluation:
    """Evaluates the same batches time and again: what is in memory is prepared once, the first time."""

    def __init__(self, steps: Trainer, batches: Iterable) -> None:
        self.of, self.batches = steps, batches
        self.run: InMemory | None = None

    def __call__(self) -> list[float]:
        """The values of `Trainer.evaluate`."""
        if not is_replayed(self.batches) or self.batches.blocks is not None:
            return list(self.of.evaluate(self.batches).values())
        if self.run is None:
            self.run = InMemory(self.of, self.batches, 1)
        return epoch_more(self.run)[0].tolist()


def among_others(share: Share, rows: np.ndarray) -> np.ndarray:
    """The rows of a share at their places in the batch, and 0 for all others."""
    batch = np.zeros((share.whole, *rows.shape[1:]), rows.dtype)
    if share.counts:
        batch[share.own] = rows
    return batch


class Sums:
    """What an epoch over an iterable adds up."""

    def __init__(self, steps: Trainer) -> None:
        self.of = steps
        self.means = np.zeros((1, steps.quantities, 2))
        self.batches = 0
        self.kept: list[list[np.ndarray]] = []  # outputs and targets, for the metrics of the epoch

    def loss(self) -> float:
        """The mean loss so far, NaN before the first step."""
        return float(means(self.means)[0, 0])

    def results(self, where: str) -> np.ndarray:
        """A row of loss and metrics; ValueError if there were no batches."""
        if self.batches == 0:
            raise ValueError(
                f"there were no batches {where}; an iterator gives its batches only once, a list or an object whose "
                "__iter__ makes one gives them every epoch"
            )
        sums = self.of.summed(self.means)
        return self.of.results(sums, *self.all_kept()) if self.of.of_epoch else self.of.means(sums)

    def keep(self, rows: list[np.ndarray]) -> None:
        """Keep the outputs and the targets of a batch; ValueError if its rows have another shape."""
        first, now = [[x.shape[1:] for x in kept] for kept in (self.kept[0] if self.kept else rows, rows)]
        if first != now:
            raise ValueError(
                f"{', '.join(self.of.of_epoch)}: metrics of the whole epoch take rows of one shape; a batch has "
                f"outputs and targets of shape {_rows_text(now)}, others of shape {_rows_text(first)}"
            )
        self.kept.append(rows)

    def all_kept(self) -> list[np.ndarray]:
        """The outputs and the targets of all rows so far."""
        return [np.concatenate(rows) for rows in zip(*self.kept, strict=True)] if self.kept else [np.empty(0)] * 2


def _rows_text(shapes: list[tuple]) -> str:
    return " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)


def named_rows(kept: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs and the targets of rows by the names that a State has for them; nothing if none are kept."""
    arrays = list(kept)
    return dict(zip([*map(_name_of_output, range(len(arrays) - 1)), "targets"], arrays, strict=True)) if arrays else {}


def _name_of_output(i: int) -> str:
    return f"outputs.{i}" if i > 0 else "outputs"


def epoch_more(run: InMemory | Buffered) -> np.ndarray:
    """Go through the next epoch: its row of loss and metrics."""
    done = run.epoch
    while run.epoch == done:
        run.go(done + 1)
    return run.results(done)


def is_replayed(batches: Iterable) -> TypeGuard[DataGenerator]:
    """Whether steps fetch their batches by themselves, from arrays or from buffers that are read."""
    return type(batches) is DataGenerator and batches.transform is None


class State(NamedTuple):
    """Where a training is: what is done, and arrays by name, of the data's order and of the epoch under way."""

    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def kept(self) -> list[np.ndarray]:
        """The outputs and the targets of the rows of the epoch so far; empty if none were kept."""
        names = itertools.takewhile(self.arrays.__contains__, map(_name_of_output, itertools.count()))
        outputs = [self.arrays[name] for name in names]
        return [*outputs, self.arrays["targets"]] if outputs else []

    def check(self, steps: Trainer, batches: Iterable) -> None:
        """ValueError unless a training with these batches can be there."""
        epoch, batch, arrays = self
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"epoch {epoch!r} and batch {batch!r} are no numbers of what is done")
        sums, expected = arrays["sums"], (steps.quantities, 2)
        if (sums.shape, sums.dtype) != (expected, np.float64):
            raise ValueError(f"expected sums of shape {expected}, got {sums.dtype} of shape {sums.shape}")
        measured = len(arrays.get("targets", ()))
        outputs = self.kept()[:-1]
        if measured and not (steps.of_epoch and all(rows.dtype == steps.model.dtype for rows in outputs)):
            raise ValueError(f"expected no outputs of the epoch, or ones of {steps.model.dtype}")
        if any(len(rows) != measured for rows in outputs):
            raise ValueError("expected as many outputs as targets of the epoch")
        if isinstance(batches, DataGenerator):
            batches.check(arrays)
            in_memory = is_replayed(batches) and batches.blocks is None
            last = len(batches) - in_memory  # others come back before they begin the next epoch
            if batch > last or measured > min(batch * batches.batch_size + (batch == len(batches)), batches.rows):
                raise ValueError(
                    f"batch {batch} of {len(batches)}, and {measured} rows of the epoch, are no place in it"
                )


class Streamed:
    """Epochs over an iterable of batches, each made when it is its turn.

    `epoch` and `batch` are what is done. A DataGenerator goes on where it was; any other iterable is gone through again
    up to there, its batches being made and thrown away, so that one that draws them from a seed draws the same.
    """

    def __init__(self, steps: Trainer, batches: Iterable) -> None:
        self.of, self.batches = steps, batches
        self.epoch = self.batch = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.sums = Sums(self.of)
        self.rest: Iterator[Callable[[], Any]] | None = None
        self.before = self.batches.state() if isinstance(self.batches, DataGenerator) else {}  # before its shuffle

    def step(self, interrupts: InterruptsBetweenSteps) -> bool:
        """Take the step that is due, and say whether there was one: else the epoch has no more batches.

        (As a generator this would make another exception of a user's StopIteration.)
        """
        if self.rest is None:
            self.rest = epoch_of(self.batches, self.batch)
        for given in self.rest:
            batch = self.of.batch(given())
            self._check_batch(batch)
            with interrupts.held(), located(Position(self.epoch, self.batch), batch, self.of.model):
                self.of._replay(batch, self.sums)
                self.batch += 1
            if self.of.together is not None:
                self.of.together.interrupt()
            return True
        self._check_batch(None)
        return False

    def _check_batch(self, batch: Batch | None) -> None:
        """RuntimeError unless all ranks were given the same batch, or None, there being no more."""
        if self.of.together is not None:
            self.of.together.check_batch(f"epoch {self.epoch + 1}, batch {self.batch + 1}", batch)
            self.of.together.go_on()

    def loss(self) -> float:
        """The mean loss of the epoch under way."""
        return self.sums.loss()

    def end_epoch(self) -> np.ndarray:
        """Its results; the next one begins."""
        results = self.sums.results(f"in epoch {self.epoch + 1}")
        self.epoch, self.batch = self.epoch + 1, 0
        self._begin_epoch()
        return results

    def state(self) -> State:
        """For `restore`."""
        kept = map(self.of.of_all, self.sums.all_kept()) if self.sums.kept else ()
        return State(self.epoch, self.batch, {**self.before, "sums": self.sums.means[0], **named_rows(kept)})

    def restore(self, state: State) -> None:
        """Go on where `state()` was."""
        self.epoch, self.batch, arrays = state
        if isinstance(self.batches, DataGenerator):
            self.batches.restore(arrays)
        else:
            for _ in range(self.epoch):
                for given in epoch_of(self.batches):
                    given()
        self._begin_epoch()
        self.sums.means[0], self.sums.batches = arrays["sums"], self.batch
        if kept := state.kept():
            self.sums.kept = [[self.of.of_one(rows) for rows in kept]]

    def close(self) -> None:
        """Leave the epoch under way: where a thread makes its batches, it ends."""
        if self.rest is not None and hasattr(self.rest, "close"):
            self.rest.close()


class InMemory:
    """Epochs over a DataGenerator's arrays: steps are recorded where there is no Program yet, else replayed in bulk."""

    def __init__(self, steps: Trainer, data: DataGenerator, epochs: int, interrupts: Any = None) -> None:
        self.of, self.interrupts = steps, interrupts  # has `pending` and `held()`, see `InterruptsBetweenSteps`
        self.generator = data
        dtype, weights, counts = steps.model.dtype, data.sample_weight, None
        rows = data.rows
        if weights is not None:
            weights = as_weights(weights, len(weights), dtype)
            counts = weights != 0
        of_inputs = getattr(steps.model, "_input_dtype", dtype)
        inputs = as_inputs(data.x, of_inputs, getattr(steps.model, "takes_indices", False), "x")
        self.data = Batch(inputs, as_targets(data.y, dtype), weights)
        self.columns = self.data.columns()
        self.kept: list[np.ndarray] = []  # the outputs and targets of the epoch, in further columns
        self.sums = np.zeros((min(epochs, AT_ONCE), steps.quantities, 2))
        full, last = data.sizes(rows)
        self.rows = [data.batch_size if full else 0, last]  # of a full batch, and of a last one that is not
        with Recording() as recording:  # the order of the first epoch, and how to make the next ones
            if data.shuffle:
                kernels.shuffle(data._order, data._state)
        shuffle = recording.entries[0] if data.shuffle else None
        assert not isinstance(shuffle, PythonCall)
        self.epochs = kernels.Epochs(
            [*map(stored, self.columns)],
            data._order,
            shuffle,
            self.sums,
            steps.cursor,
            data.batch_size,
            full,
            len(data),
            None if counts is None or counts.all() else counts,
            self._ending(),
        )
        self.at: Any = self.epochs  # its `epoch` and `batch` are where the training is

    def _ending(self) -> np.ndarray | None:
        """Where a number that is not 0 ends a stretch of steps."""
        if self.of.together is not None:
            return self.of.together.stop
        return None if self.interrupts is None else self.interrupts.pending

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.epochs.epoch

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self.epochs.epoch * self.epochs.batches + self.epochs.batch

    def state(self) -> State:
        """For `restore`."""
        batch, under_way = self.epochs.batch, self.epochs.batch > 0
        sums = self.sums[self.epoch % len(self.sums)] * under_way
        kept = [self.of.of_all(rows[: self.epochs.measured]) for rows in self.kept] if under_way else []
        return State(self.epoch, batch, {**self.generator.state(), "sums": sums, **named_rows(kept)})

    def restore(self, state: State) -> None:
        """Go on where `state()` was."""
        epoch, batch, arrays = state
        self.generator.restore(arrays)
        self.sums[epoch % len(self.sums)] = arrays["sums"]
        measured = 0
        if kept := state.kept():
            measured = len(kept[-1])
            self._make_room(_forms(kept[:-1]))
            for room, rows in zip(self.kept, kept, strict=True):
                room[:measured] = self.of.of_one(rows)
        self.epochs.go_to(epoch, batch, measured)

    def loss(self) -> float:
        """The mean loss of the epoch under way, NaN before its first step."""
        row = self.epoch % len(self.sums)
        return float(means(self.sums[row : row + 1])[0, 0]) if self.epochs.batch else np.nan

    def go(self, epochs: int) -> None:
        """Go on, for a while, towards so many epochs. A Ctrl-C takes effect at the end."""
        together = self.of.together
        if together is None:
            self._go(epochs, ATTENTION)
            return
        together.go_on()
        while self.epoch < epochs and not together.stop[0]:  # as long as all ranks do
            self._go(epochs, np.inf)
        together.interrupt()

    def _go(self, epochs: int, seconds: float) -> None:
        """Go on for so many seconds, or to a batch that has to be recorded, and take that."""
        weighted = self.data.weights is not None
        held = nullcontext() if self.interrupts is None else self.interrupts.held()
        with held, self.of.programs.using_cursor(), located(self.at, self.data, self.of.model):
            programs = [
                self.of.program("fetch and step", weighted, self.columns, rows) if rows else None for rows in self.rows
            ]
            current = [program if program is not None and program.is_current() else None for program in programs]
            due = self.epochs.batch >= self.epochs.full_batches  # 1: the short last batch
            if current[due] is None:
                new = programs[due]
                assert new is not None
                self.epochs.by_hand(lambda: self._record(new))
                return
            if self.of.of_epoch:
                for program in current:
                    if program is not None:
                        self._make_room(self.of.programs.kept[program])
            self.epochs.full, self.epochs.last = [None if program is None else program.replay for program in current]
            try:
                stopped = self.epochs.run(epochs, seconds)
            finally:
                for program in current:
                    if program is not None:
                        program.replayed()
            if stopped is not None:
                self._raise_why(stopped)

    def results(self, done: int) -> np.ndarray:
        """A row of loss and metrics for each epoch that is done, beginning after so many."""
        first = done % len(self.sums)
        sums = self.of.summed(self.sums[first : first + self.epoch - done])
        if not self.of.of_epoch:
            return self.of.means(sums)
        results = self.of.results(sums, *[kept[: self.epochs.measured] for kept in self.kept or [np.empty(0)] * 2])
        if self.of.together is not None:
            for kept in self.kept:  # the rows of other ranks stay 0
                kept[...] = 0
        return results

    def _record(self, program: Program) -> None:
        """Take the step that is due, and record it."""
        whole = self.rows[self.epochs.batch >= self.epochs.full_batches]
        share = self.of.share(whole)
        first, rows = (0, whole) if share is None else (share.first, share.rows)
        keeps = share is None or share.counts
        room = [given_as(np.empty((rows, *column.shape[1:]), column.dtype)) for column in map(stored, self.columns)]

        def fetch_and_step(*columns: np.ndarray) -> None:
            """One step on the batch that the cursor points to, or a share of it, which is copied into the columns."""
            cursor = self.of.cursor
            if first > 0:
                kernels.advance(cursor, first)
            for i, column in enumerate(columns):
                kernels.take_batch(cursor, i, stored(column))
            outputs = self.of.step(self.data.weights is not None, *columns, share=share)
            if outputs is not None:
                rows = [x.data for x in (outputs if isinstance(outputs, tuple) else (outputs,))]
                self.of.programs.kept[program] = _forms(rows)
                self._make_room(_forms(rows))
                if keeps:
                    for i, kept in enumerate([*rows, columns[len(self.data.inputs)]], start=len(columns)):
                        kernels.put_batch(cursor, i, kept)
            kernels.advance(cursor, whole - first)

        if program.runs_eagerly:
            fetch_and_step(*room)
        else:
            program.record(fetch_and_step, *room)

    def _make_room(self, forms: list[tuple]) -> None:
        """Have places for the outputs of an epoch, and for its targets; ValueError if rows differ among batches."""
        if not self.kept:
            y, rows = self.data.targets, self.generator.rows
            of_outputs = [np.zeros((rows, *shape), dtype) for shape, dtype in forms]
            self.kept = [*of_outputs, np.zeros((rows, *y.shape[1:]), y.dtype)]
            for column, room in enumerate(self.kept, start=len(self.columns)):
                self.epochs.place(column, room)
        if (first := _forms(self.kept[:-1])) != forms:
            raise ValueError(f"metrics of an epoch: the rows of a batch's outputs are {forms}, of others {first}")

    def _raise_why(self, stopped: kernels.RecordedCall) -> None:
        """Raise what a step raises where this kernel stops it; for bad labels and indices, by the caller's rows."""
        self.of.model.check_indices("x", self.data.inputs)
        if hasattr(self.of.loss, "check_targets"):
            shape = self.of.model.shape_for(self.data.inputs, len(self.data.targets))
            self.of.loss.check_targets(self.data.targets, shape)
        stopped.raise_why()

    def all_kept(self) -> list[list[np.ndarray]]:
        """The outputs and targets of the rows of the epoch so far, if they are kept: one list of them."""
        return [[rows[: self.epochs.measured] for rows in self.kept]] if self.kept else []

    def close(self) -> None:
        """There is nothing to leave."""


class Buffered:
    """Epochs over a DataGenerator that reads: each buffer is trained on as what is in memory, while the next is read,
    which may be that of the next epoch.

    `epoch` and `batch` are what is done.
    """

    def __init__(
        self, steps: Trainer, data: DataGenerator, epochs: int, interrupts: InterruptsBetweenSteps | None = None
    ) -> None:
        self.of, self.generator, self.epochs, self.interrupts = steps, data, epochs, interrupts
        dtype, weights = steps.model.dtype, data.sample_weight
        weights = None if weights is None else as_weights(weights, data.rows, dtype)
        of_inputs = getattr(steps.model, "_input_dtype", dtype)
        inputs = as_inputs(data.x, of_inputs, getattr(steps.model, "takes_indices", False), "x")
        self.data = Batch(inputs, as_targets(data.y, dtype), weights)
        self.memory = data.memory_for(self.data.columns())
        self.epoch = 0
        self.buffers: Generator[Callable[[], Buffer]] | None = None
        self.read_epoch = 0  # the number, of the generator's epochs, of the one that was read last
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.before = self.generator.state()
        self.sums = Sums(self.of)
        self.done = 0  # batches of the epoch, before the buffer under way
        self.run: InMemory | None = None  # on the buffer under way

    @property
    def batch(self) -> int:
        """How many batches of the epoch are done."""
        return self.done + (0 if self.run is None else self.run.steps)

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self.epoch * len(self.generator) + self.batch

    def go(self, epochs: int) -> None:
        """Go on, for a while, towards the end of the epoch. A Ctrl-C takes effect between two steps or buffers."""
        if self.batch < len(self.generator):
            if self.run is None:
                self.run = self._next_run()
            self.run.go(1)
        with nullcontext() if self.interrupts is None else self.interrupts.held():
            if self.run is not None and self.run.epoch == 1:
                self._end_buffer(self.run)
            if self.done == len(self.generator):
                self.sums.batches = self.done
                self.last_results = self.sums.results(f"in epoch {self.epoch + 1}")
                self.epoch += 1
                self._begin_epoch()

    def _next_run(self) -> InMemory:
        """The training on the next buffer, from its first batch that is due."""
        per_buffer = self.generator.blocks.batches  # type: ignore[union-attr]
        first = self.done // per_buffer
        if self.done == 0 and self.buffers is not None:
            if self.generator._epochs == self.read_epoch:
                self.read_epoch = self.generator.begin()
            else:  # somebody else has gone through it meanwhile
                self.close()
        if self.buffers is None:
            columns, epochs = self.data.columns(), max(self.epochs - self.epoch, 1)
            self.buffers = self.generator.buffers(columns, self.memory, first, epochs)
            self.read_epoch = self.generator._epochs
        buffer = next(self.buffers)()
        batch = Batch.of(buffer.columns, self.data.weights is not None)
        self._check(batch, buffer.pieces)
        x = batch.inputs if isinstance(self.generator.x, tuple) else batch.inputs[0]
        size = self.generator.batch_size
        data = DataGenerator(x, batch.targets, batch_size=size, shuffle=False, seed=0, sample_weight=batch.weights)
        data._order[:], data._joins = buffer.order, self.generator._joins
        run = InMemory(self.of, data, 1, self.interrupts)
        run.epochs.go_to(0, self.done - first * per_buffer, 0)
        self.done = first * per_buffer
        run.sums[0], run.at = self.sums.means[0], self
        return run

    def _check(self, data: Batch, pieces: list[tuple[int, int]]) -> None:
        """Raise what the model and the loss raise for these rows, and say which of the source they are."""
        try:
            self._check_rows(data)
        except (ValueError, IndexError):
            place = 0
            for start, stop in pieces:
                rows = [column[place : place + stop - start] for column in data.columns()]
                try:
                    self._check_rows(Batch.of(rows, data.weights is not None))
                except (ValueError, IndexError) as error:
                    where = f"among the rows {start:,} … {stop - 1:,}, {start:,} being row 0"
                    raise type(error)(f"{where}: {error}") from None
                place += stop - start
            raise

    def _check_rows(self, data: Batch) -> None:
        self.of.model.check_indices("x", data.inputs)
        if hasattr(self.of.loss, "check_targets") and isinstance(self.data.targets, Source):  # others were checked
            shape = self.of.model.shape_for(data.inputs, len(data.targets))
            self.of.loss.check_targets(data.targets, shape)

    def _end_buffer(self, run: InMemory) -> None:
        self.done += run.steps
        self.sums.means[0] = run.sums[0]
        self.sums.kept += run.all_kept()
        self.run = None

    def results(self, done: int) -> np.ndarray:
        """A row of loss and metrics for the epoch that was done last."""
        return self.last_results

    def loss(self) -> float:
        """The mean loss of the epoch under way, NaN before its first step."""
        return self.sums.loss() if self.run is None else self.run.loss()

    def state(self) -> State:
        """For `restore`."""
        run, sums, kept = self.run, self.sums.means[0], list(self.sums.kept)
        if run is not None:
            sums = run.sums[0]
            kept += run.all_kept()
        rows = [self.of.of_all(np.concatenate(column)) for column in zip(*kept, strict=True)]
        return State(self.epoch, self.batch, {**self.before, "sums": sums, **named_rows(rows)})

    def restore(self, state: State) -> None:
        """Go on where `state()` was."""
        self.epoch, batch, arrays = state
        self.generator.restore(arrays)
        self._begin_epoch()
        self.done, self.sums.means[0] = batch, arrays["sums"]
        if kept := state.kept():
            self.sums.kept = [[self.of.of_one(rows) for rows in kept]]

    def close(self) -> None:
        """Leave the epoch under way: the thread that reads ends."""
        if self.buffers is not None:
            self.buffers.close()
            self.buffers = None


class located:
    """Inside, a TrainingDiverged says in which epoch and batch, `at.epoch` and `at.batch`, counted from 1, and why.

    It names the data or the parameter that is not finite; else the gradient that was first, and what to try.
    """

    def __init__(self, at: Any, data: Batch, model: Any) -> None:
        self.at, self.data, self.model = at, data, model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, TrainingDiverged):
            where = f"epoch {self.at.epoch + 1}, batch {self.at.batch + 1}"
            in_forward = str(error).startswith("the loss")  # then the gradients are those of the step before
            gradient = None if in_forward else first_gradient(self.model)
            first = f"; in the backward pass, the gradient of {gradient} was the first" if gradient else ""
            why = not_finite(self.data) or parameter_not_finite(self.model) or "; try a smaller learning rate"
            raise TrainingDiverged(f"{where}: {error}{first}{why}") from None


def not_finite(data: Batch) -> str:
    """Which of the data is not finite, and in how many rows."""
    named = [*[("x", x) for x in data.inputs], ("y", data.targets)]
    bad = [(name, ~are_finite(a)) for name, a in named if a.dtype.kind == "f"]
    return "".join(f"; {name} is not finite in {rows.sum()} of {len(rows)} rows" for name, rows in bad if rows.any())


def parameter_not_finite(model: Any) -> str:
    """Which parameter is not finite, if one is; so it was before the step."""
    names = [name for name, p in _named(model) if not np.isfinite(p._data).all()]
    return f"; the parameter {names[0]} is not finite" if names else ""


def first_gradient(model: Any) -> str | None:
    """The parameter whose gradient was the first in the backward pass that is not finite; None if all are finite.

    The backward pass goes through the layers from the last to the first.
    """
    layers: dict[str, list[tuple[str, Tensor]]] = {}
    for name, p in _named(model):
        layers.setdefault(name.rpartition(".")[0], []).append((name, p))
    for layer in reversed(layers.values()):
        for name, p in layer:
            if p._has_gradient and p._gradient is not None and not np.isfinite(p._gradient).all():
                return name
    return None


def _named(model: Any) -> list[tuple[str, Tensor]]:
    """The parameters with their names; none where two have the same name."""
    try:
        return list(model.named_parameters().items())
    except ValueError:
        return []


class Position(NamedTuple):
    """Where a training is, counted from 0."""

    epoch: int
    batch: int


def guard(value: np.ndarray) -> None:
    """Raise TrainingDiverged unless all elements, a loss usually, are finite."""

    def diverged(value: np.ndarray) -> None:
        raise TrainingDiverged(f"the loss is {value.item()}")

    kernels.all_finite(value, diverged)


def _knows_what_counts(loss: Function) -> TypeGuard[Loss | Penalized]:
    """Whether an applied loss says what it measured, and of how much."""
    return isinstance(loss, Loss | Penalized) and not loss.called_back


def without_penalties(loss: Function, value: Tensor) -> np.ndarray:
    """What an applied loss measured, 0-d, of all that it gave."""
    if not _knows_what_counts(loss):
        return value.data
    assert loss.value is not None
    return loss.value


def means(sums: np.ndarray) -> np.ndarray:
    """The means, a row for each epoch, of sums (epochs, quantities, 2): NaN where nothing had a weight."""
    totals, weights = sums[:, :, 0], sums[:, :, 1]
    if np.count_nonzero(weights) == weights.size:
        return totals / weights
    return np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)


def _would_grow(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether arrays of these shapes would be broadcast to one that is larger than either."""
    try:
        both = np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return both not in (a, b)


def check_takes_weights(loss: Any) -> None:
    """TypeError unless the loss can be called with weights as a third input."""
    called = loss.decider()
    try:
        inspect.signature(called).bind(None, None, None)
    except TypeError:
        name = getattr(called, "__name__", "it")
        raise TypeError(f"{loss!r} takes no weights: its {name} has to be {name}(outputs, targets, weights)") from None


def _forms(rows: list[np.ndarray]) -> list[tuple]:
    """The shapes and dtypes of rows."""
    return [(x.shape[1:], x.dtype) for x in rows]


def _accuracy_above(threshold: float, outputs: np.ndarray, targets: np.ndarray) -> np.float64:
    return np.float64(accuracy_above(threshold, outputs, targets))
