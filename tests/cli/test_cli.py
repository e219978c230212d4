import os
import re
import signal
import subprocess
import sys
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest

import caffelite as cl
from caffelite import cli, plots
from caffelite.cli import gpt
from tests.conftest import posix

COMMANDS = ["spiral", "digits", "gpt"]


@pytest.fixture
def picture(tmp_path):
    return tmp_path / "picture.png"


@pytest.fixture(autouse=True)
def small_gpt(monkeypatch):
    """Make the GPT of the command small, and with a text that is soon learned."""
    for name, value in {"SIZE": 16, "STEPS": 2, "SAMPLE_LENGTH": 5}.items():
        monkeypatch.setattr(gpt, name, value)
    monkeypatch.setattr(gpt, "_python_docs", lambda: "aaaaaaaaa\n" * 200)


@pytest.fixture
def alphabet(tmp_path):
    """Return a file with the same four letters, again and again."""
    path = tmp_path / "alphabet.txt"
    path.write_text("äbc\n" * 500, encoding="utf-8")
    return path


def accuracy(output):
    """Return what the command printed as accuracy, in percent."""
    (found,) = re.findall(r"^accuracy (\d+\.\d)% on the \d+ ", output, re.MULTILINE)
    return float(found)


def run(*arguments, **options):
    """`python -m caffelite` in a process of its own."""
    command = [sys.executable, "-m", "caffelite", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def refusal(capsys, *arguments):
    """Return what the command says when it exits with 2."""
    with pytest.raises(SystemExit) as exit:
        cli.main([str(argument) for argument in arguments])
    assert exit.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()[-1]


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_spiral_ends_at_98_percent_with_its_defaults(seed, picture, capsys):
    assert cli.main(["spiral", "--seed", str(seed), "--output", str(picture)]) == 0
    assert accuracy(capsys.readouterr().out) >= 98


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5)]])
def test_digits_reads_98_and_a_half_percent_of_the_held_out_images_with_its_defaults(seed, picture, capsys):
    assert cli.main(["digits", "--seed", str(seed), "--output", str(picture)]) == 0
    assert accuracy(capsys.readouterr().out) >= 98.5


@pytest.mark.parametrize(("command", "parameters"), [("spiral", "603"), ("digits", "10,282"), ("gpt", "13,280")])
def test_it_prints_the_net_its_speed_and_the_path_of_the_picture(command, parameters, picture, capsys):
    assert cli.main([command, "--epochs", "2", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"total +{parameters} ", out)
    assert re.search(r"^2 epochs in \d+\.\d\d seconds, [\d,.]+ steps per second$", out, re.MULTILINE)
    assert out.endswith(f"\npicture in {picture}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_picture_is_1600_by_700_and_has_something_on_it(command, picture):
    assert cli.main([command, "--epochs", "2", "--output", str(picture)]) == 0
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape == (700, 1600, 3)
    for half in (pixels[:, :700], pixels[:, 750:]):  # the learned weights; the curves
        share = (half < 0.9).any(axis=-1).mean()
        assert 0.005 < share < 0.99
        assert len(np.unique(half.reshape(-1, 3), axis=0)) > 30


@pytest.mark.parametrize("extension", ["png", "svg", "pdf", "JPG"])
def test_the_extension_is_the_format(extension, tmp_path):
    picture = tmp_path / f"picture.{extension}"
    assert cli.main(["spiral", "--epochs", "1", "--output", str(picture)]) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "JPG": b"\xff\xd8"}[extension]
    assert picture.read_bytes().startswith(start)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_output_the_picture_is_named_after_the_command(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "--epochs", "1"]) == 0
    assert os.listdir() == [f"{command}.png"]


def test_the_same_seed_gives_the_same_picture_and_another_seed_another(tmp_path):
    pictures = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        cli.main(["spiral", "--epochs", "2", "--seed", str(seed), "--output", str(tmp_path / f"{name}.png")])
        pictures.append((tmp_path / f"{name}.png").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_epochs_is_the_number_of_epochs_trained(picture, monkeypatch):
    seen = []
    whole = plots.spiral_picture
    monkeypatch.setattr(plots, "spiral_picture", lambda *arguments: seen.append(arguments) or whole(*arguments))
    cli.main(["spiral", "--epochs", "7", "--output", str(picture)])
    ((_, history, x, _),) = seen
    assert history.epochs == 7
    assert x.shape == (300, 2)


def test_digits_draws_the_held_out_images_it_gets_wrong(picture, capsys, monkeypatch):
    seen = []
    whole = plots.digits_picture
    monkeypatch.setattr(plots, "digits_picture", lambda *arguments: seen.append(arguments) or whole(*arguments))
    cli.main(["digits", "--epochs", "2", "--output", str(picture)])
    ((history, images, labels, predictions, convolution),) = seen
    _, (x_test, y_test) = cl.datasets.digits()
    assert repr(convolution).startswith("Conv2d(1, 16, 5,")
    np.testing.assert_array_equal(images, x_test)
    np.testing.assert_array_equal(labels, y_test)
    assert round(100 * float((predictions == labels).mean()), 1) == accuracy(capsys.readouterr().out)
    assert history["val_accuracy"][-1] == pytest.approx((predictions == labels).mean())


@pytest.mark.usefixtures("missing_matplotlib")
def test_gpt_learns_a_text_and_writes_it(alphabet, picture, capsys, monkeypatch):
    for name, value in {"SIZE": 32, "STEPS": 50, "SAMPLE_LENGTH": 100}.items():
        monkeypatch.setattr(gpt, name, value)
    assert cli.main(["gpt", str(alphabet), "--epochs", "2", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert accuracy(out) > 99
    (written,) = re.findall(r"the text that the GPT adds:\n\n(.*)\n\npicture", out, re.DOTALL)
    assert len(written) == 64 + 100
    assert sum(pair in ("äb", "bc", "c\n", "\nä") for pair in map("".join, pairwise(written[63:]))) > 80


@pytest.mark.usefixtures("missing_matplotlib")
def test_gpt_writes_the_number_of_letters_that_is_asked_for(picture, capsys):
    for count in (0, 3):
        assert cli.main(["gpt", "--epochs", "1", "--sample", str(count), "--output", str(picture)]) == 0
        (written,) = re.findall(r"GPT adds:\n\n(.*)\n\npicture", capsys.readouterr().out, re.DOTALL)
        assert len(written) == 64 + count


@pytest.mark.usefixtures("missing_matplotlib")
def test_gpt_live_shows_what_it_writes(picture, monkeypatch):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    pytest.importorskip("websockets")
    from caffelite.web import live, messages

    monkeypatch.setattr(live, "SECONDS_AT_END", 60.0)
    page = live.live(open_browser=False)
    monkeypatch.setattr(cl, "live", lambda: page, raising=False)
    assert cli.main(["gpt", "--epochs", "1", "--live", "--output", str(picture)]) == 0
    (run,) = page.runs.list_runs()
    parts = messages.decode(page.runs.content(run["name"]))["parts"]
    assert set(parts["text"]["given"]) | set(parts["text"]["texts"][0]["written"]) == set("a\n")
    assert parts["attention"]["maps"][0].shape == (4, 32, 32)


def test_gpt_without_a_file_reads_what_python_has(monkeypatch):
    monkeypatch.undo()
    text = gpt._python_docs()
    assert len(text) > 200_000
    assert "The simple form" in text
    assert len(set(text)) < 200


def test_gpt_holds_text_out_and_draws_it(picture, capsys, monkeypatch):
    seen, trained = [], []
    whole, windows = plots.text_picture, gpt.RandomWindows
    monkeypatch.setattr(plots, "text_picture", lambda *arguments: seen.append(arguments) or whole(*arguments))
    monkeypatch.setattr(gpt, "RandomWindows", lambda text, seed: trained.append(text) or windows(text, seed))
    cli.main(["gpt", "--epochs", "1", "--output", str(picture)])
    ((_, text, probabilities),) = seen
    assert len(trained[0]) == 1900
    assert text == ("aaaaaaaaa\n" * 10)[1:65]
    assert probabilities.shape == (64,)
    assert 0 < probabilities.min() <= probabilities.max() <= 1


def test_a_terminal_gets_a_bar_and_a_pipe_none(picture, capsys, monkeypatch):
    monkeypatch.setattr("caffelite.training.callbacks.progress.REFRESH_INTERVAL", 0.0)
    arguments = ["spiral", "--epochs", "3", "--output", str(picture)]
    cli.main(arguments)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.main(arguments)
    bar = capsys.readouterr().err
    assert "100%" in bar
    assert "epoch 3/3  loss" in bar


# ---- without a picture ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("missing_matplotlib")
@pytest.mark.parametrize("command", COMMANDS)
def test_without_matplotlib_it_trains_and_says_that_the_picture_was_skipped(command, picture, capsys):
    assert cli.main([command, "--epochs", "2", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert accuracy(out) > 30
    assert "picture skipped" in out.splitlines()[-1]
    assert "-m pip install matplotlib" in out.splitlines()[-1]
    assert not picture.exists()


def test_a_disk_that_is_full_is_reported_and_the_exit_code_is_1(picture, capsys, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    picture.write_bytes(b"an older one")
    assert cli.main(["spiral", "--epochs", "1", "--output", str(picture)]) == 1
    out, err = capsys.readouterr()
    accuracy(out)
    assert err == f"caffelite: could not write {picture}: nothing was written: No space left on device\n"
    assert picture.read_bytes() == b"an older one"


@posix
@pytest.mark.usefixtures("forbidden_training")
def test_a_fifo_raises_before_the_training_and_is_not_opened(picture, capsys):
    os.mkfifo(picture)
    with pytest.raises(SystemExit):
        cli.main(["spiral", "--output", str(picture)])
    assert "expected a file, and there is a FIFO" in capsys.readouterr().err


# ---- bad arguments --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "nan"])
def test_epochs_raise_unless_they_are_a_positive_integer(command, value, capsys):
    expected = f"caffelite {command}: error: argument --epochs: expected an integer, 1 or more, got {value!r}"
    assert refusal(capsys, command, f"--epochs={value}") == expected


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.parametrize("value", ["-1", "0.5", "x", ""])
def test_a_seed_that_is_negative_or_no_integer_raises(value, capsys):
    expected = f"caffelite spiral: error: argument --seed: expected an integer, 0 or more, got {value!r}"
    assert refusal(capsys, "spiral", f"--seed={value}") == expected


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/picture.png", "there is no folder .*missing$"),
        ("folder.png", "cannot write '.*folder.png': Is a directory$"),
        pytest.param("n" * 300 + ".png", "cannot write .*too long$", marks=posix),
        # With the ending of the new file that would replace it.
        pytest.param("n" * 250 + ".png", "cannot write .*too long$", marks=posix),
        ("picture.docx", "expected a file that ends in .png or .jpg or .svg or .pdf, got '.*picture.docx'"),
        ("picture", "expected a file that ends in .png or .jpg or .svg or .pdf, got '.*picture'"),
        (".png", "expected a file that ends in .png or .jpg or .svg or .pdf, got '.*.png'"),
    ],
)
def test_a_picture_that_could_not_be_written_raises_before_training(name, reason, tmp_path, capsys):
    (tmp_path / "folder.png").mkdir()
    said = refusal(capsys, "digits", "--output", tmp_path / name)
    assert re.fullmatch(f"caffelite digits: error: argument --output: {reason}.*", said)
    assert os.listdir(tmp_path) == ["folder.png"]


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable_raises_before_training(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert refusal(capsys, "spiral", "--output", tmp_path / "picture.png").endswith("Permission denied")


@pytest.mark.usefixtures("forbidden_training")
def test_a_refused_run_leaves_an_existing_picture_alone(picture, capsys):
    picture.write_bytes(b"as it was")
    refusal(capsys, "spiral", "--output", picture, "--seed", "-1")
    assert picture.read_bytes() == b"as it was"


@pytest.mark.usefixtures("forbidden_training")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read '.*text': No such file or directory"),
        (b"caf\xe9 " * 1000, "'.*text' is not a text in UTF-8: byte 3 is wrong"),
        (b"too short", "expected 1,300 characters or more, '.*text' has 9"),
        (b"", "expected 1,300 characters or more, '.*text' has 0"),
    ],
)
def test_a_text_that_nothing_can_be_learned_from_raises(content, reason, tmp_path, capsys):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    said = refusal(capsys, "gpt", tmp_path / "text")
    assert re.fullmatch(f"caffelite gpt: error: argument FILE: {reason}", said)


@pytest.mark.usefixtures("forbidden_training")
def test_a_sample_of_less_than_nothing_raises(capsys):
    said = refusal(capsys, "gpt", "--sample=-1")
    assert said == "caffelite gpt: error: argument --sample: expected an integer, 0 or more, got '-1'"


def test_a_byte_order_mark_is_not_a_character_of_a_text(alphabet):
    text = alphabet.read_text("utf-8")
    alphabet.write_text(text, "utf-8-sig")
    assert gpt._read_text(str(alphabet)) == text


def test_the_shortest_text_is_enough(alphabet, picture):
    alphabet.write_text("ab" * (gpt.MIN_CHARACTERS // 2))
    assert cli.main(["gpt", str(alphabet), "--epochs", "1", "--output", str(picture)]) == 0


@pytest.mark.parametrize("arguments", [["learn"], ["spiral", "--lr", "1"], ["spiral", "more"], ["info", "--seed", "1"]])
def test_unknown_commands_and_options_raise(arguments, capsys):
    assert refusal(capsys, *arguments).startswith("caffelite")


def test_no_command_prints_the_help_and_raises():
    result = run()
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("usage: caffelite ")
    assert result.stderr.endswith("\ncaffelite: error: name a command of these, such as train\n")
    for command in ("train", "predict", "explain", "export", "info"):
        assert f"\n    {command} " in result.stderr


# ---- help, info and Ctrl-C ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            [],
            ["train", "predict", "explain", "export", "spiral", "digits", "gpt", "live", "playground", "grade", "info"],
        ),
        (
            ["train"],
            ["a column of a table", "default: 64,64", "default: model.safetensors", "default: 0.2", "default: 0.005"],
        ),
        (["predict"], ["for each row of a table", "default: standard output"]),
        (["export"], ["as ONNX, as a C99 file, or both", "--input-shape SIZES"]),
        (["spiral"], ["three intertwined spirals", "--epochs", "default: 400", "default: 0", "default: spiral.png"]),
        (["digits"], ["handwritten digits", "--epochs", "default: 20", "default: 0", "default: digits.png"]),
        (
            ["gpt"],
            ["write like a text", "epochs of 2 steps (default: 20)", "default: 0", "default: gpt.png", "default: 5"],
        ),
        (["grade"], ["a row for each program (.py) and each notebook (.ipynb)", "default: 20"]),
        (["info"], ["instruction set"]),
    ],
)
def test_help_says_what_is_trained_and_the_defaults(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main([*arguments, "--help"])
    assert exit.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(" ".join(["usage: caffelite", *arguments]))
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("command", ["train", "live"])
def test_help_is_written_in_any_encoding(command):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = [sys.executable, "-m", "caffelite", command, "--help"]
    process = subprocess.run(run, capture_output=True, text=True, env=environment, check=True)
    assert "..." in process.stdout or "->" in process.stdout


def test_info_prints_the_configuration(capsys):
    cl.show_config()
    expected = capsys.readouterr().out
    assert cli.main(["info"]) == 0
    assert capsys.readouterr().out == expected
    assert run("info").stdout.splitlines()[0] == expected.splitlines()[0]


def test_a_command_or_a_choice_that_is_almost_right_is_named(capsys):
    assert refusal(capsys, "trian", "x.csv").endswith("; did you mean 'train'?")
    choice = refusal(capsys, "train", "x.csv", "--target", "y", "--task", "regresion")
    assert choice.endswith("; did you mean 'regression'?")
    assert "did you mean" not in refusal(capsys, "bake")


def test_version_prints_the_version(capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"caffelite {cl.__version__}\n"


@posix
def test_ctrl_c_ends_with_130_and_says_after_how_many_epochs(tmp_path):
    arguments = [sys.executable, "-m", "caffelite", "spiral", "--epochs", "100000000"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        line = process.stdout.readline()  # it trains
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    done = int(re.match(r"epoch (\d+)/100000000 ", line)[1])
    assert process.returncode == 130
    said = re.fullmatch(r"caffelite: interrupted after ([\d,]+) epochs\n", err)
    assert int(said[1].replace(",", "")) >= done
    assert "accuracy " not in "".join(line for line in out.splitlines() if not line.startswith("epoch "))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("epochs", [0, 1])
def test_ctrl_c_ends_the_training_of_gpt_which_then_writes(epochs, picture, capsys, monkeypatch):
    class InterruptedWindows(gpt.RandomWindows):
        begun = 0

        def __iter__(self):
            self.begun += 1
            if self.begun > epochs:
                signal.raise_signal(signal.SIGINT)
            return super().__iter__()

    monkeypatch.setattr(gpt, "RandomWindows", InterruptedWindows)
    assert cli.main(["gpt", "--epochs", "100000000", "--output", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert err == f"caffelite: stopped after {epochs} epoch{'s' * (epochs != 1)}\n"
    assert "the text that the GPT adds" in out
    assert out.endswith(f"\npicture in {picture}\n")
    assert picture.exists()


def test_ctrl_c_while_the_picture_is_drawn_ends_with_130_too(picture, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(plots, "spiral_picture", interrupt)
    assert cli.main(["spiral", "--epochs", "1", "--output", str(picture)]) == 130
    assert capsys.readouterr().err == "caffelite: interrupted\n"


@posix
@pytest.mark.parametrize("command", ["info", "train"])
@pytest.mark.parametrize(("where", "said"), [("pipe", ""), ("/dev/full", "No space left on device")])
def test_a_closed_or_full_output_gives_no_traceback(where, said, command, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1.5,a\n2.5,b\n" * 30)
    if where == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(where, os.O_WRONLY)
    arguments = ["info"] if command == "info" else ["train", "t.csv", "--target", "y", "--epochs", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", "caffelite", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    os.close(writing)
    assert ended.returncode == 1
    assert ended.stderr == (f"caffelite: could not write to the standard output: {said}\n" if said else "")


@posix
def test_closed_streams_print_no_traceback(tmp_path):
    command = f"{sys.executable} -m caffelite spiral --epochs 1 --output {tmp_path}/p.png >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=120).returncode == 0
    assert (tmp_path / "p.png").exists()
