"""The performance targets: bounds on ratios, growth, a step, memory and startup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvtwin.bench.growth import MAX_OVER, by_job, worst_growth_step
from kvtwin.bench.jobs import JOBS
from kvtwin.bench.measuring import Row
from kvtwin.bench.record import Record
from kvtwin.bench.step import TORCH_ADD

MAX_RATIO: Final = 1.1
MAX_BEHIND_US: Final = 1.0
"""A function may be this much slower than its baseline, whatever the ratio."""

MAX_GEOMETRIC_MEAN: Final = 0.4
MAX_GEOMETRIC_MEAN_OF_WORKERS: Final = 0.3
"""The same bound without the copiers and callers."""

ENGINE: Final = "vllm"
"""The baseline that is an engine: it is timed on mixed batches of `ENGINE_SIZES` requests."""

MAX_GEOMETRIC_MEAN_TO_ENGINE: Final = 0.1
MAX_RATIO_TO_ENGINE: Final = 0.9

MAX_ADDS_IN_A_STEP: Final = 200
MAX_IMPORT_SECONDS: Final = 0.3
MAX_FIRST_CALL: Final = 2.0
"""How many times its median a first call may take."""

COPIERS: Final = frozenset(job.name for job in JOBS if job.is_copier)

ENGINE_US: Final = {
    "split_decodes_and_prefills": (32, 38, 41),
    "split_decodes_prefills_and_extends": (46, 56, 61),
    "reorder_batch_to_split_decodes_and_prefills": (38, 104, 320),
    "make_local_attention_virtual_batches, chunk 8192": (248, 1941, 7350),
    "make_local_attention_virtual_batches, chunk 512": (217, 338, 766),
    "split_attn_metadata": (182, 185, 218),
    "compute_causal_conv1d_metadata": (115, 758, 2335),
    "get_dcp_local_seq_lens": (42, 53, 61),
    "make_kv_sharing_fast_prefill_common_attn_metadata": (46, 75, 94),
}
"""The time of a widely used engine's own host code for mixed batches of `ENGINE_SIZES` requests, in
microseconds, on a machine where the yardstick takes `ENGINE_ADD_US`: given in the project's
specification, not measured here."""

ENGINE_SIZES: Final = (8, 256, 1024)
ENGINE_ADD_US: Final = 3.0


@dataclass(frozen=True)
class Bound:
    """One bound, and what was measured.

    Attributes:
        what: The bounded quantity.
        bound: The bound, in words.
        got: The measurement, in words.
        holds: Whether the measurement is within the bound.
    """

    what: str
    bound: str
    got: str
    holds: bool


def is_behind(row: Row) -> bool:
    """Return whether `fast` is slower than the baseline by more than is allowed."""
    ratio, behind_us = row.ratio(), row.behind_us()
    if ratio is None or behind_us is None:
        return False
    return ratio > MAX_RATIO and behind_us > MAX_BEHIND_US


def geometric_mean(ratios: Iterable[float | None]) -> float:
    """Return the geometric mean of the ratios that are not None; NaN if there are none.

    >>> geometric_mean([0.5, None, 2.0])
    1.0
    """
    logarithms = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def check_bounds(record: Record) -> list[Bound]:
    """Check the measurements of a run against all their bounds."""
    bounds = []
    if record.baseline == ENGINE:
        bounds += _of_ratios_to_engine(record.rows)
    elif record.device == "cpu":
        bounds += _of_ratios(record.rows)
    if record.growth:
        bounds.append(_of_growth(record.growth))
    if record.step_us:
        add_us = record.step_us.get(TORCH_ADD, record.torch_add_us)
        adds = record.step_us["fast"] / add_us
        bounds.append(
            Bound(
                "a whole step of 256 requests",
                f"at most {MAX_ADDS_IN_A_STEP} torch.add",
                f"{adds:.0f} ({record.step_us['fast']:.0f} µs / {add_us:.2f} µs)",
                adds <= MAX_ADDS_IN_A_STEP,
            )
        )
    if record.memory:
        bounds.append(_of_memory(record.memory))
    if record.import_seconds is not None:
        bounds.append(
            Bound(
                "import fast, after import torch",
                f"at most {MAX_IMPORT_SECONDS} s",
                f"{record.import_seconds:.2f} s",
                record.import_seconds <= MAX_IMPORT_SECONDS,
            )
        )
    if record.first_calls:
        worst = max(record.first_calls, key=lambda name: record.first_calls[name])
        bounds.append(
            Bound(
                "first call after warmup()",
                f"at most {MAX_FIRST_CALL:.0f} times the median",
                f"{record.first_calls[worst]:.1f} ({worst})",
                record.first_calls[worst] <= MAX_FIRST_CALL,
            )
        )
    return bounds


def _of_ratios(rows: Sequence[Row]) -> list[Bound]:
    """Compare the ratios to the baseline with their bounds."""
    compared = [row for row in rows if row.ratio() is not None]
    if not compared:
        return []
    behind = [row for row in compared if is_behind(row)]
    everyone = geometric_mean(row.ratio() for row in compared)
    workers = geometric_mean(row.ratio() for row in compared if row.job not in COPIERS)
    return [
        Bound(
            "each function, each scenario",
            f"at most {MAX_RATIO} times the baseline, or {MAX_BEHIND_US:.0f} µs behind",
            f"{len(compared) - len(behind)} of {len(compared)}",
            not behind,
        ),
        Bound(
            "geometric mean of the ratios",
            f"at most {MAX_GEOMETRIC_MEAN}",
            f"{everyone:.2f}",
            everyone <= MAX_GEOMETRIC_MEAN,
        ),
        Bound(
            "the same without copiers and callers",
            f"at most {MAX_GEOMETRIC_MEAN_OF_WORKERS}",
            f"{workers:.2f}",
            workers <= MAX_GEOMETRIC_MEAN_OF_WORKERS,
        ),
    ]


def _of_ratios_to_engine(rows: Sequence[Row]) -> list[Bound]:
    """Compare the ratios to an engine with their bounds."""
    ratios = [ratio for row in rows if (ratio := row.ratio()) is not None]
    if not ratios:
        return []
    mean, worst = geometric_mean(ratios), max(ratios)
    return [
        Bound(
            "geometric mean of the ratios to the engine",
            f"at most {MAX_GEOMETRIC_MEAN_TO_ENGINE}",
            f"{mean:.3f} over {len(ratios)} rows",
            mean <= MAX_GEOMETRIC_MEAN_TO_ENGINE,
        ),
        Bound(
            "each ratio to the engine",
            f"at most {MAX_RATIO_TO_ENGINE}",
            f"{worst:.2f}",
            worst <= MAX_RATIO_TO_ENGINE,
        ),
    ]


def _of_growth(rows: Sequence[Row]) -> Bound:
    """Compare each step of growth with the bound; for functions that copy rows, with a copy's."""
    found = {job: worst_growth_step(of_job) for job, of_job in by_job(rows).items()}
    worst = max(found, key=lambda job: found[job])
    over, steep, allowed = found[worst]
    copied = f", where a copy grows {allowed:.2f} times" if allowed > 1 else ""
    return Bound(
        "growth, 1 to 4096 requests",
        f"at most linear (within {MAX_OVER - 1:.0%}); of rows, as a plain copy",
        f"{steep:.2f} times linear{copied} ({worst})",
        over <= MAX_OVER,
    )


def _of_memory(memory: dict[str, tuple[int, int, int]]) -> Bound:
    over = [name for name, (_, scratch, allowed) in memory.items() if scratch > allowed]
    maximum = max(memory, key=lambda name: memory[name][1])
    return Bound(
        "memory besides the result",
        "a bounded scratch",
        f"at most {memory[maximum][1] / 1024:.0f} KiB ({maximum})"
        + (f"; too much: {', '.join(over)}" if over else ""),
        not over,
    )
