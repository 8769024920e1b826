"""The probe finds no violation in `fast`, and every planted one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import numpy as np
import pytest

from conformance.arrays.guarded_memory import GuardedMemory
from tools.probe import bad_calls, command_line, workers
from tools.probe.calling import Outcome
from tools.probe.strange_objects import HostilityError, other_value
from tools.probe.subjects import NO_FUNCTIONS, names, unprobed
from tools.probe.target import load

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).with_name("planted_violations.py")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the probe protects pages: Linux")


PLANTED_KINDS = {
    "get_dcp_local_seq_lens": "died of signal SIGSEGV",
    "slice_query_start_locs": "died of signal SIGSEGV",
    "extract_layer_index": "internal error",
    "compute_mm_encoder_budget": "hangs",
    "map_to_kernel_blocks": "unbounded allocation",
    "reshape_query_for_spec_decode": "died of signal SIGSEGV",
    "create_ubatch_slices": "changed an input",
    "compute_causal_conv1d_metadata": "wrong result",
}
"""What the functions of the file of planted violations are reported for."""

REPORTED = re.compile(
    r"^  (\w.*), \d+ times, at .*\n(?:    .*\n)*?    --replay (\S+)$", re.MULTILINE
)
"""A kind of violation in the output, and the number of a case."""


def probe(*arguments: str) -> tuple[int, str]:
    """Return the exit status and the output of a run of the probe."""
    command = [sys.executable, "-m", "tools.probe", *arguments]
    done = subprocess.run(  # noqa: S603  # the project's own tool
        command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr


def test_every_public_name_is_probed_or_excused() -> None:
    """No function of `fast` is left out without a reason."""
    assert [] == unprobed()
    assert not set(NO_FUNCTIONS) & set(names())


@pytest.mark.usefixtures("forked_processes")
def test_a_few_cases_of_each_function_find_nothing() -> None:
    """A small run over everything reports no violation, and leaves nothing out."""
    status, output = probe("--cases", "6")
    assert (0, []) == (status, re.findall(r"--replay .*", output)), output
    total = f"{len(names())} functions, {6 * len(names())} cases, 0 kinds of violations"
    assert total == output.splitlines()[-1]


@pytest.mark.usefixtures("forked_processes")
def test_planted_violations_are_found_and_can_be_replayed() -> None:
    """Each planted violation is reported with its kind, and a replay of its case shows it again."""
    functions = ",".join(PLANTED_KINDS)
    options = ("--impl", str(PLANTED), "--hang-seconds", "1")
    status, output = probe(*options, "--functions", functions, "--cases", "16")
    assert 1 == status, output
    replays = {
        function: dict(REPORTED.findall(report))
        for function, report in re.findall(r"^(\S+): .* cases\n((?:  .*\n)*)", output, re.MULTILINE)
    }
    for function, kind in PLANTED_KINDS.items():
        assert kind in replays[function], output
    replay = replays["extract_layer_index"]["internal error"]
    status, again = probe(*options, "--replay", replay)
    assert (1, True) == (status, "  internal error, 1 times" in again), again


@pytest.mark.parametrize(
    "wrong",
    [
        ["--functions", "nonsense"],
        ["--cases", "0"],
        ["--replay", "nonsense"],
        ["--replay", "nonsense:0:1"],
        ["--impl", "nowhere.py"],
    ],
)
def test_a_wrong_command_line_is_one_line(wrong: list[str], refusal: Callable[..., str]) -> None:
    """What cannot be used ends with status 2 and one line."""
    assert refusal(command_line.main, wrong)


def test_a_worker_that_dies_behind_its_last_case_died_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that dies after its last case is reported with that case."""

    def work(job: workers.Job, *others: Any) -> None:  # noqa: ANN401  # a private class among them
        *_, connection = others
        connection.send(len(job))
        os._exit(3)

    monkeypatch.setattr(workers, "_work", work)
    job = workers.Job(("cdiv",), seed=1, first=0, stop=4)
    (report,) = workers.run_job(job, load(None), 60, lambda: False)
    assert [(violation.case, report.done) for violation in report.violations] == [(3, 4)]


def test_texts_stay_short() -> None:
    """A text that is made longer again and again does not take all memory."""
    random, text = Random(5), "layers.0"  # noqa: S311  # no secret
    longest = 0
    for _ in range(200):
        value = other_value(random, text, "name")
        if isinstance(value, str) and len(value) > len(text):
            text = value
        longest = max(longest, len(text))
    assert 1000 < longest < 4_000_000


def test_hostile_objects_in_results_are_not_read() -> None:
    """A hostile argument inside a result is not read."""

    class Hostile(dict[str, object]):
        """Raises when its items are read."""

        def items(self) -> NoReturn:  # type: ignore[override]  # on purpose
            raise HostilityError("a hostile method was called")

    given: Any = None
    assert [] == list(bad_calls._repeated(given, given, Outcome(result=[Hostile()])))


def test_guarded_memory_holds_what_was_placed() -> None:
    """A placed array has the values, and ends or begins at a page boundary."""
    memory = GuardedMemory()
    for at_end in (True, False):
        placed, first, length = memory.place(np.arange(5, dtype=np.int32), at_end=at_end)
        assert [0, 1, 2, 3, 4] == placed.tolist()
        address = placed.__array_interface__["data"][0]
        assert 0 == (address + (placed.nbytes if at_end else 0)) % length
        assert first > 0
    memory.forget()
