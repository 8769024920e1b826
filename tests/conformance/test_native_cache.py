"""The disk cache of machine code: what is reused, and what is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from conformance.native import cache
from conformance.native.cache import Compiled
from fast import numba_cuda
from fast.kernels import block_table, cuda, multimodal
from fast.kernels.cuda import Kernel


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep machine code in a folder of the test's own."""
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    return tmp_path / "kept"


class Compiler:
    """Counts how often it compiles."""

    count = 0

    def __call__(self) -> Compiled:
        self.count += 1
        time.sleep(0.05)
        return Compiled(f"PTX {self.count}", b"code \0 %d" % self.count)


def test_a_kernel_is_compiled_once() -> None:
    compiler = Compiler()
    cases = [
        (kernel, arch)
        for kernel in (block_table.apply_staged_writes, block_table.gather_block_tables)
        for arch in ("sm_80", "sm_90")
    ]
    first = [cache.load_or_compile(*case, compiler) for case in cases]
    assert len(set(first)) == compiler.count == len(cases)
    assert first == [cache.load_or_compile(*case, compiler) for case in cases]
    assert len(cases) == compiler.count


SIGNATURE = block_table.apply_staged_writes.signature
CHANGES: dict[str, tuple[object, str, object, Kernel]] = {
    "a constant": (block_table, "PAD_SLOT_ID", -2, block_table.compute_slot_mapping),
    "a function that a function of a kernel calls": (
        *(block_table.divide, "py_func"),
        *(lambda dividend, divisor: (dividend, divisor), block_table.compute_slot_mapping),
    ),
    "how the compiler's IR is written": (
        *(numba_cuda, "_word"),
        *(lambda size: size, multimodal.scatter_rows),
    ),
    "a signature": (
        *(block_table.apply_staged_writes, "signature"),
        *(SIGNATURE.replace("int32[::1]", "uint32[::1]"), block_table.apply_staged_writes),
    ),
    "a version": (cache, "version", lambda name: f"9 of {name}", block_table.apply_staged_writes),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_is_compiled_again(what: str, folder: Path) -> None:
    owner, name, new, kernel = CHANGES[what]
    compiler = Compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, new)
        cache._environment_fingerprint.cache_clear()
        changed = cache.load_or_compile(kernel, "sm_90", compiler)
        assert changed == cache.load_or_compile(kernel, "sm_90", compiler)
    cache._environment_fingerprint.cache_clear()
    assert changed != cache.load_or_compile(kernel, "sm_90", compiler)
    assert 2 == compiler.count
    assert 1 == len(list(folder.glob("*.native")))


@pytest.mark.parametrize("damage", [b"", b"damaged", b"damaged\0as\0well"])
def test_a_damaged_file_is_replaced(damage: bytes, folder: Path) -> None:
    compiler = Compiler()
    cache.load_or_compile(block_table.apply_staged_writes, "sm_90", compiler)
    [path] = folder.glob("*.native")
    path.write_bytes(damage)
    cache.load_or_compile(block_table.apply_staged_writes, "sm_90", compiler)
    assert 2 == compiler.count
    assert b"code \0 2" in path.read_bytes()


def test_other_kernels_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_staged_writes(x: Any) -> None:
        x[0] = cuda.cuda.grid(1)

    own = Kernel(apply_staged_writes, "void(int32[::1])", 32)
    function = block_table.apply_staged_writes.py_func
    code = function.__code__.replace(co_filename="<a module with a bug>")
    monkeypatch.setattr(function, "__code__", code)
    compiler = Compiler()
    for kernel in (own, block_table.apply_staged_writes) * 2:
        cache.load_or_compile(kernel, "sm_90", compiler)
    assert 4 == compiler.count
    assert not folder.exists()
