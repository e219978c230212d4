"""Checkpoints: a training that was stopped anywhere goes on to the bits of one that never stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite.files.safetensors import File, strict_json, write_arrays
from caffelite.training import inputs
from caffelite.training.callbacks import resume
from caffelite.training.callbacks.callback_list import CallbackList
from caffelite.training.callbacks.resume import TEXT, CheckpointFile
from caffelite.training.epochs import evaluation, in_memory
from tests.conftest import classifier, train
from tests.tools import crash_resume, fuzz_files
from tests.training.callback_data import StopAt, StopTraining

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(103, 2)).astype(np.float32), rng.integers(0, 3, 103)
IMAGES = rng.random((50, 1, 6, 6), np.float32)


@pytest.fixture(autouse=True)
def fast_checkpoints(monkeypatch):
    """Replays come back often, and nobody waits for the disk."""
    monkeypatch.setattr(in_memory, "REPLAY_SECONDS", 0)
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


def make_net(dtype=np.float32):
    layers = [cl.Linear(2, 8), cl.BatchNorm(8), cl.ReLU(), cl.Dropout(0.3), cl.DropConnect(8, 3)]
    return cl.Model(layers, seed=5, dtype=dtype)


def frozen_below(model):
    """Return the model with its first layer frozen."""
    model.functions[0].requires_grad = False
    return model


def everything(model, optimizer, history):
    """Return the bits of all that a training leaves."""
    arrays = {**model.state_dict(), **optimizer.state_dict()} | {f"history {k}": x for k, x in history.items()}
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


def check(path, run, stops=(1, 2, 3, 5, 8)):
    """`run(callbacks, resume)` comes to the same bits, wherever it is stopped and goes on."""
    never_stopped = everything(*run([], None))
    for count in stops:
        resume = None
        for further in (count, 2):  # it is stopped twice
            with pytest.raises(StopTraining):
                run([cl.callbacks.Checkpoint(path, seconds=0), StopAt(further)], resume)
            resume = path
        assert everything(*run([cl.callbacks.Checkpoint(path, seconds=0)], path)) == never_stopped, count
        path.unlink()


OPTIMIZERS = {
    "SGD": lambda ps: cl.SGD(ps, lr=cl.schedules.one_cycle(0.1, 40), momentum=0.9, nesterov=True),
    "Adadelta": lambda ps: cl.Adadelta(ps),
    "Adagrad": lambda ps: cl.Adagrad(ps, lr=cl.schedules.linear(0.1, 30, warmup=7)),
    "RMSProp": lambda ps: cl.RMSProp(ps, momentum=0.5),
    "NAdam": lambda ps: cl.NAdam(ps, momentum_decay=0.1),
    "Lion": lambda ps: cl.Lion(ps),
    "Adam": lambda ps: cl.Adam(ps, lr=cl.schedules.cosine(0.01, 30, warmup=5), weight_decay=0.01),
    "AdamW": lambda ps: cl.AdamW(
        [{"parameters": ps[:2], "lr": 0.1}, {"parameters": ps[2:], "lr": cl.schedules.exponential(0.1, 20, 0.01)}]
    ),
}


def test_every_optimizer_is_here():
    assert OPTIMIZERS.keys() == set(cl.optimizers.rules.__all__)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_arrays_go_on_in_mid_epoch_with_every_optimizer(optimizer, path):
    def run(callbacks, resume):
        model = make_net()
        of_rule = OPTIMIZERS[optimizer](model.parameters())
        return model, of_rule, train(model, X, Y, optimizer=of_rule, epochs=3, callbacks=callbacks, resume=resume)

    check(path, run)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_validation_metrics_weights_and_callbacks_go_on(dtype, path):
    weights = np.arange(len(X)) % 4 * (np.arange(len(X)) > 40)

    def run(callbacks, resume):
        model = make_net(dtype)
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        ready_made = [cl.callbacks.EarlyStopping(patience=2), cl.callbacks.ReduceLROnPlateau(patience=1)]
        options = {"validation_split": 0.25, "metrics": ["f1", "accuracy"], "sample_weight": weights, "batch_size": 8}
        options |= {"callbacks": [*ready_made, *callbacks], "resume": resume}
        return model, optimizer, train(model, X, Y, optimizer=optimizer, epochs=6, **options)

    check(path, run)


def generator(**options):
    transform = [cl.augment.shift(1), cl.augment.rotate(9), cl.augment.noise(0.1)]
    return cl.DataGenerator(IMAGES, Y[:50], batch_size=7, seed=3, transform=transform, **options)


class Subclass(cl.DataGenerator):
    pass


def random_batches():
    """Return an iterable that draws its batches from a stream of its own, other ones in each epoch."""

    class Batches:
        rng = np.random.default_rng(3)

        def __iter__(self):
            for _ in range(4):
                rows = self.rng.integers(50, size=6)
                yield IMAGES[rows], Y[rows]

    return Batches()


@pytest.mark.parametrize(
    "data",
    [
        generator,
        lambda: generator(drop_last=True, shuffle=False),
        lambda: Subclass(IMAGES, Y[:50], batch_size=7, seed=3),
        lambda: [(IMAGES[i : i + 9], Y[:50][i : i + 9]) for i in range(0, 50, 9)],
        random_batches,
    ],
    ids=["augmented", "unshuffled", "subclass", "list", "drawn"],
)
def test_batches_made_by_python_go_on(data, path):
    def run(callbacks, resume):
        model = cl.Model([cl.Conv2d(1, 3, 3), cl.Dropout(), cl.Flatten(), cl.Linear(48, 3)], seed=1)
        optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
        options = {"validation_data": cl.DataGenerator(IMAGES, Y[:50], seed=8), "metrics": ["f1", "accuracy"]}
        options |= {"callbacks": callbacks, "resume": resume, "epochs": 3}
        return model, optimizer, train(model, data(), optimizer=optimizer, **options)

    check(path, run)


def test_a_seed_and_a_model_that_was_used_before_make_no_difference(path):
    def run(callbacks, resume):
        model = make_net()
        train(model, X, Y, validation_split=0.1)
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        options = {"seed": 7, "validation_split": 0.2, "epochs": 3, "callbacks": callbacks, "resume": resume}
        train(model, X, Y, optimizer=optimizer, **options)
        return model, optimizer, train(model, X, Y, optimizer=optimizer)  # which draws from the model's stream

    check(path, run, stops=(3,))


def test_a_model_that_draws_otherwise_goes_on_with_the_stream_of_the_checkpoint(path):
    def run(callbacks, resume, model):
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        options = {"validation_split": 0.2, "epochs": 2, "callbacks": callbacks, "resume": resume}
        return model, optimizer, train(model, X, Y, optimizer=optimizer, **options)

    never_stopped = everything(*run([], None, make_net()))
    with pytest.raises(StopTraining):
        run([cl.callbacks.Checkpoint(path, seconds=0), StopAt(6)], None, make_net())
    assert everything(*run([], path, cl.load(path))) == never_stopped


def test_a_further_fit_that_goes_on_holds_out_what_the_model_has_held_out_before(path):
    """In a process of its own, whose model has not held out anything: the checkpoint says it."""

    def run(callbacks, resume):
        model = make_net()
        if resume is None:
            train(model, X, Y, validation_split=0.2)
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        options = {"validation_split": 0.2, "epochs": 3, "callbacks": callbacks, "resume": resume}
        return model, optimizer, train(model, X, Y, optimizer=optimizer, **options)

    check(path, run, stops=(3,))


@pytest.mark.parametrize("give", [lambda x, y: (x, y), lambda x, y: (cl.DataGenerator(x, y, batch_size=17, seed=2),)])
def test_a_training_goes_on_before_and_after_a_batch_that_a_last_row_has_joined(give, path):
    def run(callbacks, resume):
        model = make_net()
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        options = {"callbacks": callbacks, "resume": resume, "epochs": 3, "batch_size": 17, "metrics": ["f1"]}
        data = give(X, Y)
        if len(data) == 1:
            del options["batch_size"]
        return model, optimizer, train(model, *data, optimizer=optimizer, **options)

    check(path, run)


@pytest.mark.parametrize("change", [["60", {}], [60, {"bit_generator": "sys"}], [60, {"bit_generator": "PCG64"}], 3])
def test_a_checkpoint_with_an_impossible_split_raises(change, path):
    model = make_net()
    stop_in_mid_epoch(path, validation_split=0.2)
    with File(path) as file:
        texts, arrays = dict(file.texts), file.arrays(file.specs)
    text = json.loads(texts["caffelite.training"])
    text["streams"]["splits"] = [change]
    write_arrays(path, arrays, texts | {"caffelite.training": json.dumps(text)})
    with pytest.raises(ValueError, match="not a checkpoint of this training"):
        train(model, X, Y, epochs=2, validation_split=0.2, resume=path)


@pytest.mark.parametrize("epochs", [3, 5])
def test_epochs_is_the_total_and_numbering_goes_on(epochs, path):
    def run(epochs, resume=None):
        seen, model = [], make_net()
        callbacks = [cl.callbacks.Checkpoint(path), lambda epoch, history: seen.append((epoch, history.epochs))]
        optimizer = cl.SGD(model.parameters(), lr=0.1)
        history = train(model, X, Y, optimizer=optimizer, epochs=epochs, callbacks=callbacks, resume=resume)
        return everything(model, optimizer, history), seen

    whole, seen = run(epochs)
    assert seen == [(i, i + 1) for i in range(epochs)]
    run(3)
    rest, seen = run(epochs, resume=path)
    assert seen == [(i, i + 1) for i in range(3, epochs)]
    assert rest == whole


@pytest.mark.parametrize("given", ["arrays", "batches"])
def test_a_metric_of_several_outputs_goes_on_in_the_midst_of_an_epoch(path, given):
    class TwoHeads(cl.Model):
        def call(self, x):
            h = self.functions[0](x)
            return h, self.functions[1](h)

    class PairLoss(cl.Model):
        def call(self, outputs, y):
            return cl.SoftmaxLoss()(outputs[1], y) + (outputs[0] ** 2).mean()

    def total(outputs, targets):
        return sum(float(x.sum()) for x in outputs) + len(targets)

    data = (X, Y) if given == "arrays" else ([(X[i : i + 10], Y[i : i + 10]) for i in range(0, len(X), 10)],)

    def run(callbacks, resume):
        model = TwoHeads([cl.Linear(2, 4), cl.Linear(4, 3)], seed=0)
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        options = {"loss": PairLoss(), "metrics": [total], "callbacks": callbacks, "resume": resume}
        options["batch_size"] = 10 if given == "arrays" else None
        history = train(model, *data, optimizer=optimizer, epochs=3, seed=0, **options)
        return model, optimizer, history

    check(path, run, stops=(2, 6))


@pytest.mark.parametrize("given", ["arrays", "batches", "mapped", "transform"])
def test_several_targets_go_on_in_the_midst_of_an_epoch(path, given, monkeypatch):
    class TwoHeads(cl.Model):
        def call(self, x):
            return tuple([function(x) for function in self.functions])

    y = (Y, np.arange(103, dtype=np.float32))
    if given == "mapped":
        monkeypatch.setattr(cl.sources, "BUFFER", 1500)
        monkeypatch.setattr(cl.sources, "BLOCK", 256)
        columns = {"labels": Y, "numbers": y[1]}
        for name, column in columns.items():
            np.save(path.with_name(f"{name}.npy"), column)
        y = tuple([np.load(path.with_name(f"{name}.npy"), mmap_mode="r") for name in columns])

    def run(callbacks, resume):
        if given == "batches":
            data = [(X[i : i + 10], tuple(a[i : i + 10] for a in y)) for i in range(0, len(X), 10)]
        else:
            transform = (lambda x, y: (-x, y)) if given == "transform" else None
            data = cl.DataGenerator(X, y, batch_size=10, seed=3, transform=transform)
        model = TwoHeads([cl.Linear(2, 3), cl.Linear(2, 1)], seed=0)
        optimizer = cl.Adam(model.parameters(), lr=0.01)
        loss, metrics = cl.Losses([cl.SoftmaxLoss(), cl.HuberLoss()], weights=[1, 0.1]), (["accuracy"], ["mae"])
        options = {"loss": loss, "metrics": metrics, "callbacks": callbacks, "resume": resume}
        history = train(model, data, optimizer=optimizer, epochs=3, validation_data=(X, y), **options)
        return model, optimizer, history

    check(path, run, stops=(2, 13))


def test_a_checkpoint_of_other_targets_or_weights_of_losses_raises(path):
    class TwoHeads(cl.Model):
        def call(self, x):
            return self.functions[0](x), self.functions[1](x)

    def run(y, weights=(1, 1), **options):
        model = TwoHeads([cl.Linear(2, 3), cl.Linear(2, 1)], seed=0)
        loss = cl.Losses([cl.SoftmaxLoss(), cl.MSELoss()], weights=weights)
        return train(model, X, y, loss=loss, epochs=2, **options)

    numbers = np.arange(103, dtype=np.float32)
    run((Y, numbers), callbacks=[cl.callbacks.Checkpoint(path)])
    with pytest.raises(ValueError, match="another data"):
        run((Y, numbers[::-1]), resume=path)
    with pytest.raises(ValueError, match="another loss"):
        run((Y, numbers), weights=(1, 2), resume=path)
    run((Y, numbers), resume=path)


def test_a_training_that_was_ended_stays_so(path):
    def run(resume=None):
        model = make_net()
        optimizer = cl.SGD(model.parameters(), lr=0.3)
        callbacks = [
            cl.callbacks.Checkpoint(path),
            cl.callbacks.EarlyStopping(monitor="loss", min_delta=0.5, patience=2),
        ]
        history = train(model, X, Y, optimizer=optimizer, epochs=20, callbacks=callbacks, resume=resume)
        return everything(model, optimizer, history)

    ended = run()
    assert len(ended["history loss"]) < 20 * 8
    assert run(path) == ended


def test_the_number_of_threads_may_change(path, restored_threads):
    def run(threads, callbacks=(), resume=None):
        cl.set_num_threads(threads)
        model = classifier(2, 400, 300, 3)
        optimizer = cl.Adam(model.parameters())
        options = {"callbacks": callbacks, "resume": resume, "epochs": 2, "batch_size": 50}
        return everything(model, optimizer, train(model, X, Y, optimizer=optimizer, **options))

    with pytest.raises(StopTraining):
        run(3, [cl.callbacks.Checkpoint(path, seconds=0), StopAt(4)])
    assert run(2, resume=path) == run(1)


def test_a_layer_that_a_callback_has_thawed_goes_on_learning(path):
    def run(callbacks, resume):
        model = frozen_below(make_net())
        optimizer = cl.Adam(model.parameters())

        def thaw(epoch, history):
            model.functions[0].requires_grad = True

        first = model.functions[0].weight.data.copy()
        history = train(model, X, Y, optimizer=optimizer, epochs=3, callbacks=[thaw, *callbacks], resume=resume)
        assert (model.functions[0].weight.data != first).any()
        return model, optimizer, history

    check(path, run, stops=(2, 6))


# ---- what a checkpoint is -------------------------------------------------------------------------------------------


def stop_in_mid_epoch(path, **options):
    """Return a checkpoint in mid-epoch."""
    model = make_net()
    with pytest.raises(StopTraining):
        train(model, X, Y, callbacks=[cl.callbacks.Checkpoint(path, seconds=0), StopAt(6)], **{"epochs": 2, **options})
    return model


def test_a_checkpoint_is_a_model_too(path):
    model = stop_in_mid_epoch(path)
    for other in (cl.load(path), make_net().load(path)):
        for name, array in model.state_dict().items():
            assert array.tobytes() == other.state_dict()[name].tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X + 1}, "another data"),
        ({"y": (Y + 1) % 3}, "another data"),
        ({"x": X[:90], "y": Y[:90]}, "another number of rows: 103, now 90"),
        ({"batch_size": 16}, "another batch size: 32, now 16"),
        ({"shuffle": False}, "another way of shuffling"),
        ({"metrics": ["accuracy"]}, "another list of metrics"),
        ({"loss": cl.SoftmaxLoss(label_smoothing=0.1)}, "another loss"),
        ({"model": classifier(2, 3)}, "another model"),
        ({"model": frozen_below(make_net())}, r"another list of frozen parameters: \[\], now"),
        ({"model": make_net(np.float64)}, "another dtype: float32, now float64"),
        ({"rule": cl.Adam}, "another optimizer: SGD, now Adam"),
        ({"rule": lambda ps, lr: cl.SGD(ps[::-1], lr=lr, momentum=0.9)}, "another order of the optimizer's parameters"),
        ({"callbacks": [cl.callbacks.EarlyStopping("loss")]}, "states of the callbacks"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_another_training_raises_before_anything_is_written(change, message, path):
    stop_in_mid_epoch(path)
    change = {"model": make_net(), "rule": lambda ps, lr: cl.SGD(ps, lr=lr, momentum=0.9), "x": X, "y": Y, **change}
    model, rule, x, y = (change.pop(name) for name in ("model", "rule", "x", "y"))
    optimizer = rule(model.parameters(), lr=0.1)
    before = everything(model, optimizer, {})
    with pytest.raises(ValueError, match=message):
        train(model, x, y, optimizer=optimizer, epochs=2, resume=path, **change)
    assert everything(model, optimizer, {}) == before


def everywhere(model, optimizer, callbacks, generator):
    """Return the bits of all that a refused resumption could change."""
    found = everything(model, optimizer, {})
    found |= {f"frozen {name}": p.requires_grad for name, p in model.named_parameters().items()}
    found |= {f"data {name}": x.tobytes() for name, x in generator.state().items()}
    return found | {
        "stream": model._model_state.rng.bit_generator.state,
        "columns": model._model_state.column_names,
        "callbacks": [dict(vars(callback)) for callback in callbacks],
    }


class Refusing:
    """A callback with a state, which refuses to take one over."""

    value = 1

    def __call__(self, epoch, history):
        pass

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        if self.value != 1:
            self.value = 3
            raise ValueError("refused by the callback")
        self.value = state["value"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": cl.SoftmaxLoss(label_smoothing=0.1)}, "another loss"),
        ({"clip_norm": 1.0}, "another clip_norm"),
        ({"metrics": ["accuracy"]}, "another list of metrics"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"callbacks": lambda: [Refusing()]}, "has states of the callbacks"),
        ({"callbacks": lambda: [early(restore_best=False), Refusing()]}, "restore_best=False expected no best"),
        ({"callbacks": lambda: [early(), refusing()]}, "refused by the callback"),
        ({"callbacks": lambda: [early("val_accuracy"), Refusing()]}, "there is no 'val_accuracy' to monitor"),
        ({"rule": cl.Adam}, "another optimizer"),
        ({"model": lambda: frozen_below(make_net())}, "another list of frozen parameters"),
        ({"text": {"done": {"epoch": 10**6, "batch": 7}}}, "is not a checkpoint of this training"),
        ({"text": {"streams": {"training": 1, "model": 2}}}, "is not a checkpoint of this training"),
        ({"text": {"stream": {"bit_generator": "PCG64"}}}, "is not a checkpoint of this training"),
        ({"text": {"optimizer": {"lr": -1.0, "momentum": 0.9}}}, "is not a checkpoint of this training"),
        ({"text": {"callbacks": [["EarlyStopping", {"waited": -1}], ["Refusing", {"value": 1}]]}}, "EarlyStopping"),
        (
            {"text": {"ended": 0, "schedules": 7, "history": 1, "callbacks": None}},
            "is not a checkpoint of this training",
        ),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_a_refused_resumption_leaves_all_as_it_was(change, message, path):
    def data():
        return cl.DataGenerator(X, Y, batch_size=25, seed=3)

    options = {"epochs": 3, "validation_data": (X, Y)}
    model, own = make_net(), [early(), Refusing(), cl.callbacks.Checkpoint(path)]
    train(model, data(), optimizer=sgd(model), callbacks=own, **{**options, "epochs": 2})
    if "text" in change:
        header, arrays = fuzz_files.split_file(path.read_bytes())
        text = strict_json(header["__metadata__"][TEXT]) | change["text"]
        header["__metadata__"][TEXT] = json.dumps(text)
        path.write_bytes(fuzz_files.join_file(header, arrays))
    model = change.get("model", make_net)()
    inputs.remember_columns(model, [["a", "b"]])
    model._model_state.rng.random()  # so its stream is not the checkpoint's
    optimizer = change.get("rule", cl.SGD)(
        model.parameters(), **({} if "rule" in change else {"lr": 0.3, "momentum": 0.9})
    )
    callbacks = change["callbacks"]() if "callbacks" in change else [early(), Refusing()]
    generator = data()
    before = everywhere(model, optimizer, callbacks, generator)
    others = {name: x for name, x in change.items() if name not in ("text", "model", "rule", "callbacks")}
    with pytest.raises(ValueError, match=message):
        train(model, generator, optimizer=optimizer, callbacks=callbacks, resume=path, **{**options, **others})
    after = everywhere(model, optimizer, callbacks, generator)
    assert {name for name in before if before[name] != after[name]} == set()


def early(monitor="val_loss", **options):
    return cl.callbacks.EarlyStopping(monitor, patience=50, **options)


def refusing():
    callback = Refusing()
    callback.value = 2
    return callback


def sgd(model, lr=0.1):
    return cl.SGD(model.parameters(), lr=lr, momentum=0.9)


class Remembering:
    """A callback whose state is what it was last given."""

    def __init__(self, **state):
        self.state = state

    def __call__(self, epoch, history):
        pass

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_callbacks_numbers_that_are_not_finite_come_back(path):
    state = {"best": float("-inf"), "last": float("nan"), "all": [float("inf"), 1.5], "values": np.array([np.nan])}
    train(make_net(), X, Y, callbacks=[Remembering(**state), cl.callbacks.Checkpoint(path)])
    callback = Remembering(best=0)
    train(make_net(), X, Y, epochs=2, callbacks=[callback], resume=path)
    assert repr(callback.state) == repr(state)


def test_random_draws_after_a_resumption_are_as_without_a_stop(path):
    class Drawing:
        def __call__(self, epoch, history):
            self.model._model_state.rng.normal(size=3)  # as a Function does that is added

        def begin(self, training):
            self.model = training.model

    never_stopped, first, again = make_net(), make_net(), make_net()
    train(never_stopped, X, Y, epochs=4, callbacks=[Drawing()])
    train(first, X, Y, epochs=2, callbacks=[Drawing(), cl.callbacks.Checkpoint(path)])
    train(again, X, Y, epochs=4, callbacks=[Drawing()], resume=path)
    assert again._model_state.rng.bit_generator.state == never_stopped._model_state.rng.bit_generator.state


def test_another_schedule_is_followed_from_the_checkpoints_step_on(path):
    steps = len(X) // 32 + 1
    first, second = (cl.schedules.linear(lr, 100 * steps) for lr in (0.1, 0.05))
    model = make_net()
    train(model, X, Y, epochs=2, optimizer=sgd(model, first), callbacks=[cl.callbacks.Checkpoint(path)])
    model = make_net()
    optimizer = sgd(model, second)
    train(model, X, Y, epochs=3, optimizer=optimizer, resume=path)
    assert optimizer.lr == second(3 * steps)


def test_of_several_groups_each_follows_its_own_schedule(path):
    steps = len(X) // 32 + 1
    first, second = (cl.schedules.linear(lr, 100 * steps) for lr in (0.1, 0.05))

    def run(schedule, **options):
        model = make_net()
        groups = [{"parameters": model.parameters()[:2]}, {"parameters": model.parameters()[2:], "lr": schedule}]
        optimizer = cl.SGD(groups, lr=first, momentum=0.9)
        train(model, X, Y, optimizer=optimizer, **options)
        return [group["lr"] for group in optimizer.groups]

    run(first, epochs=2, callbacks=[cl.callbacks.Checkpoint(path)])
    assert run(second, epochs=3, resume=path) == [first(3 * steps), second(3 * steps)]


def test_a_schedule_that_the_checkpoint_had_not_is_followed_from_its_step_on(path):
    steps = len(X) // 32 + 1
    train(make_net(), X, Y, epochs=2, callbacks=[cl.callbacks.Checkpoint(path)])
    schedule, model = cl.schedules.linear(0.1, 100 * steps), make_net()
    optimizer = sgd(model, schedule)
    train(model, X, Y, epochs=3, optimizer=optimizer, resume=path)
    assert optimizer.lr == schedule(3 * steps)


def test_a_schedule_that_a_callback_has_scaled_stays_the_same_one(path):
    def run(epochs, callbacks=(), resume=None):
        model = make_net()
        optimizer = sgd(model, cl.schedules.linear(0.1, 100))

        def halve(epoch, history):
            if epoch == 0:
                optimizer.scale_lr(0.5)

        history = train(model, X, Y, epochs=epochs, optimizer=optimizer, callbacks=[halve, *callbacks], resume=resume)
        return everything(model, optimizer, history)

    never_stopped = run(3)
    run(2, [cl.callbacks.Checkpoint(path)])
    assert run(3, resume=path) == never_stopped


def test_a_model_alone_is_not_a_checkpoint(path):
    model = make_net()
    model.save(path)
    with pytest.raises(ValueError, match="is not a checkpoint; `load` reads it"):
        train(model, X, Y, resume=path)


def test_a_hostile_checkpoint_raises(path):
    stop_in_mid_epoch(path, metrics=["f1", "accuracy"], validation_split=0.2)
    content, chosen = path.read_bytes(), np.random.default_rng(0)
    header, data = fuzz_files.split_file(content)
    header["__metadata__"]["caffelite.structure"] = "[]"  # which `mutated` would take most of its time for
    tried = 0
    for _ in range(150):
        other, _ = fuzz_files.split_file(content)
        kind = chosen.integers(3)
        if kind == 0:
            text = strict_json(other["__metadata__"][TEXT])
            fuzz_files.forge_value(chosen, text)
            other["__metadata__"][TEXT] = fuzz_files.json.dumps(text)
        elif kind == 1:
            names = [name for name in other if name.startswith("training:")]
            del other[names[chosen.integers(len(names))]]
        bad = fuzz_files.join_file(other, data) if kind < 2 else fuzz_files.mutate(content, chosen)
        path.write_bytes(bad)
        model = make_net()
        try:
            train(model, X, Y, epochs=2, metrics=["f1", "accuracy"], validation_split=0.2, resume=path)
        except ValueError:
            tried += 1
        except cl.TrainingDiverged:  # a parameter has become NaN
            pass
    assert tried > 100


# ---- writing it -----------------------------------------------------------------------------------------------------


def checkpoint_places(path, monkeypatch, epochs=4, **options):
    """After which epochs, and batches of the next, a checkpoint was written."""
    places = []

    def note(target, arrays, texts):
        done = strict_json(texts[TEXT])["done"]
        places.append((done["epoch"], done["batch"]))
        write_arrays(target, arrays, texts)

    monkeypatch.setattr(resume, "write_arrays", note)
    model = classifier(2, 3)
    train(model, X, Y, epochs=epochs, validation_data=(X, Y), callbacks=[cl.callbacks.Checkpoint(path, **options)])
    return places


def test_it_is_written_after_every_so_many_epochs(path, monkeypatch):
    assert checkpoint_places(path, monkeypatch) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert checkpoint_places(path, monkeypatch, every=3) == [(3, 0)]


def test_it_is_written_when_so_many_seconds_have_passed(path, monkeypatch):
    places = checkpoint_places(path, monkeypatch, seconds=0)
    assert {(0, 1), (0, 2), (1, 0)} <= set(places)
    assert checkpoint_places(path, monkeypatch, seconds=1e9) == []


def test_only_the_best_epochs_are_written(path, monkeypatch):
    values = iter([3.0, 2.0, 2.5, 1.0])
    monkeypatch.setattr(evaluation.Evaluation, "__call__", lambda self: [next(values)])
    assert checkpoint_places(path, monkeypatch, monitor="val_loss") == [(1, 0), (2, 0), (4, 0)]


def test_other_callbacks_have_seen_the_epoch_before_it_is_written(path):
    early = cl.callbacks.EarlyStopping(monitor="loss")
    train(classifier(2, 3), X, Y, epochs=1, callbacks=[cl.callbacks.Checkpoint(path), early])
    saved = CheckpointFile(path)
    assert saved.text["callbacks"][0][1]["best_epoch"] == 0


def test_a_folder_that_is_not_there_is_reported_before_the_first_step(tmp_path):
    model = classifier(2, 3)
    before = model.state_dict()
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        train(model, X, Y, callbacks=[cl.callbacks.Checkpoint(tmp_path / "missing" / "file")])
    assert all(before[name].tobytes() == x.tobytes() for name, x in model.state_dict().items())


def test_a_full_disk_is_a_warning_and_the_older_checkpoint_stays(path, monkeypatch):
    train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.Checkpoint(path)])
    before = path.read_bytes()

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(
        RuntimeWarning, match="no checkpoint was saved: .*nothing was written: No space left.*the training continues"
    ):
        history = train(classifier(2, 3), X, Y, epochs=2, callbacks=[cl.callbacks.Checkpoint(path)])
    assert history.epochs == 2
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("bad", [{"every": 0}, {"seconds": -1}, {"monitor": "loss", "seconds": 1}])
def test_arguments_that_cannot_be_raise(bad, path):
    with pytest.raises(ValueError, match=r"every|seconds"):
        cl.callbacks.Checkpoint(path, **bad)


def test_nobody_is_between_steps_who_does_not_want_it():
    assert CallbackList([lambda epoch, history: None])._between_steps == []


# ---- kills ----------------------------------------------------------------------------------------------------------


def test_a_training_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    training, seconds = crash_resume.KilledTraining("dropout", tmp_path), 0.3
    while training.kills < 2:  # unless it was at its end by then, which begins it again
        training.run(seconds)
        seconds *= 0.7
    training.run()
    assert training.ends > 0


@pytest.mark.slow
def test_a_dozen_kills_leave_whole_checkpoints_and_the_same_bits():
    done = subprocess.run(
        [sys.executable, Path(crash_resume.__file__), "12"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
