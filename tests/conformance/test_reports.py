"""Reports of a run: the record and its schema, pictures of batches, Markdown, HTML, statistics."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from page_reader import check_page
from small_runs import HEAD, Runner

import reference
from conformance.__main__ import arguments_for_pytest
from conformance.reports import SCHEMA, SCHEMA_VERSION, write_reports
from conformance.reports.pages import ENVIRONMENT, html_of, markdown_of
from conformance.reports.picture import Mark, mark_of, pictures_of
from conformance.reports.statistics import condensed, no_statistics, statistics_lines
from conformance.strategies.batch import Batch, Layout
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

pytest_plugins = ["pytester"]
BATCH = Batch((2, 0, 3), (3, 0, 2), Layout(2), ((4, 9, 7), (), (4, 5, 6)), num_padding_tokens=1)
"""Requests 0 and 2 share block 4."""

SLOTS = Call(
    "compute_slot_mapping",
    {
        "block_table": BATCH.block_table(),
        "query_start_loc": BATCH.query_start_loc(),
        "positions": BATCH.positions(),
        "block_size": 2,
    },
)
"""A call whose batch is known from its arguments only."""

GREEN = (
    HEAD
    + """
@property_check("toy", digits, goals={"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2})
def test_toy(target, n):
    "Shows nothing."
"""
)

FEWER = """
from conformance.conftest import *  # noqa: F403
from conformance.generation.profiles import PROFILES, Profile

PROFILES["dev"] = Profile("dev", 5, 5, requires_coverage=False, stateful_examples=1)
"""
"""A `conftest.py` with fewer examples, for runs whose examples do not matter."""

NASTY = "a </pre><script>alert(1)</script> | `b` & c"
"""Text that a page or a table must escape."""

RED = (
    GREEN
    + f"""
@property_check("other", digits, goals={{"never|met": lambda n: n > 9}})
def test_other(target, n):
    "Fails."
    raise AssertionError({NASTY!r})
"""
)

WRONG = """
import fast
from fast import *

def get_dcp_local_seq_lens(seq_lens, *args, **kwargs):
    found = fast.get_dcp_local_seq_lens(seq_lens, *args, **kwargs)
    if found.ndim == 1 and len(found) > 1:
        found[1] += 1
    return found
"""


class ReportingRunner(Runner):
    """Makes small runs with a report in `out/`."""

    def record(self) -> dict[str, Any]:
        """Return the record, which is of the schema."""
        return valid(self.pytester.path / "out" / "report.json")


def valid(path: Path) -> dict[str, Any]:
    """Return a record that was written, which must be of the schema."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema, jsonschema.Draft202012Validator)
    return found


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> ReportingRunner:
    """Return a runner of small runs."""
    options = ("--target", "host", "--report", "out", "--failures", "failures")
    return ReportingRunner(pytester, monkeypatch, *options)


def kinds(picture: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a picture in a letter each, capital where they are marked."""
    letters = {"context": "c", "new": "n", "padding": "p", "gap": "."}
    return {
        row["label"]: "".join(
            letters[cell["kind"]].upper() if cell.get("is_marked") else letters[cell["kind"]]
            for cell in row["cells"]
        )
        for row in picture["rows"]
    }


def value_at(path: str, *index: int) -> Difference:
    """Return a difference of values."""
    return Difference(Verdict.VALUE, path, index, 1, 2)


# The record.


def test_a_green_run_is_on_record(runner: ReportingRunner) -> None:
    """The record has versions, tests, states, examples, and the counts of coverage goals."""
    runner.pytester.makepyfile(GREEN)
    assert pytest.ExitCode.OK == runner.run().ret
    record = runner.record()
    assert SCHEMA_VERSION == record["schema_version"]
    assert "ok" == record["run"]["exit_status"]
    assert {"passed": 2, "failed": 0, "skipped": 0} == record["run"]["tests"]
    assert ("default", None, 0) == (
        record["run"]["profile"]["name"],
        record["run"]["seed"],
        record["run"]["workers"],
    )
    assert ["fast"] == [one["name"] for one in record["implementations"]]
    [function] = record["functions"]
    assert ("toy", "", False) == (function["name"], function["module"], function["is_complete"])
    [cell] = function["cells"]
    assert ("host", "conforms", 100) == (cell["target"], cell["state"], cell["examples"])
    counts = {one["name"]: one["count"] for one in function["goals"]}
    assert ["even", "odd"] == list(counts)
    assert 100 == sum(counts.values())
    assert 100 == function["statistics"]["valid"]
    assert [] == record["failures"] == record["unreached"] == record["errors"]


def test_a_failed_run_is_on_record(runner: ReportingRunner) -> None:
    """The record has failed checks, and errors that are not failures of checks."""
    runner.pytester.makepyfile(test_red=RED, test_broken="import nowhere_to_be_found")
    result = runner.run("--continue-on-collection-errors")
    assert pytest.ExitCode.TESTS_FAILED == result.ret
    record = runner.record()
    assert "tests failed" == record["run"]["exit_status"]
    [failure] = record["failures"]
    assert ("other", "host", []) == (
        failure["function"],
        failure["target"],
        failure["with"],
    )
    assert f"AssertionError: {NASTY}" == failure["tests"][0]["difference"]
    assert NASTY in failure["tests"][0]["message"]
    [error] = record["errors"]
    assert error["where"].endswith("test_broken.py")
    assert "nowhere_to_be_found" in error["message"]


def test_an_unreached_goal_is_in_the_record(runner: ReportingRunner) -> None:
    """A run that failed only for a coverage goal has the goal in its record and headline."""
    runner.pytester.makepyfile(GREEN.replace("n % 2}", "n > 9}"))
    runner.options = ("--report", "out", "--failures", "failures")  # all targets
    assert pytest.ExitCode.TESTS_FAILED == runner.run().ret
    record = runner.record()
    assert ["coverage goal not reached: toy: odd"] == record["unreached"]
    assert "fast: coverage goals were not reached" in html_of(record)


def test_a_run_that_was_interrupted_has_a_report(runner: ReportingRunner) -> None:
    """A run that Ctrl-C ends has a report of its results until then."""
    stop = "\ndef test_stop():\n    raise KeyboardInterrupt\n"
    runner.pytester.makepyfile(GREEN + stop)
    result = runner.pytester.runpytest_subprocess(
        "--target", "host", "--report", "out", "--failures", "failures"
    )
    assert pytest.ExitCode.INTERRUPTED == result.ret
    record = runner.record()
    assert "interrupted" == record["run"]["exit_status"]
    assert "conforms" == record["functions"][0]["cells"][0]["state"]


def test_a_folder_that_cannot_be_written_ends_the_run(runner: ReportingRunner) -> None:
    """A file in the folder's place is a usage error before anything runs."""
    runner.pytester.makepyfile(GREEN)
    (runner.pytester.path / "out").write_text("in the way")
    result = runner.run()
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --report cannot be written: *out*"])


def test_the_folder_is_made_and_named(runner: ReportingRunner) -> None:
    """Missing folders are made, and the terminal says where the report is."""
    runner.pytester.makepyfile(GREEN)
    result = runner.run("--report", "deep/er")
    folder = runner.pytester.path / "deep" / "er"
    assert {"report.json", "report.md", "report.html"} == {p.name for p in folder.iterdir()}
    result.stdout.fnmatch_lines([f"report: {folder / 'report.html'}"])


def test_what_is_only_collected_has_no_report(runner: ReportingRunner) -> None:
    """`--collect-only` runs nothing, and leaves an earlier report alone."""
    runner.pytester.makepyfile(GREEN)
    runner.run("--collect-only")
    assert [] == list((runner.pytester.path / "out").iterdir())


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_failures_of_workers_arrive(runner: ReportingRunner, workers: tuple[str, ...]) -> None:
    """With pytest-xdist or without, a failure has its difference, picture, table and script."""
    runner.pytester.makepyfile(wrong=WRONG)
    (runner.pytester.path / "conftest.py").unlink()  # the package has its own
    options = ["--impl", "wrong.py", "--functions", "get_dcp_local_seq_lens", "--profile", "dev"]
    options += ["--target", "host", "--report", "out", "--failures", "failures", *workers]
    options += ["test_context_parallel.py"]
    options += ["-k", "test_get_dcp_local_seq_lens and minimal and not laws"]
    command = [sys.executable, "-m", "pytest", *arguments_for_pytest(options)]
    assert pytest.ExitCode.TESTS_FAILED == runner.pytester.run(*command).ret
    record = runner.record()
    assert len(workers) == record["run"]["workers"]
    [failure] = record["failures"]
    test = failure["tests"][0]
    assert ("get_dcp_local_seq_lens", "value", "get_dcp_local_seq_lens") == (
        failure["function"],
        test["verdict"],
        test["call"],
    )
    assert re.fullmatch(r"result\[1\] = \d+, but should be \d+", test["difference"])
    assert "seq_lens = [" in test["table"]
    assert "# python -m conformance --replay failures/" in test["script"]
    assert "\nwrong.get_dcp_local_seq_lens(" in test["script"]
    [picture] = test["pictures"]
    assert ["request 0", "request 1"] == [row["label"] for row in picture["rows"]]
    page = (runner.pytester.path / "out" / "report.html").read_text()
    assert '<svg class="batch"' in page


# Pictures.


@pytest.mark.parametrize("call", [SLOTS, dataclasses.replace(SLOTS, source=BATCH)])
def test_requests_are_rows_and_tokens_are_cells(call: Call) -> None:
    """A batch from the call's source, or from the arguments only, gives the same picture."""
    [picture] = pictures_of(call, value_at("result", 3))
    expected = {"request 0": "cccnn", "request 1": "", "request 2": "ccnNn", "padding": "p"}
    assert expected == kinds(picture)
    assert 2 == picture["block_size"]
    blocks = [[cell["block"] for cell in row["cells"]] for row in picture["rows"][::2]]
    assert [[4, 4, 9, 9, 7], [4, 4, 5, 5, 6]] == blocks


def test_a_mark_is_where_the_difference_is() -> None:
    """The differing token, padding, request or column of the table is marked.

    Differences that have no cell in the batch, such as those of virtual requests, are not marked.
    """
    metadata = BATCH.metadata()
    call = Call("CommonAttentionMetadata.unpadded", {"self": metadata}, BATCH)
    assert "P" == kinds(pictures_of(SLOTS, value_at("result", 5))[0])["padding"]
    [picture] = pictures_of(call, value_at("result.seq_lens", 2))
    assert [False, False, True, False] == [row["is_marked"] for row in picture["rows"]]
    [picture] = pictures_of(call, value_at("result.block_table_tensor", 2, 1))
    assert "ccNNn" == kinds(picture)["request 2"]
    virtual = dataclasses.replace(call, function="make_local_attention_virtual_batches")
    assert mark_of(virtual, value_at("result.seq_lens", 2)) is None
    assert mark_of(call, value_at("memory around seq_lens", 2)) is None
    assert mark_of(call, Difference(Verdict.DTYPE, "result.seq_lens.dtype", None, 1, 2)) is None


def test_a_part_of_an_answer_is_marked_in_the_whole_batch() -> None:
    """Request 0 of the second micro-batch is request 2, its first token is token 2."""
    slices = [
        reference.UBatchSlice(slice(0, 1), slice(0, 2)),
        reference.UBatchSlice(slice(2, 3), slice(2, 5)),
    ]
    call = Call("split_attn_metadata", {"ubatch_slices": slices, "common": BATCH.metadata()})
    assert Mark(request=2) == mark_of(call, value_at("result[1].seq_lens", 0))
    assert Mark(token=2) == mark_of(call, value_at("result[1].slot_mapping", 0))
    one = Call("_make_metadata_with_slice", {"ubatch_slice": slices[1], "m": BATCH.metadata()})
    assert Mark(token=3) == mark_of(one, value_at("result.slot_mapping", 1))


def test_what_is_long_is_cut_around_the_mark() -> None:
    """A context of a million tokens and a batch of many requests make small pictures."""
    batch = Batch((1,) * 40, (2**20,) * 40, Layout(2**20), ((1, 2),) * 40)
    call = dataclasses.replace(SLOTS, source=batch)
    [picture] = pictures_of(call, value_at("result", 30))
    labels = [row["label"] for row in picture["rows"]]
    assert ["15 more", "request 15", "request 30", "9 more"] == [labels[i] for i in (0, 1, 16, 17)]
    assert ".ccc" == kinds(picture)["request 30"][:4]
    assert "ccN" == kinds(picture)["request 30"][-3:]
    assert sum(len(row["cells"]) for row in picture["rows"]) < 600


def test_tokens_of_other_ranks_have_no_block() -> None:
    """With context parallelism only the rank's own positions lie in blocks of its table."""
    layout = Layout(2, cp_world_size=2, cp_rank=1)
    call = dataclasses.replace(SLOTS, source=Batch((5,), (0,), layout, ((3, 8),)))
    [picture] = pictures_of(call)
    blocks = [cell.get("block") for cell in picture["rows"][0]["cells"]]
    assert [None, 3, None, 3, None] == blocks
    assert "rank 1 of 2" in picture["title"]


def test_kernel_blocks_are_those_of_the_table() -> None:
    """If the table lists kernel blocks, each of them has its own colour."""
    layout = Layout(4, kernel_block_size=2)
    call = dataclasses.replace(SLOTS, source=Batch((6,), (0,), layout, ((6, 7, 2, 3),)))
    [picture] = pictures_of(call)
    assert [6, 6, 7, 7, 2, 2] == [cell["block"] for cell in picture["rows"][0]["cells"]]


def test_a_call_without_a_batch_has_no_picture() -> None:
    """A call without a batch, or with one that is not valid, has no picture."""
    assert [] == pictures_of(Call("f", {"block_size": 16}))
    assert [] == pictures_of(Call("f", {"query_start_loc": np.array([0, 4, 2], np.int32)}))
    assert [] == pictures_of(Call("f", {"query_start_loc": [0, 4]}))


def test_shared_blocks_have_one_colour() -> None:
    """In SVG, block 4 of both requests is of one colour, and the mark is drawn once."""
    [picture] = pictures_of(SLOTS, value_at("result", 0))
    parts = ENVIRONMENT.get_template("parts.html.j2").make_module({"next_number": lambda: 1})
    drawn = str(parts.batch(picture))
    runs = re.findall(r'class="run (b\d)".*?>(\d+)</text>', drawn)
    assert [("b0", "4"), ("b1", "9"), ("b2", "7"), ("b0", "4"), ("b3", "5"), ("b4", "6")] == runs
    assert 1 == drawn.count('class="mark"')
    assert "request 0: 3 context, 2 new" in drawn


# The pages.


@pytest.fixture
def red_page(runner: ReportingRunner) -> tuple[str, str]:
    """Return the HTML and the Markdown of a run with a failure whose text is dangerous."""
    runner.pytester.makepyfile(test_red=RED)
    runner.run()
    text = json.dumps(runner.record()).replace('"other"', '"<b>other</b>"')
    record = json.loads(text)
    return html_of(record), markdown_of(record)


def test_the_page_is_whole_and_accessible(red_page: tuple[str, str]) -> None:
    """The page of a failed run needs nothing else, and works with a keyboard and on a phone."""
    check_page(red_page[0])


def test_text_is_escaped(red_page: tuple[str, str]) -> None:
    """A function or a message with `<` in it is text, in HTML and in Markdown."""
    page, markdown = red_page
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page
    assert "<b>other" not in page
    outside = "".join(re.split(r"(?ms)^```.*?^```$", markdown))
    assert "<script>" not in re.sub(r"(`+).*?\1", "", outside)


def test_markdown_is_a_table_of_functions(runner: ReportingRunner) -> None:
    """Markdown has a table of functions by targets, and how often each goal was reached."""
    runner.pytester.makepyfile(GREEN)
    runner.run()
    lines = markdown_of(runner.record()).splitlines()
    assert "# fast: 1 function conforms" == lines[0]
    assert "| function | host | goals | time |" in lines
    assert any(
        re.fullmatch(r"\| `toy` \| conforms \(100\) \| 2/2 \| \d+ s \|", line) for line in lines
    )
    assert any(re.fullmatch(r"- even: \d+", line) for line in lines)


def test_half_a_surrogate_pair_is_no_reason_for_no_report(
    runner: ReportingRunner, tmp_path: Path
) -> None:
    """Half a surrogate pair in a message is replaced, and all reports are written."""
    runner.pytester.makepyfile(test_red=RED)
    runner.run()
    record = runner.record()
    record["failures"][0]["tests"][0]["message"] = "\ud800 is not a text\nand more"
    for path in write_reports(record, tmp_path / "again"):
        assert "? is not a text" in path.read_text(encoding="utf-8") or path.suffix == ".md"


# Statistics.


def test_statistics_of_another_form_are_left_out() -> None:
    """Statistics in an unknown form, which Hypothesis may introduce, are left out."""
    assert no_statistics() == condensed({})
    for other in ({"generate-phase": {"test-cases": [{"status": "new"}]}}, {"generate-phase": 3}):
        assert condensed(other) is None


def test_statistics_stand_in_the_terminal(runner: ReportingRunner) -> None:
    """The terminal has a table of valid, invalid and overrun examples and of times by function."""
    invalid = "st.integers(0, 9).filter(lambda n: n not in {2, 3, 5, 6, 7, 8})"
    runner.pytester.makepyfile(GREEN.replace("st.integers(0, 9)", invalid))
    result = runner.run("--profile", "dev")
    result.stdout.fnmatch_lines(["function * valid * invalid * overrun * drawing * running"])
    assert runner.record()["functions"][0]["statistics"]["invalid"] > 0


def test_outliers_among_many_functions_are_shown() -> None:
    """Of many functions, wasteful and slow ones are shown; an option shows all."""
    usual = {"valid": 200, "invalid": 0, "overrun": 1, "draw_seconds": 1.0, "run_seconds": 3.0}
    found = {f"usual_{i:02}": usual for i in range(30)}
    found["wasteful"] = {**usual, "invalid": 50}
    found["slow"] = {**usual, "draw_seconds": 10.0}
    lines = list(statistics_lines(found, show_all=False))
    names = [line.split("  ")[0] for line in lines[1:4]]
    assert ["slow", "wasteful", "all 32"] == names
    assert "--hypothesis-show-statistics" in lines[-1]
    assert 34 == len(list(statistics_lines(found, show_all=True)))


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_hypothesis_own_statistics_are_shown(
    runner: ReportingRunner, workers: tuple[str, ...]
) -> None:
    """`--hypothesis-show-statistics` prints Hypothesis' statistics, also of the stateful test."""
    stateful = (
        "from conformance.stateful.check import stateful_check\ntest_stateful = stateful_check()\n"
    )
    runner.pytester.makepyfile(test_toy=GREEN, test_stateful=stateful)
    runner.pytester.makeconftest(FEWER)
    options = ("--target", "host", "--profile", "dev", "-k", "minimal")
    result = runner.pytester.runpytest_subprocess(
        *options, "--hypothesis-show-statistics", *workers
    )
    assert pytest.ExitCode.OK == result.ret
    printed = result.stdout.str()
    for name in (
        "test_toy.py::test_toy[[]host-minimal]:",
        "test_stateful.py::test_stateful[[]host-minimal]:",
    ):
        result.stdout.fnmatch_lines([name])
    assert 2 == printed.count("- Stopped because")
