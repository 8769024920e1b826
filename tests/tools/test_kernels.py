"""`kvtwin kernels`: what compiles, spills, or executes more instructions than in the record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fast.kernels.cuda import Kernel, cuda
from kvtwin import kernels
from kvtwin.kernels import ARCHITECTURES, ELEMENTS, compare, compile_for, find_kernels, link, main

SM_90 = ["--arch", "sm_90"]


def spilling() -> Callable[..., None]:
    """Return a kernel that needs 200 64-bit values at once, of 255 32-bit registers."""
    body = [f"    v{i} = x[{i}]" for i in range(200)]
    body += ["    cuda.syncthreads()"]
    body += [f"    x[{i}] = v{i} * v{(i * 7 + 1) % 200} + v{199 - i}" for i in range(200)]
    names: dict[str, Any] = {"cuda": cuda, "__name__": __name__}
    exec("def spilling(x):\n" + "\n".join(body), names)  # noqa: S102  # too long to write
    return names["spilling"]  # type: ignore[no-any-return]  # made by exec


def broken(x: Any) -> None:  # noqa: ANN401  # numba gives it its type
    x[0] = cuda.no_such_thing(1)


def test_no_kernel_is_worse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No kernel spills on any GPU, and on sm_90 none executes more than in the record."""
    pytest.importorskip("numba_cuda")
    assert {kernel.name for kernel in find_kernels()} == set(ELEMENTS)
    for kernel in find_kernels():
        for arch in ARCHITECTURES:
            assert 0 == link(compile_for(kernel, arch)[0], arch)[1], (kernel.name, arch)
    assert 0 == main(SM_90), capsys.readouterr().err
    record = json.loads(kernels.RECORD.read_text())
    record["sm_90"]["move_row"] /= 1.2
    monkeypatch.setattr(kernels, "RECORD", tmp_path / "kernels.json")
    kernels.RECORD.write_text(json.dumps(record))
    assert 1 == main(SM_90)
    assert "move_row for sm_90 executes 48.05 instructions for " in capsys.readouterr().err
    for name in ("spilling", "broken"):
        made = Kernel(spilling() if name == "spilling" else broken, "void(int64[::1])", 64)
        monkeypatch.setattr(kernels, "find_kernels", lambda made=made: [made])
        monkeypatch.setitem(ELEMENTS, name, 1)
        assert 1 == main(SM_90)
        printed = capsys.readouterr().err
        assert printed.startswith(f"{name} for sm_90")
        assert ("spills" in printed, "no_such_thing" in printed) == (
            name == "spilling",
            name == "broken",
        )


def test_what_is_not_recorded_is_named() -> None:
    assert [] == compare({"sm_80": {"f": 1.1}}, {"sm_80": {"f": 1.0}})
    [line, command] = compare({"sm_80": {"f": 1.0}}, {"sm_90": {"f": 1.0}})
    assert "f for sm_80 is not recorded" == line
    assert "kvtwin kernels --record" in command


@pytest.mark.parametrize("arguments", [["--arch", "90"], ["--arch", "sm_9"], [*SM_90, "--record"]])
def test_an_option_that_cannot_be_used(arguments: list[str], refusal: Callable[..., str]) -> None:
    assert refusal(main, arguments).startswith("kvtwin kernels: ")
