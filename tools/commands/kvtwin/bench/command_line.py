"""The benchmark's command line."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from tqdm import tqdm

import fast
from conformance.name_lists import near
from conformance.targets.implementations import Implementation, load_implementation
from conformance.targets.target import Target
from kvtwin.bench.batches import KINDS, SIZES, Batch, all_batches, make_batch
from kvtwin.bench.bounds import ENGINE, ENGINE_SIZES, check_bounds
from kvtwin.bench.growth import COPY_BASELINE, GROWTH_SIZES, draw, plain_copy
from kvtwin.bench.jobs import JOBS, Job
from kvtwin.bench.measuring import BASELINE, Row, WrongAnswerError, measure
from kvtwin.bench.memory import Allocated, allowed_scratch, device_memory, measure_memory
from kvtwin.bench.record import Record, grown, read_record
from kvtwin.bench.startup import first_calls, import_seconds
from kvtwin.bench.step import TORCH_ADD, make_step
from kvtwin.bench.tables import make_console, print_grown, print_record
from kvtwin.bench.timing import Spin, time_in_turn
from kvtwin.machine import cpu_model
from kvtwin.parser import Parser, RenamedOption, new_file, redirect_stdout_for_json, write_json

QUICK_SIZES = (1, 64, 1024)
ENGINE_BLOCKS = 25
STEP_SIZE = 256
NUM_OF_TRACE = 4
"""Batches that are cut from a trace."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    with parser.reporting_errors():
        jobs = _picked(options.functions)
        stored = None if options.check is None else read_record(options.check)
        baseline = _load_baseline(options)
        with_engine = options.baseline == ENGINE
        if with_engine:
            batches = [make_batch("mixed", num_reqs) for num_reqs in ENGINE_SIZES]
        else:
            batches = all_batches(
                KINDS,
                QUICK_SIZES if options.quick else SIZES,
                options.trace,
                1 if options.quick else NUM_OF_TRACE,
            )
    if options.png is not None:
        # Before an hour's work.
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415

        formats = FigureCanvasBase.get_supported_filetypes()
        if options.png.suffix[1:] not in {"", *formats}:
            parser.error(f"argument --png: {options.png} is none of {', '.join(formats)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device")
    torch.set_num_threads(1)
    fast.warmup()
    command = shlex.join(["kvtwin", "bench", *(sys.argv[1:] if arguments is None else arguments)])
    bench = Bench(command, jobs, Target(BASELINE, baseline, "cpu"), options.device)
    try:
        if with_engine:
            bench.compare(batches)
        else:
            grows = options.png is not None or not options.quick
            bench.run(batches, quick=options.quick, grows=grows)
    except WrongAnswerError as error:
        print(f"WRONG: {error}")
        return 1
    record = bench.record
    if options.json is not None:
        write_json(record.to_json(), options.json)
    if options.png is not None:
        draw(record.growth, options.png, f"{command}, {record.date}")
    with redirect_stdout_for_json(options.json):
        console = make_console()
        print_record(record, console, shows_all=options.all)
        if stored is not None:
            lines, num_compared = grown(stored, record)
            print_grown(lines, num_compared, console)
            return 1 if lines or not num_compared else 0
    return 0 if all(bound.holds for bound in check_bounds(record)) else 1


def _picked(functions: str | None) -> list[Job]:
    """Return the jobs of the given functions.

    Raises:
        KeyError: There is no such function.
    """
    if functions is None:
        return list(JOBS)
    picked = []
    for name in functions.split(","):
        found = [
            job for job in JOBS if name in {job.name, job.function, job.function.split(".")[-1]}
        ]
        if not found:
            known = near(name, list(dict.fromkeys(job.function for job in JOBS)))
            raise KeyError(f"argument --functions: {name!r} is not timed; try {known}")
        picked += found
    return picked


def _load_baseline(options: argparse.Namespace) -> Implementation:
    """Load the baseline that the options select."""
    try:
        found = load_implementation(options.baseline, options.adapter)
    except ValueError as error:
        raise ValueError(str(error).replace("--impl", "--baseline")) from error
    if options.baseline != ENGINE or options.adapter is not None:
        return found
    from kvtwin.baselines.vllm import VllmBaseline  # noqa: PLC0415  # after vLLM is prepared

    return Implementation(found.name, found.module, VllmBaseline(found.module))


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin bench",
        description="Time every hot function of fast against reference and a baseline.",
        examples=(
            "--quick",
            "--functions compute_slot_mappings --all",
            "--json run.json --png growth.png",
            "--baseline vllm --json engine.json",
        ),
        statuses={
            0: "all results are right, and all times and sizes are within their bounds",
            1: "a result is wrong, a time or a size is above its bound, or --check fails",
        },
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer sizes and repetitions: about a minute")
    add("--functions", metavar="a,b", help="time only these functions")
    add(
        "--baseline",
        metavar="MODULE",
        default="kvtwin.baselines",
        help="the baseline: a module, a file, or vllm (the installed engine, on mixed batches only)"
        "; default: %(default)s",
    )
    add("--peer", dest="baseline", action=RenamedOption, help=argparse.SUPPRESS)
    add("--adapter", metavar="MODULE", help="the baseline's adapter, as in the conformance run")
    add(
        "--trace", type=Path, metavar="FILE.csv", help="trace of requests; default: the bundled one"
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where fast runs; default: %(default)s",
    )
    add("--all", action="store_true", help="print every function on every batch")
    parser.add_json("all measurements")
    add("--png", type=new_file, metavar="FILE", help="plot times against the number of requests")
    add(
        "--check",
        type=Path,
        metavar="FILE",
        help="fail if a ratio to the baseline is more than 1.5 times that of an earlier run, whose "
        "JSON this is",
    )
    return parser


class Bench:
    """A run of the benchmark.

    Args:
        command: The command line.
        jobs: The functions to time.
        baseline: The implementation that `fast` is compared with, on the host.
        device: Where `fast` runs.

    Attributes:
        record: What was measured.
    """

    def __init__(self, command: str, jobs: Sequence[Job], baseline: Target, device: str) -> None:
        self.jobs = jobs
        self.baseline = baseline
        self.target = Target("fast", device=device)
        self.spin = Spin()
        self.record = Record(
            command=command,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=describe_machine(device),
            baseline=baseline.implementation.module.__name__,
            device=device,
            torch_add_us=self._torch_add(),
        )

    def run(self, batches: Sequence[Batch], *, quick: bool, grows: bool) -> None:
        """Run all measurements.

        Raises:
            WrongAnswerError: An implementation returns another result than `reference`.
        """
        if self.target.device == "cuda":
            from kvtwin.bench.device import measure_on_device  # noqa: PLC0415  # needs a GPU

            self.record.device_rows = measure_on_device(self.jobs, batches, self.target)
            self._measure_memory(device_memory)
            return
        work = [(job, batch) for job in self.jobs for batch in batches]
        self.record.rows = self._measure(
            work, num_blocks=3 if quick else 9, with_reference=not quick
        )
        if grows:
            batches = [make_batch("mixed", num_reqs) for num_reqs in GROWTH_SIZES]
            growing = [(job.in_place(), batch) for job in self.jobs for batch in batches]
            self.record.growth = self._measure(
                growing, num_blocks=5, with_reference=False, with_copy=True
            )
        self._measure_memory(measure_memory)
        if quick or len(self.jobs) < len(JOBS):
            return
        # The yardstick is timed in turn with the step: the machine is equally fast for both.
        step = make_step(make_batch("mixed", STEP_SIZE), self.target)
        calls = {"fast": step, TORCH_ADD: make_torch_add()}
        timing = time_in_turn(calls, self.spin, num_blocks=25)
        self.record.step_us = {name: taken.median_us for name, taken in timing.items()}
        self.record.import_seconds = import_seconds()
        self.record.first_calls = first_calls()

    def compare(self, batches: Sequence[Batch]) -> None:
        """Measure only the functions that `fast` and the baseline both have.

        Raises:
            WrongAnswerError: One of them returns another result than `reference`.
        """
        work = [(job, batch) for job in self.jobs for batch in batches]
        rows = self._measure(work, num_blocks=ENGINE_BLOCKS, with_reference=False)
        self.record.rows = [row for row in rows if BASELINE in row.timings]

    def _measure(
        self,
        work: Sequence[tuple[Job, Batch]],
        *,
        num_blocks: int,
        with_reference: bool,
        with_copy: bool = False,
    ) -> list[Row]:
        """Measure jobs on batches; skip a job that has no call for a batch."""
        rows = []
        for job, batch in tqdm(work, unit="row", disable=None, file=sys.stderr):
            beside = {}
            if with_copy and job.rows:
                beside[COPY_BASELINE] = plain_copy(batch.num_reqs, job.rows)
            row = measure(
                job,
                batch,
                [self.target, self.baseline],
                self.spin,
                num_blocks=num_blocks,
                with_reference=with_reference,
                beside=beside,
            )
            if row is not None:
                rows.append(row)
        return rows

    def _measure_memory(self, measure_call: Callable[[Callable[[], Any]], Allocated]) -> None:
        """Measure what each function allocates for a large mixed batch."""
        batch = make_batch("mixed", 1024)
        for job in self.jobs:
            prepared = job.prepare(batch, self.target)
            if prepared is None:
                continue
            allocated = measure_call(prepared.call)
            allowed = allowed_scratch(batch.num_reqs + batch.num_tokens)
            self.record.memory[job.name] = (
                allocated.result_bytes,
                allocated.scratch_bytes,
                allowed,
            )

    def _torch_add(self) -> float:
        """Return the time of adding two small tensors, in microseconds."""
        timing = time_in_turn({TORCH_ADD: make_torch_add()}, self.spin, num_blocks=15)
        return timing[TORCH_ADD].median_us


def make_torch_add() -> Callable[[], Any]:
    """Return the yardstick of whole steps: a call that adds two small tensors."""
    a, b = torch.ones(256), torch.ones(256)
    return lambda: torch.add(a, b)


def describe_machine(device: str) -> dict[str, str]:
    """Return the CPU, the versions of the packages, and the GPU."""
    described = {
        "cpu": cpu_model(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "NumPy": np.__version__,
        "numba": numba.__version__,
    }
    if device == "cuda":
        described["GPU"] = torch.cuda.get_device_name()
    return described
