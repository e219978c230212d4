"""What pages of the documentation say of the project is so: the tests that hold a promise, scripts, and figures."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISES = (ROOT / "docs" / "promises.md").read_text()
HOW_IT_IS_FAST = (ROOT / "docs" / "how-it-is-fast.md").read_text()


def test_every_promise_has_tests_that_exist():
    promises = re.split(r"^- ", PROMISES[: PROMISES.index("(not-promised)=")], flags=re.MULTILINE)[1:]
    assert len(promises) > 30
    for promise in promises:
        tests = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", promise)
        assert tests, promise
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), (file, name)


def test_benchmarks_that_are_named_exist():
    mentioned = re.findall(r"`(?:benchmarks/)?(\w+\.py)`", HOW_IT_IS_FAST + PROMISES)
    present = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert len(set(mentioned)) > 10
    assert set(mentioned) <= present
