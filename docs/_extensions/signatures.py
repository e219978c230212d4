"""The signatures on the pages of the reference: `python docs/_extensions/signatures.py` writes them into the files.

In a block such as

    ```{reference}
    :module: caffelite.schedules
    :layers: activation

    cosine(lr, steps, warmup=0, end=0.0)
    ```

each line that is not indented is a name with its signature. Indented lines are the methods of a class, and the rest of
a long signature. So a reader of the repository sees them without the site. If a block has a family of Functions, the
script adds the names of the family. A test compares the files with the code.
"""

import importlib
import inspect
import itertools
import re
import textwrap
from pathlib import Path
from types import FunctionType

PAGES = Path(__file__).parents[1] / "reference"
BLOCK = re.compile(r"(?<=^```\{reference\}\n)((?::[^\n]*\n)*)\n?(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
WIDTH = 100
#: Public methods that caffelite's subpackages have for each other.
INTERNAL = frozenset(
    {
        "DataGenerator.begin",
        "DataGenerator.buffers",
        "all_functions",
        "apply_once",
        "arrays",
        "axis_names",
        "between_steps",
        "blocks",
        "check",
        "check_callbacks",
        "check_input_shape",
        "check_input",
        "epoch",
        "extend_replays",
        "feature_columns",
        "index_limits",
        "input_dtype",
        "is_sequence",
        "allocate_buffers",
        "restrict",
        "record",
        "restore",
        "segments",
        "scale_lr",
        "set_fit_request",
        "set_partial_fit_request",
        "set_score_request",
        "shape_for",
        "shuffle_rows",
        "sort_by_length",
        "state",
        "structure",
        "supervise",
        "takes_sparse",
        "vectors",
        "warn_of_rates",
        "windows",
    }
)


#: Classes that are on no page: the reference has their methods with the class that inherits them.
INHERITED = {"Container", "BaseModel", "TableEstimator"}


class _Source:
    """A default value, whose `repr` is as in the source: `ReLU` and `np.float32` for classes."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        if not isinstance(self.value, type | FunctionType):
            return repr(self.value)
        return f"{'np.' * (self.value.__module__ == 'numpy')}{self.value.__name__}"


def listed_names(content):
    """Return the names in the lines of a block, without what follows them."""
    return [line.partition("(")[0].strip() for line in content if line.strip() and not line.startswith(" ")]


def family(name, kind):
    """Return the layers or the operators of a family of Functions, in the order of its file."""
    module = importlib.import_module(f"caffelite.functions.{name}")
    public = [(name, value) for name, value in vars(module).items() if name in module.__all__]
    return [name for name, value in public if inspect.isclass(value) == (kind == "layers")]


def signature(name, value, is_method=False):
    """Return a function or class as it is called, `Linear(in_features, out_features, *, bias=True)`."""
    try:
        parameters = list(inspect.signature(value).parameters.values())[is_method:]
    except ValueError:  # it has the signature of a type of Python's, such as dict
        return name
    shown = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Source(p.default))
        for p in parameters
    ]
    return f"{name}{inspect.Signature(shown)}"


def methods(cls):
    """Return the signatures of the methods that the reference has for a class: they have docstrings of their own."""
    found = {}
    bases = [base for base in cls.__mro__ if not base.__module__.startswith("sklearn.")]
    for base in itertools.takewhile(lambda base: base is cls or base.__name__ in INHERITED, bases):
        found = found | {name: value for name, value in vars(base).items() if name not in found}
    return [
        signature(name, value, is_method=True)
        for name, value in found.items()
        if isinstance(value, FunctionType) and value.__doc__ and name[0] != "_"
        if not {name, value.__qualname__} & INTERNAL
    ]


def describe(module, name):
    """Return the lines of a name: its signature, and the methods of a class. A name that cannot be called is alone."""
    value = getattr(module, name)
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return [name]
    calls = [signature(name, value), *[f"    {call}" for call in (methods(value) if inspect.isclass(value) else [])]]
    return [
        line
        for call in calls
        for line in textwrap.wrap(call, WIDTH, subsequent_indent=" " * (len(call) - len(call.lstrip()) + 8))
    ]


def write_signatures(page):
    """Return the text of a page with the signatures that the code has. Modules that need other libraries may stay."""

    def write_block(match):
        options = dict(re.findall(r"^:(\w+): (.*)$", match[1], re.MULTILINE))
        try:
            module = importlib.import_module(options.get("module", "caffelite"))
        except ImportError:
            return match[0]
        names = [name for kind in ("layers", "operators") if kind in options for name in family(options[kind], kind)]
        names += [name for name in listed_names(match[2].splitlines()) if name not in names]
        lines = [line for name in names for line in describe(module, name)]
        return "\n".join([*([match[1]] if match[1] else []), *lines, ""])

    return BLOCK.sub(write_block, page)


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(write_signatures(path.read_text()))
