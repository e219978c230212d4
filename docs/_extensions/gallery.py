"""The gallery: every file in examples/ is run, and gets a page with its picture, its code and what it printed.

The pages are written to docs/gallery/ before the others are read. What a file printed is kept next to them, and it is
run again when it, or anything in caffelite, has changed. A run that takes minutes is stored in docs/_runs/ instead.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.display import status_iterator

import caffelite

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}  # other programs may run
PICTURES = Path(__file__).parent / "pictures.py"
RUNS = Path(__file__).parents[1] / "_runs"
WHOLE = (0, 0, 1, 1)


@dataclass
class Example:
    """A file in examples/, by its name without .py."""

    name: str
    title: str
    picture: str = ""  # the name of the file that it draws; "" if it draws none: then pictures.py draws one
    note: str = ""  # what is to be said of the run
    command: str = ""  # of caffelite's commands, the one that draws the picture in its place
    caption: str = ""  # below the picture
    alt: str = ""  # what the picture shows, for people who don't see it
    crop: tuple[float, float, float, float] = WHOLE  # of the picture, on the card: left, top, right, bottom


GROUPS = {
    "First programs": [
        Example(
            "spiral",
            "Three spirals",
            picture="spiral.svg",
            command="spiral",
            alt="Points of three spirals over the regions that the net has learned; its loss and accuracy",
            crop=(0.007, 0.2, 0.428, 0.8),
        ),
        Example("blobs", "Gaussian blobs", alt="Three groups of points, and a region for each"),
        Example(
            "digits",
            "Handwritten digits",
            picture="digits.svg",
            command="digits",
            alt="The images that the net reads wrongly, its loss and accuracy, and its filters",
            crop=(0, 0, 0.43, 0.52),
        ),
        Example("digits_mlp", "Digits with Adam, or MNIST", alt="Eight images of digits that the net reads wrongly"),
        Example("xor", "XOR, one example at a time", alt="The output over the plane: high at two corners, low at two"),
    ],
    "How it works inside": [
        Example(
            "textbook_loop",
            "The training loop by hand",
            alt="Points of three spirals over the regions that the net has learned, and the falling loss",
            crop=(0, 0.1, 0.41, 0.9),
        ),
        Example("own_function", "Your own Functions", alt="The net's curve goes through noisy points of a sine"),
        Example(
            "matmul_gradients", "Gradients of a matrix product", alt="The numbers of the gradients dy/dx and dy/dW"
        ),
        Example(
            "relu_regression",
            "Training an expression",
            picture="graph.svg",
            alt="The graph of an expression, a box for each operation",
            crop=(0, 0, 1, 0.36),
        ),
        Example(
            "activations",
            "Every activation",
            picture="activations.svg",
            alt="The curves of the activations, each with its slope",
            crop=(0, 0.035, 0.67, 0.285),
        ),
        Example(
            "residual_net",
            "Residual and plain nets",
            picture="regions.svg",
            alt="A plain deep net has learned nothing, while the one with residuals has learned the spirals",
            crop=(0, 0, 0.565, 1),
        ),
    ],
    "Images": [
        Example("lenet", "LeNet-5", alt="An image of a digit, six maps that the first layer makes of it, and a filter"),
        Example("resnet", "ResNet-8", alt="Circles, squares and triangles in noise, with the names that the net gives"),
        Example(
            "autoencoder",
            "An autoencoder",
            picture="digits.svg",
            alt="Images of digits, and below them what the autoencoder and principal components make of them",
            crop=(0, 0, 0.36, 1),
        ),
        Example("digits_in_c", "A net in C", alt="An image of a digit, and the probabilities that C computed"),
        Example(
            "draw_digits",
            "Draw a digit",
            note="`python draw_digits.py --page` opens a page in your browser on which you draw. It needs "
            "`pip install gradio`.",
            alt="A drawn digit, the same in 8 × 8 pixels, and the probabilities of the digits",
        ),
    ],
    "Recipes": [
        Example("mixup", "Mixup", alt="Bars: with half of the labels wrong, mixup raises the accuracy"),
        Example("label_noise", "Wrong labels", alt="The share of wrong labels, and the accuracy in spite of them"),
        Example(
            "distillation", "Knowledge distillation", alt="Bars: a taught student is nearly as good as its teacher"
        ),
        Example(
            "contrastive", "Contrastive pairs", picture="points.svg", alt="Test images as points: digits form groups"
        ),
        Example(
            "vae",
            "A variational autoencoder",
            picture="drawn.png",
            alt="Digits that nobody wrote",
            crop=(0, 0, 1, 0.6),
        ),
        Example(
            "gan", "A GAN: two nets compete", picture="ring.png", alt="Generated points cover a ring of real points"
        ),
        Example(
            "wgan_gp",
            "A Wasserstein GAN",
            picture="clusters.png",
            alt="Generated points at eight clusters of real points, over the critic's values",
        ),
        Example(
            "image_captions",
            "Images and captions",
            picture="captions.svg",
            alt="Pairs of digits, each with the caption that fits best",
        ),
        Example(
            "karate_club",
            "A graph net",
            picture="club.svg",
            alt="Members of a club as points, with lines for friendships, in the colours of two groups",
        ),
        Example("cart_pole", "Balancing a pole on a cart", alt="A cart that balances a pole, drawn every half second"),
    ],
    "Numbers, time series, text": [
        Example(
            "regression",
            "Regression with a band",
            picture="band.png",
            alt="A curve through points, with a band that is wide where they scatter",
        ),
        Example(
            "time_series",
            "A 24-hour forecast",
            picture="forecasts.svg",
            alt="A week of consumption and its forecasts; below, the errors over the hours ahead",
            crop=(0, 0, 0.6, 0.6),
        ),
        Example("motion", "Phone sensors", alt="Curves of three sensors for each of six activities"),
        Example("reviews", "Good and bad reviews", alt="Bars: the words that speak most for and against a film"),
        Example("text", "Sparse text", alt="Weights of words and units as colours"),
        Example("addition", "Learning to add", alt="The share of right characters rises to 100 %"),
        Example("language_model", "A language model that reads on", alt="The perplexity falls over the epochs"),
        Example(
            "microgpt",
            "microgpt: names, letter by letter",
            caption="The stronger the ground of a letter, the less the net expected it. A dot ends a name.",
            alt="Names, each letter on a ground that is stronger if the net did not expect it",
        ),
        Example(
            "gpt",
            "A GPT that writes",
            note="The text is Newton's *Opticks*, 1730, each paragraph as one line, without the notes and pictures of "
            "the edition. It is in the public domain, and [Project Gutenberg](https://www.gutenberg.org/ebooks/33504) "
            "has it. The command was `python gpt.py opticks.txt --steps 5000 --sample 700`, and took 127 s on one core "
            "of an AMD EPYC (Zen 5). The output is stored, and did not come from the build of this page. The first 64 "
            "characters after the last epoch are Newton's. He wrote them in the part of the book that the net has not "
            "read. The rest is by the net.",
            caption="A part of Newton's *Opticks* that the GPT has not read. The stronger the ground of a character, "
            "the less the GPT expected it.",
            alt="Lines of Newton's Opticks, each character on a ground that is stronger if the GPT did not expect it",
        ),
    ],
}


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}


def write_pages(app):
    folder = Path(app.srcdir) / "gallery"
    folder.mkdir(exist_ok=True)
    examples = {example.name: example for group in GROUPS.values() for example in group}
    if set(examples) != (files := {path.stem for path in EXAMPLES.glob("*.py")}):
        raise ExtensionError(f"the gallery and examples/ differ in {sorted(set(examples) ^ files)}")
    library_digest = digest(sorted(Path(caffelite.__file__).parent.rglob("*.py")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # they run in their own processes
        done = pool.map(lambda example: run(example, folder, library_digest), examples.values())
        for _ in status_iterator(done, "running examples… ", length=len(examples), stringify_func=str):
            pass
    for example in examples.values():
        if example.crop != WHOLE:
            crop(folder / picture_name(example), example.crop, folder / card_picture(example))
        write(folder / f"{example.name}.md", page(example, folder))
    write(folder / "index.md", index(folder))


def digest(paths, *more):
    return hashlib.sha256(repr([*more, *(path.read_bytes() for path in paths)]).encode()).hexdigest()


def write(path, text):
    """Write a file, unless it is as it should be: then the page is not made again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def run(example, folder, library_digest):
    """Have what the example prints in NAME.txt, its picture, and its time and size in NAME.json. Return its name.

    Run it if they are not of these sources, or copy a stored run.
    """
    files = [folder / f"{example.name}{ending}" for ending in (".txt", ".json")]
    source, key = EXAMPLES / f"{example.name}.py", folder / f"{example.name}.key"
    current_key = digest(
        [source, PICTURES, *RUNS.glob(f"{example.name}.*")], example.picture, example.command, library_digest
    )
    if key.exists() and key.read_text() == current_key and all(path.exists() for path in files):
        return example.name
    stored = [RUNS / path.name for path in (*files, folder / picture_name(example))]
    if stored[0].exists():
        for path in stored:
            shutil.copy(path, folder)
    else:
        with tempfile.TemporaryDirectory() as work_folder:
            picture, facts = Path(work_folder) / (example.picture or "picture.svg"), Path(work_folder) / "facts.json"
            arguments = [picture] if example.picture and not example.command else []
            output = execute("-W", "error", PICTURES, source, picture, facts, *arguments, folder=work_folder)
            if example.command:
                execute("-m", "caffelite", example.command, "--output", picture, folder=work_folder)
            for made, path in zip((picture, facts), (folder / picture_name(example), files[1]), strict=True):
                shutil.copy(made, path)
        files[0].write_text(output)
    key.write_text(current_key)
    return example.name


def execute(*arguments, folder):
    """Return what Python with these arguments prints; ExtensionError if it fails."""
    command = [sys.executable, *arguments]
    child = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder, env=ENVIRONMENT, check=False)
    if child.returncode:
        raise ExtensionError(f"{' '.join(map(str, arguments))} ended with {child.returncode}:\n{child.stderr}")
    return child.stdout


def crop(picture, box, path):
    """Write a part of a picture to a file. The box has its left, top, right and bottom ends in 0 … 1."""
    if picture.suffix == ".png":
        image = Image.open(picture)
        width, height = image.size
        image.crop([round(x * size) for x, size in zip(box, (width, height) * 2, strict=True)]).save(path)
        return
    root, rest = re.match(r"(.*?<svg\b[^>]*>)(.*)", picture.read_text(), re.DOTALL).groups()
    left, top, width, height = map(float, re.search(r'viewBox="([^"]*)"', root)[1].split())
    new = {"width": (box[2] - box[0]) * width, "height": (box[3] - box[1]) * height}
    view = left + box[0] * width, top + box[1] * height, *new.values()
    root = re.sub(r'viewBox="[^"]*"', f'viewBox="{" ".join(f"{x:.6g}" for x in view)}"', root)
    for name, size in new.items():
        root = re.sub(rf'\b{name}="[^"]*"', f'{name}="{size:.6g}"', root)
    path.write_text(root + rest)


def picture_name(example):
    return f"{example.name}{Path(example.picture).suffix if example.picture else '.svg'}"


def card_picture(example):
    name = picture_name(example)
    return name if example.crop == WHOLE else name.replace(".", "-card.")


def read_docstring(example):
    """Return the first sentence of its docstring, and the rest: paragraphs, and blocks of commands."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{example.name}.py").read_text()))
    first, _, rest = docstring.partition("\n\n")
    paragraphs = [commands(p) if p.startswith("python ") else p for p in rest.split("\n\n") if p]
    return " ".join(first.split()), "\n\n".join(paragraphs)


def commands(lines):
    prompted = "\n".join(f"$ {line}" for line in lines.splitlines())
    return f"```console\n{prompted}\n```"


def page(example, folder):
    first, rest = read_docstring(example)
    parts = [f"# {example.title}", first, rest]
    parts += [f"![{example.alt}]({picture_name(example)})", example.caption]
    if example.command:
        command = f"caffelite {example.command} --output {example.picture}"
        parts.append(f"`{command}` draws the picture. It trains its own net.")
    options = f":language: python\n:caption: examples/{example.name}.py"
    parts.append(f"## The program\n\n```{{literalinclude}} ../../examples/{example.name}.py\n{options}\n```")
    printed = (folder / f"{example.name}.txt").read_text().rstrip()
    output = f"````text\n{printed}\n````"
    is_stored = (RUNS / f"{example.name}.txt").exists()
    parts += ["## What it prints", example.note, f":::{{container}} wrap\n{output}\n:::" if is_stored else output]
    return "\n\n".join(part for part in parts if part) + "\n"


def index(folder):
    parts = [
        "# Gallery",
        "The programs in `examples/`, each with a picture and its output. They ran when these pages were built, and "
        "the tests run them, too. The times are of one core of that machine.",
    ]
    for title, examples in GROUPS.items():
        cards = "\n\n".join(card(example, folder) for example in examples)
        parts.append(f"## {title}\n\n::::::{{container}} cards gallery\n\n{cards}\n\n::::::")
    names = "\n".join(example.name for examples in GROUPS.values() for example in examples)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


def card(example, folder):
    shown = f"![{example.alt}]({card_picture(example)})"
    first, _ = read_docstring(example)
    facts = json.loads((folder / f"{example.name}.json").read_text())
    return (
        f":::::{{container}} card\n{shown}\n\n**[{example.title}]({example.name}.md)**\n\n{first}\n\n"
        f"::::{{container}} measures\n{describe(**facts)}\n::::\n:::::"
    )


def describe(seconds, nets, weights):
    """Return the time and the size of an example, in words."""
    time = (
        f"{1000 * seconds:.0f} ms"
        if seconds < 0.1
        else f"{seconds:.1f} s"
        if seconds < 2
        else f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
    )
    size = f" · {weights:,} weights" if nets else ""
    return time + size + (f" in {nets} nets" if nets > 1 else "")
