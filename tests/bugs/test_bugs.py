"""Every bug can be planted, and the harness catches a sample; `tests/bugs/run.py` tries all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from conformance.functions import contracts
from tests.bugs.run import CLASSES, HERE, Bug, read_bugs

MISSED: Final = {
    "_make_metadata_with_slice: long slots in one piece": "needs slots of 128 tokens, strided",
    "_make_metadata_with_slice: the vectors of the batch at hand": "two threads show it, mostly",
    "compute_slot_mapping: a decode's block by the reciprocal": "wrong for three block sizes",
    "compute_slot_mapping: a scratch for strided slots": "shows in the first call of a process",
    "compute_slot_mapping: an arena of 16,384 slots": "two threads show it, mostly",
    "create_ubatch_slices: cuts are collected in one list": "two threads show it, mostly",
    "create_ubatch_slices: the time of each call is noted": "shows in the 65,537th call",
    "get_dcp_local_seq_lens: 192 at a time, from all but the last": "needs 193 requests, or 385",
    "get_dcp_local_seq_lens: a table of 256 layouts": "needs more layouts than a run draws",
    "get_dcp_local_seq_lens: the first thread has the buffers": "two threads show it, mostly",
}
"""The own bugs that the default run misses, always or at times, by name, and why."""

BUGS: Final = list(read_bugs())
OWN: Final = [bug for bug in BUGS if bug.letter]
PLAIN: Final = [bug for bug in BUGS if not bug.letter]
TARGETS: Final = ("host", "native") if find_spec("numba_cuda") else ("host",)
SAMPLE: Final = [bug for bug in OWN if bug.name not in MISSED][::16] + PLAIN[::45]


def test_every_bug_can_be_planted() -> None:
    functions = {contract.function for contract in contracts()}
    for bug in BUGS:
        right, wrong = (compile(source, bug.module, "exec") for source in bug.sources())
        assert right != wrong, bug.name
        assert {bug.function, bug.function.partition(".")[0]} & functions, bug.name
        assert bug.letter in {"", *CLASSES}
    names = [(bug.module, bug.name) for bug in BUGS]
    assert len(set(names)) == len(names)
    assert {*MISSED} <= {bug.name for bug in OWN}


@pytest.mark.parametrize("part", range(2))
def test_a_sample_is_caught(part: int, tmp_path: Path) -> None:
    sample: list[Bug] = [bug for bug in SAMPLE if bug.target in TARGETS][part::2]
    pattern = "|".join(re.escape(bug.name) for bug in sample)
    output = tmp_path / "found.jsonl"
    options = ["--quick", "-k", f"^({pattern})$", "--output", output]
    command = [sys.executable, "-W", "ignore", HERE / "run.py", *options]
    subprocess.run(command, check=True)  # noqa: S603  # our own
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(found) >= len(sample) > 0
    assert ["caught"] * len(found) == [one["verdict"] for one in found], found
