"""What is handed out: the source distribution and the wheel."""

import shutil
import sys
import tarfile
import zipfile

import pytest
from conftest import copy_of_project, run

PROGRAM = """
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.Model([cl.Linear(2, 16), cl.ReLU(), cl.Linear(16, 3)], seed=0)
model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=2)
assert cl.datasets.digits()[0][0].shape == (1437, 8, 8)
print(cl.__file__)
"""


@pytest.mark.slow
def test_a_wheel_built_from_the_source_distribution_works_on_its_own(tmp_path):
    source = tmp_path / "source"
    copy_of_project(source)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path, cwd=source)
    shutil.rmtree(source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        tar.extractall(tmp_path, filter="data")
    assert not [name for name in names if name.endswith((".so", ".c"))]
    unpacked = tmp_path / names[0].split("/")[0]

    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    run(sys.executable, "-m", "pip", "wheel", *options, str(unpacked), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    contents = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < 2.1e6
    assert sum(info.file_size for info in zipfile.ZipFile(wheel).infolist()) < 4.6e6
    for needed in ("caffelite/py.typed", "caffelite/digits.npz", "caffelite/_kernels/__init__.pyi"):
        assert needed in contents
    assert not [name for name in contents if name.endswith((".c", ".pyx", ".pxd", ".pxi", ".h")) or "tests" in name]

    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    output = run(sys.executable, "-c", PROGRAM, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")})
    assert str(tmp_path / "site") in output
