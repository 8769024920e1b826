"""Wrong functions, end to end: a file that re-exports `fast` with one function made wrong.

The run fails with exactly that function and names the first difference in one line; the stored case
that it leaves shows the same in a fresh process, until the function is put right. The catalogue of
bugs has many more, and says of some what their first difference must be.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import conformance.conftest  # noqa: F401  # imported once, for all who are forked
from conformance.__main__ import main
from conformance.functions import checked_functions

WRONG = Path(__file__).with_name("wrong")


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A file of `wrong/`, and what is to be said of it.

    Attributes:
        file: Its name.
        function: What fails, as the closing table calls it.
        difference: What the line of the first difference matches.
        tests: The module of the function, and two with functions that use it or stand near it.
        target: What is run.
        keyword: Which tests of these, as `-k` says it; a run of all takes too long here.
    """

    file: str
    function: str
    difference: str
    tests: tuple[str, ...]
    target: str = "host"
    keyword: str = ""


ALL = [
    Wrong(
        "slot_one_too_low",
        "compute_slot_mapping",
        r"result\[2\] = \d+, but should be \d+",
        ("slots", "attention_slots", "context_parallel"),
        keyword="minimal and not _laws and not _refuses and not ranks",
    ),
    Wrong(
        "last_placeholder_kept",
        "scatter_mm_placeholders",
        r"result\[.*\] = nan, but should be .*",
        ("multimodal", "mm_budget", "fast_prefill"),
        target="sim",
        keyword="minimal",
    ),
    Wrong(
        "strange_layout_ignored",
        "get_kv_cache_layout",
        r"answers\[\d\]\[0\] = NHD, but should be ValueError naming NHD, HND",
        ("kv_layout", "kv_binding", "memory"),
        keyword="minimal",
    ),
]


def _run(arguments: list[str], folder: Path) -> None:
    """Run the harness in this process, which is a forked one; write what it says to a file."""
    os.chdir(folder)
    with (folder / "output.txt").open("w", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = sys.stderr = output
        status = main(arguments)
        output.flush()
    os._exit(status)


def run(arguments: list[str], folder: Path) -> tuple[int | None, str]:
    """Run the harness in a process of its own, which has what is imported here already.

    Args:
        arguments: Those of `python -m conformance`.
        folder: Where.

    Returns:
        The exit status, and what was said.
    """
    checked_functions()  # imports all of the harness
    child = multiprocessing.get_context("fork").Process(target=_run, args=(arguments, folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads of a worker do nothing
        child.start()
    child.join()
    return child.exitcode, (folder / "output.txt").read_text()


@pytest.mark.parametrize("wrong", ALL, ids=[wrong.file for wrong in ALL])
def test_one_wrong_function_is_reported(wrong: Wrong, tmp_path: Path) -> None:
    """It alone fails, in one line, which its stored case shows until the function is mended."""
    impl = tmp_path / f"{wrong.file}.py"
    shutil.copy(WRONG / impl.name, impl)
    tests = [f"test_{name}.py" for name in wrong.tests]
    keyword = ["-k", wrong.keyword] if wrong.keyword else []
    options = ["--impl", impl.name, "--profile", "dev", "--target", wrong.target, *keyword]
    status, output = run([*options, "--failures", "scripts", "-q", "--tb=no", *tests], tmp_path)
    assert pytest.ExitCode.TESTS_FAILED == status, output
    [(function, difference, case)] = re.findall(
        r"^FAILS: (\S+) on \S+: (.*)\n(?:  script: .*\n)?"
        r"  replay: python -m conformance --replay (\S+) --impl \S+ --target \S+$",
        output,
        re.MULTILINE,
    )
    assert wrong.function == function, output
    assert re.fullmatch(wrong.difference, difference), difference
    replay = ["--replay", case, "--impl", impl.name, "--target", wrong.target]
    status, output = run(replay, tmp_path)
    assert pytest.ExitCode.TESTS_FAILED == status, output
    assert f"FAILS: {function} on {wrong.target}: {difference}\n" in output
    impl.write_text("from fast import *\n")
    status, output = run(replay, tmp_path)
    assert pytest.ExitCode.OK == status, output
