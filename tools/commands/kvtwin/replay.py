"""Replay a trace of real requests in both twins, and compare every result of every step.

    kvtwin replay --trace FILE.csv --model NAME

reads a trace (columns TIMESTAMP, ContextTokens, GeneratedTokens). A continuous-batching scheduler
turns it into the steps of an engine, and each step runs in `reference` and in `fast`. `--json`
prints the contents of the table: `schema_version`, `model`, `steps`, `requests_finished`,
`requests_left_out`, `preemptions`, `batches` by kind, `tokens`, `median_ms_per_step` of each twin,
`seconds` and `mismatches`.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("replay")

import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import fast
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.model_runner.twins import Mismatch, Twins
from conformance.traffic.engine import TraceEngine, servable
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, read_trace
from conformance.zoo.models import MODELS, get_model
from kvtwin.parser import Parser, redirect_stdout_for_json, write_json

SCHEMA_VERSION = 1
"""The version of the `--json` output."""

KINDS = ("decode only", "extend only", "prefill only", "mixed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with parser.reporting_errors():
        model = get_model(options.model)
        settings = Settings(
            token_budget=options.token_budget,
            max_num_seqs=options.max_num_seqs,
            num_blocks=options.num_blocks,
            num_speculative_tokens=options.num_speculative_tokens,
            micro_batches=options.micro_batches,
        )
        trace = read_trace(options.trace, options.requests)
        requests = servable(trace, options.model, settings)
        if not requests:
            parser.error(
                f"none of the {len(trace)} requests fits: at most "
                f"{settings.longest_request(model)} tokens do"
            )
    fast.warmup()
    with fast.checks(options.checked):
        replay = Replay(TraceEngine(requests, model, settings, seed=options.seed), model.name)
        mismatch = replay.run(options.steps)
    result = replay.result(num_left_out=len(trace) - len(requests))
    if options.json is not None:
        write_json(result, options.json)
    with redirect_stdout_for_json(options.json):
        print_table(result)
        if mismatch is not None:
            print(mismatch.line)
    return 0 if mismatch is None else 1


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    defaults = Settings()
    parser = Parser(
        prog="kvtwin replay",
        description="Replay a trace of requests in reference and fast, and compare every result.",
        examples=(
            "--model gpt-oss-20b --steps 100",
            "--trace requests.csv --requests 500 --json replay.json",
        ),
        statuses={0: "all results are equal", 1: "a result differs: see the last line"},
    )
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        metavar="FILE.csv",
        default=DEFAULT_TRACE,
        help="trace of requests; default: the bundled one",
    )
    add(
        "--model",
        metavar="NAME",
        default="llama-3.1-8b",
        help=f"one of {', '.join(MODELS)}; default: %(default)s",
    )
    parser.add_number("--requests", "only the first N of the trace; default: all")
    parser.add_number("--steps", "maximum number of steps", 300)
    parser.add_number("--token-budget", "maximum number of tokens in a step", defaults.token_budget)
    parser.add_number("--max-num-seqs", "maximum number of running requests", defaults.max_num_seqs)
    parser.add_number(
        "--num-blocks", "blocks in the pool; default: so few that some requests are preempted"
    )
    parser.add_number(
        "--micro-batches",
        "number of micro-batches to split each batch into",
        defaults.micro_batches,
    )
    parser.add_number(
        "--num-speculative-tokens",
        "draft tokens of each decode",
        defaults.num_speculative_tokens,
        minimum=0,
    )
    parser.add_json("the result")
    add("--checked", action="store_true", help="run fast in checked mode")
    parser.add_number("--seed", "seed of the choice of accepted draft tokens", 0, minimum=0)
    return parser


class Replay:
    """A run of an engine's steps in both twins, and its statistics.

    Args:
        engine: Makes the steps.
        model: The model's name in the zoo.
    """

    def __init__(self, engine: TraceEngine, model: str) -> None:
        self.engine = engine
        self.model = model
        self.twins = Twins(get_model(model), engine.settings)
        self.num_steps = 0
        self.num_tokens = 0
        self.num_batches_by_kind: Counter[str] = Counter()
        self.num_mismatches = 0
        self.wall_seconds = 0.0

    def run(self, num_steps: int) -> Mismatch | None:
        """Run up to `num_steps` steps; stop if one differs or all requests have ended.

        Args:
            num_steps: The maximum number of steps.

        Returns:
            The first mismatch, or None.
        """
        started = time.perf_counter()
        with tqdm(
            total=num_steps, desc=self.model, unit="step", file=sys.stderr, disable=None
        ) as progress:
            for step in islice(self.engine, num_steps):
                mismatch = self.twins.execute(step)
                self.num_steps += 1
                self.num_tokens += sum(step.num_scheduled_tokens.values())
                self.num_batches_by_kind[self._kind(step)] += 1
                self.wall_seconds = time.perf_counter() - started
                if mismatch is not None:
                    self.num_mismatches += 1
                    return mismatch
                progress.update()
        return None

    def _kind(self, step: SchedulerOutput) -> str:
        """Return the kind of a batch, one of `KINDS`."""
        threshold = self.engine.settings.decode_threshold
        kinds = {
            "decode only"
            if num_tokens <= threshold
            else "extend only"
            if step.num_computed_tokens[req_id] > 0
            else "prefill only"
            for req_id, num_tokens in step.num_scheduled_tokens.items()
        }
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def result(self, *, num_left_out: int) -> dict[str, Any]:
        """Return the statistics, as `--json` prints them.

        Args:
            num_left_out: Requests of the trace that were too long to serve.
        """
        seconds = zip(*self.twins.seconds, strict=True)
        medians = [round(statistics.median(times) * 1e3, 3) for times in seconds]
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "steps": self.num_steps,
            "requests_finished": self.engine.scheduler.num_finished,
            "requests_left_out": num_left_out,
            "preemptions": self.engine.scheduler.num_preemptions,
            "batches": {kind: self.num_batches_by_kind[kind] for kind in KINDS},
            "tokens": self.num_tokens,
            "median_ms_per_step": dict(zip(("reference", "fast"), medians, strict=True)),
            "seconds": round(self.wall_seconds, 3),
            "mismatches": self.num_mismatches,
        }


def print_table(result: dict[str, Any]) -> None:
    """Print the statistics as a table.

    Args:
        result: The result of `Replay.result`.
    """
    table = Table(title=f"{result['model']}: reference and fast", show_header=False)
    table.add_column("what")
    table.add_column("how many", justify="right")
    table.add_row("steps", f"{result['steps']:,}")
    table.add_row("requests finished", f"{result['requests_finished']:,}")
    if result["requests_left_out"]:
        table.add_row("requests left out, too long", f"{result['requests_left_out']:,}")
    table.add_row("preemptions", f"{result['preemptions']:,}")
    for kind, count in result["batches"].items():
        table.add_row(f"batches, {kind}", f"{count:,}")
    table.add_row("tokens", f"{result['tokens']:,}")
    table.add_section()
    for name, median_ms in result["median_ms_per_step"].items():
        table.add_row(f"time per step in {name}, median", f"{median_ms:.2f} ms")
    table.add_row("time in all", f"{result['seconds']:.1f} s")
    table.add_section()
    colour = "red" if result["mismatches"] else "green"
    table.add_row("mismatches", f"{result['mismatches']}", style=colour)
    Console().print(table)
