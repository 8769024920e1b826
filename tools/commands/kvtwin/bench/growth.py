"""Plot how time grows with the number of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvtwin.bench.jobs import Rows
from kvtwin.bench.measuring import BASELINE, Row

GROWTH_SIZES: Final = (1, 4, 16, 64, 256, 1024, 4096)
"""The numbers of requests at which growth is measured."""

MAX_OVER: Final = 1.25
"""The factor by which a time may outgrow the number of requests, for noise and caches."""

COPY_BASELINE: Final = "NumPy"
"""The name of the plain copy that is timed in turn with a function that copies rows."""

COLUMNS: Final = 3


def by_job(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each job's rows, by the number of requests."""
    jobs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.num_reqs):
        jobs.setdefault(row.job, []).append(row)
    return jobs


def steps(rows: Sequence[Row], name: str = "fast") -> list[float]:
    """Return the growth of a job's time divided by that of its requests, from size to size.

    Args:
        rows: The rows of one job, by the number of requests.
        name: The name of the target.

    Returns:
        A ratio for each size but the first: 1.0 for linear growth, less for slower growth, and 1.0
        if a time is missing.
    """
    return [
        (b.timings[name].median_us / a.timings[name].median_us) / (b.num_reqs / a.num_reqs)
        if name in a.timings and name in b.timings
        else 1.0
        for a, b in pairwise(rows)
    ]


def worst_growth_step(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Return the step between sizes at which a job exceeded the allowed growth most.

    Args:
        rows: The rows of one job, by the number of requests.

    Returns:
        Its growth divided by the allowed growth, which must be at most `MAX_OVER`; its growth
        relative to linear; and the allowed growth: 1.0, or that of a plain copy if it is more.
    """
    allowed = [max(step, 1.0) for step in steps(rows, COPY_BASELINE)]
    return max(
        (
            (step / maximum, step, maximum)
            for step, maximum in zip(steps(rows), allowed, strict=True)
        ),
        default=(0.0, 0.0, 1.0),
    )


def plain_copy(num_reqs: int, rows: Rows) -> Callable[[], Any]:
    """Return a NumPy call that copies the rows of `num_reqs` requests, one after another."""
    shape = (num_reqs * rows.per_request, rows.stride_bytes)
    target, source = np.zeros(shape, np.uint8), np.ones(shape, np.uint8)
    return partial(np.copyto, target[:, : rows.num_bytes], source[:, : rows.num_bytes])


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Plot time over requests for each function, with logarithmic axes.

    Args:
        rows: Each function on batches of some sizes.
        path: The PNG file.
        title: The title of the figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl  # noqa: PLC0415  # only where a picture is requested

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    jobs = by_job(rows)
    num_rows = -(-len(jobs) // COLUMNS)
    figure, axes = plt.subplots(
        num_rows, COLUMNS, figsize=(4.2 * COLUMNS, 2.5 * num_rows), sharex=True, squeeze=False
    )
    for axis, (job, of_job) in zip(axes.flat, jobs.items(), strict=False):
        _draw_job(axis, job, of_job)
    for axis in list(axes.flat)[len(jobs) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("requests")
    for axis in axes[:, 0]:
        axis.set_ylabel("µs")
    # The legend of a panel that has all labels.
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes.flat), key=_num_labels)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.legend(handles, labels, loc="lower right", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.02, 1, 0.99))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _num_labels(legend: tuple[list[Any], list[str]]) -> int:
    return len(legend[1])


def _draw_job(axis: Any, job: str, rows: Sequence[Row]) -> None:
    for name, style in (("fast", "o-"), (BASELINE, "s--"), (COPY_BASELINE, "^-")):
        points = [
            (row.num_reqs, row.timings[name].median_us) for row in rows if name in row.timings
        ]
        if points:
            axis.loglog(*zip(*points, strict=True), style, label=name, markersize=3, linewidth=1.2)
    first, last = rows[0].num_reqs, rows[-1].num_reqs
    end = next(iter(rows[-1].timings.values())).median_us
    axis.loglog(
        [first, last], [end * first / last, end], ":", color="grey", label="linear", linewidth=1
    )
    axis.set_ylim(bottom=0.2)
    axis.set_title(job.replace("make_kv_sharing_fast_prefill_common", "…fast_prefill"), fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(visible=True, which="major", linewidth=0.3)
