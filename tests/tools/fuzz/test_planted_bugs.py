"""Each planted bug is found, and reported once with a small case that reproduces it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.generation.hypothesis_provider import FreshProvider
from conformance.strategies.context_parallel import dcp_local_seq_lens_calls
from conformance.strategies.traffic import _steps
from conformance.targets.target import TARGETS
from kvtwin.fuzz.findings.records import Findings
from tests.tools.fuzz import nights
from tests.tools.fuzz.nights import PLANTED, ROOT

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")

MINUTES = 12
"""A quiet machine needs less than 3; the night is ended as soon as it has found everything."""

LARGE = {"many requests"}
"""Bugs that need more than three requests by their nature."""


def planted() -> Any:  # noqa: ANN401  # a module
    """Import the module of planted bugs under a different name than a night does."""
    spec = importlib.util.spec_from_file_location("bugs_that_are_planted", PLANTED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLANTED_MODULE = planted()
BUGS, RARE, CRASHES = PLANTED_MODULE.BUGS, PLANTED_MODULE.RARE, PLANTED_MODULE.CRASHES
IS_LONG = os.environ.get("FUZZ_TESTS") == "long"
"""Whether all bugs are planted, which takes two idle cores some minutes; nightly.yml does that."""

long = pytest.mark.skipif(
    not IS_LONG, reason="a night of minutes on idle cores, which nightly.yml runs: FUZZ_TESTS=long"
)

TOGETHER = tuple(bug for bug in PLANTED_MODULE.ALL if bug != "combination")
"""The bugs that one night finds."""


def options(*bugs: str) -> tuple[str | Path, ...]:
    """Return the options of a night that fuzzes the functions with these bugs."""
    functions = ",".join(dict.fromkeys(BUGS[bug][0] for bug in bugs))
    return "--impl", PLANTED, "--target", "host", "--functions", functions, "--workers", "2"


def is_done(out: Path, bugs: Sequence[str]) -> bool:
    """Return whether each bug was found, and all reported failures were minimized."""
    try:
        findings = Findings(out / "findings")
    except ValueError:  # the night writes to it
        return False
    reported = [findings.by_id[known].failure for known in findings.primary()]
    found = {failure.function for failure in reported}
    return found >= {BUGS[bug][0] for bug in bugs} and all(
        failure.tries > 1 or failure.kind == "memory growth" for failure in reported
    )


@pytest.fixture(scope="module")
def first_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a night that found all planted bugs."""
    out = tmp_path_factory.mktemp("night")
    night = nights.start(
        *options(*TOGETHER),
        "--minutes",
        str(MINUTES),
        "--out",
        out,
        PLANTED_BUGS=",".join(TOGETHER),
    )
    try:
        nights.until(lambda: night.poll() is not None or is_done(out, TOGETHER), 60 * MINUTES + 60)
        night.terminate()
        status, printed = nights.ended(night)
    finally:
        night.kill()
    assert status in {1, 143}, printed
    nights.until(lambda: not nights.processes(night.pid), 30)
    return out


@long
def test_each_is_found_and_reported_once(first_night: Path) -> None:
    """Each bug has one finding, also those that are rare, crash, hang, or grow memory."""
    report = nights.report(first_night)
    assert {BUGS[bug][0] for bug in TOGETHER} == {one["function"] for one in report["findings"]}
    assert len(TOGETHER) == len(report["findings"]) >= 12
    assert {"new"} == {one["status"] for one in report["findings"]}
    kinds = {one["function"]: one["kind"] for one in report["findings"]}
    found = [[*kinds.values()].count(kind) for kind in ("crash", "hang", "memory growth")]
    assert [len(set(CRASHES) & set(TOGETHER)), 1, 1] == found, kinds
    assert len(set(RARE) & set(TOGETHER)) >= 4
    assert not report["errors"]


@long
def test_each_is_small(first_night: Path) -> None:
    """A minimized batch has at most three requests, unless the bug needs more."""
    entries = {entry["id"]: entry["failure"] for entry in nights.findings(first_night)}
    for one in nights.report(first_night)["findings"]:
        failure = entries[one["id"]]
        if failure["function"] not in {BUGS[bug][0] for bug in LARGE}:
            assert (failure["requests"] or 0) <= 3, failure
        assert one["fails"] == one["attempts"], failure


@long
def test_each_has_a_case_that_shows_it(first_night: Path) -> None:
    """A replay reproduces the failure: it ends with status 1, hangs, or, for an input, crashes.

    The replay of a call reports the crash, and ends with status 1.
    """
    for one in nights.report(first_night)["findings"]:
        case = json.loads(Path(one["case"]).read_text(encoding="utf-8"))
        assert case["reason"]
        program, *arguments = shlex.split(one["command"])
        module = ("-m", "kvtwin") if program == "kvtwin" else ()
        command = [sys.executable, *module, *arguments]
        environment = os.environ | {"PLANTED_BUGS": ",".join(TOGETHER)}
        process = subprocess.Popen(  # noqa: S603  # our own
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            out, _ = process.communicate(timeout=30 if one["kind"] == "hang" else nights.SECONDS)
        except subprocess.TimeoutExpired:
            assert "hang" == one["kind"], one
            process.kill()
            process.communicate()
            continue
        expected = {"SIGSEGV": -11, "SIGABRT": -6}.get(one["error"], 1)
        if expected != 1 and case["kind"] != "input":
            expected = 1
            assert f"crashed with {one['error']}" in out.decode()
        assert expected == process.returncode, out.decode()


@long
def test_known_then_fixed_then_new_again(first_night: Path) -> None:
    """The next night replays each finding: a repaired bug is fixed, and new if it returns."""
    bug = "last block lost"
    rest = tuple(name for name in TOGETHER if name != bug)
    expected = {BUGS[name][0]: "known" for name in TOGETHER} | {BUGS[bug][0]: "fixed"}
    assert expected == _statuses(first_night, rest, TOGETHER)
    assert "new" == _statuses(first_night, (bug,), (bug,))[BUGS[bug][0]]


def _statuses(out: Path, bugs: Sequence[str], of: Sequence[str]) -> dict[str, str]:
    """Run a night until it has replayed all findings; return the status of each, by function."""
    arguments = (*options(*of), "--out", out, "--minutes", str(MINUTES))
    started = time.time()
    night = nights.start(*arguments, PLANTED_BUGS=",".join(bugs))
    try:
        functions = {BUGS[name][0] for name in of}
        nights.until(lambda: _are_replayed(out, functions, started), 60 * MINUTES)
        night.terminate()
        status, printed = nights.ended(night)
    finally:
        night.kill()
    assert 143 == status, printed
    return {one["function"]: one["status"] for one in nights.report(out)["findings"]}


def _are_replayed(out: Path, functions: set[str], started: float) -> bool:
    """Return whether all findings of functions were replayed: their cases were written since."""
    return all(
        (out / "findings" / "cases" / f"{entry['id']}.json").stat().st_mtime > started
        for entry in nights.findings(out)
        if entry["failure"]["function"] in functions
    )


def _end_when_done(night: subprocess.Popen[str], out: Path, bug: str, seconds: float) -> None:
    """End a night as soon as a bug was found and minimized."""
    try:
        nights.until(lambda: is_done(out, [bug]), seconds)
        night.terminate()
        nights.ended(night)
    finally:
        night.kill()


@long
def test_a_flaky_bug_says_how_often_it_fails(tmp_path: Path) -> None:
    """A flaky bug is found, with the number of times that it failed."""
    night = nights.start(
        *options("flaky"), "--minutes", "5", "--out", tmp_path, PLANTED_BUGS="flaky"
    )
    _end_when_done(night, tmp_path, "flaky", nights.SECONDS)
    found = nights.report(tmp_path)["findings"]
    assert any(0 < one["fails"] < one["attempts"] for one in found), found


@long
def test_a_combination_is_found_step_by_step(tmp_path: Path) -> None:
    """The search builds on each condition that holds, because each is a branch."""
    night = nights.start(
        *options("combination"), "--minutes", "10", "--out", tmp_path, PLANTED_BUGS="combination"
    )
    _end_when_done(night, tmp_path, "combination", 660)
    [found] = nights.report(tmp_path)["findings"]
    assert "get_dcp_local_seq_lens" == found["function"]
    assert found["kind"] in {"same answer", "memory", "conditions", "threads", "large"}


def test_sizes_of_the_default_run_do_not_reach_the_rare_bugs() -> None:
    """The presets and the trace of the default run lack the sizes that the bugs need."""
    presets = TARGETS["host"].presets
    steps = _steps()
    assert max(preset.max_num_reqs for preset in presets) + 2 <= 300  # two of padding
    assert max(len(step.query_lens) for step in steps) + 2 <= 300
    assert max(preset.max_context_len for preset in presets) <= 65_536
    assert max(max(step.num_computed_tokens, default=0) for step in steps) <= 65_536
    assert max(preset.max_query_len for preset in presets) <= 1024
    assert max(max(step.query_lens, default=0) for step in steps) <= 1024
    assert 544 not in {size for preset in presets for size in preset.block_sizes}


def test_draws_of_the_default_run_do_not_reach_the_combination() -> None:
    """The default run draws the combination with a probability below 1 in 20,000."""
    calls = st.one_of([dcp_local_seq_lens_calls(p) for p in TARGETS["host"].presets])
    drawn = []
    for number in range(2000):
        data = ConjectureData(random=random.Random(number), provider=FreshProvider)  # noqa: S311
        with BuildContext(data, is_final=False, wrapped_test=lambda: None):
            drawn.append(data.draw(calls).arguments)
    first = [one for one in drawn if one.get("dcp_size", 1) == 5]
    both = [one for one in first if one.get("cp_kv_cache_interleave_size", 1) == 16]
    some = [one for one in both if len(one["seq_lens"])]
    shares = [
        len(first) / len(drawn),
        sum(one.get("cp_kv_cache_interleave_size", 1) == 16 for one in drawn) / len(drawn),
        sum(len(one["seq_lens"]) == 3 for one in drawn) / len(drawn),
        sum(int(one["seq_lens"][0]) > 400 for one in some) / len(some),
        sum(one["seq_lens"].strides[0] == 8 for one in drawn) / len(drawn),
        sum(one.get("dcp_rank") == 4 for one in first) / len(first),
        sum("out" in one and len(one["out"]) == len(one["seq_lens"]) + 3 for one in drawn)
        / len(drawn),
    ]
    assert all(0 < share < 1 for share in shares)
    assert math.prod(shares) < 1 / 20_000
