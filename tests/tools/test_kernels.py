import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from conformance.native import offline_compiler
from fast.kernels import cuda as kernels_cuda
from fast.kernels.cuda import Kernel, cuda
from kvtwin import kernels

needs_numba_cuda = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed"
)

SIGNATURE = "void(int64[::1])"


def double(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Double each element: a kernel in which nothing is wrong."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = 2 * x[i]


def reverse(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Turn a block's elements around, by way of shared memory."""
    shared = cuda.shared.array(64, "int64")
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    x[i] = shared[63 - i]


def broken(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Use what compiled kernels do not have."""
    x[0] = cuda.no_such_thing(1)


def spilling() -> Callable[..., None]:
    """Return a kernel that needs 200 64-bit values at once, of 255 32-bit registers."""
    body = [f"    v{i} = x[{i}]" for i in range(200)]
    body += ["    cuda.syncthreads()"]
    body += [f"    x[{i}] = v{i} * v{(i * 7 + 1) % 200} + v{199 - i}" for i in range(200)]
    names: dict[str, Any] = {"cuda": cuda, "__name__": __name__}
    exec("def spilling(x):\n" + "\n".join(body), names)  # noqa: S102  # too long to write
    return names["spilling"]  # type: ignore[no-any-return]  # made by exec


def run(
    monkeypatch: pytest.MonkeyPatch, functions: list[Callable[..., None]], *arguments: str
) -> int:
    """Run the tool on these kernels in place of those of `fast`."""
    found = [Kernel(function, SIGNATURE, 64) for function in functions]
    monkeypatch.setattr(kernels, "find_kernels", lambda: found)
    return kernels.main(arguments)


@needs_numba_cuda
def test_every_kernel_of_fast_compiles_everywhere_without_spills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table has each kernel and architecture, and no kernel spills."""
    assert 0 == kernels.main([])
    printed = capsys.readouterr()
    assert "" == printed.err
    rows = re.findall(
        r"^ *(\w+) +(sm_\d+) +(\d+) +(\d+/\d+) +\d+ +\d+ +(\d+)", printed.out, re.MULTILINE
    )
    names = [kernel.name for kernel in kernels.find_kernels()]
    assert names
    assert [(name, arch) for name in names for arch in kernels.ARCHITECTURES] == [
        row[:2] for row in rows
    ]
    for _, _, registers, spills, instructions in rows:
        assert (True, "0/0", True) == (0 < int(registers) <= 255, spills, int(instructions) > 5)


@needs_numba_cuda
def test_json_says_what_each_kernel_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints what kernels take, shared memory too, for the requested architectures."""
    assert 0 == run(monkeypatch, [double, reverse], "--json", "--arch", "sm_80")
    report = json.loads(capsys.readouterr().out)
    assert [] == report["failures"]
    assert [("double", "sm_80", 0), ("reverse", "sm_80", 64 * 8)] == [
        (each["kernel"], each["arch"], each["shared_bytes"]) for each in report["kernels"]
    ]


@needs_numba_cuda
def test_a_spill_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel with too few registers is reported among others, with how much it spills."""
    assert 1 == run(monkeypatch, [double, spilling()], "--arch", "sm_80")
    printed = capsys.readouterr()
    message = r"^spilling for sm_80 spills: it stores [1-9]\d* bytes and loads [1-9]\d*\n$"
    assert re.search(message, printed.err)
    assert re.search(r"double +sm_80 +\d+ +0/0", printed.out)
    assert re.search(r"spilling +sm_80 +255 +[1-9]\d*/[1-9]\d*", printed.out)


@needs_numba_cuda
def test_a_kernel_that_does_not_compile_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are compiled all the same, and the compiler's error is printed."""
    assert 1 == run(monkeypatch, [broken, double], "--arch", "sm_90", "--json")
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [("broken", "sm_90")] == [(each["kernel"], each["arch"]) for each in report["failures"]]
    assert ["double"] == [each["kernel"] for each in report["kernels"]]
    assert printed.err.startswith("broken for sm_90: ")
    assert "no_such_thing" in printed.err


@needs_numba_cuda
def test_an_architecture_that_the_compiler_lacks_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An architecture that does not exist fails."""
    assert 1 == run(monkeypatch, [double], "--arch", "sm_999")
    assert "double for sm_999: " in capsys.readouterr().err


@needs_numba_cuda
def test_text_that_is_no_ptx_cannot_be_linked() -> None:
    """The linker's error reaches the user."""
    with pytest.raises(RuntimeError, match=r"^cannot be linked: .*PTX"):
        kernels.link("this is no PTX", "sm_90")


@needs_numba_cuda
def test_numba_is_left_as_it_was() -> None:
    """The pretended GPU is gone afterwards, also after an error."""

    def functions() -> list[Any]:
        return [
            vars(module).get("get_current_device")
            for name, module in sorted(sys.modules.items())
            if name.startswith("numba.cuda")
        ]

    kernels_cuda.import_cuda()
    before = functions()
    with offline_compiler.pretended_gpu((9, 0)):
        assert before != functions()
    assert before == functions()

    def fail() -> None:
        with offline_compiler.pretended_gpu((9, 0)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert before == functions()


def test_a_log_without_a_figure_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linker with another output fails; a missing figure is not zero."""
    kernel = Kernel(double, SIGNATURE, 64)
    monkeypatch.setattr(offline_compiler, "pretended_gpu", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Kernel, "compile_ptx", lambda *_, **__: ("", "double"))
    monkeypatch.setattr(kernels, "link", lambda *_: "used 8 registers")
    with pytest.raises(RuntimeError, match=r"log has nothing like .*spill stores"):
        kernels.measure(kernel, "sm_90")


def test_no_kernels_at_all_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Having nothing to compile is a failure."""
    monkeypatch.setattr(kernels, "check_toolchain", lambda: None)
    assert 1 == run(monkeypatch, [])
    assert "fast.kernels has no kernels\n" == capsys.readouterr().err


@pytest.mark.parametrize("name", ["numba-cuda", "nvvm", "nvjitlink"])
def test_without_a_package_the_tool_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The exit status is 2 where numba-cuda, or a library of the toolkit, is not installed."""

    def import_cuda() -> None:
        if name == "numba-cuda":
            raise ImportError(kernels_cuda.INSTALL)

    monkeypatch.setattr(kernels, "import_cuda", import_cuda)
    for each in ("nvvm", "nvjitlink"):
        working = type("Library", (), {"version": staticmethod(lambda: (13, 0))})
        monkeypatch.setitem(sys.modules, f"cuda.bindings.{each}", None if each == name else working)
    assert 2 == kernels.main([])
    assert f"kernels need {name}: pip install kvtwin[cuda]" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["90", "sm_9", "sm_90a", "compute_90"])
def test_what_is_no_architecture_is_refused(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line checks the names of architectures."""
    with pytest.raises(SystemExit, match="2"):
        kernels.main(["--arch", arch])
    assert f"{arch} is not an architecture such as sm_90" in capsys.readouterr().err
