"""PTX as machine code of this CPU: what instructions compute, and what is refused.

The arithmetic of kernels is what `pytest conformance --target native` compares.
"""

from __future__ import annotations

import functools
import re

import pytest
import torch

from conformance.native import UnknownPtxError, launch, launch_natively
from fast.kernels.cuda import Kernel

WORDS_OF_ARRAY = 7

TEMPLATE = """
.version 9.0
.target sm_90
.address_size 64
.visible .shared .align 8 .b8 shared[64];
.visible .entry k(
{parameters}
)
{{
	.reg .pred %p<9>;
	.reg .b16 %rs<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd0, [k_param_4];
	cvta.to.global.u64 %rd0, %rd0;
	ld.global.u64 %rd1, [%rd0];
	ld.global.u64 %rd2, [%rd0+8];
	ld.global.u64 %rd3, [%rd0+16];
	cvt.u32.u64 %r1, %rd1;
	cvt.u32.u64 %r2, %rd2;
	cvt.u32.u64 %r3, %rd3;
	cvt.u16.u64 %rs1, %rd1;
	cvt.u16.u64 %rs2, %rd2;
	mov.u64 %rd4, 0;
{body}
	st.global.u64 [%rd0+24], %rd4;
	ret;
}}
"""
PARAMETERS = ",\n".join(f"\t.param .u64 k_param_{number}" for number in range(WORDS_OF_ARRAY))


def signed(value: int, bits: int = 64) -> int:
    """Return the lower bits of a number, as one with a sign."""
    value &= 2**bits - 1
    return value - (value >> bits - 1 << bits)


def run(body: str, a: int, b: int, c: int = 0, *, threads: int = 1) -> int:
    """Run PTX that computes `%rd4` of `%rd1` to `%rd3`, whose lower bits `%r1` and `%rs1` hold."""
    x = torch.tensor([signed(a), signed(b), signed(c), 0])
    launch_natively(make_kernel(body), (1, 1), threads, (x,), has_shadow=threads == 1)
    return int(x[3])


@functools.cache
def make_kernel(body: str, parameters: str = PARAMETERS) -> Kernel:
    def k(x: object) -> None:
        """Only its name is used."""

    kernel = Kernel(k, "void(int64[::1])", 32)
    ptx = TEMPLATE.format(parameters=parameters, body=body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "compile_offline", lambda *_, **__: (ptx, "k"))
        launch.compile_native(kernel)
    return kernel


@pytest.mark.parametrize(
    ("body", "numbers", "expected"),
    [
        ("shr.s64 %rd4, %rd1, %r2;", (-8, 1), -4),
        ("shr.u64 %rd4, %rd1, %r2;", (-8, 63), 1),
        ("shl.b64 %rd4, %rd1, %r2;", (1, 64), 0),
        ("div.s64 %rd4, %rd1, %rd2;", (-7, 2), -3),
        ("rem.s64 %rd4, %rd1, %rd2;", (-7, 2), -1),
        ("div.u64 %rd4, %rd1, %rd2;", (-1, 2), 2**63 - 1),
        ("mul.hi.s64 %rd4, %rd1, %rd2;", (2**62, -8), -2),
        ("mul.hi.u64 %rd4, %rd1, %rd2;", (-1, 2), 1),
        ("min.s64 %rd4, %rd1, %rd2;", (-1, 1), -1),
        ("min.u64 %rd4, %rd1, %rd2;", (-1, 1), 1),
        ("mul.wide.s32 %rd4, %r1, %r2;", (-3, 2**31 - 1), -3 * (2**31 - 1)),
        ("mul.wide.u32 %rd4, %r1, %r2;", (2**32 - 1, 2**31), (2**32 - 1) * 2**31),
        ("mad.lo.s64 %rd4, %rd1, %rd2, %rd3;", (2**40, 2**40, 5), 5),
        ("mad.wide.u32 %rd4, %r1, %r2, %rd3;", (2**31, 4, 2**40), 2**33 + 2**40),
        ("cvt.s64.s32 %rd4, %r1;", (2**31,), -(2**31)),
        ("cvt.u64.u32 %rd4, %r1;", (2**31,), 2**31),
        ("cvt.s64.s16 %rd4, %rs1;", (2**15,), -(2**15)),
        ("neg.s64 %rd4, %rd1;", (-(2**63),), -(2**63)),
        ("not.b64 %rd4, %rd1;", (5,), -6),
        ("abs.s64 %rd4, %rd1;", (-5,), 5),
        ("popc.b64 %r4, %rd1;\n cvt.u64.u32 %rd4, %r4;", (-1,), 64),
        ("mov.u64 %rd4, 0xFFFFFFFFFFFFFFFF;", (), -1),
        ("mov.b64 {%r4, %r5}, %rd1;\n cvt.u64.u32 %rd4, %r5;", (7 << 32 | 9,), 7),
        ("mov.b64 %rd4, {%r2, %r1};", (7, 9), 7 << 32 | 9),
        ("setp.lt.s64 %p1, %rd1, %rd2;\n selp.u64 %rd4, 1, 2, %p1;", (-1, 1), 1),
        ("setp.lt.u64 %p1, %rd1, %rd2;\n selp.u64 %rd4, 1, 2, %p1;", (-1, 1), 2),
        ("setp.ne.s16 %p1, %rs1, 0;\n@%p1 mov.u64 %rd4, 5;", (2**16,), 0),
        ("setp.ne.s16 %p1, %rs1, 0;\n@!%p1 mov.u64 %rd4, 5;", (2**16,), 5),
        ("shf.l.wrap.b32 %r4, %r1, %r2, 8;\n cvt.u64.u32 %rd4, %r4;", (0xAB000000, 1), 0x1AB),
        ("@%p1 bra L1;\n mov.u64 %rd4, 3;\nL1:", (), 3),
        ("bra.uni L2;\n mov.u64 %rd4, 3;\nL2:", (), 0),
        ("{\n .reg .b64 %rd1;\n mov.u64 %rd1, 4;\n}\n mov.u64 %rd4, %rd1;", (7,), 7),
        ("atom.global.add.u64 %rd5, [%rd0], 5;\n ld.global.u64 %rd4, [%rd0];", (4,), 9),
        ("atom.global.exch.b64 %rd4, [%rd0], 5;", (4,), 4),
        ("atom.global.cas.b64 %rd5, [%rd0], 4, 6;\n ld.global.u64 %rd4, [%rd0];", (4,), 6),
        ("atom.global.cas.b64 %rd5, [%rd0], 5, 6;\n ld.global.u64 %rd4, [%rd0];", (4,), 4),
        ("atom.global.min.s64 %rd5, [%rd0], -6;\n ld.global.u64 %rd4, [%rd0];", (4,), -6),
        ("red.global.max.u64 [%rd0], 6;\n ld.global.u64 %rd4, [%rd0];", (-4,), -4),
        ("ld.global.s8 %rd4, [%rd0];", (0x80,), -128),
        ("ld.global.u8 %rs4, [%rd0];\n cvt.u64.u16 %rd4, %rs4;", (0x180,), 0x80),
        ("ld.global.v2.u32 {%r4, %r5}, [%rd0];\n cvt.u64.u32 %rd4, %r5;", (7 << 32,), 7),
        ("st.shared.u64 [shared+8], %rd1;\n ld.shared.u64 %rd4, [shared+8];", (7,), 7),
        (
            (
                "mov.u64 %rd5, shared;\n cvta.shared.u64 %rd6, %rd5;\n st.u64 [%rd6+8], %rd1;\n"
                "ld.shared.u64 %rd4, [%rd5+8];"
            ),
            (7,),
            7,
        ),
    ],
)
def test_instructions(body: str, numbers: tuple[int, ...], expected: int) -> None:
    assert expected == run(body, *(*numbers, 0, 0)[:3])


@pytest.mark.parametrize(("vote", "expected"), [("popc.u32", 5), ("and", 0), ("or", 1)])
def test_votes(vote: str, expected: int) -> None:
    target, last = ("%r4", "") if vote == "popc.u32" else ("%p2", ".pred")
    convert = "" if target == "%r4" else "selp.u32 %r4, 1, 0, %p2;"
    body = f"""
        mov.u32 %r5, %tid.x;
        setp.lt.u32 %p1, %r5, 5;
        bar.red.{vote}{last} {target}, 0, %p1;
        {convert}
        cvt.u64.u32 %rd4, %r4;"""
    assert expected == run(body, 0, 0, threads=64)


@pytest.mark.parametrize(
    "text",
    [
        "add.sat.s32 %r1, %r1, %r2;",
        "add.cc.u32 %r1, %r1, %r2;",
        "mul24.lo.u32 %r1, %r1, %r2;",
        "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
        "cvt.sat.u16.u32 %rs1, %r1;",
        "shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;",
        "vote.sync.ballot.b32 %r1, %p1, -1;",
        "bar.sync 1;",
        "bar.sync 0, 64;",
        "bar.warp.sync -1;",
        "mov.u32 %r1, %clock;",
        "mov.u32 %r1, %rs1;",
        "ld.const.u32 %r1, [%rd0];",
        "atom.global.add.f32 %r1, [%rd0], %r2;",
        "call.uni f;",
        "add.f64 %rd1, %rd1, 0d3FF0000000000000;",
        "bra nowhere;",
        "brx.idx %r1, table;",
        ".reg .f64 %fd<2>;",
        ".reg .b128 %q<2>;",
        "what is this",
    ],
)
def test_what_is_not_translated_is_refused_by_name(text: str) -> None:
    opcode = text.split(maxsplit=1)[0].removeprefix(".reg")
    with pytest.raises(UnknownPtxError, match=f"^kernel k: PTX line [0-9]+: .*{opcode}"):
        run(text, 1, 2)


def test_other_parameters_are_refused() -> None:
    with pytest.raises(UnknownPtxError, match=r"PTX line \d+: .param .u32 k_param_0,"):
        make_kernel("", PARAMETERS.replace("u64 k_param_0", "u32 k_param_0"))


@pytest.mark.parametrize(
    ("body", "number", "executed"),
    [
        ("", 0, 0),
        ("mov.u64 %rd4, 3;\n mov.u64 %rd4, 4;", 0, 2),
        ("@%p1 mov.u64 %rd4, 3;", 0, 1),
        ("bra.uni L2;\n mov.u64 %rd4, 3;\nL2:", 0, 1),
        ("mov.u64 %rd4, 3;\n bar.sync 0;\n mov.u64 %rd4, 4;", 0, 3),
        ("L1:\n add.s64 %rd4, %rd4, 1;\n setp.lt.s64 %p1, %rd4, %rd1;\n@%p1 bra L1;", 7, 21),
        ("setp.eq.s64 %p1, %rd1, 7;\n@%p1 ret;\n mov.u64 %rd4, 4;", 7, 0),
        ("setp.eq.s64 %p1, %rd1, 7;\n@%p1 ret;\n mov.u64 %rd4, 4;", 8, 3),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_instructions_are_counted(body: str, number: int, executed: int, threads: int) -> None:
    around = len(re.findall(r"^\t[a-z].*;$", TEMPLATE, re.MULTILINE))
    x = torch.tensor([number, 0, 0, 0])
    counted = launch_natively(make_kernel(body), (2, 1), threads, (x,), has_shadow=False)
    # A thread that returns early skips the following `st` and `ret`.
    assert 2 * threads * (around + executed) == counted
