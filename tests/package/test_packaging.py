"""What is handed out: the source distribution and the wheel. `make wheel` builds both anew, and tests the wheel."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite._support.extras import EXTRAS, install_command
from tests.conftest import copy_project, posix, run, unpack_source_distribution
from tests.tools import distributions

ROOT = Path(__file__).parents[2]
PROGRAM = """
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.Model([cl.Linear(2, 16), cl.ReLU(), cl.Linear(16, 3)], seed=0)
model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=2)
assert cl.datasets.digits()[0][0].shape == (1437, 8, 8)
print(cl.__file__)
"""


def take_what_is_compiled(project, built):
    """Put the C files and modules of this checkout where a build finds them newer than their sources."""
    for kind, target in (("c", project), ("so", built)):
        now = time.time() + (kind == "so")
        for path in ROOT.glob(f"caffelite/**/*.{kind}"):
            copy = target / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            os.utime(copy, (now, now))


def wheel_built_from(project, folder):
    """Return the wheel, repaired where there is auditwheel, in the folder. Only what this checkout lacks is
    compiled.
    """
    built = folder / "built"
    take_what_is_compiled(project, built)
    run(sys.executable, "setup.py", "-q", "build", "--build-lib", built, "bdist_wheel", "-d", folder, cwd=project)
    (wheel,) = folder.glob("*.whl")
    if sys.platform == "linux":
        tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder / "repaired", wheel]
        run(*repair, cwd=folder, env=os.environ | tools)
        (wheel,) = (folder / "repaired").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_wheel_built_from_the_source_distribution_works_on_its_own(tmp_path):
    project, archive = unpack_source_distribution(tmp_path)
    assert distributions.faults(archive) == []
    wheel = wheel_built_from(project, tmp_path)
    shutil.rmtree(project)
    assert distributions.faults(wheel) == []
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    output = run(sys.executable, "-c", PROGRAM, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")})
    assert str(tmp_path / "site") in output


@pytest.fixture
def build(monkeypatch):
    """setup.py as a module."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("there are no sources")
    pytest.importorskip("Cython")
    monkeypatch.chdir(ROOT)
    specification = importlib.util.spec_from_file_location("build_of_caffelite", ROOT / "setup.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("present", [(), kernels.INSTRUCTION_SETS])
def test_a_native_build_has_the_best_loops_of_this_processor_and_those_present(build, tmp_path, present):
    from setuptools import Distribution
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    command = build.BuildKernels(Distribution({"ext_modules": build.extensions()}))
    command.finalize_options()
    command.build_lib, command.inplace = str(tmp_path), False
    command.compiler = new_compiler()
    customize_compiler(command.compiler)
    everything = list(command.extensions)
    for extension in everything if present else []:
        module = Path(command.get_ext_fullpath(extension.name))
        module.parent.mkdir(parents=True, exist_ok=True)
        module.touch()
    command.leave_out_other_levels()
    left = [extension.name.partition(".loops_")[2].replace("_", "-") for extension in command.extensions]
    if present:
        assert command.extensions == everything
    else:
        assert [level for level in left if level] == kernels.available_instruction_sets()[:1]
        assert left.count("") == len(build.COMPILED_ONCE)


@pytest.mark.parametrize("compiler", ["msvc", "mingw32", None])
def test_a_build_without_gcc_on_windows_says_what_to_install(compiler, build, monkeypatch):
    from setuptools import Distribution

    monkeypatch.setattr(build, "WINDOWS", True)
    command = build.BuildKernels(Distribution({"ext_modules": build.extensions()}))
    command.compiler = compiler
    command.finalize_options()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.PlatformError, match=r"Microsoft's compiler does not .* --compiler=mingw32"):
        command.run()


def test_a_build_says_what_is_done_and_what_takes_long(build, monkeypatch, capsys):
    monkeypatch.setattr(build, "REPORT_INTERVAL", 0.05)
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        tasks = {"long.c": pool.submit(go_on.wait), "short.c": pool.submit(int)}
        threading.Timer(0.3, go_on.set).start()
        build.wait_for("compiled", tasks, pool)
    first, *others, last = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert first == "compiled short.c, 1 of 2 left"
    assert set(others) == {"still at work on long.c"}
    assert last == "compiled long.c, 0 of 2 left"
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="invalid literal"):
        build.wait_for("compiled", {"wrong.c": pool.submit(int, "x")}, pool)


def test_a_build_says_which_of_its_two_parts_counts_its_files(build, monkeypatch):
    from setuptools import Distribution

    parts = []
    monkeypatch.setattr(build, "wait_for", lambda done, tasks, pool: parts.append(done))
    command = build.BuildKernels(Distribution({"ext_modules": build.extensions()}))
    command.finalize_options()
    command.extensions = []
    command.translate()
    command.make_objects()
    assert parts == ["1 of 2, translated", "2 of 2, compiled"]


def test_a_file_is_made_again_if_a_source_is_newer(build, tmp_path):
    made, source, listed = tmp_path / "a.o", tmp_path / "a b.c", tmp_path / "a.d"
    assert not build.is_up_to_date(made, listed)
    for path in (source, made):
        path.touch()
    listed.write_text("a.o: \\\n  " + str(source).replace(" ", "\\ ") + "\n")
    os.utime(source, (1, 1))
    assert build.is_up_to_date(made, listed)
    os.utime(made, (1, 1))
    assert not build.is_up_to_date(made, listed)


def test_a_classroom_has_notebooks_without_solutions_and_the_solutions_apart(build, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    from tests.tools import classroom

    classroom.make_notebooks(tmp_path)
    for folder in ("notebooks", "solutions"):
        for path in (tmp_path / folder).iterdir():
            cells = nbformat.read(path, 4).cells
            assert not any("```{" in cell.source or "{func}" in cell.source for cell in cells), path
            page = (ROOT / "docs" / f"{path.stem}.md").read_text(encoding="utf-8")
            solutions = page.count("Show a solution")
            answers = [cell for cell in cells if cell.source.startswith("# your answer")]
            assert len(answers) == (solutions if folder == "notebooks" else 0), path
            assert all("raises-exception" in cell.metadata.tags for cell in answers)
            shown = page.count("```{code-cell}") - page.count("[remove-cell]")
            assert sum(cell.cell_type == "code" for cell in cells) == shown, path
            assert solutions or folder == "notebooks"
    names = {path.stem for path in (tmp_path / "notebooks").iterdir()}
    assert {"first-net", "guide", "tables"} < names
    assert not names & set(classroom.NEED_MORE)
    lessons = {"downhill", "the-framework", "generalization", "images", "the-machine", "the-program", "exercises"}
    assert {path.stem for path in (tmp_path / "solutions").iterdir()} == lessons
    mentioned = re.findall(r"`([\w-]+)\.ipynb`", classroom.README)
    assert set(mentioned) <= names
    site = re.findall(r"`site/([\w-]+)\.html`", classroom.README)
    assert "lesson-plans" in site
    assert all((ROOT / "docs" / f"{name}.md").exists() for name in site)
    exercises = nbformat.read(tmp_path / "notebooks" / "exercises.ipynb", 4).cells
    sources = [cell.source for cell in exercises]
    assert '# your answer\ndef relu(x):\n    ...\n\n\ncl.exercises.check("relu", relu)' in sources
    stubs = [source for source in sources if source.startswith("# your answer")]
    assert len(stubs) == len(cl.exercises.EXERCISES)
    for stub, exercise in zip(stubs, cl.exercises.EXERCISES.values(), strict=True):
        names = {"cl": cl}
        exec(stub, names)  # its check is a verdict, and not an error
        assert not cl.exercises.check(exercise.name, names[exercise.answer])


def test_the_classroom_keeps_wheels_for_other_pythons_and_lists_them(build, tmp_path):
    pytest.importorskip("nbformat")
    from tests.tools import classroom

    (tmp_path / "wheels").mkdir()
    old = [
        "caffelite-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "caffelite-0.3.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "caffelite-0.3.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "caffelite-0.3.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "numpy-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ]
    for name in old:
        (tmp_path / "wheels" / name).touch()
    new = "caffelite-0.3.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    classroom.remove_outdated(tmp_path / "wheels", Path(new))
    assert {path.name for path in (tmp_path / "wheels").iterdir()} == set(old[2:])
    classroom.make_rest(tmp_path)
    assert (tmp_path / "LICENSE").exists()
    assert (tmp_path / "programs" / "textbook.py").exists()
    listed = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "- Python 3.12, Linux with glibc 2.28 or newer on x86_64\n" in listed
    assert "- Python 3.11, Linux with glibc 2.28 or newer on aarch64\n" in listed
    assert "'caffelite[plot,web]' pandas scikit-learn jupyterlab\n" in listed


@posix
def test_make_says_that_another_python_needs_another_environment(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    soabi = sysconfig.get_config_var("SOABI")
    other = f"{platform.python_version()} {soabi}-other"  # the same version, as with and without Python's lock
    python.write_text(f"#!/bin/sh\necho {other}\n")
    python.chmod(0o755)
    command = ["make", "-n", "prose", f"PYTHON={sys.executable}"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert f".venv has Python {other}" in made.stderr
    assert "rm -rf .venv" in made.stderr
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_make_installs_what_pyproject_says_that_the_build_needs():
    (listed,) = re.findall(
        r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^\t\$\(PIP\) ('setuptools.*')$", makefile, re.MULTILINE)
    assert sorted(re.findall(r'"(.*?)"', listed)) == sorted(re.findall(r"'(.*?)'", installed))


def test_messages_name_the_packages_of_the_extras():
    offered = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    for extra, packages in EXTRAS.items():
        (listed,) = re.findall(rf"^{extra} = \[(.*)\]$", offered, re.MULTILINE)
        assert re.findall(r'"([\w-]+)', listed) == packages.split()
        assert install_command(extra).endswith(f" -m pip install {packages}")


def test_messages_name_the_python_that_runs_so_no_other_one_gets_the_packages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for executable, command in (
        (tmp_path / ".venv" / "bin" / "python", Path(".venv", "bin", "python")),
        (tmp_path / "my nets" / "python", f'"{Path("my nets", "python")}"'),
        (tmp_path.parent / "other" / "python", tmp_path.parent / "other" / "python"),
    ):
        monkeypatch.setattr(sys, "executable", str(executable))
        assert install_command("plot") == f"{command} -m pip install matplotlib"


@pytest.mark.parametrize("executable", ["", None])
def test_messages_name_python3_if_the_place_of_this_python_is_unknown(executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    assert install_command("plot") == "python3 -m pip install matplotlib"


def test_messages_name_the_full_path_of_python_without_a_current_folder(monkeypatch):
    def fail():
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", fail)
    executable = str(Path("/usr/bin/python3"))
    monkeypatch.setattr(sys, "executable", executable)
    assert install_command("plot") == f"{executable} -m pip install matplotlib"


def test_the_version_is_the_same_wherever_it_stands():
    (version,) = re.findall('^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f" {version}," in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") or f"[{version}]" in (
        ROOT / "CHANGELOG.md"
    ).read_text(encoding="utf-8")


# Changes of the names in a wheel, and the errors.
SPOILT = {
    "digits.npz is missing": lambda names: [n for n in names if "digits.npz" not in n],
    "_kernels/guards is not compiled": lambda names: [n for n in names if "_kernels/guards.cpython" not in n],
    "loops_x86_64_v3 is not compiled": lambda names: [n for n in names if "x86_64_v3" not in n],
    "loops.c has no place": lambda names: [*names, "caffelite/_kernels/loops.c"],
    "tests/conftest.py has no place": lambda names: [*names, "tests/conftest.py"],
    "the licence is missing": lambda names: [n for n in names if "LICENSE" not in n],
}
INFO = "caffelite-0.1.0.dist-info"


def make_wheel(names, folder, platform="manylinux_2_28_x86_64", size=0):
    path = folder / f"caffelite-0.1.0-cp311-cp311-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(size // len(names)))
    return path


def names_of_a_good_wheel():
    sources = [name for name in distributions.files("caffelite") if not distributions.is_source(name)]
    named = [name for name in distributions.files("caffelite") if name.endswith(".pyx")]
    modules = [name[:-4] for name in named if distributions.LOOPS not in name]
    modules += [f"caffelite/_kernels/loops_x86_64_v{level}" for level in (2, 3, 4)]
    return [*sources, *[f"{name}.cpython-311.so" for name in modules], f"{INFO}/METADATA", f"{INFO}/licenses/LICENSE"]


@pytest.mark.sources
def test_faults_of_a_wheel_are_found(tmp_path):
    names = names_of_a_good_wheel()
    assert distributions.faults(make_wheel(names, tmp_path)) == []
    for fault, spoil in SPOILT.items():
        (found,) = distributions.faults(make_wheel(spoil(names), tmp_path))
        assert fault in found
    (found,) = distributions.faults(make_wheel(names, tmp_path, "linux_x86_64"))
    assert "auditwheel" in found
    assert len(distributions.faults(make_wheel(names, tmp_path, size=9_000_000))) == 2


@pytest.mark.sources
def test_sources_that_are_not_compiled_say_what_to_do(tmp_path):
    copy_project(tmp_path / "copied")
    with pytest.raises(
        AssertionError, match=r"ImportError: the sources of caffelite in .* run `make spiral` there, or"
    ):
        run(sys.executable, "-c", "import caffelite", cwd=tmp_path / "copied")
