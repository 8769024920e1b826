"""The tables that a run prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kvtwin.bench.bounds import (
    ENGINE,
    ENGINE_ADD_US,
    ENGINE_SIZES,
    ENGINE_US,
    check_bounds,
    geometric_mean,
    is_behind,
)
from kvtwin.bench.growth import by_job
from kvtwin.bench.measuring import BASELINE, Row
from kvtwin.bench.record import Record

WIDTH = 150
"""The width of the output if there is no terminal."""


def make_console() -> Console:
    """Return a console that is wide enough if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def print_record(record: Record, console: Console, *, shows_all: bool) -> None:
    """Print the measurements of a run.

    Args:
        record: The run.
        console: The console to print to.
        shows_all: Whether each function on each batch is shown.
    """
    console.print(f"{record.command}, {record.date}", highlight=False)
    console.print("; ".join(f"{k} {v}" for k, v in record.machine.items()), highlight=False)
    console.print(
        f"baseline: {record.baseline}; torch.add of 256 elements: {record.torch_add_us:.2f} µs;"
        " one torch thread",
        highlight=False,
    )
    if shows_all:
        console.print(_all_rows(record))
    if record.baseline == ENGINE:
        console.print(_with_engine(record))
    else:
        console.print(_by_function(record))
    if record.baseline != ENGINE and any(
        row.kind == "mixed" and row.job in ENGINE_US for row in record.rows
    ):
        console.print(_beside_engine(record))
    if record.device_rows:
        console.print(_on_device(record))
    behind = [row for row in record.rows if record.device == "cpu" and is_behind(row)]
    for row in behind:
        ratio, behind_us = row.ratio(), row.behind_us()
        console.print(
            f"BEHIND: {row.job}, {row.kind}, {row.num_reqs} requests:"
            f" {ratio:.2f} times the baseline, {behind_us:.1f} µs",
            highlight=False,
        )
    bounds = Table(title="what it must show")
    for name in ("what", "bound", "measured", "holds"):
        bounds.add_column(name)
    for bound in check_bounds(record):
        holds = "yes" if bound.holds else "NO"
        bounds.add_row(
            bound.what, bound.bound, bound.got, holds, style="" if bound.holds else "red"
        )
    if bounds.row_count:
        console.print(bounds)


def _us(microseconds: float) -> str:
    """Format a time: below 10 us with two decimals, else without."""
    return f"{microseconds:.2f}" if microseconds < 10 else f"{microseconds:,.0f}"


def _timing(row: Row, name: str) -> str:
    timing = row.timings.get(name)
    if timing is None:
        return "-"
    return f"{_us(timing.median_us)} ±{_us(timing.iqr_us / 2)}{'' if timing.is_steady else '?'}"


def _all_rows(record: Record) -> Table:
    """Show each function on each batch."""
    table = Table(title="median and half the spread, µs; ?: the machine was slow meanwhile")
    for name in ("function", "batch"):
        table.add_column(name)
    for name in ("requests", "tokens", "fast", "baseline", "reference", "fast / baseline"):
        table.add_column(name, justify="right")
    for of_job in by_job(record.rows).values():
        for row in sorted(of_job, key=lambda row: row.kind):
            ratio = row.ratio()
            table.add_row(
                row.job,
                row.kind,
                f"{row.num_reqs:,}",
                f"{row.num_tokens:,}",
                _timing(row, "fast"),
                _timing(row, BASELINE),
                _timing(row, "reference"),
                "-" if ratio is None else f"{ratio:.2f}",
            )
        table.add_section()
    return table


def _by_function(record: Record) -> Table:
    """Show each function in one line: its times for mixed batches, its ratios over all."""
    sizes = sorted({row.num_reqs for row in record.rows if row.kind == "mixed"})
    table = Table(title="fast, µs for a mixed batch of so many requests; ratios over all batches")
    table.add_column("function")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for name in ("/ baseline", "worst", "/ reference"):
        table.add_column(name, justify="right")
    for job, of_job in by_job(record.rows).items():
        mixed = {row.num_reqs: row for row in of_job if row.kind == "mixed"}
        ratios = [ratio for row in of_job if (ratio := row.ratio()) is not None]
        slow = [row.ratio("reference") for row in of_job]
        cells = [_us(mixed[s].timings["fast"].median_us) if s in mixed else "-" for s in sizes]
        table.add_row(
            job,
            *cells,
            f"{geometric_mean(ratios):.2f}" if ratios else "-",
            f"{max(ratios):.2f}" if ratios else "-",
            f"{geometric_mean(slow):.3f}" if any(r is not None for r in slow) else "-",
        )
    return table


def _with_engine(record: Record) -> Table:
    """Compare each function with an engine's, batch by batch."""
    sizes = sorted({row.num_reqs for row in record.rows})
    table = Table(title=f"fast / {record.baseline}, µs, mixed batches of so many requests; ratio")
    table.add_column("function")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for job, of_job in by_job(record.rows).items():
        by_size = {row.num_reqs: row for row in of_job}
        cells = [_beside(by_size[size]) if size in by_size else "-" for size in sizes]
        table.add_row(job, *cells)
    return table


def _beside(row: Row) -> str:
    fast_us, engine_us = (row.timings[name].median_us for name in ("fast", BASELINE))
    unsteady = "" if all(timing.is_steady for timing in row.timings.values()) else "?"
    return f"{_us(fast_us)} / {_us(engine_us)}{unsteady}  {row.ratio():.2f}"


def _beside_engine(record: Record) -> Table:
    """Compare `fast` with the recorded times of an engine."""
    scale = record.torch_add_us / ENGINE_ADD_US
    table = Table(
        title="fast / an engine's own host code, µs, mixed batches"
        f" (the engine's where torch.add takes {ENGINE_ADD_US:.0f} µs; here {scale:.2f} times that)"
    )
    table.add_column("function")
    for size in ENGINE_SIZES:
        table.add_column(f"{size:,}", justify="right")
    rows = {(row.job, row.num_reqs): row for row in record.rows if row.kind == "mixed"}
    for job, engine_us in ENGINE_US.items():
        cells = [
            f"{_us(rows[job, size].timings['fast'].median_us)} / {us:,}"
            if (job, size) in rows
            else f"- / {us:,}"
            for size, us in zip(ENGINE_SIZES, engine_us, strict=True)
        ]
        table.add_row(job, *cells)
    return table


def _on_device(record: Record) -> Table:
    """Show the host and device times of calls, and the share of a copy's bandwidth."""
    table = Table(title=f"fast on {record.device}")
    table.add_column("function")
    table.add_column("batch")
    for name in ("requests", "host µs", "device µs", "share of copy bandwidth"):
        table.add_column(name, justify="right")
    for row in record.device_rows:
        share = row["bandwidth_share"]
        table.add_row(
            row["job"],
            row["kind"],
            f"{row['num_reqs']:,}",
            _us(row["host_us"]),
            _us(row["device_us"]),
            "-" if share is None else f"{share:.0%}",
        )
    return table


def print_grown(lines: Sequence[str], num_compared: int, console: Console) -> None:
    """Print which ratios have grown from a stored run to this one."""
    for line in lines:
        console.print(f"GROWN: {line}", highlight=False, style="red")
    console.print(
        f"{num_compared} ratios compared with the stored run, {len(lines)} have grown by half",
        highlight=False,
    )
