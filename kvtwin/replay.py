"""Replay a trace of real requests in both twins, and compare every result of every step.

    kvtwin replay --trace FILE.csv --model NAME

reads a trace (columns TIMESTAMP, ContextTokens, GeneratedTokens). A continuous-batching scheduler
turns it into the steps of an engine, and each step runs in `reference` and in `fast`. The exit
status is 0 if all results are equal, 1 at the first difference, 2 for a wrong command line.
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

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import fast
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.engine import TraceEngine, servable
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, read_trace
from conformance.traffic.twins import Mismatch, Twins
from conformance.zoo.models import MODELS, get_model
from kvtwin.parser import Parser

KINDS = ("decode only", "extend only", "prefill only", "mixed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
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
    except (KeyError, OSError, ValueError) as error:
        parser.error(str(error.args[0] if isinstance(error, KeyError) else error))
    fast.warmup()
    with fast.checks(options.checked):
        replay = Replay(TraceEngine(requests, model, settings, seed=options.seed), model.name)
        mismatch = replay.run(options.steps)
    replay.print_table(num_left_out=len(trace) - len(requests))
    if mismatch is None:
        return 0
    print(mismatch.line)
    return 1


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    defaults = Settings()
    parser = Parser(
        prog="kvtwin replay",
        description="Replay a trace of real requests in both twins and compare every result.",
    )
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        metavar="FILE.csv",
        default=DEFAULT_TRACE,
        help="default: our own",
    )
    add(
        "--model",
        metavar="NAME",
        default="llama-3.1-8b",
        help=f"one of {', '.join(MODELS)}; default: %(default)s",
    )
    parser.add_number("--requests", "only the first N of the trace; default: all")
    parser.add_number("--steps", "", 300)
    parser.add_number("--token-budget", "tokens in a step, at most", defaults.token_budget)
    parser.add_number("--max-num-seqs", "requests running at once, at most", defaults.max_num_seqs)
    parser.add_number(
        "--num-blocks", "blocks in the pool; default: so few that it is empty at times"
    )
    parser.add_number("--micro-batches", "micro-batches of each batch", defaults.micro_batches)
    parser.add_number(
        "--num-speculative-tokens",
        "draft tokens of each decode",
        defaults.num_speculative_tokens,
        minimum=0,
    )
    add("--checked", action="store_true", help="run fast in checked mode")
    parser.add_number("--seed", "decides which draft tokens are accepted", 0, minimum=0)
    return parser


class Replay:
    """A run of an engine's steps in both twins, and what is counted of it.

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
        """Run steps until one differs, they are so many, or all requests have ended.

        Args:
            num_steps: The most steps.

        Returns:
            The first mismatch, None where there is none.
        """
        started = time.perf_counter()
        with tqdm(total=num_steps, desc=self.model, unit="step", file=sys.stderr) as progress:
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
        """Say which kinds of requests a batch has."""
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

    def print_table(self, *, num_left_out: int) -> None:
        """Print the closing table.

        Args:
            num_left_out: Requests of the trace that were too long to serve.
        """
        table = Table(title=f"{self.model}: reference and fast", show_header=False)
        table.add_column("what")
        table.add_column("how many", justify="right")
        table.add_row("steps", f"{self.num_steps:,}")
        table.add_row("requests finished", f"{self.engine.scheduler.num_finished:,}")
        if num_left_out:
            table.add_row("requests left out, too long", f"{num_left_out:,}")
        table.add_row("preemptions", f"{self.engine.scheduler.num_preemptions:,}")
        for kind in KINDS:
            table.add_row(f"batches, {kind}", f"{self.num_batches_by_kind[kind]:,}")
        table.add_row("tokens", f"{self.num_tokens:,}")
        table.add_section()
        for twin, name in enumerate(("reference", "fast")):
            median_ms = statistics.median(pair[twin] for pair in self.twins.seconds) * 1e3
            table.add_row(f"time per step in {name}, median", f"{median_ms:.2f} ms")
        table.add_row("time in all", f"{self.wall_seconds:.1f} s")
        table.add_section()
        colour = "red" if self.num_mismatches else "green"
        table.add_row("mismatches", f"{self.num_mismatches}", style=colour)
        Console().print(table)
