"""The pages of docs/ are programs: they run as the site's build runs them, and what they name is there."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if "{code-cell}" in path.read_text())


def cells(page):
    """The programs of a page: their first lines, their text, and whether they are to raise."""
    text = page.read_text()
    for match in re.finditer(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start(2)), match[2], "raises-exception" in match[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they write their files
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace = {"__name__": "__main__"}
    assert list(cells(page))
    for line, source, raises in cells(page):
        program = compile("\n" * line + source, str(page), "exec")
        if raises:
            with pytest.raises(Exception):  # noqa: B017, PT011 (the page shows which)
                exec(program, namespace)
        else:
            exec(program, namespace)


def columns(page):
    """The programs that stand side by side, by whose they are."""
    programs = {}
    block = r"^```\{code-block\} python\n:caption: (.*?)\n(.*?)^```$"
    for whose, source in re.findall(block, page.read_text(), re.M | re.S):
        programs[whose] = programs.get(whose, "") + source
    return programs


NEEDED = {"PyTorch": "torch", "Keras": "keras", "scikit-learn": "sklearn", "caffelite": "caffelite"}
SIDES = [
    pytest.param(page, whose, id=f"{page.stem}: {whose}", marks=[] if whose == "caffelite" else pytest.mark.slow)
    for page in sorted(DOCS.glob("coming-from-*.md"))
    for whose in columns(page)
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("page", "whose"), SIDES)
def test_what_stands_side_by_side_runs(page, whose, tmp_path, monkeypatch):
    pytest.importorskip(NEEDED[whose])
    if "sklearn" in columns(page)[whose]:  # whose data and pipelines both have
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    exec(compile(columns(page)[whose], str(page), "exec"), {"__name__": "__main__"})
