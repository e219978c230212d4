"""What is printed to a stream whose encoding lacks characters, such as ASCII and Windows-1252."""

import io
import sys

import numpy as np
import pytest

import caffelite as cl
from caffelite import cli
from caffelite._support import terminal
from caffelite._support.text_table import text_table
from caffelite.cli import gpt
from caffelite.training.callbacks.progress import Progress


@pytest.fixture(params=["ascii", "cp1252"])
def narrow_streams(request, monkeypatch):
    """Have standard streams that raise for a character that their encoding lacks; returns what tells what they got."""

    def begin():
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=request.param, errors="strict") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])

        def got(i=0):
            streams[i].flush()
            return streams[i].buffer.getvalue().decode(request.param)

        return got

    return begin


@pytest.mark.parametrize(
    ("text", "encoding", "written"),
    [
        ("a … b", "utf-8", "a … b"),
        ("3×4 → µs − R² ± …", "ascii", "3x4 -> us - R^2 +/- ..."),
        ("3×4 → µs − R² ± …", "cp1252", "3×4 -> µs - R² ± …"),
        ("Köln 漢 \udcff", "ascii", "K\\xf6ln \\u6f22 \\udcff"),
        ("\udcff", "utf-8", "\\udcff"),
    ],
)
def test_characters_that_an_encoding_lacks_become_ascii(text, encoding, written):
    assert terminal.make_writable(text, io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == written


def test_a_table_is_aligned_in_the_characters_that_the_output_can_write(narrow_streams):
    got = narrow_streams()
    print(text_table(["µs", "a → b"], [["1", "…"]], "><"))
    first, _, last = got().splitlines()
    assert first.split()[1:] == ["a", "->", "b"]
    assert len(first.split("  ")[0]) == len("µs") == last.index("1") + 1


def test_all_that_is_printed_of_a_model_can_be_written(narrow_streams):
    got = narrow_streams()
    x = np.zeros((8, 3), np.float32)
    model = cl.Model([cl.Linear(3, 2), cl.ReLU(), cl.Linear(2, 2)], seed=0)

    def step():
        return model(cl.Tensor(x))

    program = cl.capture(step)
    print(model)
    print(cl.Model([cl.Columns({f"größe → {i}": x[:, 0] for i in range(30)})]))
    print(model.summary((3,)))
    print(program)
    print(program.profile(2))
    inspection = cl.inspect(model, x, np.zeros(8, int), loss=cl.SoftmaxLoss())
    print(inspection)
    print(inspection.parameters["0.weight"].value)
    cl.show_config()
    assert "->" in got()


def test_bars_and_lines_can_be_written(narrow_streams):
    got = narrow_streams()
    for verbose in (1, 2):
        with Progress(verbose, 1, 1) as shown:
            shown.step(1, lambda: 1.0)
            shown.epoch(1, {"loss": [0.5], "Güte → 1": [2.0]})
    assert "te -> 1 2" in got(0)
    assert "te -> 1 2" in got(1)


@pytest.mark.parametrize(
    "arguments", [["info"], ["spiral", "--epochs", "2"], ["digits", "--epochs", "1"], ["gpt", "--epochs", "1"]]
)
def test_every_command_can_be_written(arguments, narrow_streams, tmp_path, monkeypatch):
    got = narrow_streams()
    monkeypatch.setattr(gpt, "STEPS", 1)
    monkeypatch.setattr(gpt, "SIZE", 8)
    monkeypatch.setattr(gpt, "SAMPLE_LENGTH", 5)
    monkeypatch.setattr(gpt, "_python_docs", lambda: "ö→漢\n" * 400)
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 0
    assert got()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_commands_of_tables_can_be_written(task, narrow_streams, tmp_path, monkeypatch):
    got = narrow_streams()
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{'Köln' if i % 3 else '漢'},{i % 2 if task == 'classification' else i * 0.5}" for i in range(60)]
    rows = [row + ("é→" if task == "classification" else "") for row in rows]
    (tmp_path / "größe→.csv").write_text("\n".join(["x → y,stadt,maß", *rows]), encoding="utf-8")
    assert cli.main(["train", "größe→.csv", "--target", "maß", "--epochs", "2"]) == 0
    assert cli.main(["export", "model.safetensors", "--c", "größe→.c"]) == 0
    before = len(got())
    assert cli.main(["predict", "model.safetensors", "größe→.csv", "--output", "out→.csv"]) == 0
    assert "out->.csv" in got()[before:]
    assert cli.main(["predict", "model.safetensors", "größe→.csv"]) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().endswith((tmp_path / "out→.csv").read_bytes()) or task == "regression"
    assert cli.main(["train", "größe→.csv", "--target", "→"]) == 2
    assert "->" in got(1)


def test_a_stream_that_was_closed_before_python_began_is_not_a_terminal():
    assert not terminal.is_terminal(None)
