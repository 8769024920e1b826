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
SAMPLE: Final = [bug for bug in read_bugs(CATALOGUE) if bug.function in CONTRACTS][::7]

MISSED: Final[dict[str, str]] = {}
"""The bugs that the default run misses, by name, and why: these are not run."""


def by_name(bugs: list[Bug]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bug", bugs, ids=[bug.name for bug in bugs])


@by_name([bug for bug in OWN_BUGS + SAMPLE if bug.name not in MISSED])
def test_bugs_are_caught(bug: Bug) -> None:
    if bug.target == "native":
        pytest.importorskip("numba_cuda")
    profile = dataclasses.replace(PROFILES["default"], shrink_seconds=0.0)
    job = functools.partial(try_bug, bug, profile, every=False)
    [(_, found)] = in_children([(bug.name, job)])
    assert judge(found) == "caught", f"{bug.why}\n{found}"


@by_name(OWN_BUGS)
def test_own_bugs_show_and_are_silent_without(bug: Bug) -> None:
    if bug.target == "native":
        pytest.importorskip("numba_cuda")
    [(_, found)] = in_children([(bug.name, functools.partial(check_witness, bug))])
    assert "shown" in found, found


def test_bugs_have_names_of_their_own() -> None:
    names = [bug.name for bug in OWN_BUGS]
    assert len(set(names)) == len(names)
    assert {*MISSED} <= {bug.name for bug in OWN_BUGS + SAMPLE}
