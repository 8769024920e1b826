"""`kvtwin kernels`: the resource usage of compiled kernels, compared with a record."""

import contextlib
import dataclasses
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from conformance.native import launch_natively, offline_compiler
from fast import numba_cuda
from fast.kernels.cuda import Kernel, cuda
from kvtwin.kernels import command_line, on_gpu, record, successor, usage
from kvtwin.kernels.standard_batches import STANDARD_BATCHES, count_instructions
from kvtwin.kernels.usage import ARCHITECTURES, Usage, find_kernels

needs_numba_cuda = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed"
)

SIGNATURE = "void(int64[::1])"


def double(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Double each element: a kernel without errors."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = 2 * x[i]


def reverse(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Reverse a block's elements through shared memory."""
    shared = cuda.shared.array(64, "int64")
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    x[i] = shared[63 - i]


def broken(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    """Call a function that `cuda` does not have."""
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
    monkeypatch.setattr(command_line, "find_kernels", lambda: found)
    return command_line.main(arguments)


@needs_numba_cuda
def test_no_figure_of_a_kernel_is_a_tenth_worse() -> None:
    """No figure is over a tenth worse than in the record of `kvtwin kernels --record`.

    Every kernel compiles for every architecture, and none spills. Their instructions are counted
    only for sm_90, which takes two seconds.
    """
    usages, failures = command_line.measure_all(find_kernels(), ARCHITECTURES, ["sm_90"])
    assert [] == failures
    assert not [usage for usage in usages if usage.has_spills]
    left_out = re.compile(r"for (?!sm_90:)sm_\d+: executed_per_element is not known")
    worse = [line for line in record.compare(usages, record.RECORD) if not left_out.search(line)]
    assert not worse, f"if this is meant, commit what `{record.COMMAND}` writes"


def make_usage(**figures: float | None) -> Usage:
    """Return the resource usage of a kernel."""
    numbers: dict[str, Any] = {**dict.fromkeys(record.FIGURES, 20), **figures}
    return Usage("double", "sm_90", **numbers)


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ([make_usage(registers=22, executed_per_element=1.5)], []),
        ([make_usage(registers=23)], ["double for sm_90: registers is 23, was 20"]),
        (
            [make_usage(executed_per_element=22.01)],
            ["double for sm_90: executed_per_element is 22.01, was 20"],
        ),
        (
            [make_usage(executed_per_element=None)],
            ["double for sm_90: executed_per_element is not known, was 20"],
        ),
        (
            [Usage("new", "sm_90", *[1] * 7)],
            [
                "new for sm_90 is not in kernels.json",
                "double for sm_90 is in kernels.json, but there is no such kernel",
            ],
        ),
    ],
)
def test_figures_are_compared_with_the_record(
    now: list[Usage], lines: list[str], tmp_path: Path
) -> None:
    """Figures over a tenth above the record, and missing figures and kernels, are reported."""
    path = tmp_path / "kernels.json"
    record.write([make_usage(), dataclasses.replace(make_usage(), arch="sm_80")], path)
    assert lines == list(record.compare(now, path))


def test_other_compilers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a figure is worse, other compiler versions are listed as a possible cause."""
    path = tmp_path / "kernels.json"
    record.write([make_usage()], path)
    monkeypatch.setattr(record, "version", lambda name: f"9 of {name}")
    worse, versions = record.compare([make_usage(registers=40)], path)
    assert "double for sm_90: registers is 40, was 20" == worse
    assert "numba-cuda': '9 of numba-cuda'" in versions


@needs_numba_cuda
def test_a_worse_figure_fails_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--record` writes what `--check` reads, which fails after a change for the worse."""
    monkeypatch.setattr(record, "RECORD", tmp_path / "kernels.json")
    options = ["--arch", "sm_90"]
    assert 0 == run(monkeypatch, [double], "--record", *options)
    assert 0 == run(monkeypatch, [double], "--check", *options)
    text = record.RECORD.read_text().replace('"ptx_instructions": ', '"ptx_instructions": -')
    record.RECORD.write_text(text)
    assert 1 == run(monkeypatch, [double], "--check", *options)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("double for sm_90: ptx_instructions is ")
    assert "if this is meant, commit what `kvtwin kernels --record` writes" == lines[-1]


@needs_numba_cuda
def test_every_kernel_is_in_a_standard_batch() -> None:
    """Every kernel is in a standard batch, and two runs count the same instructions."""
    in_batches = [name for batch in STANDARD_BATCHES for name in batch.elements]
    assert sorted(kernel.name for kernel in find_kernels()) == sorted(in_batches)
    assert count_instructions(["move_row"], "sm_90") == count_instructions(["move_row"], "sm_90")


@needs_numba_cuda
def test_json_says_what_each_kernel_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints the kernels' resource usage for the requested architectures."""
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
    assert re.search(r"^broken for sm_90: ", printed.err, re.MULTILINE)
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
        usage.link("this is no PTX", "sm_90")


@needs_numba_cuda
def test_numba_is_left_as_it_was() -> None:
    """`pretended_gpu` restores numba's functions, also after an error."""

    def functions() -> list[Any]:
        return [
            vars(module).get("get_current_device")
            for name, module in sorted(sys.modules.items())
            if name.startswith("numba.cuda")
        ]

    numba_cuda.import_cuda()
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
    """A figure that is missing in the linker's log is an error, not zero."""
    kernel = Kernel(double, SIGNATURE, 64)
    monkeypatch.setattr(offline_compiler, "pretended_gpu", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(numba_cuda, "compile_ptx", lambda *_, **__: ("", "double"))
    monkeypatch.setattr(usage, "link", lambda *_: "used 8 registers")
    with pytest.raises(RuntimeError, match=r"log has nothing like .*spill stores"):
        usage.measure(kernel, "sm_90")


def test_no_kernels_at_all_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Having nothing to compile is a failure."""
    monkeypatch.setattr(command_line, "check_toolchain", lambda: None)
    monkeypatch.setattr(command_line, "why_no_linker", lambda: "")
    assert 1 == run(monkeypatch, [])
    assert "fast.kernels has no kernels\n" == capsys.readouterr().err


def lack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a missing package that compiles or links kernels."""

    def import_cuda() -> None:
        raise ImportError(numba_cuda.INSTALL)

    if name == "numba-cuda":
        monkeypatch.setattr(numba_cuda, "import_cuda", import_cuda)
    for each in ("nvvm", "nvjitlink"):
        working = type("Library", (), {"version": staticmethod(lambda: (13, 0))})
        monkeypatch.setitem(sys.modules, f"cuda.bindings.{each}", None if each == name else working)


@pytest.mark.parametrize("name", ["numba-cuda", pytest.param("nvvm", marks=needs_numba_cuda)])
def test_without_a_package_the_tool_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The exit status is 2 if numba-cuda, or a library of the toolkit, is not installed."""
    if name != "numba-cuda":
        numba_cuda.import_cuda()  # it imports the library too
    lack(name, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        command_line.main([])
    assert 2 == ended.value.code
    assert f"kernels need {name}: pip install -e '.[cuda]'" in capsys.readouterr().err


@needs_numba_cuda
def test_without_a_linker_the_rest_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a linker its figures are shown as dashes, and `--record` fails."""
    lack("nvjitlink", monkeypatch)
    assert 0 == run(monkeypatch, [double], "--arch", "sm_90")
    printed = capsys.readouterr()
    assert re.search(r"double +sm_90 +- +-/- +- +- +\d+ +- *\n", printed.out)
    assert printed.err.startswith("registers, spills, shared memory and stack are not known: ")
    monkeypatch.setattr(record, "write", lambda *_: pytest.fail("it was written"))
    assert 1 == run(monkeypatch, [double], "--arch", "sm_90", "--record")


@pytest.mark.parametrize("arch", ["90", "sm_9", "sm_90a", "compute_90"])
def test_what_is_no_architecture_is_refused(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line checks the names of architectures."""
    with pytest.raises(SystemExit, match="2"):
        command_line.main(["--arch", arch])
    assert f"{arch} is not an architecture such as sm_90" in capsys.readouterr().err


def test_without_a_gpu_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--gpu` without a GPU prints an error, and ends with status 2."""
    monkeypatch.setattr(command_line, "check_toolchain", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert 2 == command_line.main(["--gpu"])
    assert capsys.readouterr().err.startswith("there is no GPU to compare with")


@needs_numba_cuda
def test_a_result_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, the argument and the element are reported; the native runner acts as the GPU."""
    monkeypatch.setattr(on_gpu, "NUM_RUNS", 2)
    rows = [batch for batch in STANDARD_BATCHES if "fill_programs" in batch.elements]
    monkeypatch.setattr(on_gpu, "STANDARD_BATCHES", rows)
    is_wrong = False

    def launch(kernel: Kernel, grid: tuple[int, int], threads: int, args: Any) -> float:  # noqa: ANN401  # tensors and ints
        launch_natively(kernel, grid, threads, args, has_shadow=False)
        args[3][5] += is_wrong
        return 4.0

    [same] = on_gpu.compare("cpu", launch, "sm_90")
    assert ("", 4.0) == (same.differing, same.time_us)
    counts = count_instructions(["fill_programs"], "sm_90")
    assert counts == {"fill_programs": same.executed_per_element}
    is_wrong = True
    [other] = on_gpu.compare("cpu", launch, "sm_90")
    assert "batch_ptr[5] is 1, natively 0" == other.differing
    table = Console(width=100).render_lines(on_gpu.make_table([same, other], "H100"))
    text = ["".join(segment.text for segment in line) for line in table]
    assert [["fill_programs", "equal"], ["fill_programs", "differ"]] == [
        line.split()[:2] for line in text if "fill_programs" in line
    ]


def test_without_the_successor_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--successor` without its package prints an error, and ends with status 2."""
    monkeypatch.setattr(command_line, "check_toolchain", lambda: None)
    monkeypatch.setitem(sys.modules, "numba_cuda_mlir", None)
    assert 2 == command_line.main(["--successor"])
    assert capsys.readouterr().err.startswith("needs numba-cuda-mlir[cu13], which is not installed")


def test_the_successor_takes_arrays_as_memrefs() -> None:
    """An array becomes its address twice, an offset, the shape and the strides in items."""
    matrix = torch.zeros((3, 4), dtype=torch.int32)
    at = matrix.data_ptr()
    assert [at, at, 0, 3, 4, 4, 1, 7] == successor.Successor().flatten((matrix, 7))
