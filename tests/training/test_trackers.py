"""MLflow, and Weights & Biases: with the real packages, offline."""

import copy
import json
import pickle
import sys
import warnings

import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.callback_data import VALIDATION, X, Y

OPTIONS = {"metrics": ["accuracy"], "validation_data": VALIDATION, "epochs": 3}


class Failure(Exception):
    pass


def fail(epoch, history):
    if epoch == 1:
        raise Failure


def expected_rows(history):
    return [dict(zip(history, row, strict=True)) for row in zip(*history.values(), strict=True)]


# ---- MLflow ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow, with its runs in files of a folder."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of packages that it imports
        mlflow = pytest.importorskip("mlflow")
        mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
        yield mlflow
        mlflow.end_run()


def mlflow_rows(mlflow, run, names):
    """Return the metrics of a run, epoch by epoch."""
    logged = [mlflow.MlflowClient().get_metric_history(run.info.run_id, name) for name in names]
    steps = {tuple(metric.step for metric in metrics) for metrics in logged}
    assert steps == {tuple(range(1, len(logged[0]) + 1))}
    return [{metric.key: metric.value for metric in row} for row in zip(*logged, strict=True)]


def find_runs(mlflow, experiment):
    (found,) = [e for e in mlflow.MlflowClient().search_experiments() if e.name == experiment]
    return mlflow.MlflowClient().search_runs([found.experiment_id])


def test_mlflow_gets_the_history_and_the_settings_in_a_run(mlflow):
    callback, seen = cl.callbacks.MLflow("digits", run_name="first"), []
    callbacks = [callback, lambda *_: seen.append(mlflow.active_run())]
    history = train(classifier(2, 3), X, Y, callbacks=callbacks, **OPTIONS)
    (run,) = find_runs(mlflow, "digits")
    assert mlflow_rows(mlflow, run, history) == expected_rows(history)
    assert (run.info.run_name, run.info.status, mlflow.active_run()) == ("first", "FINISHED", None)
    assert {active.info.run_id for active in seen} == {run.info.run_id}
    assert run.data.params.items() >= {"optimizer": "SGD", "loss": "SoftmaxLoss()", "parameters": "9"}.items()
    copy.deepcopy(callback)
    pickle.dumps(callback)


def test_mlflow_adds_metrics_to_an_active_run_and_leaves_it_open(mlflow):
    run = mlflow.start_run()
    history = train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.MLflow()], **OPTIONS)
    assert mlflow.active_run().info.run_id == run.info.run_id
    assert mlflow_rows(mlflow, run, history) == expected_rows(history)
    model = classifier(2, 3)
    before = bits(model)
    with pytest.raises(ValueError, match="a run is active, so MLflow can't use experiment; end it first"):
        train(model, X, Y, callbacks=[cl.callbacks.MLflow("digits")])
    assert bits(model) == before


def test_a_training_that_raises_is_a_failed_run_of_mlflow(mlflow):
    callback = cl.callbacks.MLflow("digits")
    with pytest.raises(Failure):
        train(classifier(2, 3), X, Y, callbacks=[callback, fail], **OPTIONS)
    try:
        raise Failure
    except Failure:  # the next training is well
        train(classifier(2, 3), X, Y, callbacks=[callback], **OPTIONS)
    assert [run.info.status for run in find_runs(mlflow, "digits")] == ["FINISHED", "FAILED"]


def test_an_epoch_that_mlflow_cannot_log_is_a_warning(mlflow, monkeypatch):
    def refuse(*arguments, **options):
        raise mlflow.exceptions.MlflowException("no server")

    monkeypatch.setattr(mlflow, "log_metrics", refuse)
    with pytest.warns(RuntimeWarning, match="the epoch was not logged: no server; the training continues"):
        history = train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.MLflow()], **OPTIONS)
    assert len(history["loss"]) == 3


# ---- Weights & Biases ------------------------------------------------------------------------------------------------


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """W&B, which writes its runs to a folder. One test takes seconds, because wandb starts a process."""
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wandb = pytest.importorskip("wandb")
        yield wandb
        wandb.finish()
        wandb.teardown()


def wandb_records(wandb, folder):
    """Return the records in the file of the one offline run in a folder, when W&B has written all of them."""
    wandb.teardown()
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, place, record, records = path.read_bytes(), 7, b"", []
    while place < len(content):  # LevelDB's log: a checksum, the length, whether it is a whole record, and the part
        if (left := -place % 32768) < 7:
            place += left  # no part crosses the end of a block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            records.append(Record.FromString(record))
            record = b""
    return records


def wandb_rows(records, names):
    """Return the metrics of a run, epoch by epoch."""
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            assert items["_step"] == len(rows) + 1
            rows.append({name: items[name] for name in names})
    return rows


def test_wandb_gets_the_history_and_the_settings_in_a_run(wandb, tmp_path):
    callback, seen = cl.callbacks.WandB("digits", name="first"), []
    history = train(classifier(2, 3), X, Y, callbacks=[callback, lambda *_: seen.append(wandb.run)], **OPTIONS)
    assert wandb.run is None
    assert {(run.project, run.name) for run in seen} == {("digits", "first")}
    assert seen[0].config["optimizer"] == "SGD"
    assert seen[0].config["parameters"] == 9
    records = wandb_records(wandb, tmp_path)
    assert wandb_rows(records, history) == expected_rows(history)
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]
    copy.deepcopy(callback)
    pickle.dumps(callback)


def test_wandb_adds_metrics_to_an_active_run_and_leaves_it_open(wandb, tmp_path):
    run = wandb.init(project="mine", config={"lr": "mine"})
    history = train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.WandB()], **OPTIONS)
    assert wandb.run is run
    with pytest.raises(ValueError, match="a run is active, so WandB can't use project; end it first"):
        train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.WandB("digits")])
    assert dict(run.config) == {"lr": "mine"}
    run.finish()
    assert wandb_rows(wandb_records(wandb, tmp_path), history) == expected_rows(history)


def test_a_training_that_raises_is_a_failed_run_of_wandb(wandb, tmp_path):
    with pytest.raises(Failure):
        train(classifier(2, 3), X, Y, callbacks=[cl.callbacks.WandB("digits"), fail], **OPTIONS)
    assert [record.exit.exit_code for record in wandb_records(wandb, tmp_path) if record.HasField("exit")] == [1]


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "package"), [("MLflow", "mlflow"), ("WandB", "wandb")])
def test_without_the_package_the_error_says_what_to_install(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{name} needs {package}: .*-m pip install {package}"):
        getattr(cl.callbacks, name)("digits")


def test_settings_are_numbers_and_short_texts():
    class Settings:
        def begin(self, training):
            self.settings = training.describe_settings()

        def __call__(self, epoch, history):
            pass

    callback, model = Settings(), cl.MLP(2, [2] * 100 + [3], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=cl.schedules.cosine(0.1, 9), momentum=0.5)
    model.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=optimizer, batch_size=7, callbacks=[callback], verbose=0)
    settings = callback.settings
    assert len(settings["model"]) == 400 < len(repr(model))
    assert settings.items() >= {"optimizer": "SGD", "lr": "schedule", "momentum": 0.5, "batch size": 7}.items()
