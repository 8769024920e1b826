"""The benchmark: results are compared before they are timed, and runs with each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.adapters.implementations import FAST, load_implementation
from kvtwin.bench import command_line
from kvtwin.bench.command_line import Record, main, read_record
from kvtwin.bench.jobs import KINDS, Job, Side, make_batch
from kvtwin.bench.measure import Row, measure
from kvtwin.bench.steps import JOBS

FUNCTION = "get_dcp_local_seq_lens"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Time one function for small batches; return its stored run."""
    pytest.importorskip("matplotlib", reason="matplotlib comes with .[bench]")
    monkeypatch.setattr(command_line, "SIZES", (8,))
    path = tmp_path / "run.json"
    picture = tmp_path / "run.png"
    assert 0 == main(["--functions", FUNCTION, "--json", str(path), "--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_fast_and_baseline_equal_reference(job: Job, kind: str) -> None:
    baseline = Side("baseline", load_implementation("kvtwin.baselines"))
    row = measure(job, make_batch(kind, 5), [Side("fast", FAST), baseline], num_blocks=1)
    assert row is not None
    assert row.ratio is not None
    assert min(row.fast_us, row.ratio) > 0


def test_batches_are_what_their_kinds_say() -> None:
    assert [4] * 8 == make_batch("speculative", 8).query_lens.tolist()
    mixed = make_batch("mixed", 8)
    assert [1] * 6 == mixed.query_lens[:6].tolist()
    assert 0 == mixed.num_computed_tokens[7] < mixed.num_computed_tokens[6]
    large = make_batch("mixed", 1024)  # so that stored runs compare
    sums = [array.sum().item() for array in (large.query_lens, large.seq_lens, large.block_table)]
    assert [9011, 3591048, 25292366505] == sums


def test_a_run_is_compared_with_a_stored_one(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["--functions", FUNCTION, "--check", str(stored)]
    content = json.loads(stored.read_text())
    assert [FUNCTION] * len(KINDS) == [row["function"] for row in content["rows"]]
    for factor, status, said in (
        (0.1, 0, "4 ratios compared with the stored run, 0 have grown by half"),
        (1000, 1, f"GROWN: {FUNCTION}, decode, 8 requests: "),
    ):
        for row in content["rows"]:
            row["baseline_us"] *= factor
        stored.write_text(json.dumps(content))
        assert status == main(check)
        assert said in capsys.readouterr().out
    stored.write_text(json.dumps({**content, "rows": []}))
    assert 1 == main(check)


def test_a_run_on_a_gpu_is_stored_shown_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "SIZES", (8,))
    alone = Row("split_hairs", "mixed", 8, 3.0)
    both = Row(FUNCTION, "mixed", 8, 20.0, 40.0, device_us=2.0, baseline_device_us=2.5)
    record = Record("kvtwin bench", "2026-11-29", {"GPU": "new"}, "triton", "cuda", [alone, both])
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": command_line.SCHEMA, **dataclasses.asdict(record)}))
    assert record == read_record(path)
    command_line.show(record)
    shown = capsys.readouterr().out
    for cell in ("3.00 / -", "20 / 40  0.50", "2.00 / 2.50  0.80"):
        assert cell in shown
    slower = dataclasses.replace(record, rows=[dataclasses.replace(both, device_us=4.0)])
    assert not command_line.is_as_fast(record, slower)
    assert "8 requests on the device: 1.60 times the baseline, 0.80" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="matplotlib comes with .[bench]")
    command_line.draw(record, tmp_path / "run.png")


def test_another_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "SIZES", (8,))
    right = f"from kvtwin.baselines import {FUNCTION}\n"
    wrong = f"def {FUNCTION}(seq_lens, *_, **__):\n    return seq_lens + 1\n"
    for name, text, status, said in (
        ("right", right, 0, "; baseline: right\n"),
        ("wrong", wrong, 1, f"WRONG: baseline: {FUNCTION}, decode, 8: result = ["),
        ("other", "class UBatchSlice: ...\n", 1, "nothing was timed: other has none of these"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        baseline = str(tmp_path / f"{name}.py")
        assert status == main(["--baseline", baseline, "--functions", FUNCTION])
        assert said in capsys.readouterr().out


def test_an_interrupted_run_shows_what_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(job: Job, *_: object) -> Row:
        if job.num_groups == 4:
            raise KeyboardInterrupt
        return Row(job.name, "mixed", 8, 1.0, 2.0)

    monkeypatch.setattr(command_line, "SIZES", (8,))
    monkeypatch.setattr(command_line, "measure", measure)
    assert 1 == main(["--functions", "compute_slot_mappings"])
    printed = capsys.readouterr()
    assert "interrupted: only these functions are timed" in printed.err
    assert "compute_slot_mappings, 1 group" in printed.out
    assert "compute_slot_mappings, 4 groups" not in printed.out


def test_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="vLLM comes with .[vllm]")
    monkeypatch.setattr(command_line, "SIZES", (8,))
    path = tmp_path / "run.json"
    assert 0 == main(["--baseline", "vllm", "--json", str(path)])
    rows = read_record(path).rows
    assert {("mixed", 8), ("decode", 8)} == {(row.kind, row.num_reqs) for row in rows}
    assert {"step, 1 group", "step, 4 groups"} <= {row.function for row in rows}
    assert len(rows) >= 35


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--functions", "split_hairs"], "argument --functions: 'split_hairs' is not timed; try "),
        (["--check", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["--check", "{folder}/list.json"], "list.json is not a record of kvtwin.bench"),
        (["--baseline", "no.such.module"], "--baseline 'no.such.module' cannot be imported"),
    ],
)
def test_an_option_that_cannot_be_used(
    arguments: list[str], said: str, refusal: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text("[]")
    assert said in refusal(main, [argument.format(folder=tmp_path) for argument in arguments])
