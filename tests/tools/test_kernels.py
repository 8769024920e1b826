"""`kvtwin kernels`: what compiles, spills, or executes more instructions than in the record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fast.kernels.cuda import Kernel, cuda
from kvtwin import kernels
from kvtwin.kernels import ELEMENTS, find_kernels, main

SM_90 = ["--arch", "sm_90"]


def spilling() -> Callable[..., None]:
    """Return a kernel that needs 200 64-bit values at once, of 255 32-bit registers."""
    body = [f"    v{i} = x[{i}]" for i in range(200)]
    body += ["    cuda.syncthreads()"]
    body += [f"    x[{i}] = v{i} * v{(i * 7 + 1) % 200} + v{199 - i}" for i in range(200)]
    names: dict[str, Any] = {"cuda": cuda, "__name__": __name__}
    exec("def spilling(x):\n" + "\n".join(body), names)  # noqa: S102  # too long to write
    return names["spilling"]  # type: ignore[no-any-return]  # made by exec


def broken(x: Any) -> None:
    x[0] = cuda.no_such_thing(1)


def test_a_kernel_that_is_worse_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("numba_cuda")
    assert {kernel.name for kernel in find_kernels()} == set(ELEMENTS)
    assert 0 == main(SM_90), capsys.readouterr().err
    record = json.loads(kernels.RECORD.read_text())
    record["sm_90"]["apply_staged_writes"] /= 1.2
    del record["sm_90"]["expand_idx_mapping"]
    monkeypatch.setattr(kernels, "RECORD", tmp_path / "kernels.json")
    kernels.RECORD.write_text(json.dumps(record))
    assert 1 == main(SM_90)
    printed = capsys.readouterr().err
    assert "apply_staged_writes for sm_90 executes 58.01 instructions for " in printed
    assert "expand_idx_mapping for sm_90 executes " in printed
    for function, said in ((spilling(), "spills"), (broken, "no_such_thing")):
        made = Kernel(function, "void(int64[::1])", 64)
        monkeypatch.setattr(kernels, "find_kernels", lambda made=made: [made])
        assert 1 == main(SM_90)
        first, *_ = capsys.readouterr().err.splitlines()
        assert first.startswith(f"{made.name} for sm_90")
        assert said in first


@pytest.mark.parametrize("arguments", [["--arch", "sm_9"], [*SM_90, "--record"]])
def test_an_option_that_cannot_be_used(arguments: list[str], refusal: Callable[..., str]) -> None:
    assert refusal(main, arguments).startswith("kvtwin kernels: ")
