"""Every file in examples/ runs as it is, a new one too; what the present ones print is checked."""

import functools
import gzip
import os
import re
import runpy
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import caffelite as cl
from caffelite.functions import activation

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL_GPT = ["--layers=1", "--heads=2", "--size=32", "--block=32"]
NEEDED = {"text.py": "sklearn"}  # libraries, beside what every test needs
OPTIONS = {"gpt.py": [*SMALL_GPT, "--steps=100", "--sample=20"]}  # of those that would take long


@functools.cache
def run(name, *arguments):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    environment = dict(os.environ, PYTHONIOENCODING="utf-8")
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False, env=environment)


def numbers_after(text, output):
    return [float(number) for number in re.findall(rf"{text} ([-+.e\d]*\d)", output)]


# Ten seconds to half a minute, or another test below runs them in the same way and reads what they print.
LONG = {"activations.py", "addition.py", "autoencoder.py", "language_model.py", "motion.py", "resnet.py", "text.py"}
LONG |= {"vae.py", "wgan_gp.py"}
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES])
def test_every_example_runs_without_a_warning_and_prints_something(name):
    example = run(name, *OPTIONS.get(name, []))
    assert example.returncode == 0, example.stderr
    assert example.stderr == ""
    assert example.stdout.strip()


def test_the_spiral_example_classifies_98_percent():
    assert float(run("spiral.py").stdout.splitlines()[-1]) >= 0.98


def test_the_digits_example_classifies_96_percent_of_the_test_images():
    output = run("digits.py").stdout
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.96
    (wrong,) = numbers_after("wrong:", output)
    assert wrong == round((1 - accuracy) * 360)


@pytest.mark.slow
def test_the_text_example_tells_most_sentences_apart_as_scikit_learn_does():
    mine, theirs = numbers_after("test sentences: accuracy", run("text.py").stdout)
    assert mine >= 0.7
    assert abs(mine - theirs) < 0.03


def test_the_loop_by_hand_learns_and_gives_the_bits_of_fit():
    output = run("textbook_loop.py").stdout
    assert output.endswith("fit(shuffle=False) gives the same weights and losses, to the bit\n")
    losses = numbers_after("loss", output)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.25


def test_own_functions_have_right_gradients_and_learn_in_fit():
    output = run("own_function.py").stdout
    errors = numbers_after("within", output)
    assert len(errors) == 2
    assert max(errors) < 1e-7
    first, last = re.search(r"mean absolute error: (\S+) after 1 epoch, (\S+) after 200", output).groups()
    assert float(last) < 0.05 < float(first)


def test_xor_is_learned_one_example_at_a_time():
    lines = run("xor.py").stdout.splitlines()
    table = [re.fullmatch(r"(\d) xor (\d) = (\d) \(.*\)", line).groups() for line in lines[-4:]]
    assert table == [("0", "0", "0"), ("0", "1", "1"), ("1", "0", "1"), ("1", "1", "0")]


def test_all_30_test_points_of_the_blobs_are_classified():
    output = run("blobs.py").stdout
    assert numbers_after("30 test points: accuracy", output) == [1]


def test_the_gradients_of_a_matrix_product_and_its_sum_are_those_worked_out_by_hand():
    output = run("matmul_gradients.py").stdout
    assert "dy/dx =\n[[2. 4.]\n [2. 4.]\n [2. 4.]]\n" in output
    assert "dy/dW =\n[[ 9.  9.  9.  9.]\n [12. 12. 12. 12.]]\n" in output
    assert numbers_after("y =", output) == [66]


def test_relu_of_x_w_plus_b_finds_the_numbers_that_made_the_data(tmp_path):
    picture = tmp_path / "graph.svg"
    output = run("relu_regression.py", str(picture)).stdout
    errors = numbers_after("mean squared error", output)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-8
    (away,) = numbers_after("made the data:", output)
    assert away < 1e-3
    labels = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"W", "b", "MatMul()", "ReLU()"} <= set(labels)


def test_two_hidden_layers_and_adam_classify_96_percent_of_the_digits():
    output = run("digits_mlp.py").stdout
    assert all(f"Linear({sizes})" in output for sizes in ("64, 128", "128, 64", "64, 10"))
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.96


@pytest.fixture(scope="module")
def mnist_files(tmp_path_factory):
    """Return the bundled digits, each pixel as 3 × 3 and a margin, written as MNIST's files, two of them compressed."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, (images, labels) in zip(("train", "t10k"), cl.datasets.digits(), strict=True):
        large = np.kron(images, np.ones((1, 3, 3))) * 255
        pixels = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
        assert pixels.shape[1:] == (28, 28)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels.astype(np.uint8))):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            path = folder / f"{part}-{kind}-ubyte"
            if part == "train":
                path.write_bytes(head + values.tobytes())
            else:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(head + values.tobytes()))
    return folder


def test_digits_in_the_files_of_mnist_are_classified(mnist_files):
    output = run("digits_mlp.py", str(mnist_files)).stdout
    assert "Linear(784, 128)" in output
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.9


def test_lenet_classifies_96_percent_of_the_digits_made_larger():
    output = run("lenet.py").stdout
    assert all(name in output for name in ("Conv2d(1, 6, 5, padding=2)", "Conv2d(6, 16, 5)", "61,706"))
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.96


def test_the_digits_are_read_in_c_as_in_python():
    output = run("digits_in_c.py").stdout
    assert "digits.c: a neural network" in output
    if shutil.which("cc") is not None:
        (accuracy,) = numbers_after("test images: accuracy", output)
        assert accuracy >= 0.95
        (difference,) = numbers_after("largest difference from model.predict", output)
        assert difference <= 1e-5


def test_drawings_of_digits_are_read(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["draw_digits.py"])
    example = runpy.run_path(str(EXAMPLES / "draw_digits.py"))
    right = 0
    for image, label in zip(example["x_test"][:100, 0], example["y_test"], strict=False):
        drawing = np.zeros((300, 400, 4), np.uint8)  # a large digit that is not in the middle
        drawing[20:260, 130:370, 3] = np.kron(255 * image, np.ones((30, 30)))
        p = example["read"]({"composite": drawing})
        assert 1 - 1e-5 < sum(p.values()) < 1 + 1e-5
        right += max(p, key=p.get) == str(label)
        paper = 255 - drawing[..., 3:].repeat(4, axis=2)  # the same in black on white
        paper[..., 3] = 255
        assert example["read"]({"composite": paper}) == pytest.approx(p, abs=1e-3)
    assert right >= 90
    assert not example["shrink"](np.zeros((300, 400))).any()  # an empty page


def test_the_page_of_gradio_reads_a_drawing(tmp_path):
    client = pytest.importorskip("gradio_client")
    pytest.importorskip("gradio")
    settings = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(EXAMPLES / "draw_digits.py"), "--page"]
    page = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    with page:
        try:
            address = next(found[0] for line in page.stdout if (found := re.search(r"http://127[.:\d]+", line)))
            x_test, y_test = cl.datasets.digits()[1]
            ink = np.kron(255 * x_test[0], np.ones((30, 30))).astype(np.uint8)
            pillow = pytest.importorskip("PIL.Image")
            pillow.fromarray(np.stack([0 * ink, 0 * ink, 0 * ink, ink], axis=2)).save(tmp_path / "drawing.png")
            drawing = client.handle_file(str(tmp_path / "drawing.png"))
            editor = {"background": None, "layers": [], "composite": drawing}
            answer = client.Client(address, verbose=False).predict(editor, api_name="/read")
            assert answer["label"] == str(y_test[0])
        finally:
            page.terminate()


def test_lenet_classifies_what_is_in_the_files_of_mnist(mnist_files):
    output = run("lenet.py", str(mnist_files)).stdout
    (accuracy,) = numbers_after("test images: .* accuracy", output)
    assert accuracy >= 0.85


@pytest.mark.slow
def test_the_residual_net_tells_circles_squares_and_triangles_apart():
    output = run("resnet.py").stdout
    assert re.search(r"^4  Block\(.* \(n, 32, 12, 12\) +14,496 +58\.0 kB +2,064,384 +129\.0 kB$", output, re.MULTILINE)
    (accuracy,) = numbers_after("test images: accuracy", output)
    assert accuracy >= 0.97
    assert min(numbers_after("(?:circle|square|triangle) +", output)) >= 0.9


@pytest.mark.slow
def test_the_residual_net_reads_the_files_of_cifar10(tmp_path):
    """A few noisy rows a file, of two classes: airplanes are dark, automobiles light."""
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        labels = rng.integers(0, 2, (12, 1))
        pixels = np.clip(60 + 120 * labels + rng.normal(0, 20, (12, 3 * 32 * 32)), 0, 255)
        (tmp_path / name).write_bytes(np.hstack([labels, pixels]).astype(np.uint8).tobytes())
    output = run("resnet.py", str(tmp_path)).stdout
    assert "(n, 64, 8, 8)" in output
    (accuracy,) = numbers_after("test images: accuracy", output)
    assert accuracy >= 0.8


@pytest.mark.slow
def test_the_convolution_of_series_tells_six_activities_apart():
    output = run("motion.py").stdout
    assert "Conv1d(9, 32, 5, padding='same')" in output
    (accuracy,) = numbers_after("test series: accuracy", output)
    assert accuracy >= 0.93
    counts = np.array([[int(n) for n in line.split()[1:]] for line in output.splitlines()[-6:]])
    assert counts.shape == (6, 6)
    assert counts.sum() == 1000
    assert accuracy == counts.trace() / 1000


def test_reviews_are_read_by_their_pairs_of_words_too():
    output = run("reviews.py").stdout
    (accuracy,) = numbers_after("test reviews: accuracy", output)
    assert accuracy >= 0.98
    good, not_good, _ = (int(number) for number in re.findall(r"(\d+)% good:", output))
    assert good > 95
    assert not_good < 5


@pytest.mark.slow
def test_the_autoencoder_draws_digits_better_than_principal_components_would(tmp_path):
    picture = tmp_path / "digits.png"
    output = run("autoencoder.py", str(picture)).stdout
    (convolutional,) = numbers_after("8 numbers for 64 pixels: error", output)
    (linear,) = numbers_after("of principal components", output)
    assert convolutional < 0.65 * linear
    (x, _), (x_test, _) = (tuple(a.reshape(len(a), -1) for a in part) for part in cl.datasets.digits())
    directions = np.linalg.eigh(np.cov(x.T))[1][:, -8:]
    left = (x_test - x.mean(axis=0)) @ (np.eye(64) - directions @ directions.T)
    assert linear == pytest.approx((left**2).mean(), abs=1e-4)
    assert is_picture(picture)


@pytest.mark.slow
def test_the_gru_forecasts_better_than_last_week_does(tmp_path):
    picture = tmp_path / "forecasts.png"
    output = run("time_series.py", str(picture)).stdout
    naive, gru = ([float(x) for x in re.findall(r"\d+\.\d+", line)] for line in output.splitlines()[-2:])
    assert gru[0] < 0.55 * naive[0]
    assert gru[1] < gru[2] < naive[2]  # the sooner, the surer
    assert is_picture(picture)


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_the_quantiles_of_a_regression_match_the_distribution_of_the_points(tmp_path):
    picture = tmp_path / "band.png"
    output = run("regression.py", str(picture)).stdout
    (inside,) = re.findall(r"(\d+\.\d)% lie in the band of 90 %", output)
    assert 88 <= float(inside) <= 92
    distances = numbers_after(r"\d+%", output)
    assert len(distances) == 3
    assert max(distances) < 0.08
    assert is_picture(picture)


@pytest.mark.slow
def test_twenty_residual_blocks_learn_the_spiral_and_twenty_plain_ones_do_not(tmp_path):
    picture = tmp_path / "regions.png"
    output = run("residual_net.py", str(picture)).stdout
    (plain, residual) = numbers_after(r"after \d+ epochs loss \S+ accuracy", output)
    assert residual >= 0.98
    assert plain < 0.5
    (of_plain, of_residual) = numbers_after("gradient of the first layer", output)
    assert of_plain < 1e-6 < 0.1 < of_residual
    assert is_picture(picture)


@pytest.mark.slow
def test_every_activation_of_elements_is_in_the_table_and_classifies_digits(tmp_path):
    picture = tmp_path / "activations.png"
    _, *lines = run("activations.py", str(picture)).stdout.splitlines()
    table = [re.fullmatch(r"(\w+)\(.*\) +([.\d]+) +([.\d]+) +([.\d]+)", line).groups() for line in lines]
    public = {name: getattr(activation, name) for name in activation.__all__}
    classes = {name for name, f in public.items() if isinstance(f, type) and not issubclass(f, activation.AxisFunction)}
    assert {name for name, *_ in table} == classes
    assert min(float(accuracy) for *_, accuracy, _ in table) >= 0.95
    assert is_picture(picture)


def test_mixup_helps_against_wrong_labels():
    plain, mixed = numbers_after("test accuracy", run("mixup.py").stdout)
    assert mixed > plain + 0.005


def test_a_loss_that_forgives_memorizes_fewer_wrong_labels():
    output = run("label_noise.py").stdout
    usual, forgiving = numbers_after("test accuracy", output)
    assert forgiving > usual
    repeated, fewer = numbers_after("memorized", output)
    assert fewer < 0.8 * repeated


def test_the_student_learns_more_from_its_teacher_than_from_50_labels():
    teacher, alone, taught = numbers_after("test accuracy", run("distillation.py").stdout)
    assert alone + 0.1 < taught <= teacher


@pytest.mark.slow
def test_pairs_are_enough_to_tell_digits_apart(tmp_path):
    picture = tmp_path / "points.png"
    (accuracy,) = numbers_after("is right for", run("contrastive.py", str(picture)).stdout)
    assert accuracy > 0.85
    assert is_picture(picture)


@pytest.mark.slow
def test_random_codes_are_drawn_as_digits(tmp_path):
    picture = tmp_path / "drawn.png"
    output = run("vae.py", str(picture)).stdout
    of_digits, of_noise = numbers_after("surely read", output)
    assert of_digits > 2 * of_noise
    near, far = numbers_after("nearest real image", output)
    assert near < 0.7 * far
    assert is_picture(picture)


@pytest.mark.slow
def test_made_points_are_a_ring(tmp_path):
    picture = tmp_path / "ring.png"
    output = run("gan.py", str(picture)).stdout
    radius, least = numbers_after("radius", output)[-1], numbers_after("twelfth of it", output)[-1]
    assert 0.9 < radius < 1.1
    assert least > 40
    assert is_picture(picture)


@pytest.mark.slow
def test_the_distance_of_the_wasserstein_gan_falls_and_every_cluster_gets_points(tmp_path):
    picture = tmp_path / "clusters.png"
    output = run("wgan_gp.py", str(picture)).stdout
    first, last = numbers_after("distance", output)
    assert abs(last) < 0.1 < first
    assert numbers_after("least points of a cluster", output)[-1] > 150
    assert int(re.findall(r"(\d+)% of the points in a cluster", output)[-1]) > 70
    assert is_picture(picture)


@pytest.mark.slow
def test_captions_outside_the_training_are_found_as_well_as_others(tmp_path):
    picture = tmp_path / "captions.png"
    known, new = numbers_after("captions: right for", run("image_captions.py", str(picture)).stdout)
    assert known > 0.9
    assert new > 0.85
    assert is_picture(picture)


def test_two_labels_are_enough_for_nearly_all_members_in_the_club(tmp_path):
    picture = tmp_path / "club.png"
    output = run("karate_club.py", str(picture)).stdout
    assert "34 members, 78 friendships" in output
    assert numbers_after("right half for", output)[0] >= 32
    assert is_picture(picture)


@pytest.mark.slow
def test_sums_outside_the_training_are_right():
    output = run("addition.py").stdout
    assert float(re.search(r"held-out sums: (\S+)% are right", output)[1]) > 90
    assert len(re.findall(r"^\d+\+\d+ = \d+", output, re.MULTILINE)) == 5


@pytest.mark.slow
def test_the_language_model_expects_the_text_better_with_its_states():
    output = run("language_model.py").stdout
    with_states, without = numbers_after("held-out text:", output)
    assert with_states < without < 400
    assert len(output.splitlines()[-1].split()) == 60


def test_the_pole_is_up_longer_with_every_ten_rounds_at_first():
    lengths = numbers_after("stands for", run("cart_pole.py").stdout)
    assert lengths[0] < 30
    assert max(lengths) > 200


def test_microgpt_learns_names_of_syllables_and_writes_new_ones(tmp_path):
    output = run("microgpt.py").stdout
    (loss,) = numbers_after("loss", output.splitlines()[1])
    assert loss < 2  # nats a letter; 3.3 at first
    names = output.splitlines()[-1].split(", ")
    syllables = re.compile("([bdfgklmnrst][aeiou]){2,3}[lnrs]?").fullmatch
    assert len(names) == 10
    assert sum(map(bool, map(syllables, names))) >= 7
    two, french = tmp_path / "two.txt", tmp_path / "french.txt"
    two.write_text("Abba\nbaab\n", encoding="utf-8")
    assert set(run("microgpt.py", str(two)).stdout.splitlines()[-1]) <= set("ab, ")
    french.write_text("Zoë", encoding="utf-8")
    assert "expected names of the letters a to z, got ë" in run("microgpt.py", str(french)).stderr


def test_the_gpt_learns_a_text_and_writes_more_of_it_than_it_sees(tmp_path):
    text, picture = tmp_path / "text.txt", tmp_path / "loss.png"
    text.write_text("äbc\n" * 500, encoding="utf-8")
    output = run("gpt.py", str(text), *SMALL_GPT, "--steps=200", "--sample=100", "--picture", str(picture)).stdout
    assert sum(pair in ("äb", "bc", "c\n", "\nä") for pair in map("".join, pairwise(output[-102:-1]))) > 80
    assert is_picture(picture)
