"""The directive `reference`: of the names in it, a table with what each is, and then each with its docstring.

    ```{reference}
    :module: caffelite.callbacks

    EarlyStopping
    Checkpoint
    ```

signatures.py writes the signatures after the names, and the methods of a class below it. If a family of Functions is
given, it also writes their names: `:layers: activation` are the classes in the `__all__` of
caffelite/functions/activation.py and `:operators: activation` its functions, in the order of the file.

After the docstring comes an example, from docs/reference/examples/; the tests run them. The build fails if something
that caffelite offers is on no page, or has no example.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from signatures import INTERNAL, listed_names
from sphinx.application import Sphinx
from sphinx.ext.autosummary import autosummary_table
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import caffelite
from caffelite._support.migration_hints import ForeignAttribute

logger = logging.getLogger(__name__)
#: The modules in which caffelite has more.
MODULES = {"augment", "callbacks", "datasets", "initializers", "metrics", "plots", "schedules", "sources"}
#: The examples by the full names of what they show.
EXAMPLES = {
    name: lines.strip()
    for path in (Path(__file__).parents[1] / "reference" / "examples").glob("*.txt")
    for name, lines in re.findall(
        r"^# (caffelite\S+)\n(.*?)(?=^# caffelite|\Z)", path.read_text(), re.DOTALL | re.MULTILINE
    )
}
#: What has none: it needs a network, a browser or several processes, or is given to the user and not called.
NO_EXAMPLE = {
    "caffelite.NotRecorded",
    "caffelite.TrainingWarning",
    "caffelite.callbacks.Monitor",
    "caffelite.callbacks.MLflow",
    "caffelite.callbacks.TensorBoard",
    "caffelite.callbacks.WandB",
    "caffelite.callbacks.Training",
    "caffelite.datasets.cifar10",
    "caffelite.datasets.fashion_mnist",
    "caffelite.datasets.folder",
    "caffelite.datasets.mnist",
    "caffelite.live",
    "caffelite.mpi.DataParallel",
    "caffelite.onnx.register",
    "caffelite.playground",
    "caffelite.show_config",
}


class Reference(SphinxDirective):
    has_content = True
    option_spec: ClassVar = dict.fromkeys(["module", "layers", "operators"], directives.unchanged)

    def run(self):
        module = self.options.get("module", "caffelite")
        names = listed_names(self.content)
        try:
            importlib.import_module(module)
        except ImportError as error:  # the other pages are built all the same
            logger.warning(
                "%s can't be imported, so its part is left out: %s", module, error, location=self.get_location()
            )
            return []
        lines = [f".. py:currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
        second_names = {name: full_name for name in names if (full_name := find_full_name(module, name)) != name}
        lines += [f"   {name}" for name in names if name not in second_names]
        for name in names:
            if name in second_names:
                lines += ["", f".. py:class:: {name}", "", f"   Another name of :class:`{second_names[name]}`."]
                lines += ["", "   .. code-block:: pycon", "", *indent_example(f"{module}.{name}", 6)]
                continue
            lines += ["", f".. {directive_for(module, name)}:: {name}"]
            if name == "Model":  # with what it inherits from Container and BaseModel, which are on no page
                lines.append("   :inherited-members: Function")
            if name in ("TableClassifier", "TableRegressor"):  # with explain and importances
                lines += ["   :inherited-members: BaseEstimator", "   :exclude-members: score"]
            if (f"{module}.{name}" in EXAMPLES) == (f"{module}.{name}" in NO_EXAMPLE):
                logger.warning("%s.%s has no example, or one and is in NO_EXAMPLE", module, name)
        parsed = self.parse_text_to_nodes("\n".join(["````{eval-rst}", *lines, "````"]))
        for table in (table for node in parsed for table in node.findall(autosummary_table)):
            for text in table.findall(nodes.Text):
                if text.endswith(":"):  # what follows in the docstring is not in the table
                    text.parent.replace(text, nodes.Text(f"{text[:-1]}."))
        return parsed


def find_full_name(module: str, name: str) -> str:
    """Return the name that a class has itself. It differs if the given one is a second name of the class."""
    value = getattr(importlib.import_module(module), name)
    return value.__name__ if inspect.isclass(value) else name


def indent_example(name: str, width: int) -> list[str]:
    return [f"{' ' * width}{line}" for line in EXAMPLES[name].replace("<BLANKLINE>", "").splitlines()]


def directive_for(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) else "autodata"


def warn_about_gaps(app, env):
    """Warn of, and so end the build for, each public name that is documented nowhere."""
    offered = {f"caffelite.{name}" for name in caffelite.__all__ if name not in MODULES}
    for name in MODULES - {"metrics", "schedules"}:  # in a table, where a test looks for them; under another path
        offered |= {f"caffelite.{name}.{member}" for member in getattr(getattr(caffelite, name), "__all__", ())}
    documented = env.domains.python_domain.objects
    for name in sorted(offered - set(documented)):
        logger.warning("%s is on no page of the reference", name)


def add_example(app, what, name, value, options, lines):
    if name in EXAMPLES:
        lines += ["", ".. code-block:: pycon", "", *indent_example(name, 3), ""]


def leave_out(app, what, name, value, skip, options):
    is_hidden = isinstance(value, ForeignAttribute) or {name, getattr(value, "__qualname__", name)} & INTERNAL
    return True if is_hidden else None


def setup(app: Sphinx) -> dict:
    app.add_directive("reference", Reference)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-docstring", add_example, priority=900)
    app.connect("env-check-consistency", warn_about_gaps)
    return {"parallel_read_safe": True}
