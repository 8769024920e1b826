"""The benchmark: its results are compared, its bounds checked, its options validated."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conformance.targets.target import Target
from kvtwin import baselines
from kvtwin.bench import command_line
from kvtwin.bench.batches import BLOCK_SIZE, KINDS, Batch, make_batch, trace_batches
from kvtwin.bench.bounds import check_bounds, geometric_mean, is_behind
from kvtwin.bench.command_line import main
from kvtwin.bench.growth import COPY_BASELINE, draw, plain_copy, steps, worst_growth_step
from kvtwin.bench.jobs import JOBS, MEAN_CONTEXT, Job, Rows
from kvtwin.bench.measuring import BASELINE, Row, WrongAnswerError, measure
from kvtwin.bench.memory import measure_memory
from kvtwin.bench.record import Record, grown, read_record
from kvtwin.bench.startup import import_seconds
from kvtwin.bench.step import make_step
from kvtwin.bench.timing import Spin, Timing, time_in_turn
from kvtwin.parser import write_json


@pytest.fixture(scope="module")
def spin() -> Spin:
    """Return the fixed loop."""
    return Spin()


def baseline_target() -> Target:
    """Return the built-in baselines."""
    return Target(BASELINE, command_line.load_implementation("kvtwin.baselines"), "cpu")


def row(fast_us: float, baseline_us: float, num_reqs: int = 8, job: str = "f") -> Row:
    """Return the timings of a function."""
    timings = {"fast": Timing(fast_us, 0.1, 3, True), BASELINE: Timing(baseline_us, 0.1, 3, True)}
    return Row(job, "mixed", num_reqs, 2 * num_reqs, timings)


def record(**fields: object) -> Record:
    """Return a record that has only these fields."""
    known = {
        "command": "kvtwin bench",
        "date": "2026-11-22",
        "machine": {"cpu": "one"},
        "baseline": "kvtwin.baselines",
        "device": "cpu",
        "torch_add_us": 2.0,
    }
    return Record(**{**known, **fields})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_fast_and_baseline_equal_reference(job: Job, kind: str, spin: Spin) -> None:
    """Every job has equal results in all targets on every kind of batch, and is timed."""
    measured = measure(
        job, make_batch(kind, 5), [Target("fast"), baseline_target()], spin, num_blocks=1
    )
    assert measured is not None
    assert {"fast", BASELINE, "reference"} == set(measured.timings)
    assert all(timing.median_us > 0 for timing in measured.timings.values())


def test_what_has_no_call_is_left_out(spin: Spin) -> None:
    """A job without a call for a batch is not measured: one token cannot be split."""
    job = next(job for job in JOBS if job.name == "split_attn_metadata")
    assert measure(job, make_batch("decode", 1), [Target("fast")], spin) is None


def test_a_wrong_answer_is_not_timed(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong result of a baseline is an error with the place of the difference."""
    monkeypatch.setattr(baselines, "split_decodes_and_prefills", lambda *_, **__: (1, 2, 3, 4))
    job = next(job for job in JOBS if job.name == "split_decodes_and_prefills")
    with pytest.raises(
        WrongAnswerError,
        match=r"baseline: split_decodes_and_prefills, decode, 5: result\[0\] = 1, but should be 5",
    ):
        measure(job, make_batch("decode", 5), [baseline_target()], spin)


def test_a_wrong_baseline_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the first wrong answer is reported."""
    baseline = tmp_path / "slow_engine.py"
    baseline.write_text(
        "def get_dcp_local_seq_lens(seq_lens, *_, **__):\n    return seq_lens + 1\n"
    )
    arguments = ["--quick", "--baseline", str(baseline), "--functions", "get_dcp_local_seq_lens"]
    assert main(arguments) == 1
    assert (
        "WRONG: baseline: get_dcp_local_seq_lens, decode, 1: result[0] = "
        in capsys.readouterr().out
    )


def test_another_baseline_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module with some of the names serves as the baseline; its times and ratios are printed."""
    baseline = tmp_path / "engine.py"
    baseline.write_text("from kvtwin.baselines import get_dcp_local_seq_lens\n")
    stored = tmp_path / "run.json"
    arguments = ["--quick", "--baseline", str(baseline), "--functions", "get_dcp_local_seq_lens"]
    main([*arguments, "--json", str(stored), "--all"])
    printed = capsys.readouterr().out
    assert "baseline: engine; torch.add" in printed
    assert "each function, each scenario" in printed
    read = read_record(stored)
    assert {"get_dcp_local_seq_lens"} == {row.job for row in read.rows}
    assert {1, 64, 1024} <= {row.num_reqs for row in read.rows}
    # If a run is compared with itself, all its rows are compared.
    assert len(read.rows) == grown(read, read)[1]


def test_batches_are_what_their_kinds_say() -> None:
    """Decodes have one token, speculative ones four, a mixed batch and a prefill chunks."""
    assert make_batch("decode", 8).query_lens.tolist() == [1] * 8
    assert make_batch("speculative", 8).query_lens.tolist() == [4] * 8
    mixed = make_batch("mixed", 8)
    assert mixed.query_lens[:6].tolist() == [1] * 6
    assert (mixed.query_lens[6:] > 1).all()
    assert mixed.num_computed_tokens[7] == 0 < mixed.num_computed_tokens[6]
    assert not make_batch("prefill", 8).num_computed_tokens.any()
    assert make_batch("mixed", 8).query_lens.tolist() == mixed.query_lens.tolist()


@pytest.mark.parametrize("batch", [make_batch("mixed", 9), *trace_batches(None, 2)])
def test_a_batch_agrees_with_itself(batch: Batch) -> None:
    """Each sequence ends at its last position, and no two requests share a block."""
    assert batch.num_tokens == len(batch.positions) == batch.starts[-1]
    assert (batch.positions[batch.starts[1:] - 1] + 1).tolist() == batch.seq_lens.tolist()
    assert len(set(batch.block_ids.tolist())) == len(batch.block_ids)
    assert (batch.block_table > 0).sum(axis=1).tolist() == batch.num_blocks.tolist()
    assert sorted(batch.arrival.tolist()) == list(range(batch.num_reqs))


def test_different_times_are_distinguished(spin: Spin) -> None:
    """A call that sleeps for 1 ms takes at least that, and an empty call less."""
    calls = {"short": lambda: None, "long": lambda: time.sleep(1e-3)}
    timings = time_in_turn(calls, spin, num_blocks=3)
    assert timings["short"].median_us < 1000 <= timings["long"].median_us
    assert {3} == {timing.num_blocks for timing in timings.values()}


def test_scratch_is_distinguished_from_the_result() -> None:
    """Memory that NumPy and torch free again is scratch; memory that they return is result."""
    import torch  # noqa: PLC0415  # only here

    allocated = measure_memory(lambda: (torch.ones(50_000) + 1).numpy()[:10] + np.ones(10))
    assert 200_000 <= allocated.scratch_bytes < 800_000
    assert allocated.result_bytes < 2_000


@pytest.mark.parametrize(
    ("fast_us", "baseline_us", "behind"),
    [
        (1.0, 1.0, False),
        (11.1, 10.0, True),
        (10.9, 10.0, False),
        (1.2, 0.3, False),
        (1.4, 0.3, True),
    ],
)
def test_functions_that_are_behind(fast_us: float, baseline_us: float, behind: bool) -> None:
    """A function is behind if it takes more than 1.1 times as long and 1 us more."""
    assert behind is is_behind(row(fast_us, baseline_us))


def test_bounds_are_checked() -> None:
    """Each bound is reported with whether it holds."""
    run = record(
        rows=[row(5.0, 10.0), row(20.0, 10.0)],
        growth=[row(1.0, 1.0, 1), row(9.0, 9.0, 4)],
        step_us={"fast": 500.0},
        memory={"f": (10, 20, 30), "g": (10, 31, 30)},
        import_seconds=0.2,
        first_calls={"f": 1.5, "g": 2.5},
    )
    assert [
        ("each function, each scenario", "1 of 2", False),
        ("geometric mean of the ratios", "1.00", False),
        ("the same without copiers and callers", "1.00", False),
        ("growth, 1 to 4096 requests", "2.25 times linear (f)", False),
        ("a whole step of 256 requests", "250 (500 µs / 2.00 µs)", False),
        ("memory besides the result", "at most 0 KiB (g); too much: g", False),
        ("import fast, after import torch", "0.20 s", True),
        ("first call after warmup()", "2.5 (g)", False),
    ] == [(bound.what, bound.got, bound.holds) for bound in check_bounds(run)]


def test_growth_is_compared_with_the_requests() -> None:
    """Twice the time for four times the requests is half of linear."""
    assert [0.5] == steps([row(1.0, 1.0, 1), row(2.0, 2.0, 4)])
    assert np.isnan(geometric_mean([None]))


@pytest.mark.parametrize(
    ("copy_us", "holds", "allowed"),
    [
        (None, False, ""),
        (1.0, False, ""),
        (4.0, False, ""),
        (7.0, False, ", where a copy grows 1.75 times"),
        (8.0, True, ", where a copy grows 2.00 times"),
    ],
)
def test_copiers_grow_as_a_copy(copy_us: float | None, holds: bool, allowed: str) -> None:
    """A job that copies may grow faster than linear if a plain copy does, as caches fill."""
    growing = [row(1.0, 1.0, 1), row(9.0, 9.0, 4)]
    if copy_us is not None:
        for one, us in zip(growing, (1.0, copy_us), strict=True):
            one.timings[COPY_BASELINE] = dataclasses.replace(one.timings["fast"], median_us=us)
    bound = next(bound for bound in check_bounds(record(growth=growing)) if "growth" in bound.what)
    assert holds is bound.holds
    assert bound.got == f"2.25 times linear{allowed} (f)"


@pytest.mark.parametrize(("ratios", "held"), [((0.05, 0.1), 2), ((0.3, 0.5), 1), ((0.4, 1.0), 0)])
def test_targets_of_an_engine(ratios: tuple[float, ...], held: int) -> None:
    """The geometric mean is at most 0.1, and no ratio above 0.9."""
    run = record(baseline="vllm", rows=[row(ratio, 1.0) for ratio in ratios])
    assert held == sum(bound.holds for bound in check_bounds(run))


def test_each_step_of_a_copier_has_its_own_bound() -> None:
    """A copy that outgrows a cache at one size does not relax the bound at another size."""
    growing = [row(us, us, num_reqs) for us, num_reqs in ((1.0, 1), (4.0, 4), (36.0, 16))]
    for one, us in zip(growing, (1.0, 12.0, 48.0), strict=True):
        one.timings[COPY_BASELINE] = dataclasses.replace(one.timings["fast"], median_us=us)
    assert worst_growth_step(growing) == (2.25, 2.25, 1.0)


def test_jobs_that_copy_rows() -> None:
    """Only jobs that move long rows are compared with a plain copy of rows of that length."""
    copiers = {job.name: job.rows for job in JOBS if job.rows}
    assert copiers == {
        "BlockTables.gather_block_tables": (4, 875, 2000),
        "make_local_attention_virtual_batches, chunk 8192": (1, 2000, 2048),
        "scatter_mm_placeholders": (1, 8192, 8256),
        "gather_mm_placeholders": (1, 4096, 4160),
    }
    assert all(job.in_place().rows == job.rows for job in JOBS)


def test_contexts_are_as_long_as_a_copy_takes_them() -> None:
    """The mean context of a large batch is the one that plain copies of table rows assume."""
    blocks = make_batch("mixed", 1024).num_blocks
    assert blocks.mean() * BLOCK_SIZE == pytest.approx(MEAN_CONTEXT, rel=0.02)


def test_a_plain_copy_copies_row_by_row() -> None:
    """There are gaps between rows, so that NumPy does not copy them as one."""
    copy = plain_copy(3, Rows(2, 8, 11))
    assert isinstance(copy, partial)
    target, source = copy.args
    assert target.shape == source.shape == (6, 8)
    assert not target.flags.c_contiguous
    assert not source.flags.c_contiguous
    copy()
    assert (target == 1).all()
    assert not target.base[:, 8:].any()


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A record is equal after it is written and read."""
    run = record(rows=[row(1.0, 2.0)], memory={"f": (1, 2, 3)}, first_calls={"f": 1.0})
    write_json(run.to_json(), tmp_path / "run.json")
    assert run == read_record(tmp_path / "run.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 0}', '{"schema": 1}'])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    """The message names a file that is not a record."""
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"run\.json is (not a record|a record of another version)"
    ):
        read_record(path)


def test_a_ratio_that_has_grown_by_half_is_reported() -> None:
    """Ratios are compared by function and batch; those that only one run has are not."""
    old = record(rows=[row(1.0, 2.0), row(1.0, 2.0, 64)])
    new = record(rows=[row(1.6, 2.0), row(1.4, 2.0, 64), row(9.0, 1.0, 128)])
    lines, num_compared = grown(old, new)
    assert ["f, mixed, 8 requests: 0.80 times the baseline, 0.50 before"] == lines
    assert num_compared == 2


def test_check_fails_where_a_ratio_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` ends with 1 if a stored ratio was far lower."""
    stored = tmp_path / "run.json"
    arguments = ["--quick", "--functions", "get_dcp_local_seq_lens"]
    main([*arguments, "--json", str(stored)])
    content = json.loads(stored.read_text())
    for read in content["rows"]:
        read["timings"][BASELINE]["median_us"] *= 100
    stored.write_text(json.dumps(content))
    assert main([*arguments, "--check", str(stored)]) == 1
    assert "GROWN: get_dcp_local_seq_lens, decode, 1 requests: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--functions", "split_hairs"], "argument --functions: 'split_hairs' is not timed; try "),
        (["--check", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["--baseline", "no.such.module"], "--baseline 'no.such.module' cannot be imported"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--png", "nowhere/growth.png"], "argument --png: there is no folder nowhere"),
    ],
)
def test_an_unknown_name_is_a_one_line_error(
    arguments: list[str], said: str, refusal: Callable[..., str]
) -> None:
    """A command line that cannot be used ends with 2 and one line."""
    assert said in refusal(main, arguments)


def test_growth_is_drawn(tmp_path: Path) -> None:
    """The picture is a PNG of more than 10 kB."""
    pytest.importorskip("matplotlib", reason="matplotlib comes with .[bench]")
    rows = [row(n * 1.0, n * 2.0, n, job) for job in "abcd" for n in (1, 4, 16)]
    draw(rows, tmp_path / "growth.png", "title")
    content = (tmp_path / "growth.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_a_step_does_all() -> None:
    """A whole step builds the metadata of every layer, and a virtual batch."""
    built, local = make_step(make_batch("mixed", 8), Target("fast"))()
    assert {f"layers.{i}.attn" for i in range(4)} == set(built)
    assert local.num_reqs >= 8


def test_importing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured time of `import fast` is positive and below 30 s."""
    monkeypatch.setattr("kvtwin.bench.startup.NUM_PROCESSES", 1)  # the median needs more, not this
    assert 0 < import_seconds() < 30


def test_old_names_of_the_baseline_are_read(tmp_path: Path) -> None:
    """`--peer` is a deprecated alias of `--baseline`, and older files have the key `peer`."""
    parser = command_line._make_parser()
    with pytest.warns(DeprecationWarning, match="--peer is now --baseline"):
        assert "mine" == parser.parse_args(["--peer", "mine"]).baseline
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    write_json(record(rows=[row(2.0, 4.0)]).to_json(), new)
    old.write_text(new.read_text().replace('"baseline":', '"peer":'))
    assert '"peer"' in old.read_text()
    assert read_record(new) == read_record(old)
    assert 0.5 == read_record(old).rows[0].ratio()
