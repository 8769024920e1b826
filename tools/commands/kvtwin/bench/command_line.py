"""The command line of `kvtwin bench`: the table, the JSON, the check of a run, the picture."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import fast
from conformance.adapters.implementations import FAST, Implementation, load_implementation
from conformance.name_lists import near
from kvtwin.bench.jobs import KINDS, SIZES, Job, Side, make_batch
from kvtwin.bench.measure import Row, WrongAnswerError, best_us, measure
from kvtwin.bench.steps import JOBS, ON_GPU, STEP
from kvtwin.machine import cpu_model
from kvtwin.parser import Parser, new_file, redirect_stdout_for_json, write_json

SCHEMA: Final = 3
"""The version of the JSON."""

READ: Final = (2, SCHEMA)
"""The versions that are read: 2 has no device time of a baseline."""

BASELINES: Final = {"cpu": "kvtwin.baselines", "cuda": "kvtwin.bench.triton_baseline"}
"""The module of the default baseline on each device."""

ENGINE: Final = "vllm"
"""The baseline that is an engine."""

FEW_KINDS: Final = ("decode", "mixed")
"""The kinds of batches for an engine and on a GPU; only functions of a step have decode batches."""

LINES: Final = (
    ("fast_us", "C0o-", "fast"),
    ("baseline_us", "C1s--", "baseline"),
    ("device_us", "C0^-.", "fast, on the device"),
    ("baseline_device_us", "C1v:", "baseline, on the device"),
)
"""The lines of a picture: the times of a row, how they are drawn, and what they are."""

MAX_GROWN: Final = 1.5
"""The factor by which a ratio to the baseline may grow from one run to another."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A run of the benchmark."""

    command: str
    date: str
    machine: dict[str, str]
    baseline: str
    device: str
    rows: list[Row]
    torch_add_us: float | None = None  # the time of a `torch.add` of 256 elements


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    is_on_gpu = options.device == "cuda"
    if is_on_gpu and options.baseline == ENGINE:
        parser.error("argument --baseline: vllm is timed on a CPU")
    if is_on_gpu and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device")
    with parser.reporting_errors():
        jobs = _pick(options.functions, ON_GPU + JOBS if is_on_gpu else JOBS)
        stored = None if options.check is None else read_record(options.check)
        baseline = _load_baseline(options.baseline, options.device)
    if options.png is not None:
        import matplotlib  # noqa: F401, ICN001, PLC0415  # that it is missing is reported at once
    targets = [Side("fast", FAST, options.device, is_on_gpu)]
    targets += [] if baseline is None else [Side("baseline", baseline, options.device, is_on_gpu)]
    is_short = is_on_gpu or options.baseline == ENGINE
    kinds = FEW_KINDS if is_short else KINDS
    batches = [make_batch(kind, size) for kind in kinds for size in SIZES]
    fast.warmup()
    rows, is_whole = [], True
    try:
        for job in tqdm(jobs, unit="function", disable=None, file=sys.stderr):
            is_for_all = not is_short or job.num_groups is not None
            of_job = [batch for batch in batches if is_for_all or batch.kind == "mixed"]
            rows += [row for batch in of_job if (row := measure(job, batch, targets))]
    except WrongAnswerError as error:
        print(f"WRONG: {error}")
        return 1
    except KeyboardInterrupt:  # `gpu_check.sh` ends it so, when its time is over
        print("interrupted: only these functions are timed", file=sys.stderr)
        is_whole = False
    if not rows:
        print(f"nothing was timed: {targets[-1].implementation.name} has none of these functions")
        return 1
    gpu = {"GPU": torch.cuda.get_device_name()} if is_on_gpu else {}
    record = Record(
        command=shlex.join(["kvtwin", "bench", *(arguments or sys.argv[1:])]),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine={"CPU": cpu_model(), "torch": torch.__version__, **gpu},
        baseline=baseline.module.__name__ if baseline else "none, as Triton is not installed",
        device=options.device,
        rows=rows,
        torch_add_us=None if is_on_gpu else _torch_add_us(),
    )
    if options.json is not None:
        write_json({"schema": SCHEMA, **dataclasses.asdict(record)}, options.json)
    if options.png is not None:
        draw(record, options.png)
    with redirect_stdout_for_json(options.json):
        show(record)
        is_fine = stored is None or is_as_fast(stored, record)
        return int(not (is_fine and is_whole))


def read_record(path: Path) -> Record:
    """Read a run that `--json` wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a run of this version.
    """
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") not in READ:
            raise ValueError(f"{path} is a record of another version")
        return Record(**{**content, "rows": [Row(**row) for row in content["rows"]]})
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a record of kvtwin.bench: {error!r}") from error


def show(record: Record) -> None:
    """Print a line for each function: its times for mixed batches, its ratios over all batches.

    Its times on a device have another line.
    """
    title = "fast / baseline, and their ratio; ?: times vary"
    table = Table(title=f"µs for a mixed batch of so many requests: {title}")
    table.add_column("function")
    for name in (*(f"{size:,}" for size in SIZES), "mean ratio, all batches", "worst"):
        table.add_column(name, justify="right")
    for function, rows in by_function(record.rows).items():
        kinds = ("mixed", "decode") if is_of_step(function) else ("mixed",)
        for kind in kinds:
            of_kind = {row.num_reqs: row for row in rows if row.kind == kind}
            is_first = kind == kinds[0]
            for is_device in (False, True):
                if is_device and all(row.device_us is None for row in rows):
                    continue
                cells = [
                    _cell(of_kind[size], is_device=is_device) if size in of_kind else "-"
                    for size in SIZES
                ]
                name = function if is_first else "  the same, all decode"
                ratios = summary(rows, is_device=is_device) if is_first else ()
                table.add_row("  on the device" if is_device else name, *cells, *ratios)
    table.add_section()
    table.add_row("all", *["" for _ in SIZES], *summary(record.rows))
    if record.device == "cuda":
        ratios = summary(record.rows, is_device=True)
        table.add_row("  on the device", *["" for _ in SIZES], *ratios)
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    machine = "; ".join(f"{name} {value}" for name, value in record.machine.items())
    print(f"{record.command}, {record.date}\n{machine}; one thread; baseline: {record.baseline}")
    console.print(table)
    if record.torch_add_us is not None:
        print(f"torch.add of 256 elements: {record.torch_add_us:.2f} µs")
        for row in record.rows:
            if is_of_step(row.function) and (row.kind, row.num_reqs) == ("decode", 256):
                ratio = row.fast_us / record.torch_add_us
                print(f"{row.function}, 256 decodes: {ratio:.0f} times that")


def is_of_step(function: str) -> bool:
    """Return whether a function of a table is a whole step, or its inputs."""
    return function.startswith((STEP, "prepare_step"))


def by_function(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each function."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.function, []).append(row)
    return found


def summary(rows: Iterable[Row], *, is_device: bool = False) -> tuple[str, str]:
    """Return the geometric mean of the ratios to the baseline, and the worst, as text."""
    every = [row.device_ratio if is_device else row.ratio for row in rows]
    ratios = [ratio for ratio in every if ratio is not None]
    if not ratios:
        return "-", "-"
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f}", f"{max(ratios):.2f}"


def format_us(microseconds: float | None) -> str:
    """Format a time: below 10 µs with two decimals, else without."""
    if microseconds is None:
        return "-"
    return f"{microseconds:.2f}" if microseconds < 10 else f"{microseconds:,.0f}"


def _cell(row: Row, *, is_device: bool) -> str:
    times = (row.device_us, row.baseline_device_us) if is_device else (row.fast_us, row.baseline_us)
    ours, theirs = map(format_us, times)
    ratio = row.device_ratio if is_device else row.ratio
    steady = "" if row.is_steady else "?"
    shown = "" if ratio is None else f"  {ratio:.2f}"
    return f"{ours} / {theirs}{steady}{shown}"


def is_as_fast(old: Record, new: Record) -> bool:
    """Print each ratio to the baseline that has grown by half; return whether none has."""
    before = {(row.function, row.kind, row.num_reqs): row for row in old.rows}
    num_compared = num_grown = 0
    for row in new.rows:
        stored = before.get((row.function, row.kind, row.num_reqs))
        for name, place in (("ratio", ""), ("device_ratio", " on the device")):
            was, now = getattr(stored, name, None), getattr(row, name)
            if was is None or now is None:
                continue
            num_compared += 1
            if now > MAX_GROWN * was:
                num_grown += 1
                where = f"{row.function}, {row.kind}, {row.num_reqs} requests{place}"
                print(f"GROWN: {where}: {now:.2f} times the baseline, {was:.2f} before")
    print(f"{num_compared} ratios compared with the stored run, {num_grown} have grown by half")
    return num_compared > 0 and not num_grown


def draw(record: Record, path: Path) -> None:
    """Plot the time for mixed batches over the number of requests, for each function."""
    import matplotlib as mpl  # noqa: PLC0415  # only where a picture is requested

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    functions = by_function(row for row in record.rows if row.kind == "mixed")
    height = -(-len(functions) // 3)
    figure, axes = plt.subplots(height, 3, figsize=(12.6, 2.5 * height), squeeze=False)
    for axis in axes.flat[len(functions) :]:
        axis.set_axis_off()
    for axis, (function, rows) in zip(axes.flat, functions.items(), strict=False):
        for name, style, label in LINES:
            times = [(row.num_reqs, us) for row in rows if (us := getattr(row, name))]
            if times:
                axis.loglog(*zip(*times, strict=True), style, label=label)
        axis.set_title(function, fontsize=8)
        axis.set_xlabel("requests")
        axis.set_ylabel("µs")
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"{record.command}, {record.date}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _torch_add_us() -> float:
    values = torch.zeros(256)
    return best_us(lambda: torch.add(values, values))


def _pick(functions: str | None, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of the given functions, by default all."""
    if functions is None:
        return list(jobs)
    known = {job.function: job.function.split(".")[-1] for job in jobs}
    for name in functions.split(","):
        if name not in {*known, *known.values()}:
            nearest = near(name, list(known))
            raise KeyError(f"argument --functions: {name!r} is not timed; try {nearest}")
    names = set(functions.split(","))
    return [job for job in jobs if names & {job.function, known[job.function]}]


def _load_baseline(name: str | None, device: str) -> Implementation | None:
    """Return the baseline; None if it is the default one of a GPU, and Triton is not installed."""
    if name is None and device == "cuda" and importlib.util.find_spec("triton") is None:
        return None
    name = name or BASELINES[device]
    try:
        found = load_implementation(name)
    except ValueError as error:
        raise ValueError(str(error).replace("--impl", "--baseline")) from error
    if name != ENGINE:
        return found
    from kvtwin.bench.vllm import VllmBaseline  # noqa: PLC0415  # after vLLM is prepared

    return Implementation(found.name, found.module, VllmBaseline(found.module))


def _make_parser() -> Parser:
    parser = Parser(
        prog="kvtwin bench",
        description="Time every hot function of fast against a baseline.",
        examples=(
            "--functions compute_slot_mappings",
            "--json run.json --png times.png",
            "--check run.json",
            "--baseline vllm --json engine.json",
        ),
        statuses={
            0: "all results are right; with --check, no ratio to the baseline has grown by half",
            1: "a result is wrong, a ratio has grown, or the run was interrupted",
        },
    )
    add = parser.add_argument
    add("--functions", metavar="a,b", help="time only these functions")
    add(
        "--baseline",
        metavar="MODULE",
        help="a module, a file, or vllm (the installed engine); default: NumPy and torch, on a GPU"
        " Triton kernels",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where functions run: on a GPU, the times of host and device",
    )
    parser.add_json("all times")
    add("--png", type=new_file, metavar="FILE", help="plot times against the number of requests")
    check = "fail if a ratio to the baseline is more than 1.5 times that of a run stored by --json"
    add("--check", type=Path, metavar="FILE", help=check)
    return parser
