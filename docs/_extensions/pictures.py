"""Runs an example for the gallery, in the style of all pictures: python pictures.py EXAMPLE.py PICTURE.svg FACTS.json …

The example is run as it is, with the arguments that follow. If there is a function of its name here, it draws the
variables of the example. FACTS.json gets the seconds on one core, and the weights of the example's nets.
"""

import json
import runpy
import sys
from pathlib import Path
from time import process_time

import matplotlib.pyplot as plt
import numpy as np

import caffelite as cl
from caffelite._support.colours import PALETTE, STYLE

WRONG = PALETTE[4]


# ---- kinds ----------------------------------------------------------------------------------------------------------


def curve(axes, values, title, log=False):
    axes.plot(np.arange(1, len(values) + 1), values, linewidth=2)
    axes.set(xlabel="epoch", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if log:
        axes.set_yscale("log")


def bars(axes, shares):
    """Named shares, as horizontal bars with their values."""
    names, values = list(shares), list(shares.values())
    places = range(len(names))[::-1]
    axes.barh(places, values, color=PALETTE[: len(names)], height=0.55)
    for place, name, value in zip(places, names, values, strict=False):
        axes.text(0, place + 0.34, name, va="bottom")
        axes.text(value, place, f" {value:.1%}", va="center")
    axes.set(xlim=(0, 1.12), ylim=(-0.5, len(names) - 0.2))
    axes.axis("off")


def matrix(axes, numbers, title, written=True):
    numbers = np.asarray(numbers)
    most = 2 * abs(numbers).max()
    axes.imshow(numbers, cmap="PuOr", vmin=-most, vmax=most)
    for i, j in np.ndindex(numbers.shape if written else (0, 0)):
        axes.text(j, i, f"{numbers[i, j]:g}", ha="center", va="center", color="black")
    axes.set(xticks=[], yticks=[], title=title)
    axes.set_frame_on(False)


def images(figure, pictures, titles, rows=2):
    panels = figure.subplots(rows, len(pictures) // rows).ravel()
    for axes, picture, title in zip(panels, pictures, titles, strict=False):
        axes.imshow(picture, cmap="gray_r", interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.axis("off")


# ---- of each example ------------------------------------------------------------------------------------------------


def blobs(figure, namespace):
    cl.plots.decision_regions(namespace["model"], namespace["x"], namespace["y"], axes=figure.subplots())


def textbook_loop(figure, namespace):
    left, right = figure.subplots(1, 2)
    cl.plots.decision_regions(namespace["model"], namespace["x"], namespace["y"], axes=left)
    curve(right, namespace["losses"], "loss", log=True)


def xor(figure, namespace):
    axes = figure.subplots()
    places = np.linspace(-0.3, 1.3, 100, dtype=np.float32)
    across, up = np.meshgrid(places, places)
    values = namespace["model"].predict(np.stack([across.ravel(), up.ravel()], axis=1)).reshape(across.shape)
    axes.imshow(values, origin="lower", extent=(-0.3, 1.3, -0.3, 1.3), cmap="PuOr", vmin=-0.3, vmax=1.3)
    for (x0, x1), target in namespace["EXAMPLES"]:
        axes.text(x0, x1, target, ha="center", va="center", fontsize=18, color="black")
    axes.axis("off")


def digits_mlp(figure, namespace):
    wrong = namespace["model"].predict(namespace["x_test"]).argmax(axis=1)
    first = np.flatnonzero(wrong != namespace["y_test"])[:8]
    side = int(namespace["x_test"].shape[1] ** 0.5)
    pictures = namespace["x_test"][first].reshape(-1, side, side)
    images(
        figure, pictures, [f"{y}, read as {p}" for y, p in zip(namespace["y_test"][first], wrong[first], strict=False)]
    )


def own_function(figure, namespace):
    axes, order = figure.subplots(), np.argsort(namespace["x"].ravel())
    axes.scatter(namespace["x"], namespace["y"], s=8, alpha=0.5)
    axes.plot(namespace["x"][order], namespace["model"].predict(namespace["x"])[order], color=WRONG, linewidth=2)
    axes.set(xlabel="x", xticks=(-1, -0.5, 0, 0.5, 1), title="sin 3x, by your own Functions")


def matmul_gradients(figure, namespace):
    left, right = figure.subplots(1, 2, width_ratios=(2, 4))
    matrix(left, namespace["dx"], "dy/dx")
    matrix(right, namespace["dW"], "dy/dW")


def lenet(figure, namespace):
    model, image = namespace["model"], namespace["x_test"][:1]
    maps = model[:2].predict(image)[0]
    images(figure, [image[0, 0], *maps, model.functions[0].weight.data[0, 0]], ["image", *["map"] * 6, "filter"])


def resnet(figure, namespace):
    chosen = [int(np.flatnonzero(namespace["y_test"] == k)[i]) for i in range(2) for k in range(3)]
    panels = figure.subplots(2, 3).ravel()
    for axes, i in zip(panels, chosen, strict=False):
        axes.imshow(np.clip(np.moveaxis(namespace["x_test"][i], 0, -1), 0, 1), gid="photo")
        axes.set_title(namespace["names"][namespace["predictions"][i]], fontsize=10)
        axes.axis("off")


def digits_in_c(figure, namespace):
    left, right = figure.subplots(1, 2)
    left.imshow(namespace["x_test"][0, 0], cmap="gray_r")
    left.axis("off")
    right.bar(range(10), namespace["probabilities"][0], color=PALETTE[0])
    right.set(xticks=range(10), title="computed in C")


def draw_digits(figure, namespace):
    ink = np.kron(namespace["x_test"][0, 0] > 0.3, np.ones((20, 20)))
    drawn, small, right = figure.subplots(1, 3)
    for axes, picture, title in ((drawn, ink, "drawn"), (small, namespace["shrink"](ink), "what the net gets")):
        axes.imshow(picture, cmap="gray_r")
        axes.set_title(title)
        axes.axis("off")
    right.bar(range(10), namespace["read"]({"composite": ink[..., None] * [0, 0, 0, 255]}).values(), color=PALETTE[0])
    right.set(xticks=range(10), title="what it reads")


def mixup(figure, namespace):
    bars(
        figure.subplots(), {"half of the labels wrong": namespace["plain"], "the same, with mixup": namespace["mixed"]}
    )


def label_noise(figure, namespace):
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    share = namespace["is_random"].mean()
    left.pie([1 - share, share], colors=[PALETTE[0], WRONG], startangle=90)
    left.set_title("labels drawn\nat random", fontsize=10)
    bars(right, {"test, a loss that forgives": namespace["accuracy"], "memorized": namespace["memorized"]})


def distillation(figure, namespace):
    names = "teacher", "student, 50 labels", "student, taught"
    bars(
        figure.subplots(),
        dict(
            zip(
                names,
                (namespace["teacher_accuracy"], namespace["label_accuracy"], namespace["student_accuracy"]),
                strict=False,
            )
        ),
    )


def cart_pole(figure, namespace):
    axes = figure.subplots()
    states = namespace["states"].reshape(namespace["STEPS"], namespace["CARTS"], 4)
    for i in range(0, 200, 25):
        x, angle = states[i, 0, 0], states[i, 0, 2]
        place = x + i / 40
        axes.plot([place, place + np.sin(angle)], [0, np.cos(angle)], color=PALETTE[1], linewidth=3)
        axes.add_patch(plt.Rectangle((place - 0.2, -0.25), 0.4, 0.22, color=PALETTE[0]))
    axes.set(aspect="equal", ylim=(-0.4, 1.2), title="a pole on a cart, every half second")
    axes.axis("off")


def motion(figure, namespace):
    panels = figure.subplots(3, 2, sharex=True).ravel()
    for k, axes in enumerate(panels):
        axes.plot(namespace["x_test"][np.flatnonzero(namespace["y_test"] == k)[0], :3].T, linewidth=1)
        axes.set_title(namespace["ACTIVITIES"][k], fontsize=9)
        axes.axis("off")


def reviews(figure, namespace):
    model, vocabulary = namespace["model"], namespace["vocabulary"]
    weight = model.scores.weight.data
    scores = model.vectors.parameters()[0].data @ (weight[:, 1] - weight[:, 0])
    pairs = sorted(((scores[i], word) for word, i in vocabulary.items()), key=lambda pair: pair[0])
    shown = [*pairs[:5], *pairs[-5:]]
    axes = figure.subplots()
    values = [value for value, _ in shown]
    axes.barh(range(10), values, color=[WRONG if value < 0 else PALETTE[2] for value in values])
    axes.set_yticks(range(10), [word for _, word in shown])
    axes.set(xticks=[], title="bad and good words")
    axes.grid(visible=False)


def text(figure, namespace):
    curve_of = namespace["model"].functions[0].weight.data
    axes = figure.subplots()
    axes.imshow(curve_of[:600:5].T, cmap="PuOr", aspect="auto", vmin=-0.3, vmax=0.3)
    axes.set(xticks=[], yticks=[], xlabel="columns of words", ylabel="units", title="weights of 120 of 20,000 columns")


def addition(figure, namespace):
    axes = figure.subplots()
    curve(axes, namespace["history"]["val_accuracy"], "characters right, in new sums")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def language_model(figure, namespace):
    curve(figure.subplots(), np.exp(namespace["history"]["loss"]), "perplexity")


def gpt(figure, namespace):
    """Held-out text, each character the darker the less it was expected."""
    inputs, targets = namespace["x"][:4], namespace["y"][:4].ravel()
    p = cl.SoftmaxLoss().link(namespace["model"].predict(inputs)).reshape(len(targets), -1)
    text = namespace["vocabulary"].decode(targets)
    cl.plots.text(text, p[np.arange(len(targets)), targets], columns=32, axes=figure.subplots())


def microgpt(figure, namespace):
    """Names, each letter the darker the less it was expected. A dot is the end of a name."""
    x, y = namespace["x"][:28], namespace["y"][:28]
    p = cl.SoftmaxLoss().link(namespace["model"].predict(x))[y >= 0]
    letters = y[y >= 0]
    text = "".join("abcdefghijklmnopqrstuvwxyz·"[i] for i in letters)
    cl.plots.text(text, p[np.arange(len(letters)), letters], columns=32, axes=figure.subplots())


def collect_models(values):
    """Return the models among some variables, also in lists and dicts, that are not a part of another one."""
    groups = [x.values() if type(x) is dict else x if type(x) in (list, tuple) else [x] for x in values]
    models = {id(x): x for group in groups for x in group if isinstance(x, cl.Model)}.values()
    parameters = {model: {id(p) for p in model.parameters()} for model in models}
    return [m for m in models if not any(parameters[m] < parameters[other] for other in models)]


def main(example, picture, facts, *arguments):
    sys.argv = [example, *arguments]
    plt.rcParams.update(STYLE | {"svg.hashsalt": "caffelite"})
    begin = process_time()
    namespace = runpy.run_path(example, run_name="__main__")
    seconds = process_time() - begin
    models = collect_models(namespace.values())
    weights = sum(p.size for model in models for p in model.parameters())
    Path(facts).write_text(json.dumps({"seconds": seconds, "nets": len(models), "weights": weights}))
    if draw := globals().get(Path(example).stem):
        figure = plt.figure(figsize=(4.8, 3), layout="constrained")
        draw(figure, namespace)
        figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
