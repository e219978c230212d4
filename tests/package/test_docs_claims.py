"""What pages of the documentation say of the project is so: the tests that hold a promise, scripts, and figures."""

import re
from pathlib import Path

import pytest

import caffelite as cl

ROOT = Path(__file__).parents[2]
PROMISES = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
HOW_IT_IS_FAST = (ROOT / "docs" / "how-it-is-fast.md").read_text(encoding="utf-8")


def test_every_promise_has_tests_that_exist():
    promises = re.split(r"^- ", PROMISES[: PROMISES.index("(not-promised)=")], flags=re.MULTILINE)[1:]
    assert len(promises) > 30
    for promise in promises:
        tests = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", promise)
        assert tests, promise
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), (
                file,
                name,
            )


def test_benchmarks_that_are_named_exist():
    mentioned = re.findall(r"`(?:benchmarks/)?(\w+\.py)`", HOW_IT_IS_FAST + PROMISES)
    present = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert len(set(mentioned)) > 10
    assert set(mentioned) <= present


FILE = r"(?:\w+/)*\w+\.(?:py|pyx|pxd|pxi|pyi|h)(?!\w)"
FOLDER = r"\w+(?:/\w+)*/(?=`)"
NAMED_PATH = re.compile(rf"(?<![\w./-])(?:\.\./|[ab]/)?({FILE}|{FOLDER})")
SOURCES = {".py", ".pyx", ".pxd", ".pxi", ".h"}
FILES_OF_READERS = {"first.py", "file.py", "train.py", "ben.py", "cem.py", "jupyterhub_config.py", "classroom/"}
HEADERS_OF_C = {"stdint.h"}
HEADERS_OF_OTHERS = {"numpy/arrayobject.h", "sys/syscall.h"}


def named_paths(files):
    return {name for file in files for name in NAMED_PATH.findall(file.read_text(encoding="utf-8"))}


@pytest.mark.sources
def test_files_and_folders_that_pages_and_sources_name_exist():
    folders = [ROOT / name for name in ("caffelite", "tests", "benchmarks", "docs", "examples")]
    paths = [ROOT / "setup.py", *folders, *(path for folder in folders for path in folder.rglob("*"))]
    parts = [path.relative_to(ROOT).parts + ("",) * path.is_dir() for path in paths]
    present = {"/".join(names[i:]) for names in parts for i in range(len(names))}

    in_pages = named_paths(path for folder in ("", "docs", "docs/reference") for path in (ROOT / folder).glob("*.md"))
    assert len(in_pages) > 100
    assert sorted(in_pages - FILES_OF_READERS - HEADERS_OF_C - present) == []

    in_sources = named_paths(path for path in (ROOT / "caffelite").rglob("*.*") if path.suffix in SOURCES)
    in_sources = {name for name in in_sources if "/" in name}
    assert len(in_sources) > 50
    assert sorted(in_sources - HEADERS_OF_OTHERS - present) == []


def test_names_that_extensions_of_the_site_import_from_each_other_exist():
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "_extensions").glob("*.py")}
    imports = re.findall(r"^from (\w+) import (.+)$", "\n".join(sources.values()), re.MULTILINE)
    names = [(module, name) for module, listed in imports if module in sources for name in listed.split(", ")]
    assert names
    for module, name in names:
        assert re.search(rf"^(def |class )?{name}\b", sources[module], re.MULTILINE), (module, name)


def test_every_metric_is_on_its_page():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in cl.metrics.__all__ if not re.search(rf"`(cl\.metrics\.)?{name}\b", page)] == []


def test_the_numbers_on_the_front_page_are_those_on_the_pages_behind_them():
    index, tables = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("index", "tables")]
    facts = re.findall(r"^\*\*(.*)\*\*\n\n(.*)\n\n`python (.*?)`$", index, re.MULTILINE)
    assert len(facts) == 3
    (factor, _, steps), (time, microgpt, _), (wins, _, _) = facts
    chart = (ROOT / "examples" / "speed.svg").read_text(encoding="utf-8")
    assert (factor, steps) == (
        f"{re.search(r'>PyTorch<.*?>([0-9.]+)<', chart, re.DOTALL)[1]}×",
        "benchmarks/steps.py --only spiral32",
    )
    assert time in HOW_IT_IS_FAST.replace("\n", " ")
    assert re.search(r"takes (146 s)", microgpt)[1] in HOW_IT_IS_FAST
    lowest = re.search(r"^\| \*\*caffelite\*\* \| \*\*[\d.]+\*\* \| \*\*(\d+)\*\* \|", tables, re.MULTILINE)[1]
    count = re.search(r"^On (\d+) real tables", tables, re.MULTILINE)[1]
    assert wins == f"{lowest} of {count}"
    for *_, command in facts:
        assert (ROOT / command.split()[0]).exists()
    (report,) = re.findall(r"^```console\n(\$ caffelite train .*?)^```$", index, re.DOTALL | re.MULTILINE)
    assert set(report.splitlines()) - {"…"} <= set(tables.splitlines())
