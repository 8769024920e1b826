"""Wrong functions, end to end: a file that re-exports `fast` with one wrong function.

The run fails with exactly that function and names the first difference in one line; the stored case
that it leaves shows the same in a fresh process, until the function is fixed. The catalogue of
bugs has many more, and says of some what their first difference must be.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import warnings
from pathlib import Path

import pytest

import conformance.conftest  # noqa: F401  # imported once, for all who are forked
from conformance.__main__ import main
from conformance.checks.registry import checked_functions

ONE_SLOT_TOO_LOW = """
import fast
from fast import *

def compute_slot_mapping(*args, **keywords):
    slots = fast.compute_slot_mapping(*args, **keywords)
    slots[2:3] -= (slots[2:3] > 0).long()
    return slots
"""
UNKNOWN_LAYOUT_IGNORED = """
import fast
from fast import *

def get_kv_cache_layout():
    try:
        return fast.get_kv_cache_layout()
    except ValueError:
        return "NHD"
"""


def _run(arguments: list[str], folder: Path) -> None:
    """Run the harness in this forked process, and write its output to a file."""
    os.chdir(folder)
    with (folder / "output.txt").open("w", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = sys.stderr = output
        status = main(arguments)
        output.flush()
    os._exit(status)


def run(arguments: list[str], folder: Path) -> tuple[int | None, str]:
    """Run the harness in a forked process, with the modules that are imported here.

    Args:
        arguments: Those of `python -m conformance`.
        folder: The working directory.

    Returns:
        The exit status, and the output.
    """
    checked_functions()  # imports all of the harness
    child = multiprocessing.get_context("fork").Process(target=_run, args=(arguments, folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads of a worker do nothing
        child.start()
    child.join()
    return child.exitcode, (folder / "output.txt").read_text()


@pytest.mark.parametrize(
    ("source", "function", "expected", "modules"),
    [
        (
            ONE_SLOT_TOO_LOW,
            "compute_slot_mapping",
            r"result\[2\] = \d+, but should be \d+",
            ("slots", "attention_slots", "context_parallel"),
        ),
        (  # only a law shows it
            UNKNOWN_LAYOUT_IGNORED,
            "get_kv_cache_layout",
            r"\[\d\] get_kv_cache_layout\(\) = 'NHD', but should be a ValueError naming NHD, HND",
            ("kv_layout", "kv_binding", "memory"),
        ),
    ],
)
def test_one_wrong_function_is_reported(
    source: str, function: str, expected: str, modules: tuple[str, ...], tmp_path: Path
) -> None:
    """Only this function fails, in one line, which its stored case repeats until it is fixed."""
    impl = tmp_path / f"{tmp_path.name}.py"  # no other module of this process has that name
    impl.write_text(source)
    tests = [f"test_{name}.py" for name in modules]
    keyword = (
        "minimal and not slot_mapping_laws and not _refuses and not ranks"  # all take too long
    )
    options = ["--impl", impl.name, "--profile", "dev", "--target", "host", "-k", keyword]
    status, output = run([*options, "--failures", "scripts", "-q", "--tb=no", *tests], tmp_path)
    assert pytest.ExitCode.TESTS_FAILED == status, output
    [(found, difference, case)] = re.findall(
        r"^FAILS: (\S+) on \S+: (.*)\n(?:  script: .*\n)?"
        r"  replay: python -m conformance --replay (\S+) --impl \S+ --target \S+$",
        output,
        re.MULTILINE,
    )
    assert function == found, output
    assert re.fullmatch(expected, difference), difference
    replay = ["--replay", case, "--impl", impl.name, "--target", "host"]
    status, output = run(replay, tmp_path)
    assert pytest.ExitCode.TESTS_FAILED == status, output
    assert f"FAILS: {function} on host: {difference}\n" in output
    impl.write_text("from fast import *\n")
    status, output = run(replay, tmp_path)
    assert pytest.ExitCode.OK == status, output


TEN_LINES = """
def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    starts = common_attn_metadata.query_start_loc_cpu.tolist()
    num_tokens = int(common_attn_metadata.num_actual_tokens)
    lens = [end - start for start, end in zip(starts, starts[1:])]
    kinds = {0, next(filter(None, lens), 0)} if require_uniform else set(lens)
    decodes = 0
    while decodes < len(lens) and lens[decodes] <= decode_threshold and lens[decodes] in kinds:
        decodes += 1
    tokens = num_tokens if decodes == len(lens) else starts[decodes]
    return decodes, len(lens) - decodes, tokens, num_tokens - tokens
"""


def test_a_right_function_that_validates_nothing_has_no_wrong_answers(tmp_path: Path) -> None:
    """A correct function that reads fewer fields, and validates none, has no wrong answers."""
    (tmp_path / "mine.py").write_text(TEN_LINES)
    chosen = ["--functions=split_decodes_and_prefills", "--profile=dev", "-q", "--failures=."]
    status, output = run(["--impl=mine.py", *chosen], tmp_path)
    assert "0 with wrong answers, 1 with missing refusals" in output
    assert 0 == status
