"""Runs of pytest with toy contracts and toy implementations."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fast
from conformance.harness import checks, plugin, targets
from fast import numba_cuda

pytest_plugins = ["pytester"]

CONTRACTS = """
from hypothesis import strategies as st
import numpy as np
from conformance.harness.contract import Contract
from conformance.harness.sizes import vectors

def lengths(size):
    return st.builds(dict, seq_lens=vectors(size, 0, 99, np.int32), dcp_rank=st.just(0))

CONTRACTS = [
    Contract(
        function="get_dcp_local_seq_lens",
        calls=st.integers(0, 7).map(lengths),
        hard_cases={
            "four": lambda arguments: len(arguments["seq_lens"]) <= 4,
            "eight": lambda arguments: len(arguments["seq_lens"]) == 8,  # there are 7 at most
        },
    ),
    Contract(
        function="is_valid_kv_cache_layout",
        calls=st.just(st.just({"value": "NHD"})),
    ),
]
"""

FAULTS = {
    "a wrong value": "seq_lens = seq_lens + 1",
    "a crash": "ctypes.string_at(0)",
    "a loop": "while True: pass",
    "memory": "torch.empty(2**34, dtype=torch.uint8)",
    "a missing refusal": "pass",
    "nothing": "pass",
}

IMPLEMENTATION = """
import ctypes, os, torch
from fast import checks, get_dcp_local_seq_lens as right

def get_dcp_local_seq_lens(
    seq_lens, dcp_size=1, dcp_rank=None, cp_kv_cache_interleave_size=1, *, out=None
):
    if getattr(seq_lens, "numel", int)() > 3:
        FAULT
    return right(seq_lens, dcp_size, dcp_rank, cp_kv_cache_interleave_size, out=out)
"""

LAX = """
    if type(dcp_rank) is int and dcp_rank != 0:
        return seq_lens.clone()
"""

HANGS = """
class Leak:
    def __del__(self, write=os.write):
        write(2, b"leaked")

LEAK = Leak()  # until the process ends
LOCK = ctypes.create_string_buffer(64)

def is_valid_kv_cache_layout(value):
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(LOCK)
"""


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Import and compile now: what a run in this process imports is imported again after it."""
    fast.warmup()
    if find_spec("numba_cuda") is not None:
        numba_cuda.import_cuda()


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    (pytester.path / "functions").mkdir()
    (pytester.path / "functions" / "toy.py").write_text(CONTRACTS)
    for name in ("dev", "default"):
        small = checks.Profile(name, answers=30, refusals=20, laws=1, shrink_seconds=4)
        monkeypatch.setitem(checks.PROFILES, name, small)  # type: ignore[misc]
    return pytester.path


def write(folder: Path, fault: str, more: str = "") -> None:
    text = IMPLEMENTATION.replace("        FAULT\n", f"        {fault}\n{more}")
    (folder / "mine.py").write_text(text)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    settings = ["-p", "conformance.harness.plugin", "-p", "no:cacheprovider"]
    return pytester.runpytest_inprocess(*settings, "--failures", "f", "functions", *options)


MINE = ("--impl", "mine.py", "--functions", "get_dcp_local_seq_lens", "-k", "not stored")


def test_a_wrong_value_is_shown_once_and_can_be_replayed(
    pytester: pytest.Pytester, folder: Path
) -> None:
    write(folder, FAULTS["a wrong value"])
    found = run(pytester, *MINE)
    assert pytest.ExitCode.TESTS_FAILED == found.ret
    found.assert_outcomes(failed=1, skipped=1)
    line = "FAILS: get_dcp_local_seq_lens on host: result[[]*should be* [[]wrong value]"
    found.stdout.fnmatch_lines(["*not run*", line] if "-ra" in sys.argv else [line])
    command = re.search(r"replay: (.*)", found.stdout.str())
    assert command is not None
    words = command[1].split()
    assert ["python", "-m", "conformance", "--replay"] == words[:4]
    replay = words[3:]
    assert pytest.ExitCode.TESTS_FAILED == run(pytester, *replay).ret
    write(folder, FAULTS["nothing"])
    assert pytest.ExitCode.OK == run(pytester, *replay).ret


@pytest.mark.parametrize(
    ("fault", "words"),
    [("a loop", "needs more than 0.5 s"), ("memory", "needs more than 1 GiB")],
)
def test_limits(pytester: pytest.Pytester, folder: Path, fault: str, words: str) -> None:
    write(folder, FAULTS[fault])
    found = run(pytester, *MINE, "--hang-seconds", "0.5", "--memory-limit", "1")
    found.assert_outcomes(failed=1, skipped=1)
    found.stdout.fnmatch_lines([f"FAILS: get_dcp_local_seq_lens on host: the call {words}*"])


def test_a_missing_refusal_fails_only_a_strict_run(pytester: pytest.Pytester, folder: Path) -> None:
    write(folder, FAULTS["a missing refusal"], LAX)
    found = run(pytester, *MINE)
    assert pytest.ExitCode.OK == found.ret
    found.stdout.fnmatch_lines(["get_dcp_local_seq_lens  missing refusals*", "missing refusal: *"])
    found = run(pytester, *MINE, "--strict")
    assert pytest.ExitCode.TESTS_FAILED == found.ret
    found.stdout.fnmatch_lines(["missing refusal: get_dcp_local_seq_lens on host: *"])


def test_a_hard_case_that_is_not_drawn_fails_a_whole_run_and_nothing_is_no_run(
    pytester: pytest.Pytester, folder: Path
) -> None:
    found = run(pytester)
    assert pytest.ExitCode.TESTS_FAILED == found.ret
    assert ["hard case not drawn: get_dcp_local_seq_lens: eight"] == [
        line for line in found.outlines if "hard case" in line
    ]
    assert pytest.ExitCode.OK == run(pytester, "--functions", "get_dcp_local_seq_lens").ret
    (folder / "mine.py").write_text("from fast import CommonAttentionMetadata")
    assert pytest.ExitCode.NO_TESTS_COLLECTED == run(pytester, *MINE).ret


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--functions", "get_dcp_local"], "did you mean get_dcp_local_seq_lens?"),
        (["--target", "nativ"], "there are host, native, cuda"),
        (["--profile", "devv"], "there are brief, dev, default, nightly"),
        (["--impl", "nothing.py"], "is not a file"),
        (["--replay", "nothing.json"], "No such file"),
    ],
)
def test_what_is_unknown(
    pytester: pytest.Pytester, folder: Path, options: list[str], words: str
) -> None:
    assert folder.exists()
    found = run(pytester, *options)
    assert pytest.ExitCode.USAGE_ERROR == found.ret
    found.stderr.fnmatch_lines([f"*{words.replace('?', '[?]')}*"])


@pytest.mark.parametrize("is_installed", [True, False])
def test_kernels_that_are_not_run(
    is_installed: bool, pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.exists()
    monkeypatch.setattr(targets.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(targets, "find_spec", lambda _: is_installed or None)
    found = run(pytester, "--collect-only").stdout.str()
    assert is_installed == ("conformance: on host, native;" in found)
    assert is_installed != ("kernels are not run, without numba-cuda: pip install" in found)


def test_a_run_goes_on_after_a_crash_and_a_hang(folder: Path) -> None:
    write(folder, FAULTS["a crash"])
    with (folder / "mine.py").open("a") as file:
        file.write(HANGS)
    options = "-n1 --impl=mine.py --failures=f --profile=brief --hang-seconds=1 --target=host"
    command = [sys.executable, "-m", "pytest", "-p", "conformance.harness.plugin", "functions"]
    command += [*options.split(), "-k", "not stored"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    assert pytest.ExitCode.TESTS_FAILED == found.returncode, found.stdout + found.stderr
    assert re.search(r"get_dcp_local_seq_lens +CRASHES", found.stdout)
    assert re.search(r"is_valid_kv_cache_layout +HANGS", found.stdout)
    assert re.search(r"FAILS: get_dcp_local_seq_lens on host: .*Segmentation", found.stdout)
    assert "2 failed, 2 skipped" in found.stdout
    assert "leaked" not in found.stderr
    assert 2 == len([*(folder / "f").glob("*.json")])


def test_the_tests_of_a_function_stay_together() -> None:
    match = plugin.ITEM.search("conformance/functions/a.py::A.f-1cd2[stored-mine:host]")
    assert match is not None
    assert ("A.f", "stored", "mine:host") == match.group("function", "kind", "target")
