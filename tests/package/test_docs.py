"""The pages of docs/ are programs: they run as the site's build runs them, and what they name is there."""

import ast
import builtins
import importlib
import inspect
import operator
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
import caffelite.c
from tests.conftest import run, unpack_source_distribution

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if "{code-cell}" in path.read_text(encoding="utf-8"))
NEEDED = {
    "clusters": "sklearn",
    "guide": "sklearn",
    "many-models": "scipy",
    "mpi": "mpi4py",
    "onnx": "onnxruntime",
    "tables": "pandas",
    "your-own-data": "pandas",
}


def cells(page):
    """Yield the programs of a page: their first lines, their text, and whether they are to raise."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start(2)), match[2], "raises-exception" in match[1]


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture(autouse=True)
def closed_figures():
    """Close the figures. What a page draws stays in pyplot until somebody closes it, and other tests look there."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


# The guide's comparison with boosted trees takes half a minute, the others a sixth to a quarter.
LONG = {"guide", "nets", "six-programs", "your-own-data"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in LONG)) for page in PAGES],
)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")  # as matplotlib warns if there is a display
@pytest.mark.usefixtures("restored_threads")
def test_the_programs_of_a_page_run(page, tmp_path, monkeypatch):
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    if "machine_code(" in page.read_text(encoding="utf-8") and shutil.which("objdump") is None:
        pytest.skip("there is no disassembler")
    monkeypatch.chdir(tmp_path)  # the folder of their files
    namespace = {"__name__": "__main__"}
    assert list(cells(page))
    for line, source, raises in cells(page):
        program = compile("\n" * line + source, str(page), "exec")
        if raises:
            with pytest.raises(Exception):  # noqa: B017, PT011 (the page shows which)
                exec(program, namespace)
        else:
            exec(program, namespace)


@pytest.mark.sources
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_of_a_page_has_its_programs_and_its_text_without_markup(page, monkeypatch):
    pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    made = importlib.import_module("notebooks").notebook(page)
    code = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    hidden = re.findall(
        r":tags: \[remove-cell\]\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    removed = [source.strip("\n") for source in hidden]
    shown = [source.strip("\n") for _, source, _ in cells(page)]
    assert code == [source for source in shown if source not in removed]
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            assert not re.search(r"\{\w+\}`|^```+\{|^:::|^:\w+:", cell["source"], re.MULTILINE)
    titles = re.findall(r"^:::\{admonition\} (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(any(f"**{title}**" in cell["source"] for cell in made["cells"]) for title in titles)


@pytest.mark.sources
@pytest.mark.parametrize("solutions", [True, False], ids=["teachers", "students"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_defines_each_name_before_it_is_used(page, solutions, monkeypatch):
    """A name can come from a cell that notebooks leave out."""
    pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    known = {*dir(builtins), "__name__", "__file__"}
    for cell in importlib.import_module("notebooks").notebook(page, solutions)["cells"]:
        if cell["cell_type"] == "code":
            used, defined = find_names(cell["source"])
            known |= defined
            assert used <= known, f"{page.name}: {sorted(used - known)} in\n{cell['source']}"


def find_names(source):
    """Return the names that a program uses, and those it defines, in whatever scope."""
    nodes = list(ast.walk(ast.parse(source)))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler)}
    aliases = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return used, stored | named | aliases | {node.arg for node in nodes if isinstance(node, ast.arg)}


@pytest.mark.sources
def test_a_notebook_leads_to_other_notebooks_and_only_names_other_pages(monkeypatch):
    pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    made = importlib.import_module("notebooks").notebook(DOCS / "first-net.md")
    text = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert "[Lesson 3](the-framework.ipynb)" in text
    assert "[A user's guide](guide.ipynb)" in text
    assert "*Install and run*" in text
    assert not re.search(r"\]\([^)]*\.md", text)
    made = importlib.import_module("notebooks").notebook(DOCS / "generalization.md")
    text = " ".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert "*watch a net memorize noise* (`caffelite playground`, step 7),\nand then *hold it back*" in text


@pytest.mark.sources
def test_the_lesson_in_the_playground_leads_to_pages_and_headings():
    script = (Path(cl.__file__).parent / "web" / "static" / "lesson.js").read_text(encoding="utf-8")
    links = re.findall(r'\["([\w-]+)\.html(?:#([\w-]+))?", "', script)
    assert len(links) == 11
    assert ("generalization", "two-curves") in links
    for name, anchor in links:
        headings = re.findall(r"^#+ (.*)$", (DOCS / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
        ids = [re.sub("[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings]  # as docutils makes them
        assert not anchor or anchor in ids


def columns(page):
    """Return the programs that stand side by side, by whose they are."""
    programs = {}
    block = r"^```\{code-block\} python\n:caption: (.*?)\n(.*?)^```$"
    for whose, source in re.findall(block, page.read_text(encoding="utf-8"), re.M | re.S):
        programs[whose] = programs.get(whose, "") + source
    return programs


PACKAGES = {"PyTorch": "torch", "Keras": "keras", "scikit-learn": "sklearn", "caffelite": "caffelite"}
SIDES = [
    pytest.param(page, whose, id=f"{page.stem}: {whose}", marks=[] if whose == "caffelite" else pytest.mark.slow)
    for page in sorted(DOCS.glob("coming-from-*.md"))
    for whose in columns(page)
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("page", "whose"), SIDES)
def test_programs_side_by_side_run(page, whose, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGES[whose])
    if "sklearn" in columns(page)[whose]:  # these data and pipelines are on both pages
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    exec(compile(columns(page)[whose], str(page), "exec"), names)
    assert {"model", "net"} & names.keys()  # which it has made


@pytest.mark.filterwarnings("default")
def test_programs_that_need_pytorch_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__", "cl": cl}
    for source in blocks("coming-from-pytorch.md", "python"):
        exec(compile(source, "coming-from-pytorch.md", "exec"), namespace)
    x = np.random.default_rng(0).standard_normal((3, 5, 20)).astype(np.float32)
    net = namespace["Net"]()
    net.load_state_dict(namespace["state"])
    expected = net(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(namespace["model"].predict(x), expected, 1e-5, 1e-5)


def test_the_names_in_the_text_are_caffelites():
    for needed in ("scipy", "sklearn", "onnx", "mpi4py"):  # by those that are imported when they are looked up
        pytest.importorskip(needed)
    pages = [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md"), DOCS.parent / "README.md"]
    names = {
        name for page in pages for name in re.findall(r"\bcl\.([a-zA-Z_][\w.]*\w)", page.read_text(encoding="utf-8"))
    }
    names -= {"Softsign", "softsign"}  # which `write-a-kernel.md` adds
    assert len(names) >= 60
    for name in names:
        assert operator.attrgetter(name)(cl), name


@pytest.mark.parametrize("page", sorted(DOCS.glob("reference/*.md")), ids=lambda page: page.stem)
def test_the_reference_has_the_signatures_that_the_code_has(page, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    signatures = importlib.import_module("signatures")
    assert signatures.write_signatures(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), (
        "run docs/_extensions/signatures.py"
    )


def test_the_reference_leaves_out_names_of_other_frameworks(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    leave_out = importlib.import_module("reference").leave_out
    names = [(cl.Model, name) for name in ("compile", "trainable", "fit", "all_functions")]
    names += [(cl.Tensor, name) for name in ("view", "reshape")]
    members = {name: inspect.getattr_static(cls, name) for cls, name in names}
    hidden = {name for name, value in members.items() if leave_out(None, "class", name, value, False, None)}
    assert hidden == {"compile", "trainable", "all_functions", "view"}


def test_every_program_of_the_gallery_has_a_picture(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    gallery = importlib.import_module("gallery")
    drawn = re.findall(r"^def (\w+)\(figure, namespace\)", gallery.PICTURES.read_text(encoding="utf-8"), re.MULTILINE)
    examples = [example for group in gallery.GROUPS.values() for example in group]
    assert {example.name for example in examples if not example.picture} <= set(drawn)
    assert {example.name for example in examples} == {path.stem for path in (DOCS.parent / "examples").glob("*.py")}


@pytest.mark.sources
def test_the_files_in_the_picture_of_a_step_are_there():
    named = re.findall(r'class="code file"[^>]*>([^<]+)<', (DOCS / "_static" / "step.svg").read_text(encoding="utf-8"))
    assert len(named) > 15
    package = Path(cl.__file__).parent
    for name in named:
        assert (package / name).exists() or (package / "_kernels" / name).exists(), name


@pytest.mark.sources  # pages lead to .pyx files, which no wheel has
def test_links_lead_to_pages_and_their_headings():
    for page in [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]:
        for link, heading in re.findall(r"\]\(([^)#:\s]*\.\w+)(#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            target = page.parent / link
            if link.startswith("../caffelite/"):  # which may be installed elsewhere
                target = Path(cl.__file__).parents[1] / link.removeprefix("../")
            assert target.exists() or link.startswith("gallery/"), (page.name, link)
            if heading:
                slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings(target)]
                assert heading[1:] in slugs, (page.name, link, heading)


def test_the_glossary_has_each_word_with_its_names_and_a_page_that_explains_it():
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\*\*([^*]+)\*\*\n: (.*?)\n: (.*?)\n(?:\n|\Z)", glossary, re.M | re.S)
    words = [word for word, _, _ in entries]
    assert len(words) >= 40
    assert words == sorted(words, key=str.casefold)
    for word, sentence, names in entries:
        assert re.search(r"\]\([\w-]+\.md(#[\w-]+)?\)\.?$", sentence), word
        packages = re.findall(r"(?:^|·\s+)(caffelite|Keras|PyTorch|scikit-learn)\s", names)
        assert packages == ["caffelite", "Keras", "PyTorch", "scikit-learn"], word


SEARCHED = """overfitting, cross-entropy, dropout, learning rate, early stopping, softmax, backpropagation,
hyperparameter, gradient descent, regularization, generalization, neural network, deep learning, logits"""


@pytest.mark.parametrize("word", re.split(r",\s", SEARCHED))
def test_the_search_finds_a_word_of_the_field_on_the_page_that_explains_it(word):
    found = [p for p in PAGES if re.search(rf"^```{{index}}.* ! {word}(,|$)", p.read_text("utf-8"), re.MULTILINE)]
    (page,) = found
    assert re.search(rf"\*\*{word[:8]}", page.read_text("utf-8"), re.IGNORECASE), page.name


def headings(page):
    return re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_net_in_c_takes_the_memory_that_is_reported_and_is_called_as_shown(tmp_path):
    net = cl.Model([cl.Conv2d(1, 16, 3, padding="same"), cl.BatchNorm(16), cl.ReLU(), cl.MaxPool2d(2)], seed=0)
    net.add(cl.Flatten()).add(cl.Linear(16 * 4 * 4, 10))
    caffelite.c.export(net, tmp_path / "digits.c", input_shape=(1, 8, 8))
    written = (tmp_path / "digits.c").read_text(encoding="utf-8")
    page = (DOCS / "export-c.md").read_text(encoding="utf-8").replace("\n", " ")
    weights, memory = re.search(r"here ([\d.]+ kB) of constants and ([\d.]+ kB) between", page).groups()
    assert re.search(rf"weights +{weights}, constant\n.*memory +{memory}\n", written)

    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    image = np.random.default_rng(0).random((1, 1, 8, 8)).astype(np.float32)
    numbers = ", ".join(map(str, image.ravel()))
    main = f"int main(void) {{ const float image[64] = {{{numbers}}}; return read_digit(image); }}"
    (tmp_path / "program.c").write_text("\n".join([blocks("export-c.md", "c")[0], main]))
    (command,) = [text for text in blocks("export-c.md", "console") if "-DCHECK" in text]
    assert run("sh", "-c", command.strip().removeprefix("$ "), cwd=tmp_path) == "right\n"
    run("cc", "-std=c99", "-O3", "program.c", "digits.c", "-lm", cwd=tmp_path)
    assert subprocess.run([tmp_path / "a.out"], check=False).returncode == net.predict(image).argmax()


def test_the_training_in_c_takes_the_memory_that_is_reported_and_is_called_as_shown(tmp_path):
    net = cl.Model([cl.Linear(2, 100), cl.ReLU(), cl.Linear(100, 3)], seed=0)
    optimizer = cl.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": optimizer}
    caffelite.c.export_training(net, tmp_path / "spiral.c", batch_size=32, name="spiral", **options)
    written = (tmp_path / "spiral.c").read_text(encoding="utf-8")
    page = (DOCS / "export-c.md").read_text(encoding="utf-8").replace("\n", " ")
    (memory,) = re.findall(r"The spiral takes (\d+) kB", page)
    assert round(int(re.search(r"#define SPIRAL_BYTES (\d+)", written)[1]) / 1000) == int(memory)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (command,) = [text for text in blocks("export-c.md", "console") if "-DSPIRAL_CHECK" in text]
    assert run("sh", "-c", command.strip().removeprefix("$ "), cwd=tmp_path) == "right\n"
    x, y = cl.datasets.spiral(points_per_class=100, classes=3, seed=0)
    order = np.random.default_rng(0).permutation(300)[:288]
    points = ", ".join([f"{{{a}, {b}}}" for a, b in x[order].tolist()])
    main = f"""
int main(void)
{{
    static const float points[288][2] = {{{points}}};
    static const int32_t colours[288] = {{{", ".join(map(str, y[order].tolist()))}}};
    static float scores[32][3];
    return !(learn(points, colours, scores) < 0.5f);
}}
"""
    (tmp_path / "program.c").write_text(blocks("export-c.md", "c")[1] + main)
    run("cc", "-std=c99", "-Wall", "-Werror", "-O3", "program.c", "spiral.c", "-lm", cwd=tmp_path)
    assert subprocess.run([tmp_path / "a.out"], check=False).returncode == 0


# The tests of every Function and every kernel. The command on the page runs their tests of the new operator; here
# others run too, if they do not name a Function.
OF_ALL = [
    "functions/test_functions.py",
    "functions/test_cases.py",
    "functions/test_activation.py",
    "core/test_function.py",
    "core/test_tensor.py",
    "core/test_tensor_operators.py",
    "kernels",
    "pytorch/test_pytorch.py",
    "program/test_program.py",
    "program/test_passes.py",
    "package/test_imports.py",
    "onnx",
    "c",
]

CONFTEST = """
import re

def pytest_collection_modifyitems(config, items):
    if not config.option.keyword:
        items[:] = [item for item in items if re.search("::[^[]+$|x86-64", item.nodeid)]
"""


@pytest.mark.slow
def test_the_new_operator_applies_builds_and_passes_the_tests_of_all(tmp_path):
    project, _ = unpack_source_distribution(tmp_path)
    run("git", "apply", "-", cwd=project, input="".join(blocks("write-a-kernel.md", "diff")))
    compiler = tmp_path / "cc"  # which knows one instruction set, and hurries: the others take a minute each
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -march=x86-64-v"[24]" "*) exit 1;; esac\nexec cc "$@" -O1\n')
    compiler.chmod(0o755)
    run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=project, env=os.environ | {"CC": str(compiler)})
    (project / "conftest.py").write_text(CONFTEST)
    (commands,) = blocks("write-a-kernel.md", "console")
    _, program, *arguments = shlex.split(commands.splitlines()[-1])
    assert program == "python"
    output = run(sys.executable, *arguments, "-vv", "-p", "no:cacheprovider", cwd=project)
    assert len(re.findall("Softsign.* PASSED", output)) > 20
    assert "test_export.py::test_every_function_is_exported_and_computes_the_same[Softsign-float32] PASSED" in output
    files = [f"tests/{name}" for name in OF_ALL]
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, cwd=project)
    of_copy = os.environ | {"PYTHONPATH": str(project)}  # examples run in a folder of their own
    table = ["tests/package/test_examples.py", "-k", "every_activation_of_elements"]
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *table, cwd=project, env=of_copy)
