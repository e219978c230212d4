"""Machine code: every instruction that a kernel runs is listed, and what is said of it is so."""

import platform
import re
import shutil

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite.visualize.machine_code import _parse_instruction, _parse_listing, _read_jump_table
from caffelite.visualize.x86_glossary import meaning
from tests.conftest import posix

ON_X86 = platform.machine() in ("x86_64", "AMD64")
needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no disassembler")
needs_x86 = pytest.mark.skipif(not ON_X86, reason="the instructions of x86-64")


def names(code):
    return [instruction.name for instruction in code.instructions]


@needs_objdump
@needs_x86
@pytest.mark.parametrize("isa", kernels.available_instruction_sets())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_loop_of_sgd_multiplies_and_adds_in_the_widest_registers_and_returns(isa, dtype):
    code = cl.machine_code("sgd", isa, dtype)
    assert "ret" in names(code)
    register = {"x86-64-v2": "xmm", "x86-64-v3": "ymm", "x86-64-v4": "zmm"}[isa]
    kind, what = ("ps", "floats") if dtype == np.float32 else ("pd", "doubles")
    lanes = {"xmm": 16, "ymm": 32, "zmm": 64}[register] // np.dtype(dtype).itemsize
    product = "mul" if isa == "x86-64-v2" else r"vfn?madd\d{3}"  # which operand is overwritten is up to the compiler
    products = re.compile(f"{product}{kind} {register}", re.MULTILINE)
    listed = [(loop, len(products.findall("\n".join(line.text for line in loop.instructions)))) for loop in code.loops]
    loop, count = next((loop, count) for loop, count in listed if count)
    assert loop.instructions[-1].target == loop.instructions[0].address  # back to the top
    assert len(loop.instructions) < 8 * count  # a few instructions beside each product, in one round or in several
    assert any(f"{lanes} {what} at [" in instruction.meaning for instruction in loop.instructions)
    assert all(instruction.meaning for instruction in loop.instructions)


@needs_objdump
@needs_x86
def test_the_listing_is_what_runs_from_the_kernels_address_on():
    module = __import__(kernels._module(kernels.ISA), fromlist=["PUBLISHED"])
    code = cl.machine_code("adam")
    addresses = [instruction.address for instruction in code.instructions]
    assert len(set(addresses)) == len(addresses)
    own = [address for address in addresses if address >= addresses[0]]
    assert own == sorted(own) == addresses[: len(own)]
    assert (module.PUBLISHED["adam"][0] - addresses[0]) % 4096 == 0  # modules begin at pages
    for instruction in code.instructions:  # the target of its jump is listed, too
        assert instruction.target is None or instruction.target in addresses
    assert not {"(bad)", ".byte"} & set(names(code))


@needs_objdump
@pytest.mark.parametrize("kernel", ["layer_norm", "relu", "softmax_loss", "check_labels", "convert"])
def test_any_kernel_is_listed_with_a_line_for_each_instruction(kernel):
    code = cl.machine_code(kernel)
    assert len(code.splitlines()) == 2 + len(code.instructions)
    assert "ret" in names(code)
    assert code._repr_html_().count("<tr>") == 1 + len(code.instructions)
    assert not {"(bad)", ".byte"} & set(names(code))
    if ON_X86:
        assert np.mean([bool(instruction.meaning) for instruction in code.instructions]) > 0.9


@needs_objdump
def test_a_fused_kernel_has_the_loops_of_the_one_that_it_is_fused_into():
    model = cl.MLP(2, [3, 3], seed=0)
    listed = str(cl.capture(model, np.ones((4, 2), np.float32))).splitlines()[2].split()[0]
    assert listed == "matmul_relu"
    assert cl.machine_code(listed).kernel == "matmul"


@needs_objdump
def test_innermost_loops_do_not_contain_each_other_and_those_in_vectors_come_first():
    loops = cl.machine_code("sgd").loops
    spans = [(loop.instructions[0].address, loop.instructions[-1].address) for loop in loops]
    assert len(loops) > 1
    assert not any(a != b and a[0] <= b[0] and b[1] <= a[1] for a in spans for b in spans)
    if ON_X86:
        in_vectors = [any(re.search("(mul|add|sub).*p[sd]$", name) for name in names(loop)) for loop in loops]
        assert in_vectors == sorted(in_vectors, reverse=True)


@needs_x86
@pytest.mark.parametrize(
    ("line", "text", "means"),
    [
        ("vfmadd213ps zmm0,zmm4,ZMMWORD PTR [r9+rax*1]", "vfmadd213ps zmm0, zmm4, [r9 + rax]",
         "zmm0 ← zmm4 · zmm0 + 16 floats at [r9 + rax]"),
        ("vfmadd132sd xmm0,xmm1,QWORD PTR [rsi-0x8]", "vfmadd132sd xmm0, xmm1, [rsi - 8]",
         "xmm0 ← xmm0 · the double at [rsi - 8] + xmm1"),
        ("vfnmadd231ps ymm0,ymm1,ymm2", "vfnmadd231ps ymm0, ymm1, ymm2", "ymm0 ← ymm0 − ymm1 · ymm2"),
        ("vfmsub213ps ymm0,ymm1,ymm2", "vfmsub213ps ymm0, ymm1, ymm2", "ymm0 ← ymm1 · ymm0 − ymm2"),
        ("mulps  xmm0,xmm5", "mulps xmm0, xmm5", "xmm0 ← xmm0 · xmm5"),
        ("vsubpd ymm1,ymm2,YMMWORD PTR [rdi]", "vsubpd ymm1, ymm2, [rdi]", "ymm1 ← ymm2 − 4 doubles at [rdi]"),
        ("vmaxps zmm1{k1}{z},zmm2,zmm3", "vmaxps zmm1{k1}{z}, zmm2, zmm3",
         "zmm1 ← the larger of zmm2 and zmm3, where k1 has a 1, and 0 elsewhere"),
        ("vmovups YMMWORD PTR [r8+rax*4+0x20],ymm0", "vmovups [r8 + rax*4 + 32], ymm0",
         "8 floats at [r8 + rax*4 + 32] ← ymm0"),
        ("vmovdqu64 zmm0,ZMMWORD PTR [rsi]", "vmovdqu64 zmm0, [rsi]", "zmm0 ← 64 bytes at [rsi]"),
        ("vxorps xmm1,xmm1,xmm1", "vxorps xmm1, xmm1, xmm1", "xmm1 ← 0"),
        ("vandps ymm1,ymm2,ymm3", "vandps ymm1, ymm2, ymm3", "ymm1 ← the bits of ymm2 and ymm3"),
        ("vcmpltps k1,zmm0,zmm1", "vcmpltps k1, zmm0, zmm1", "k1 ← where zmm0 < zmm1"),
        ("vcmpnleps k1,zmm0,zmm1", "vcmpnleps k1, zmm0, zmm1", "k1 ← where not zmm0 ≤ zmm1"),
        ("cvtsd2ss xmm3,xmm3", "cvtsd2ss xmm3, xmm3", "xmm3 ← xmm3, from a double to a float"),
        ("vbroadcastss zmm7,xmm1", "vbroadcastss zmm7, xmm1", "each of zmm7 ← xmm1"),
        ("lea    rsi,[rdx*4+0x0]", "lea rsi, [rdx*4]", "rsi ← rdx · 4"),
        ("and    rsp,0xffffffffffffffc0", "and rsp, -64", "rsp ← rsp and -64"),
        ("shl    r13,0x6", "shl r13, 6", "r13 ← r13 · 64"),
        ("test   rax,rax", "test rax, rax", "is rax 0?"),
        ("jne    df8e8 <PyInit_loops@@Base+0xdc6e3>", "jne df8e8", "if not equal, go on at df8e8"),
        ("call   3030 <expf@plt>", "call expf", "call expf"),
        ("seta   r14b", "seta r14b", "r14b ← 1 if above, else 0"),
        ("nop    DWORD PTR [rax+0x0]", "nop [rax]", "nothing: it fills up to the next address"),
        ("ret", "ret", "return to the caller"),
        ("aesenc xmm0,xmm1", "aesenc xmm0, xmm1", ""),
    ],
)  # fmt: skip
def test_an_instruction_is_written_in_base_10_and_its_meaning_in_words(line, text, means):
    found = _parse_instruction(0, line, 0)
    assert (found.text, found.meaning) == (text, means)


def test_a_constant_is_read_at_its_address():
    number = np.array([0.5], np.float32)
    line = "vmulss xmm0,xmm1,DWORD PTR [rip+0x10]        # 20 <x>"
    found = _parse_instruction(0, line, number.ctypes.data - 0x20)
    assert found.meaning == "xmm0 ← xmm1 · the constant 0.5"


def test_the_jumps_of_other_processors_are_followed():
    assert _parse_instruction(0, "b.ne\t7d0 <x>", 0).target == 0x7D0
    assert _parse_instruction(0, "cbnz\tx0, 7d0 <x>", 0).target == 0x7D0
    assert _parse_instruction(0, "bl\t7d0 <expf@plt>", 0).text == "bl expf"
    assert _parse_instruction(0, "fmla\tv0.4s, v1.4s, v2.4s", 0).target is None


def test_a_jump_is_followed_where_the_nearest_symbol_is_a_function_of_another_library():
    assert _parse_instruction(0, "je 6f1e0 <__cxa_finalize@plt+0x6ccb0>", 0).target == 0x6F1E0
    assert _parse_instruction(0, "call 25f0 <expf@plt>", 0).text == "call expf"


def test_an_instruction_that_the_end_of_a_part_cuts_off_is_left_out():
    listing = "x:\n   10:\tpush   rbp\n   11:\tmov    rbp,rsp\n   14:\t.byte 0x62\n   15:\t(bad)\n"
    assert _parse_listing(listing, limit=0x14) == {0x10: ("push   rbp", 0x11), 0x11: ("mov    rbp,rsp", 0x14)}


def test_a_jump_to_an_address_from_a_table_is_followed_to_all_cases():
    table = np.array([16, -32, 48], np.int32)
    lines = [
        "cmp    eax,0x2",
        "ja     36f8 <x>",
        "lea    rdx,[rip+0xbab17]        # 40 <x>",
        "movsxd rax,DWORD PTR [rdx+rax*4]",
        "add    rax,rdx",
    ]
    base = table.ctypes.data - 0x40
    assert _read_jump_table(lines, base) == [0x50, 0x20, 0x70]
    assert (
        _read_jump_table(lines[1:], base)
        == _read_jump_table(lines[:2], base)
        == _read_jump_table([*lines[:3], lines[4]], base)
        == []
    )


def test_the_meaning_of_what_is_not_common_is_left_open():
    assert meaning("vgf2p8affineqb", ["zmm0", "zmm1", "zmm2", "3"]) == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("sdg",), ValueError, r"machine_code: there is no kernel 'sdg'; did you mean 'sgd'\?"),
        (("#",), ValueError, "there is no kernel '#'; a Program's listing has names"),
        ((3,), TypeError, "takes the name of a kernel, such as 'sgd', got 3"),
        (("sgd", "avx"), ValueError, "the instruction set is 'avx'; here there is "),
        (("sgd", None, np.int64), TypeError, "expected dtype float32 or float64, got int64"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        cl.machine_code(*arguments)


def test_without_a_disassembler_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="needs the disassembler objdump, and there is none on the PATH: install"):
        cl.machine_code("sgd")


@posix
def test_complaints_of_objdump_are_passed_on(monkeypatch, tmp_path):
    false = tmp_path / "objdump"
    false.write_text("#!/bin/sh\necho no such format >&2\nexit 1\n")
    false.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RuntimeError, match="objdump failed: no such format"):
        cl.machine_code("sgd")
