"""The replay's command line, end to end."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fast
from conformance.zoo.models import MODELS
from kvtwin import replay

AZURE_TRACE = Path(__file__).parents[3] / "shared" / "data" / "azure_llm_2023_code.csv"


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Restore torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", MODELS)
def test_each_model_is_replayed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each model passes with its defaults; test_traffic_runner.py replays more of each."""
    assert replay.main(["--model", model, "--steps", "4"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"mismatches +│ +0 ", printed.out)
    assert printed.err == ""  # progress is for terminals


def test_the_default_trace_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """With its defaults the replay has no mismatches, and prints a summary."""
    assert replay.main(["--steps", "60"]) == 0
    printed = capsys.readouterr()
    for row in (
        r"steps +│ +60 ",
        r"requests finished +│ +[1-9]",
        r"batches, decode only +│ +[1-9]",
        r"batches, mixed +│ +[1-9]",
        r"time per step in fast, median +│ +[0-9.]+ ms",
        r"mismatches +│ +0 ",
    ):
        assert re.search(row, printed.out)
    assert printed.err == ""


def test_options_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """A small engine with drafts preempts, leaves out what is too long, and stops at the end."""
    options = "--requests 40 --steps 900 --token-budget 200 --max-num-seqs 8 --num-blocks 60"
    more = "--num-speculative-tokens 2 --micro-batches 3 --checked --seed 3"
    assert replay.main([*options.split(), *more.split()]) == 0
    printed = capsys.readouterr().out
    counts = {
        row.strip(): int(count) for row, count in re.findall(r"│ ([a-z, ]+) │ +(\d+) │", printed)
    }
    assert counts["requests finished"] + counts["requests left out, too long"] == 40
    assert counts["requests left out, too long"] > 0
    assert counts["preemptions"] > 0
    assert counts["mismatches"] == 0
    assert counts["steps"] < 900


@pytest.mark.skipif(not AZURE_TRACE.exists(), reason="the Azure trace is not here")
def test_a_given_trace_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of real requests is replayed like the built-in one."""
    arguments = ["--trace", str(AZURE_TRACE), "--model", "llama-4-scout", "--steps", "20"]
    assert replay.main(arguments) == 0
    assert re.search(r"mismatches +│ +0 ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model gpt-5", "unknown model 'gpt-5'; try gpt-oss-20b"),
        ("--steps 0", "argument --steps: must be an integer >= 1, got '0'"),
        ("--seed -1", "argument --seed: must be an integer >= 0, got '-1'"),
        ("--token-budget 1e3", "argument --token-budget: must be an integer >= 1, got '1e3'"),
        ("--trace nowhere.csv", "nowhere.csv: No such file or directory"),
        ("--num-blocks 1", "none of the 200 requests fits: at most 0 tokens do"),
        ("--blocks 1", "unrecognized arguments: --blocks 1"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: str, message: str, refusal: Callable[..., str]
) -> None:
    """What cannot be used ends with status 2 and one line that says why."""
    line = refusal(replay.main, arguments.split())
    assert line.startswith("kvtwin replay: ")
    assert message in line


def test_a_bad_trace_is_one_line(tmp_path: Path, refusal: Callable[..., str]) -> None:
    """A trace that cannot be read ends with status 2, the file, the line and the column."""
    path = tmp_path / "bad.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    for text, message in (
        (
            f"{header}\n2024-01-01,many,2\n",
            "bad.csv, line 2, column ContextTokens: must be an integer >= 1, got 'many'",
        ),
        ("TIMESTAMP\n", "bad.csv, line 1: no column ContextTokens, GeneratedTokens among"),
    ):
        path.write_text(text, encoding="utf-8")
        assert message in refusal(replay.main, ["--trace", str(path)])


def test_the_request_of_a_difference_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three prompts of 5, 7 and 9 tokens, token 11 is the last of the second."""
    path = tmp_path / "three.csv"
    rows = [f"2024-01-01,{num_tokens},3\n" for num_tokens in (5, 7, 9)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows), "utf-8")
    compute = fast.BlockTables.compute_slot_mappings

    def broken(*arguments: Any) -> torch.Tensor:  # noqa: ANN401  # takes the method's place
        slots = compute(*arguments)
        slots[0, 11] += 1
        return slots

    monkeypatch.setattr(fast.BlockTables, "compute_slot_mappings", broken)
    monkeypatch.setattr(fast, "warmup", lambda: None)  # it would meet the bug first
    assert replay.main(["--trace", str(path)]) == 1
    line = "step 0: slot_mappings[0, 11] = 39, but should be 38 (of request-1)"
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == line
    assert re.search(r"mismatches +│ +1 ", printed)
