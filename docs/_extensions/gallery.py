"""The gallery: every file in examples/ is run, and gets a page with its picture, its code and what it printed.

The pages are written to docs/gallery/ before the others are read. What a file printed is kept next to them, and it is
run again when it, or anything in caffelite, has changed.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.display import status_iterator

import caffelite

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}  # other programs may run
PICTURES = Path(__file__).parent / "pictures.py"


@dataclass
class Example:
    """A file in examples/, by its name without .py."""

    name: str
    title: str
    picture: str = ""  # the name of the file that it draws; "" if it draws none: then pictures.py draws one
    arguments: list[str] = field(default_factory=list)  # {picture} is the file's path
    note: str = ""  # what is to be said of the run
    command: str = ""  # of caffelite's commands, the one that draws the picture in its place

    def __post_init__(self):
        if self.picture and not self.arguments and not self.command:
            self.arguments = ["{picture}"]


GROUPS = {
    "First programs": [
        Example("spiral", "Three spirals", picture="spiral.png", command="spiral"),
        Example("blobs", "Gaussian blobs"),
        Example("digits", "Handwritten digits", picture="digits.png", command="digits"),
        Example("digits_mlp", "Digits with Adam, or MNIST"),
        Example("xor", "XOR, one example at a time"),
    ],
    "How it works inside": [
        Example("textbook_loop", "The training loop by hand"),
        Example("own_function", "Your own Functions"),
        Example("matmul_gradients", "Gradients of a matrix product"),
        Example("relu_regression", "Training an expression", picture="graph.svg"),
        Example("activations", "Every activation", picture="activations.png"),
        Example("residual_net", "Residual and plain nets", picture="regions.png"),
    ],
    "Images": [
        Example("lenet", "LeNet-5"),
        Example("resnet", "ResNet-8"),
        Example("autoencoder", "An autoencoder", picture="digits.png"),
        Example("digits_in_c", "A net in C"),
        Example(
            "draw_digits",
            "Draw a digit",
            note="`python draw_digits.py --page` opens a page in your browser on which you draw. It needs "
            "`pip install gradio`.",
        ),
    ],
    "Recipes": [
        Example("mixup", "Mixup"),
        Example("label_noise", "Wrong labels"),
        Example("distillation", "Knowledge distillation"),
        Example("contrastive", "Contrastive pairs", picture="points.png"),
        Example("vae", "A variational autoencoder", picture="drawn.png"),
        Example("gan", "A GAN: two nets compete", picture="ring.png"),
        Example("wgan_gp", "A Wasserstein GAN", picture="clusters.png"),
        Example("image_captions", "Images and captions", picture="captions.png"),
        Example("karate_club", "A graph net", picture="club.png"),
        Example("cart_pole", "Balancing a pole on a cart"),
    ],
    "Numbers, time series, text": [
        Example("regression", "Regression with a band", picture="band.png"),
        Example("time_series", "A 24-hour forecast", picture="forecasts.png"),
        Example("motion", "Phone sensors"),
        Example("reviews", "Good and bad reviews"),
        Example("text", "Sparse text"),
        Example("addition", "Learning to add"),
        Example("language_model", "A language model that reads on"),
        Example("microgpt", "microgpt: names, letter by letter"),
        Example(
            "gpt",
            "A GPT that writes",
            arguments=["--layers=2", "--size=64", "--steps=600", "--sample=300"],
            note="For this page it ran as `python gpt.py --layers=2 --size=64 --steps=600 --sample=300`. So the net is "
            "smaller and its training shorter than without options.",
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
        write(folder / f"{example.name}.md", page(example, folder))
    write(folder / "index.md", index(folder))


def digest(paths, *more):
    return hashlib.sha256(repr([*more, *(path.read_bytes() for path in paths)]).encode()).hexdigest()


def write(path, text):
    """Write a file, unless it is as it should be: then the page is not made again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def run(example, folder, library_digest):
    """Have what the example prints in NAME.txt, and its picture; run it if they are not of these sources. Its name."""
    source, printed, key = (
        EXAMPLES / f"{example.name}.py",
        folder / f"{example.name}.txt",
        folder / f"{example.name}.key",
    )
    current_key = digest([source, PICTURES], example, library_digest)
    if printed.exists() and key.exists() and key.read_text() == current_key:
        return example.name
    with tempfile.TemporaryDirectory() as work_folder:
        picture = Path(work_folder) / example.picture
        arguments = [argument.format(picture=picture) for argument in example.arguments]
        if example.picture:
            output = execute("-W", "error", source, *arguments, folder=work_folder)
        else:
            picture = Path(work_folder) / "picture.svg"
            output = execute("-W", "error", PICTURES, source, picture, *arguments, folder=work_folder)
        if example.command:
            execute("-m", "caffelite", example.command, "--output", picture, folder=work_folder)
        shutil.copy(picture, folder / picture_name(example))
    printed.write_text(output)
    key.write_text(current_key)
    return example.name


def execute(*arguments, folder):
    """Return what Python with these arguments prints; ExtensionError if it fails."""
    command = [sys.executable, *arguments]
    child = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder, env=ENVIRONMENT, check=False)
    if child.returncode:
        raise ExtensionError(f"{' '.join(map(str, arguments))} ended with {child.returncode}:\n{child.stderr}")
    return child.stdout


def picture_name(example):
    return f"{example.name}{Path(example.picture).suffix if example.picture else '.svg'}"


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
    if example.picture:
        parts.append(f"![What it draws]({picture_name(example)})")
    else:
        parts.append(f"![Drawn from what it learned]({picture_name(example)})")
    if example.command:
        command = f"caffelite {example.command} --output {example.picture}"
        parts.append(f"`{command}` draws the picture. It trains its own net.")
    options = f":language: python\n:caption: examples/{example.name}.py"
    parts.append(f"## The program\n\n```{{literalinclude}} ../../examples/{example.name}.py\n{options}\n```")
    printed = (folder / f"{example.name}.txt").read_text().rstrip()
    parts += ["## What it prints", example.note, f"````text\n{printed}\n````"]
    return "\n\n".join(part for part in parts if part) + "\n"


def index(folder):
    parts = [
        "# Gallery",
        "The programs in `examples/`, each with a picture and its output. They ran when these pages were built, and "
        "the tests run them, too.",
    ]
    for title, examples in GROUPS.items():
        cards = "\n\n".join(card(example, folder) for example in examples)
        parts.append(f"## {title}\n\n:::::{{container}} cards\n\n{cards}\n\n:::::")
    names = "\n".join(example.name for examples in GROUPS.values() for example in examples)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


def card(example, folder):
    shown = f"[![{example.title}]({picture_name(example)})]({example.name}.md)"
    first, _ = read_docstring(example)
    return f"::::{{container}} card\n{shown}\n\n**[{example.title}]({example.name}.md)**\n\n{first}\n::::"
