"""The C of the loops compiles for processors that this machine does not have, if it has their compilers."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from caffelite import _kernels as kernels

LOOPS = Path(kernels.__file__).parent / "loops"
ARM_COMPILERS = {
    program.resolve()
    for folder in os.environ["PATH"].split(os.pathsep)
    for program in Path(folder).glob("aarch64-linux-gnu-gcc*")
    if re.fullmatch(r"aarch64-linux-gnu-gcc(-\d+)?", program.name)
}


@pytest.mark.sources
def test_only_define_vector_gives_a_vector_its_alignment():
    """For ARM the macro does this in two steps, because gcc 14 to 16 crash on parameters of a type made in one."""
    types = [
        found for path in LOOPS.iterdir() for found in re.findall(r"typedef[^;]*;", path.read_text(encoding="utf-8"))
    ]
    vectors = [found for found in types if "vector_size" in found]
    assert len(vectors) > 5
    (found,) = [found for found in vectors if re.search(r"\baligned\(", found)]
    assert found.startswith("typedef element vector ")


@pytest.mark.sources
@pytest.mark.skipif(not ARM_COMPILERS, reason="there is no gcc for ARM64")
@pytest.mark.parametrize("compiler", sorted(ARM_COMPILERS), ids=lambda compiler: compiler.name)
def test_the_headers_of_the_loops_compile_for_arm(compiler, tmp_path):
    sources = [f"{header.stem}.c" for header in LOOPS.glob("*.h")]
    for name in sources:
        (tmp_path / name).write_text(f'#include "loops/{Path(name).stem}.h"\n')
    command = [compiler, "-c", "-Werror=implicit-function-declaration", f"-I{LOOPS.parent}", *sources]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.sources
@pytest.mark.skipif(not ARM_COMPILERS, reason="there is no gcc for ARM64")
@pytest.mark.parametrize("compiler", sorted(ARM_COMPILERS), ids=lambda compiler: compiler.name)
def test_a_part_of_a_vector_is_multiplied_and_added_up_at_once_on_arm(compiler, tmp_path):
    """Whole vectors are, so in another way the bits of a channel would depend on the number of channels."""
    calls = "sum_taps_float(taps); depthwise_line_float(line);"
    source = f"void f(const TapSums *taps, const DepthwiseLine *line) {{ {calls} }}"
    (tmp_path / "f.c").write_text(f'#include "loops/taps.h"\n#include "loops/depthwise.h"\n{source}\n')
    command = [compiler, "-S", "-w", "-O3", "-ffp-contract=fast", f"-I{LOOPS.parent}", "f.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assembly = (tmp_path / "f.s").read_text()
    assert re.search(r"\tfmla\tv", assembly)
    assert not re.search(r"\tfmul\tv", assembly)
