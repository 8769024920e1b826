"""The harness catches the bugs that were written to escape it, and a sample of the catalogue."""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import pytest
import torch

from conformance.harness.checks import PROFILES
from tests.harness.bugs import CONTRACTS, judge, try_bug
from tests.harness.children import in_children
from tests.harness.own_bugs import CATALOGUE, OWN, Bug, check_witness, read_bugs

torch.set_num_threads(1)  # as in the conformance run

OWN_BUGS: Final = list(read_bugs(OWN))
MISSED: Final = {
    "_make_metadata_with_slice: long slots in one piece": "needs slots of 128 tokens, strided",
    "compute_slot_mapping: a decode's block by the reciprocal": "wrong for three block sizes",
    "compute_slot_mapping: a scratch for strided slots": "shows in the first call of a process",
    "get_dcp_local_seq_lens: 192 at a time, from all but the last": "needs 193 requests, or 385",
    "get_dcp_local_seq_lens: a table of 256 layouts": "needs more layouts than a run draws",
}
"""The bugs that the default run misses, by name, and why: these are not tried."""

TIMING: Final = {
    "get_dcp_local_seq_lens: the first thread has the buffers",
    "compute_slot_mapping: an arena of 16,384 slots",
    "create_ubatch_slices: cuts are collected in one list",
    "_make_metadata_with_slice: the vectors of the batch at hand",
}
"""Those that two threads show, mostly: nor are these."""

LONG: Final = "create_ubatch_slices: the time of each call is noted"
"""It shows in the 65,537th call, which a busy machine may not reach."""

TRIED: Final = [bug for bug in OWN_BUGS if bug.name not in {*MISSED, *TIMING, LONG}][::3] + [
    bug for bug in read_bugs(CATALOGUE) if bug.function in CONTRACTS and bug.kind == "same answer"
][::12]
"""A sample: `tests/harness/bugs.py` tries all."""


def by_name(bugs: list[Bug]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bug", bugs, ids=[bug.name for bug in bugs])


@by_name(TRIED)
def test_bugs_are_caught(bug: Bug) -> None:
    if bug.target == "native":
        pytest.importorskip("numba_cuda")
    # What Hypothesis draws depends on the modules that are loaded: one run may miss it by chance.
    for seed in (None, 1, 2):
        profile = dataclasses.replace(PROFILES["default"], shrink_seconds=0.0, seed=seed)
        job = functools.partial(try_bug, bug, profile, every=False)
        [(_, found)] = in_children([(bug.name, job)])
        if judge(found) == "caught":
            return
    pytest.fail(f"{bug.why}\n{found}")


@by_name(OWN_BUGS)
def test_own_bugs_show_and_are_silent_without(bug: Bug) -> None:
    if bug.target == "native":
        pytest.importorskip("numba_cuda")
    [(_, found)] = in_children([(bug.name, functools.partial(check_witness, bug))])
    assert "shown" in found, found


def test_bugs_have_names_of_their_own() -> None:
    names = [bug.name for bug in OWN_BUGS]
    assert len(set(names)) == len(names)
    assert {*MISSED, *TIMING} <= {*names}
