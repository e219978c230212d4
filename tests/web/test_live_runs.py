"""The runs in a folder, and the command that shows them."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import caffelite as cl
from caffelite import cli
from caffelite.web import updates
from caffelite.web.folder import FolderPage
from caffelite.web.messages import decode
from caffelite.web.runs import Runs
from caffelite.web.server import encode_message
from tests.conftest import posix
from tests.tools.page_client import SECONDS, Page
from tests.web.live_training import Looking, command, fit

pytestmark = pytest.mark.usefixtures("long_timeouts")


def test_runs_of_a_folder_stay_and_are_listed_and_opened(tmp_path):
    folder = tmp_path / "runs"
    fit([cl.live(open_browser=False, folder=folder)], 30)
    (path,) = folder.glob("*.run")
    kept = decode(path.read_bytes())
    assert (kept["kind"], kept["name"], kept["parts"]["status"]["state"]) == ("run", path.stem, "finished")
    (folder / "other.run").write_bytes(b"{}")
    (folder / "empty.run").write_bytes(b"")
    (folder / "huge.run").write_bytes(b"\xff" * 100)
    (folder / "secret.txt").write_text("secret")
    with Looking(cl.live(open_browser=False, folder=folder)) as looking:
        runs = looking.page.wait_for("runs", lambda m: m["runs"])
        assert path.stem in [run["name"] for run in runs["runs"]]
        assert {run["name"] for run in runs["runs"]} <= {path.stem, runs["now"]}
        looking.page.ask("run", name=path.stem)
        run = looking.page.wait_for("run")
        np.testing.assert_array_equal(
            run["parts"]["curves"]["curves"]["loss"]["y"], kept["parts"]["curves"]["curves"]["loss"]["y"]
        )
        looking.page.ask("run", name="secret")
        looking.page.wait_for("refused")
    assert len([*folder.glob("*.run")]) == 5
    assert [*folder.glob("*.part")] == []


def test_the_list_has_the_names_and_settings_of_runs(tmp_path):
    for lr in (0.1, 0.01):
        model = cl.MLP(2, [20, 3], seed=0)
        optimizer = cl.SGD(model.parameters(), lr=lr, momentum=0.9)
        live = cl.live(open_browser=False, folder=tmp_path, name=f"lr {lr}")
        fit([live], 3, model=model, optimizer=optimizer, batch_size=16)
    runs = Runs(tmp_path).list_runs()
    assert [run["title"] for run in runs] == ["lr 0.01", "lr 0.1"]
    first, second = (run["settings"] for run in runs)
    assert {name for name in first if first[name] != second[name]} == {"lr"}
    assert first["lr"] == 0.01
    assert {"optimizer": "SGD", "momentum": 0.9, "batch size": 16, "parameters": 123}.items() <= first.items()


def test_the_file_of_a_run_follows_the_training(tmp_path):
    with Looking(cl.live(open_browser=False, folder=tmp_path)) as looking:
        path = Path(looking.page.wait_for("file")["path"])
        first = decode(path.read_bytes())["parts"]["status"]["epoch"]
        end = time.monotonic() + SECONDS
        while decode(path.read_bytes())["parts"]["status"]["epoch"] <= first:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_files_other_than_runs_are_left_out(tmp_path):
    runs, rng = Runs(tmp_path), np.random.default_rng(0)
    whole = encode_message("run", {"name": "a", "parts": {"status": {"state": "finished"}, "curves": {"curves": {}}}})
    for i in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = rng.integers(256)
        (tmp_path / f"run-{i}.run").write_bytes(bytes(damaged[: rng.integers(len(damaged) + 1)]))
    assert runs.list_runs() == []


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit([cl.live(open_browser=False)], 30)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_ends_fit_before_its_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file"):
        fit([cl.live(open_browser=False, folder=tmp_path / "file")], 1)


def test_a_run_that_a_full_disk_does_not_keep_is_a_warning(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(epoch, history):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))

    try:
        with pytest.warns(RuntimeWarning, match="the run is not kept: .*File too large: '.*run'") as all:
            _, history = fit([cl.live(open_browser=False, folder=tmp_path), fill_disk], 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert history.epochs == 2000
    assert len(all) == 1


def test_a_run_is_kept_once_a_full_disk_has_room_again(tmp_path, monkeypatch):
    calls, save = [], Runs.save

    def fail_once(*arguments):
        calls.append(None)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        save(*arguments)

    def stop(epoch, history):
        time.sleep(0.01)
        return bool([path for path in tmp_path.iterdir() if path.stat().st_size])

    monkeypatch.setattr(Runs, "save", fail_once)
    for name in ("SLOW_INTERVAL", "TIME_SHARE"):
        monkeypatch.setattr(updates, name, 1.0)
    with pytest.warns(RuntimeWarning, match="the run is not kept: .*No space left"):
        _, history = fit([cl.live(open_browser=False, folder=tmp_path), stop], 2000)
    assert history.epochs < 2000


def test_a_run_that_was_interrupted_is_reported_to_be(tmp_path):
    parts = {"status": dict.fromkeys(["epoch", "epochs", "seconds", "optimizer", "parameters"]) | {"state": "running"}}
    runs = Runs(tmp_path)
    name = runs.new_name()
    assert runs.list_runs() == []
    runs.save(name, parts | {"curves": {"curves": {}}})
    assert [run["state"] for run in runs.list_runs()] == ["running"]
    os.utime(tmp_path / f"{name}.run", (0, 0))
    assert [run["state"] for run in runs.list_runs()] == ["interrupted"]
    assert len({runs.new_name() for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("connection", "option"),
    [("192.0.2.1 50000 192.0.2.7 22", ""), ("::1 1 ::2 2222", " -p 2222"), ("1 2", None), ("a 1 $(reboot) 22", None)],
)
def test_a_page_on_another_computer_tells_the_ssh_command(connection, option, folder, capsys, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    page = FolderPage(folder)
    port, client = page.server.port, Page(page.server.address)
    expected = f"ssh -N -L {port}:127.0.0.1:{port}{option} ada@{connection.split()[-2]}"
    client.wait_for("runs")
    if option is None:
        assert "ssh" not in client.messages
        assert page.server.directions == page.server.address
    else:
        assert client.wait_for("ssh")["command"] == expected
        assert page.server.directions == f"{page.server.address}\nFrom your own computer, first: {expected}"
    client.close()
    page.stop()
    capsys.readouterr()
    with Looking() as looking:
        assert option is None or looking.page.wait_for("ssh")["command"].startswith("ssh -N -L ")
    assert ("From your own computer" in capsys.readouterr().out) == (option is not None)


@posix
def test_the_command_shows_the_runs_of_a_folder_until_ctrl_c(folder):
    with command(folder) as program:
        page = Page(program.address)
        runs = page.wait_for("runs")
        assert (runs["now"], [(run["state"], run["epoch"]) for run in runs["runs"]]) == (
            None,
            [("finished", 40), ("finished", 30)],
        )
        page.ask("run", name=runs["runs"][1]["name"])
        assert page.wait_for("run")["parts"]["status"]["epoch"] == 30
        fit([cl.live(open_browser=False, folder=folder)], 50)
        page.ask("runs")
        page.wait_for("runs", lambda message: len(message["runs"]) == 3)
        for kind in ("pause", "stop", "save", "rate", None):
            page.messages.pop("refused", None)
            page.ask(kind)
            assert "there is no training here" in page.wait_for("refused")["why"]
        page.messages.pop("refused")
        page.ask("run", name="../other")
        assert "there is no run" in page.wait_for("refused")["why"]
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=SECONDS)
        assert (program.returncode, errors) == (0, "")
        page.close()


def test_the_command_keeps_others_out(folder):
    with command(folder) as program:
        origin, _, token = program.address.partition("/?token=")
        place = f"{origin.replace('http', 'ws')}/socket?token="
        for attack in (
            {"uri": place, "origin": origin},
            {"uri": place + token, "origin": "http://evil.example"},
            {"uri": place + token, "origin": origin, "additional_headers": {"Host": "evil.example"}},
        ):
            with pytest.raises(WebSocketException):
                connect(**attack, proxy=None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("none", "{}: No such file or directory", marks=posix),
        pytest.param("file", "{}: Not a directory", marks=posix),
        ("empty", "{} has no runs: cl.live(folder=…) writes a file NAME.run for each"),
    ],
)
def test_a_folder_that_has_no_runs_raises(name, said, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    assert cli.main(["live", str(tmp_path / name), "--no-browser"]) == 2
    assert capsys.readouterr().err == f"caffelite live: error: {said.format(tmp_path / name)}\n"


def test_the_command_refuses_a_port_and_says_what_is_missing(folder, capsys, monkeypatch):
    assert cli.main(["live", str(folder), "--port", "70000"]) == 2
    assert capsys.readouterr().err == "caffelite live: error: a port is at most 65535, got 70000\n"
    monkeypatch.delitem(sys.modules, "caffelite.web.folder", raising=False)
    monkeypatch.setitem(sys.modules, "caffelite.web.server", None)
    assert cli.main(["live", str(folder)]) == 2
    assert "-m pip install starlette uvicorn websockets" in capsys.readouterr().err
