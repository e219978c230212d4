"""A linter for plain English: python tests/tools/prose.py [--figures] [FILE…], or `make prose`.

It reads README.md, the pages in docs/, the docstrings and comments of the examples, and in caffelite/ all docstrings,
the messages in `raise` and `warn(…)`, and the comments. In tests/ it reads the comments, and the names of tests as
sentences. In all of these it finds sentences of more than 30 words, sentences with two semicolons, and habits that no
good English sentence has, each with a suggestion. It leaves “so that”, “which”, “what” and their kind to the writer.
Code, tables and formulas are not prose: a name in backticks, a formula and a value in a message count as one word each.
In caffelite/, tests/, benchmarks/ and examples/ it also finds names that break the rules of `names.py`. `--figures`
prints a table of the prose instead.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.tools.names import check_name, check_repeated, definitions  # noqa: E402

LONGEST = 30  # words

#: What no good English sentence has, and what to write instead. A word that a writer may choose is not here.
HABITS = {
    r"^Who(se)?\b[^?]*$": "write “if you …”, or name the person",
    r"(?<!there )\b(is|are|was|were) no (?!longer|more|less|better|worse|doubt|wonder)\w+": "write “is not a …”",
    r"(?<!there )\b(is|are|was|were) (?-i:none)\b": "write “is not a …”, or “does not”",
    r"\b(has|have) not([.,;:]|$)": "write “does not have”",
    r"\b(is|are) seen to\b|\b(say|says) of\b": "say who does what",
    r"\b(anew|whereby|therein|thereof)\b": "use a word of today, or none",
    r"^(Beside|Below|Above|Behind|Before|After|In|On) \w+ (stands?|lies)\b": "begin with the subject",
    r"\b(house|doors?|hearts?|rooms|(a|the|each|every|all|which) room)\b": "name the part: package, interface, core",
    r"\b(is|are) such as\b": "name them, and then write “such as”",
    r"(^|; |\band )else\b": "write “otherwise”, or “all other …”",
    r"\bpays?\b(?! attention| for| off| to\b)": "write “is worth it” or “is faster”",
    r";[^;]*;": "two semicolons are three sentences",
}
PATTERNS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in HABITS.items()]

#: Words with a full stop after which a sentence goes on.
ABBREVIATIONS = re.compile(r"(\b(e\.g|i\.e|vs|cf|al|etc|Fig|Dr|No)|\b[A-Z])\.$")
ITEM = re.compile(r"([-*+:]|[1-9][.)]|\[\^\w+\]:) ")
WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")


class Finding(NamedTuple):
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def words(sentence: str) -> int:
    """Return the number of words. Numbers, single letters and signs beside each other are one formula, and one word."""
    are_words = [bool(WORD.search(token)) for token in sentence.split() if re.search(r"\w", token)]
    formulas = sum(not word and (i == 0 or are_words[i - 1]) for i, word in enumerate(are_words))
    return sum(are_words) + formulas


def sentences(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a paragraph, each with the line in which it begins."""
    starts, text = [], ""
    for number, line in lines:
        starts.append((len(text), number))
        text += line.strip() + " "
    text = keeping_length(r"`+[^`]+`+", text, lambda match: "X")  # code
    text = keeping_length(r"\{[a-z:]+\}(?=X)", text, lambda match: "")
    text = keeping_length(r"\]\([^)\s]*\)", text, lambda match: "]")  # targets of links
    begin = 0
    ends = [match.end() for match in re.finditer(r"(\.|[!?…](?=\W*[^\Wa-z]))[\"”')\]*_]*\s+", text)]
    for end in [*ends, len(text)]:
        if end < len(text) and ABBREVIATIONS.search(text[begin:end].rstrip()):
            continue
        sentence = " ".join(text[begin:end].replace("\0", "").split()).strip("*_()[]")
        if WORD.search(sentence):
            yield [number for start, number in starts if start <= begin][-1], sentence
        begin = end


def keeping_length(pattern: str, text: str, replacement) -> str:
    """`re.sub` that fills up with NUL, so that a position still leads to its line."""
    return re.sub(pattern, lambda match: replacement(match).ljust(len(match[0]), "\0"), text)


def paragraphs_of_page(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the paragraphs and list items of a Markdown page, without code, tables, headings and options of
    directives.
    """
    paragraph: list[tuple[int, str]] = []
    fence = ""
    front_matter = text.startswith("---\n")
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        if front_matter:
            front_matter = number == 1 or bare != "---"
            continue
        if fence:
            fence = "" if bare == fence else fence
            continue
        opened = re.match(r"(`{3,}|~{3,})(.*)", bare)
        if opened and not re.match(r"\{(admonition|note|tip|warning|dropdown)\}", opened[2]):
            fence = opened[1]
        is_no_prose = opened or not bare or re.match(r"(\||#|:::|:[\w-]+:|\(\S+\)=|<[/!\w]|[-=*]{3,}$|!\[)", bare)
        item = ITEM.match(bare)
        if is_no_prose or item:
            yield paragraph
            paragraph = []
        if not is_no_prose:
            paragraph.append((number, bare[item.end() :] if item else bare))
    yield paragraph


SECTIONS = {"Parameters", "Returns", "Raises", "Attributes", "Yields"}


def paragraphs_of_docstring(text: str, first_line: int) -> Iterator[list[tuple[int, str]]]:
    """Yield the paragraphs of a docstring. An indented block is code or a formula, in a section a description."""
    paragraph: list[tuple[int, str]] = []
    lines = text.split("\n")
    section = False
    for number, (line, after) in enumerate(pairwise([*lines, "", ""]), first_line):
        bare = line.strip()
        indented = line.startswith("    ")
        if bare in SECTIONS and set(after.strip()) == {"-"}:
            section = True
        elif section and not bare and not after.strip():
            section = False
        of_code = (indented and not section) or line.startswith("python ")
        name_of_parameter = section and not indented
        item = ITEM.match(bare)
        if not bare or of_code or name_of_parameter or item:
            yield paragraph
            paragraph = []
        if bare and not of_code and not name_of_parameter:
            paragraph.append((number, bare[item.end() :] if item else bare))
    yield paragraph


def findings(path: Path, paragraphs: Iterator[list[tuple[int, str]]]) -> Iterator[Finding]:
    for paragraph in paragraphs:
        for line, sentence in sentences(paragraph):
            count = words(sentence)
            if count > LONGEST:
                yield Finding(path, line, f"{count} words: {shorten(sentence)}")
            yield from habits(path, line, sentence)


def habits(path: Path, line: int, sentence: str) -> Iterator[Finding]:
    for pattern, advice in PATTERNS:
        if match := pattern.search(sentence):
            yield Finding(path, line, f"“{shorten(match[0])}”: {advice}")


def shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1].rsplit(" ", 1)[0] + " …"


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the strings that are statements, each with its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield cleandoc(node.value.value), node.lineno


def messages(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the messages of errors and warnings, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn")):
            yield from strings(node)


def strings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the strings in an expression, each with its line. A value in an f-string becomes a name in backticks."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value, node.lineno
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "`X`" for part in node.values), node.lineno
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


#: A string, because a # in it does not begin a comment, or a comment.
COMMENT = re.compile(r"""(?s:\"{3}.*?\"{3}|'{3}.*?'{3})|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(#[^\n]*)""")
DIRECTIVE = re.compile(r"#(!| ?(type|mypy|noqa|ruff|fmt|pragma|cython|distutils|-\*-)\b|   |.*-{4})")


def paragraphs_of_comments(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the comments of a program. Lines below each other are one paragraph, unless they are behind code."""
    paragraph: list[tuple[int, str]] = []
    for match in COMMENT.finditer(text):
        comment = match[1]
        if not comment or DIRECTIVE.match(comment):
            continue
        number = text.count("\n", 0, match.start()) + 1
        is_alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        bare = comment.lstrip("#:").strip()
        item = ITEM.match(bare)
        if not is_alone or not bare or item or (paragraph and paragraph[-1][0] != number - 1):
            yield paragraph
            paragraph = []
        if bare:
            paragraph.append((number, bare[item.end() :] if item else bare))
        if not is_alone:
            yield paragraph
            paragraph = []
    yield paragraph


def findings_in_names(package: list[Path], programs: list[Path]) -> Iterator[Finding]:
    """Yield the names that break the rules in the package and in tests and other programs, and habits in names of
    tests.
    """
    in_package = [definition for path in package for definition in definitions(path)]
    in_programs = [definition for path in programs for definition in definitions(path)]
    for definition in in_package + in_programs:
        yield from (Finding(path, line, text) for path, line, _, text in check_name(definition))
    yield from (Finding(path, line, text) for path, line, _, text in check_repeated(in_package, ROOT))
    for path, line, name, *_ in in_programs:
        if name.startswith("test_"):
            yield from habits(path, line, name.removeprefix("test_").replace("_", " "))


def python_in(cython: str) -> str:
    """Return the docstrings and the `raise` statements of a file in Cython, each in its line."""
    lines = re.sub(r"\(<\w+> ", "(", cython).split("\n")  # without casts
    python = [""] * len(lines)
    for begin, line in enumerate(lines):
        if re.match(r' *("""|raise\b)', line) and not python[begin] and "cdef extern" not in lines[begin - 1]:
            for end in range(begin + 1, len(lines) + 1):
                statement = dedent("\n".join(lines[begin:end]))
                if is_python(statement):
                    python[begin:end] = statement.split("\n")
                    break
    return "\n".join(python)


def is_python(statement: str) -> bool:
    try:
        ast.parse(statement)
    except SyntaxError:
        return False
    return True


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "gallery"} & {*path.parts})


def sources() -> Iterator[Path]:
    for suffix in ("py", "pyx", "pxi", "pxd"):
        yield from sorted((ROOT / "caffelite").rglob(f"*.{suffix}"))


def programs() -> Iterator[Path]:
    for folder in ("tests", "benchmarks", "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def prose() -> Iterator[tuple[Path, list[list[tuple[int, str]]]]]:
    """Each file with its paragraphs: the pages first, then the programs."""
    for path in pages():
        yield path, list(paragraphs_of_page(path.read_text(encoding="utf-8")))
    for path in [*sorted((ROOT / "examples").glob("*.py")), *sources()]:
        yield path, list(paragraphs_of_program(path.read_text(encoding="utf-8"), is_cython=path.suffix != ".py"))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        yield path, list(paragraphs_of_comments(path.read_text(encoding="utf-8")))


def paragraphs_of_program(text: str, is_cython: bool = False) -> Iterator[list[tuple[int, str]]]:
    tree = ast.parse(python_in(text) if is_cython else text)
    for string, line in sorted([*docstrings(tree), *messages(tree)], key=itemgetter(1)):
        yield from paragraphs_of_docstring(string, line)
    yield from paragraphs_of_comments(text)


def figures(parts) -> str:
    rows, total = [], [0, 0, 0, 0]
    for path, paragraphs in parts:
        counts = [words(sentence) for paragraph in paragraphs for _, sentence in sentences(paragraph)]
        habits = sum(" words: " not in finding.text for finding in findings(path, paragraphs))
        row = [len(counts), sum(counts), sum(count > LONGEST for count in counts), habits]
        rows.append((str(path.relative_to(ROOT)), row))
        total = [a + b for a, b in zip(total, row, strict=True)]
    lines = [f"{'':45} {'sentences':>9} {'words':>6} {'a sentence':>10} {'over 30':>7} {'habits':>6}"]
    for name, (number, count, long, habits) in [*rows, ("all", total)]:
        lines.append(f"{name:45} {number:9} {count:6} {count / max(number, 1):10.1f} {long:7} {habits:6}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="only these of the files (default: all)")
    parser.add_argument("--figures", action="store_true", help="print words a sentence and the numbers of findings")
    options = parser.parse_args(arguments)
    chosen = {path.resolve() for path in options.files}
    parts = [(path, paragraphs) for path, paragraphs in prose() if not chosen or path in chosen]
    if options.figures:
        print(figures(parts))
        return 0
    all_findings = [finding for path, paragraphs in parts for finding in findings(path, paragraphs)]
    in_names = findings_in_names([*sources()], [*programs()])
    all_findings += [finding for finding in in_names if not chosen or finding.path in chosen]
    for finding in all_findings:
        print(finding._replace(path=finding.path.relative_to(ROOT)))
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
