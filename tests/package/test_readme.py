"""What the README shows is run, and what it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_programs_run_and_print_what_their_comments_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder of their files
    namespace = {}
    expected = []
    for block in blocks("python"):
        expected += re.findall(r"^print\(.*\)  # ([^:\n]+)", block, re.MULTILINE)
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert len(expected) >= 2
    assert [line for line in printed if line in expected] == expected


def test_the_commands_are_targets_of_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"^\$ make (\w+)", README, re.MULTILINE)
    assert commands[:2] == ["spiral", "test"]
    assert set(commands) <= set(targets)
    assert set(re.findall(r"`make (\w+)`", README)) <= set(targets)


@pytest.mark.sources
def test_files_and_links_in_the_readme_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_chart_has_the_same_numbers_in_light_and_dark_and_says_what_made_them():
    light, dark = [
        re.sub("#[0-9a-f]{6}", "", (ROOT / "examples" / f"speed{end}.svg").read_text(encoding="utf-8"))
        for end in ("", "-dark")
    ]
    assert light == dark
    assert "PyTorch" in light
    (processor,) = re.findall(r"<title>.*caffelite = 1. (.*), one core</title>", light)
    assert processor in README.replace("®", "(R)")
    assert "benchmarks/steps.py" in README


def test_it_can_be_read_at_one_sitting():
    lines = README.splitlines()
    assert len(lines) <= 120
    items = re.split(r"^[-|] ?", README, flags=re.MULTILINE)[1:]
    assert max(len(item.split("\n\n")[0].strip().splitlines()) for item in items) <= 2
