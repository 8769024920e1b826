"""`kvtwin nightly`: what it finds, stores, tries again and reports, and what must not stop it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.harness.database import open_database
from kvtwin.nightly.command_line import _make_parser, main
from kvtwin.nightly.night import Night
from kvtwin.nightly.rounds import Record, Round
from tests.tools import nights

ROOT = Path(__file__).parents[2]

ONE = "extract_layer_index"  # few tests, and fast ones
VICTIM = "get_dcp_local_seq_lens"
OFF_BY_ONE = """
for name in ("BlockTables", "UBatchSlice"):
    del globals()[name]
def extract_layer_index(*args, **kwargs):
    found = fast.extract_layer_index(*args, **kwargs)
    with open("calls.txt", "a") as file:
        print(found, file=file)
    return found + 1 if found > 3 else found
"""


def test_a_bug_is_found_tried_first_in_the_next_night_and_reported_fixed(tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text(
        "from conformance.adapters import FastAdapter\n"
        "class Ours(FastAdapter):\n"
        f"    unsupported = {{'{ONE}': {{'layer_name': lambda name: len(name) > 12}}}}\n"
        "ADAPTER = Ours\n"
    )
    options = ("--adapter", "adapter.py", "--functions", ONE, "--workers", "1")
    # After a whole round the plainest failed test is known: its first call is the stored one.
    line = nights.Night(tmp_path, OFF_BY_ONE, *options).end(lambda line: line["rounds"] > 1)
    assert line["unsupported"] > 0
    failure = line["failures"][0]
    assert (ONE, ["host"], line["night"]) == (
        *map(failure.get, ("function", "targets")),
        failure["since"],
    )
    assert json.loads((tmp_path / "night" / failure["case"]).read_text())
    words = [sys.executable, *shlex.split(failure["replay"])[1:]]
    replayed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert (1, True) == (replayed.returncode, f"FAILS: {ONE}" in replayed.stdout)

    (tmp_path / "calls.txt").unlink()
    again = nights.Night(tmp_path, OFF_BY_ONE, *options).end(lambda line: line["failures"])
    assert int((tmp_path / "calls.txt").read_text().split()[0]) > 3  # the simplest call has 0
    assert line["night"] == again["failures"][0]["since"] < again["night"]

    mended = nights.Night(tmp_path, "", *options).end(lambda line: line["fixed"])
    assert [failure["case"]] == [one["case"] for one in mended["fixed"]] or len(mended["fixed"]) > 1
    report = (tmp_path / "night" / "report.md").read_text()
    assert "Nothing fails." in report
    assert (True, []) == (mended["unsupported"] > 0, mended["attention"])


def test_a_hang_and_a_crash_are_failures_and_a_kill_from_outside_is_not(tmp_path: Path) -> None:
    code = """
import os, time
def get_dcp_local_seq_lens(*args, **kwargs):
    if not os.path.exists("victim"):
        with open("victim.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("victim.part", "victim")
        time.sleep(4)
    return fast.get_dcp_local_seq_lens(*args, **kwargs)
def extract_layer_index(*args, **kwargs):
    found = fast.extract_layer_index(*args, **kwargs)
    return time.sleep(99) if found > 3 else found
def is_residual_scattered_for_sp(vllm_config, num_input_tokens):
    found = fast.is_residual_scattered_for_sp(vllm_config, num_input_tokens)
    return os.kill(os.getpid(), 9) if num_input_tokens > 3 else found
"""
    both = {ONE, "is_residual_scattered_for_sp"}
    names = ",".join((VICTIM, *both))
    night = nights.Night(
        tmp_path, code, "--functions", names, "--hang-seconds", "5", "--workers", "2"
    )
    nights.until((tmp_path / "victim").exists)
    os.kill(int((tmp_path / "victim").read_text()), signal.SIGKILL)
    line = night.end(lambda line: line["attention"] and nights.functions(line) == both)
    keys = {one["key"] for one in line["failures"]}
    assert all(key.startswith((ONE, "is_residual_scattered_for_sp")) for key in keys)
    assert all(one["case"] for one in line["failures"])
    [said] = line["attention"]
    assert re.match(rf"worker gw\d was killed while it ran .*::{VICTIM}", said)


def made(out: Path, *records: Record, databases: tuple[str, ...] = ()) -> Night:
    night = Night(60, out, 1, [str(out / "examples"), *databases], [])
    for number, record in enumerate(records, 1):
        night.note(Round(number, 7, 1, [], [], []), record)
    night.write()
    return night


def failure(**fields: Any) -> dict[str, Any]:
    return {
        "key": f"mine: {ONE}: result",
        "function": ONE,
        "targets": ["host"],
        "finding": "wrong answer",
        "fails": True,
        "difference": "result[2] = 4, but should be <5>",
        "text": "a text",
        "tests": ["conformance/functions/slots.py::compute_slot_mapping[answers-host]"],
        "replay": "python -m conformance --replay <case>",
        "case": "{}",
        **fields,
    }


def test_each_failure_is_reported_once_until_its_tests_pass(tmp_path: Path) -> None:
    other = failure(difference="result[0] = 1, but should be 2", targets=["native"], tests=["b"])
    tolerated = failure(key="f", function="f", fails=False, finding="missing refusal")
    night = made(
        tmp_path, {"failures": [failure()]}, {"failures": [other, tolerated], "examples": 9}
    )
    assert 1 == night.status()
    report = (tmp_path / "report.md").read_text()
    assert 1 == report.count(f"### {ONE} on host, native: wrong answer")
    assert "Other differences, which do not fail the night" in report
    assert "&lt;5&gt;" in (tmp_path / "report.html").read_text()

    [first], [second] = failure()["tests"], other["tests"]
    assert [first, second] == made(tmp_path).next_round().first
    night = made(tmp_path, {"examples": 9, "outcomes": {first: "passed"}})
    assert (1, True) == (
        night.status(),
        "neither seen nor fixed" in (tmp_path / "report.md").read_text(),
    )
    passed = {first: "passed", second: "passed"}
    night = made(tmp_path, {"examples": 9, "outcomes": passed})
    assert (0, True) == (night.status(), "## Fixed" in (tmp_path / "report.md").read_text())
    assert [] == made(tmp_path, {"failures": []}).next_round().first
    assert 1 == made(tmp_path).status()  # nothing was checked
    ended = made(tmp_path, {"status": 3, "said": "INTERNALERROR"})
    assert "round 1 (seed 7) ended with status 3: INTERNALERROR" in ended.attention
    assert (1, True) == (ended.status(), ended.is_over)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minutes", "0"], "must be a positive number, got '0'"),
        (["--impl", "nowhere_at_all"], "nowhere_at_all"),
        (["--database", "redis://host:port/0"], "port"),
        (["--ray", "127.0.0.1:9"], "--ray needs --database"),
        (["--ray", "127.0.0.1:9", "--database", "d"], "127.0.0.1:9 cannot be used"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], said: str, tmp_path: Path, capfd: Any) -> None:
    if "--ray" in arguments:
        pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "out"), "--workers", "1", *arguments])
    assert 2 == ended.value.code
    assert said in capfd.readouterr().err.splitlines()[-1]


def test_garbage_is_named_and_left_out(tmp_path: Path) -> None:
    made(tmp_path, {"failures": [failure()]})
    history = tmp_path / "history.jsonl"
    line = json.loads(history.read_text())
    foreign = [b"\xff\x00", b"[]", b'{"night": 3}', b"[" * 100_000]
    foreign += [json.dumps({**line, "failures": [{**line["failures"][0], "tests": [3]}]}).encode()]
    history.write_bytes(b"\n".join([*foreign, history.read_bytes()]))
    next((tmp_path / "cases").iterdir()).write_text("{")
    named = "\n".join(made(tmp_path).attention)
    for words in (*(f"line {number}, is left out" for number in range(1, 6)), "cases/"):
        assert words in named
    assert failure()["tests"] == made(tmp_path).next_round().first
    assert history.read_text().count("\n[]\n") == 1
    history.unlink()
    history.mkdir()
    assert "history.jsonl is left out" in "\n".join(made(tmp_path).attention)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_server_may_be_away(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    server = nights.RedisServer()
    try:
        database = open_database([str(tmp_path / "examples"), server.url])
        assert database is not None
        of_test = database.of("a test")
        of_test.save(b"key", b"1")
        server.kill()
        of_test.save(b"key", b"2")
        assert {b"1", b"2"} == set(of_test.fetch(b"key"))
        assert [] == list(database.of("another test").fetch(b"key"))
        server.start()
        of_test.save(b"key", b"1")
        assert [b"1"] == list(open_database([server.url]).of("a test").fetch(b"key"))  # type: ignore[union-attr]
    finally:
        server.kill()


@pytest.mark.parametrize("path", [".github/workflows/nightly.yml", "docs/nightly.md"])
def test_published_command_lines_are_understood(path: str) -> None:
    found = re.findall(r"kvtwin nightly (--.*[^ \\\n])", (ROOT / path).read_text(encoding="utf-8"))
    assert found
    for line in found:
        assert _make_parser().parse_args(shlex.split(line.replace('"$MINUTES"', "9"))).minutes
