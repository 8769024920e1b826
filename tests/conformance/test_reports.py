"""`--report DIR`: the three files, and the pictures of failing batches."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import HEAD, Runner

from conformance.__main__ import arguments_for_pytest
from conformance.reports.picture import mark_of, pictures_of
from conformance.strategies.batch import Batch, Layout
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

pytest_plugins = ["pytester"]

GREEN = (
    HEAD
    + """
@property_check("toy", digits, goals={"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2})
def test_toy(target, n):
    "Shows nothing."
"""
)
NASTY = "a </pre><script>alert(1)</script> | `b` & c \x1b[2J \ud800"
RED = (
    GREEN
    + f"""
@property_check("<b>other", digits)
def test_other(target, n):
    "Fails."
    raise AssertionError({NASTY!r})
"""
)
WRONG = """
import fast
from fast import *

def compute_slot_mapping(*args, **kwargs):
    found = fast.compute_slot_mapping(*args, **kwargs)
    if len(found) > 1:
        found[1] += 1
    return found
"""
OPTIONS = ("--target", "host", "--report", "out", "--failures", "failures")


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(pytester, monkeypatch, *OPTIONS)


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("out", "report.json").read_text(encoding="utf-8"))
    return found


def test_a_green_run(runner: Runner) -> None:
    runner.pytester.makepyfile(GREEN)
    result = runner.run("--report", "deep/out")
    assert pytest.ExitCode.OK == result.ret
    folder = Path("deep/out").resolve()
    assert {"report.json", "report.md", "report.html"} == {path.name for path in folder.iterdir()}
    result.stdout.fnmatch_lines([f"report: {folder / 'report.html'}"])
    found = json.loads((folder / "report.json").read_text())
    assert ("ok", None) == (found["run"]["exit_status"], found["run"]["seed"])
    assert {"passed": 2, "failed": 0, "skipped": 0} == found["run"]["tests"]
    assert {"python", "torch", "machine"} <= found["versions"].keys()
    [function] = found["functions"]
    assert ["even", "odd"] == list(function["goals"])
    [cell] = function["cells"]
    assert ("host", "conforms", 100) == (cell["target"], cell["state"], cell["examples"])
    assert [] == found["failures"] == found["unreached"] == found["run"]["errors"]
    lines = (folder / "report.md").read_text().splitlines()
    assert "# fast: 1 function conforms" == lines[0]
    assert "| function | host | goals | time |" in lines
    assert any(re.fullmatch(r"\| toy \| conforms \(100\) \| 2/2 \| \d+ s \|", one) for one in lines)
    assert "<td>conforms (100)</td>" in (folder / "report.html").read_text()


def test_failures_and_errors_are_escaped(runner: Runner) -> None:
    runner.pytester.makepyfile(test_red=RED, test_broken=f"raise ValueError({NASTY!r})")
    assert pytest.ExitCode.TESTS_FAILED == runner.run("--continue-on-collection-errors").ret
    found = record()
    [failure] = found["failures"]
    assert ("<b>other", "host", []) == tuple(failure[key] for key in ("function", "target", "with"))
    text = failure["tests"][0]["text"]
    assert all(part in text for part in (NASTY.partition(" \x1b")[0], r"\x1b[2J \ud800"))
    [error] = found["run"]["errors"]
    assert error["where"].endswith("test_broken.py")
    assert "ValueError: a </pre>" in error["message"]
    page = Path("out", "report.html").read_text()
    assert not re.search(r"<(script|img|iframe|link)|(src|href)=", page)
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page
    assert "fast: wrong answers of &lt;b&gt;other" in page
    markdown = Path("out", "report.md").read_text()
    assert "<b>" not in re.sub(r"(?ms)^(```+).*?^\1$", "", markdown)
    assert "<script>" not in re.sub(r"(?ms)^(```+).*?^\1$", "", markdown)
    for text in (page, markdown, Path("out", "report.json").read_text()):
        assert not {"\x1b", "\ud800"} & {*text}


def test_an_unreached_goal(runner: Runner) -> None:
    runner.pytester.makepyfile(GREEN.replace("n % 2}", "n > 9}"))
    runner.options = ("--report", "out", "--failures", "failures")  # all targets
    assert pytest.ExitCode.TESTS_FAILED == runner.run().ret
    assert ["coverage goal not reached: toy: odd"] == record()["unreached"]
    for name in ("report.html", "report.md"):
        assert "coverage goal not reached: toy: odd" in Path("out", name).read_text()


def test_an_interrupted_run_has_a_report(runner: Runner) -> None:
    runner.pytester.makepyfile(GREEN + "\ndef test_stop():\n    raise KeyboardInterrupt\n")
    result = runner.pytester.runpytest_subprocess(*OPTIONS)
    assert pytest.ExitCode.INTERRUPTED == result.ret
    assert "interrupted" == record()["run"]["exit_status"]
    assert "fast: interrupted; 1 function conforms" in Path("out", "report.md").read_text()


def test_a_folder_that_cannot_be_written_ends_the_run(runner: Runner) -> None:
    runner.pytester.makepyfile(GREEN)
    Path("out").write_text("in the way")
    result = runner.run()
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --report cannot be written: *out*"])


def test_collecting_leaves_an_earlier_report_alone(runner: Runner) -> None:
    runner.pytester.makepyfile(GREEN)
    runner.run("--collect-only")
    assert [] == list(Path("out").iterdir())


def test_a_wrong_function_in_workers(runner: Runner) -> None:
    runner.pytester.makepyfile(wrong=WRONG)
    Path("conftest.py").unlink()  # the package has its own
    options = ["--impl", "wrong.py", "--profile", "brief", *OPTIONS, "-n", "2"]
    options += ["test_slots.py::test_compute_slot_mapping[host-minimal]"]
    command = [sys.executable, "-m", "pytest", *arguments_for_pytest(options)]
    assert pytest.ExitCode.TESTS_FAILED == runner.pytester.run(*command).ret
    [failure] = record()["failures"]
    assert "compute_slot_mapping" == failure["function"]
    test = failure["tests"][0]
    assert "wrong answer" == test["finding"]
    assert re.fullmatch(r"result\[1\] = -?\d+, but should be -?\d+", test["difference"])
    assert "called with" in test["text"]
    assert test["replay"].startswith("python -m conformance --replay failures/")
    assert f"To reproduce:\n    {test['replay']}" in test["text"]
    [picture] = test["pictures"]
    assert 1 == "".join(drawn(picture).values()).count("!")
    page = Path("out", "report.html").read_text()
    assert picture in page
    assert test["replay"] in html.unescape(page)
    assert test["replay"] in Path("out", "report.md").read_text()


# Pictures.

BATCH = Batch((2, 0, 3), (3, 0, 2), Layout(2), ((4, 9, 7), (), (4, 5, 6)), num_padding_tokens=1)
SLOTS = Call(
    "compute_slot_mapping",
    {
        "block_table": BATCH.block_table(),
        "query_start_loc": BATCH.query_start_loc(),
        "positions": BATCH.positions(),
        "block_size": 2,
    },
)


def drawn(picture: str) -> dict[str, str]:
    """Return the tokens of each row: c(ontext), n(ew), p(adding); ! after a frame, . for a gap."""
    found = {}
    for row in ET.fromstring(picture).findall("g"):  # noqa: S314  # our own
        letters = ""
        for part in row:
            if part.tag == "g":
                letters += part.attrib["class"][0]
            elif part.attrib.get("class") == "wrong":
                letters += "!"
            elif "…" in (part.text or ""):
                letters += "."
        found[str(row[0].text)] = letters
    return found


def blocks_of(picture: str, row: int = 0) -> list[int]:
    """Return the block of each token of a row that has one, from its tooltip."""
    titles = [str(found.text) for found in ET.fromstring(picture)[row + 1].iter("title")]  # noqa: S314
    return [int(title.rpartition("block ")[2]) for title in titles if "block" in title]


def value_at(path: str, *index: int) -> Difference:
    return Difference(Verdict.VALUE, path, index, 1, 2)


@pytest.mark.parametrize("call", [SLOTS, dataclasses.replace(SLOTS, source=BATCH)])
def test_requests_are_rows_and_tokens_are_cells(call: Call) -> None:
    [picture] = pictures_of(call, value_at("result", 3))
    expected = {"request 0": "cccnn", "request 1": "", "▸ request 2": "ccnn!n", "padding": "p"}
    assert expected == drawn(picture)
    assert [[4, 4, 9, 9, 7], [4, 4, 5, 5, 6]] == [blocks_of(picture, row) for row in (0, 2)]


def test_the_difference_is_framed() -> None:
    metadata = BATCH.metadata()
    call = Call("CommonAttentionMetadata.unpadded", {"self": metadata}, BATCH)
    assert "p!" == drawn(pictures_of(SLOTS, value_at("result", 5))[0])["padding"]
    assert (
        "c!c!n!n!n!" == drawn(pictures_of(call, value_at("result.seq_lens", 2))[0])["▸ request 2"]
    )
    [picture] = pictures_of(call, value_at("result.block_table_tensor", 2, 1))
    assert "ccn!n!n" == drawn(picture)["▸ request 2"]
    virtual = dataclasses.replace(call, function="make_local_attention_virtual_batches")
    assert mark_of(virtual, value_at("result.seq_lens", 2)) is None
    assert mark_of(call, value_at("memory around seq_lens", 2)) is None
    assert mark_of(call, Difference(Verdict.DTYPE, "result.seq_lens.dtype", None, 1, 2)) is None


def test_long_rows_and_many_requests_are_cut_around_the_mark() -> None:
    batch = Batch((1,) * 40, (2**20,) * 40, Layout(2**20), ((1, 2),) * 40)
    call = dataclasses.replace(SLOTS, source=batch)
    [picture] = pictures_of(call, value_at("result", 30))
    rows = drawn(picture)
    assert ["15 more", "request 15", "▸ request 30", "9 more "] == [
        [*rows][i] for i in (0, 1, 16, 17)
    ]
    assert rows["▸ request 30"].startswith(".ccc")
    assert rows["▸ request 30"].endswith("ccn!")
    assert 16 * 32 == picture.count("<title>")


def test_blocks_are_those_of_the_rank_and_of_the_table() -> None:
    """Tokens of other ranks lie in no block; a table may list the blocks of kernels."""
    layout = Layout(2, cp_world_size=2, cp_rank=1)
    call = dataclasses.replace(SLOTS, source=Batch((5,), (0,), layout, ((3, 8),)))
    [picture] = pictures_of(call)
    assert [3, 3] == blocks_of(picture)
    assert "rank 1 of 2" in picture
    layout = Layout(4, kernel_block_size=2)
    call = dataclasses.replace(SLOTS, source=Batch((6,), (0,), layout, ((6, 7, 2, 3),)))
    assert [6, 6, 7, 7, 2, 2] == blocks_of(pictures_of(call)[0])


def test_a_call_without_a_batch_has_no_picture() -> None:
    assert [] == pictures_of(Call("f", {"block_size": 16}))
    assert [] == pictures_of(Call("f", {"query_start_loc": np.array([0, 4, 2], np.int32)}))
    assert [] == pictures_of(Call("f", {"query_start_loc": [0, 4]}))
