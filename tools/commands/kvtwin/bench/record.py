"""The measurements of a run as JSON, and the comparison of two runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvtwin.bench.measuring import BASELINE, Row
from kvtwin.bench.timing import Timing

SCHEMA: Final = 1
"""The version of the file format."""

MAX_GROWN: Final = 1.5
"""The factor by which a ratio to the baseline may grow from one run to another."""


@dataclass
class Record:
    """A run of the benchmark.

    Attributes:
        command: The command line.
        date: The date, in ISO format.
        machine: What it ran on, by name: versions, processor, device.
        baseline: The module of the baseline.
        device: Where `fast` ran.
        torch_add_us: The time of adding two tensors of 256 float32, the yardstick.
        rows: Each function on each batch.
        growth: Each function on mixed batches of 1 to 4096 requests.
        step_us: The time of a whole step of 256 requests, and the yardstick; empty: not measured.
        memory: For each function: result bytes, scratch bytes, allowed scratch bytes.
        import_seconds: The time of `import fast` after `import torch`; None: not measured.
        first_calls: The time of each function's first call, relative to its median.
        device_rows: On a GPU, for each function and batch: host and device time and bandwidth.
    """

    command: str
    date: str
    machine: dict[str, str]
    baseline: str
    device: str
    torch_add_us: float
    rows: list[Row] = field(default_factory=list)
    growth: list[Row] = field(default_factory=list)
    step_us: dict[str, float] = field(default_factory=dict)
    memory: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    import_seconds: float | None = None
    first_calls: dict[str, float] = field(default_factory=dict)
    device_rows: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` writes it."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def read_record(path: Path) -> Record:
    """Read a record that `--json` wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a record, or has another version.
    """
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") != SCHEMA:
            raise ValueError(f"{path} is a record of another version")
        if "peer" in content:  # as older files call the baseline
            content["baseline"] = content.pop("peer")
        for name in ("rows", "growth"):
            content[name] = [_read_row(row) for row in content[name]]
        content["memory"] = {name: tuple(sizes) for name, sizes in content["memory"].items()}
        return Record(**content)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a record of kvtwin.bench: {error!r}") from error


def _read_row(row: dict[str, Any]) -> Row:
    timings = {
        BASELINE if name == "peer" else name: Timing(**timing)
        for name, timing in row.pop("timings").items()
    }
    return Row(**row, timings=timings)


def grown(old: Record, new: Record) -> tuple[list[str], int]:
    """Compare the ratios to the baseline of two runs.

    Args:
        old: The earlier run.
        new: The run to check.

    Returns:
        A line for each ratio that has grown by more than half, and how many were compared.
    """
    before = {(row.job, row.kind, row.num_reqs): row.ratio() for row in old.rows}
    lines, num_compared = [], 0
    for row in new.rows:
        was, now = before.get((row.job, row.kind, row.num_reqs)), row.ratio()
        if was is None or now is None:
            continue
        num_compared += 1
        if now > MAX_GROWN * was:
            lines.append(
                f"{row.job}, {row.kind}, {row.num_reqs} requests: {now:.2f} times the baseline,"
                f" {was:.2f} before"
            )
    return lines, num_compared
