"""The playground at an address: the page of `caffelite playground`, with an engine in JavaScript in docs/_playground/.

The build puts it into _static/playground/ of the site. It is the same page, from caffelite/web/static/: only
connection.js is another one, whose other end is a Worker. All modules are in one script, because browsers let no page
that was opened from a disk import a module. The choices, the sources of the data and the kernels come from caffelite.
"""

import json
import re
from pathlib import Path

import numpy as np

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.functions import Linear
from caffelite.web.playground import config
from caffelite.web.playground.code import build_objects, source_code
from caffelite.web.playground.config import Setting
from caffelite.web.playground.data import CLASSES, DATA
from caffelite.web.playground.kernels import NextStep
from caffelite.web.playground.loops import describe_loop, split_fused_name
from caffelite.web.playground.names import LENGTH, MAX_NAMES
from caffelite.web.playground.view import thumbnails

ENGINE = Path(__file__).parents[1] / "_playground"
PAGE = Path(cl.__file__).parent / "web" / "static"
FOLDER = "_static/playground"
FILES = ("style.css", "playground.css", "icon.svg")  # that the page has beside its script
HOME = '<a class="home" href="../../index.html"><img src="icon.svg" alt="" width="22" height="22">caffelite</a> '
COMMENT = re.compile(r"^ *(//.*|/\*\*.*\*/)\n", re.MULTILINE)  # a line of its own: a tenth of the bytes of the script


def write_page(folder: Path) -> None:
    """Write the page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    html = (PAGE / "playground.html").read_text(encoding="utf-8").replace("/static/", "")
    html = html.replace('<script type="module"', "<script defer")
    html = html.replace('class="playground"', 'class="playground site"').replace("<h1>", f"{HOME}<h1>")
    (folder / "index.html").write_text(html, encoding="utf-8")
    for name in FILES:
        (folder / name).write_bytes((PAGE / name).read_bytes())
    (folder / "playground.js").write_text(bundle("playground.js"), encoding="utf-8")
    (folder / "digits.js").write_text(f"globalThis.digits = {json.dumps(digits_text())};\n", encoding="utf-8")
    (folder / "machine.js").write_text(f"globalThis.machine = {to_json(describe_machine())};\n", encoding="utf-8")


# ---- one script ----


def read_module(name: str) -> str:
    """Return the text of a module: the engine's, the page's, or one that is written here."""
    if name == "engine.js":
        return f"export function engine() {{\n{bundle('worker.js')}}}\n"
    if name == "choices.js":
        return "".join([f"export const {key} = {json.dumps(value)};\n" for key, value in choices().items()])
    path = PAGE / "connection.js" if name == "socket.js" else ENGINE / name  # that the engine's stands in for
    return (path if path.exists() else PAGE / name).read_text(encoding="utf-8")


def bundle(name: str) -> str:
    """Return a module, and all that it imports, as one script. Each module is a function that returns its exports."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        text, parts[name] = COMMENT.sub("", read_module(name)), ""
        for needed in re.findall(r'^import .* from "\./(.*)";$', text, re.MULTILINE):
            add(needed)
        names = re.findall(r"^export (?:async )?(?:function|class|const) ([\w$]+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        text = re.sub(
            r'^import (\{.*\}) from "\./(\w+)\.js";$',
            lambda match: f"const {match[1].replace(' as ', ': ')} = module_{match[2]};",
            text,
            flags=re.MULTILINE,
        )
        del parts[name]  # after all that it imports
        parts[name] = f"const module_{Path(name).stem} = (() => {{\n{text}return {{ {', '.join(names)} }};\n}})();\n"

    add(name)
    return '"use strict";\n' + "".join(parts.values())


# ---- what comes from caffelite ----


def choices() -> dict:
    """Return all that can be chosen, and the sources of the data."""
    return {
        "FIRST": Setting().to_message(),
        "DATA": list(DATA),
        "CLASSES": {make.__name__: count for make, count in CLASSES.items()},
        "CHOICES": config.CHOICES,
        "NUMBERS": config.NUMBERS,
        "LIMITS": {
            "layers": config.MAX_LAYERS,
            "units": config.MAX_UNITS,
            "weight": config.MAX_WEIGHT,
            "digits": config.MAX_DIGITS,
            "names": MAX_NAMES,
            "length": LENGTH,
            "features": list(config.FEATURES),
            "classLosses": config.CLASSIFICATION_LOSSES,
            "numberLosses": config.REGRESSION_LOSSES,
        },
        "FEATURE_CODE": config.FEATURES,
        "DIGIT": thumbnails()["digits"]["image"].tolist(),
        "SOURCES": {name: source_code(name) for name in DATA},
    }


def digits_text() -> str:
    """Return the images of digits, a letter a pixel, from a for 0 to q for 1, and then their labels, from a for 0."""
    (x, y), (x_test, y_test) = cl.datasets.digits()
    pixels = np.rint(16 * np.concatenate([x, x_test])).astype(np.uint8).ravel()
    return bytes([*(pixels + ord("a")), *(np.concatenate([y, y_test]).astype(np.uint8) + ord("a"))]).decode()


class FirstStep:
    """A callback that ends a training before its first step, which it describes."""

    def begin(self, training):
        self.step = NextStep(training, 0)
        return True

    def __call__(self, epoch, history):
        """There are no epochs."""


def lesson_settings() -> list[Setting]:
    """Return the page's first setting, and those of the lesson."""
    text = (PAGE / "lesson.js").read_text(encoding="utf-8")
    as_json = lambda found: json.loads(re.sub(r"(\w+):", r'"\1":', f"{{{found}}}"))  # noqa: E731
    start = as_json(re.search(r"const start = \{(.*?)\};", text, re.DOTALL)[1])
    changes = re.findall(r"\{ \.\.\.start,?(.*?) \}, \d+", text)
    return [Setting(), *(Setting.from_message(start | as_json(change)) for change in changes)]


def describe_machine() -> dict:
    """Return the kernels of the nets of `lesson_settings`, and the loops of these kernels, as they are here."""
    nets, names = [], set()
    for setting in lesson_settings():
        objects, first = build_objects(setting), FirstStep()
        objects["model"].fit(
            objects["x"], objects["y"], loss=objects["loss"], optimizer=objects["optimizer"],
            batch_size=setting.batch_size, callbacks=[first], verbose=0,
        )  # fmt: skip
        layers = sum([isinstance(f, Linear) for f in objects["model"].functions])
        shown = {"kind": "kernels", **first.step.timeline()}
        net = setting.to_message() | {"inputs": setting.inputs, "outputs": setting.outputs}
        touching = [] if setting.is_text else [first.step.weight_kernels((i, 0, 0)) for i in range(layers)]
        nets.append({"net": net, "kernels": shown, "touching": touching})
        names |= {kernel["kernel"] for kernel in shown["kernels"]}
    about = f"Measured when this page was built, with caffelite {cl.__version__} and the instructions {kernels.ISA}."
    loops = {name: [describe_loop(each) for each in split_fused_name(name)] for name in sorted(names)}
    return {"about": about, "nets": nets, "loops": loops}


def to_json(value) -> str:
    return json.dumps(value, default=lambda array: [round(float(x), 4) for x in array], separators=(",", ":"))
