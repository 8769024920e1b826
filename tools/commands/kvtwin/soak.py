"""Replay traffic for minutes with random faults, compare both twins, and watch the memory.

    kvtwin soak --minutes N

Round after round, a model of the zoo serves a trace in `reference` and in `fast`, as in the replay,
in a pool of blocks that is often empty. Between steps there are faults: invalid arguments, which
both must reject with the same error; more blocks than a row has; requests that are cancelled while
a step runs; calls of `fast` that a KeyboardInterrupt ends between two instructions. All results of
all steps are compared, also after a fault. The exit status is 0 if nothing differed and the memory
of the process was at most 2% larger after the first minute than in it; else it is 1.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("soak")

import ctypes
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from tqdm import tqdm

import fast
from conformance.execution.interrupts import Interrupter
from conformance.execution.process_memory import rss_bytes
from conformance.model_runner.twins import Twins
from conformance.traffic.engine import TraceEngine, servable
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, TraceRequest, read_trace
from conformance.zoo.models import get_model
from kvtwin.parser import Parser, redirect_stdout_for_json, write_json

MODELS = ("llama-3.1-8b", "gpt-oss-20b", "llama-4-scout", "deepseek-v3", "qwen3-next-80b-a3b")
"""One of each kind of attention; few, so that all of them run in the first minute."""
STEPS_OF_A_ROUND = 80
POOL_TOKENS = 2048
"""As many as the longest request has, so that others are preempted."""
FAULT_RATE = 0.3
"""The probability of a fault in a step."""
LONGEST_INTERRUPTED_CALL = 400
"""A call is interrupted within this many instructions, if it runs that long."""
MAX_GROWTH = 0.02


@dataclass
class Soak:
    """A run, and its counters.

    Attributes:
        seed: The seed of all random choices.
        warmup_seconds: After this time the memory must not grow.
        num_rounds: Engines that were started.
        num_steps: Steps that were compared.
        num_faults_by_kind: Injected faults.
        num_preemptions: Requests that were preempted because the pool was empty.
        first_memory_bytes: The most memory at the end of a round in the warm-up.
        last_memory_bytes: The most memory at the end of a round after it.
        problem: The first difference, or None.
    """

    seed: int = 0
    warmup_seconds: float = 60
    num_rounds: int = 0
    num_steps: int = 0
    num_faults_by_kind: Counter[str] = field(default_factory=Counter)
    num_preemptions: int = 0
    first_memory_bytes: int = 0
    last_memory_bytes: int = 0
    problem: str | None = None

    @property
    def growth(self) -> float:
        """The relative growth of the memory after the warm-up."""
        return max(self.last_memory_bytes / self.first_memory_bytes - 1, 0)

    @property
    def passed(self) -> bool:
        """Whether nothing differed, and the memory grew by at most `MAX_GROWTH`."""
        return self.problem is None and self.growth <= MAX_GROWTH

    def run(self, seconds: float) -> Soak:
        """Run rounds until the time is over or something differs, and return this soak."""
        draw = random.Random(self.seed)  # noqa: S311  # faults are no secrets
        trace = read_trace(DEFAULT_TRACE)
        started = time.monotonic()
        with tqdm(unit="step", file=sys.stderr, disable=None) as progress:
            while self.problem is None and time.monotonic() - started < seconds:
                before = self.num_steps
                self._run_round(MODELS[self.num_rounds % len(MODELS)], trace, draw)
                self.num_rounds += 1
                progress.update(self.num_steps - before)
                memory = _resident_bytes()
                is_early = time.monotonic() - started < self.warmup_seconds
                if is_early or self.num_rounds <= len(MODELS):
                    self.first_memory_bytes = max(self.first_memory_bytes, memory)
                else:
                    self.last_memory_bytes = max(self.last_memory_bytes, memory)
        return self

    def _run_round(self, name: str, trace: list[TraceRequest], draw: random.Random) -> None:
        """Serve a part of the trace with one model, with faults between the steps."""
        model = get_model(name)
        num_blocks = 1 + Settings(max_model_len=2048).blocks_for(model, POOL_TOKENS)
        settings = Settings(
            token_budget=draw.choice((128, 512)),
            max_num_seqs=16,
            max_model_len=2048,
            num_blocks=num_blocks,
        )
        requests = servable(trace, name, settings)
        engine = TraceEngine(
            requests,
            model,
            settings,
            seed=draw.randrange(2**32),
            frees_skipped_blocks=draw.random() < 0.5,
        )
        twins = Twins(model, settings)
        steps = iter(engine)
        for _ in range(STEPS_OF_A_ROUND):
            step = next(steps, None)
            if step is None:
                break
            kind = draw.choice(list(FAULTS)) if draw.random() < FAULT_RATE else None
            problem = None
            if kind is not None and twins.expected.batch is not None:
                problem = FAULTS[kind](engine, twins, draw)
                self.num_faults_by_kind[kind] += 1
            mismatch = twins.execute(step)
            self.num_steps += 1
            if problem is not None or mismatch is not None:
                self.problem = f"{name}, {problem or (mismatch and mismatch.line)}"
                if kind is not None:
                    self.problem += f" (in a step with a fault: {kind})"
                break
        self.num_preemptions += engine.scheduler.num_preemptions


def _cancel(engine: TraceEngine, twins: Twins, draw: random.Random) -> str | None:
    """Cancel a running request: this step still has it; the next one reports it as finished."""
    del twins
    if engine.scheduler.running:
        engine.scheduler.finish(draw.choice(engine.scheduler.running))
    return None


def _refused_alike(twins: Twins, name: str, *arguments: object) -> str | None:
    """Make a call that both twins must reject with the same error; return the difference."""
    outcomes = []
    for runner in (twins.expected, twins.actual):
        try:
            runner.call_tables(name, *arguments)
        except (IndexError, TypeError, ValueError) as error:
            outcomes.append(f"{type(error).__name__}: {error}")
        else:
            outcomes.append("no exception")
    if "no exception" in outcomes or outcomes[0] != outcomes[1]:
        return f"{name}{arguments}: reference has {outcomes[0]!r}, and fast {outcomes[1]!r}"
    return None


def _bad_input(engine: TraceEngine, twins: Twins, draw: random.Random) -> str | None:
    """Pass the index of a row that does not exist."""
    del engine
    return _refused_alike(twins, "clear_row", draw.choice((-1, 10**6)))


def _too_many_blocks(engine: TraceEngine, twins: Twins, draw: random.Random) -> str | None:
    """Append more blocks than a row has columns."""
    del engine
    num_groups = twins.expected.num_groups
    count = draw.randrange(1000, 2000)
    blocks = [[1] * count for _ in range(num_groups)]
    return _refused_alike(twins, "append_block_ids", [0], [[0, count]] * num_groups, blocks, [True])


def _interrupt(engine: TraceEngine, twins: Twins, draw: random.Random) -> str | None:
    """Interrupt two calls of `fast` that leave the tables unchanged if they complete."""
    del engine
    rows = twins.actual.rows.req_ids
    free = [row for row, req_id in enumerate(rows) if req_id is None]
    row = draw.choice(free) if free else 0
    swapped = draw.randrange(len(rows))
    for name, arguments in draw.sample(
        [("swap_rows", (swapped, swapped)), ("move_row", (row, row)), ("swap_rows", (row, row))], 2
    ):
        call = partial(twins.actual.call_tables, name, *arguments)
        Interrupter(fast, draw.randrange(1, LONGEST_INTERRUPTED_CALL)).run(call)
    return None


FAULTS: dict[str, Callable[[TraceEngine, Twins, random.Random], str | None]] = {
    "bad input": _bad_input,
    "out of blocks": _too_many_blocks,
    "cancelled request": _cancel,
    "interrupt": _interrupt,
}
"""The faults of a step, by kind."""


def _resident_bytes() -> int:
    """Return the resident memory of the process, after garbage collection.

    Models have caches of different sizes, so the allocator first returns freed memory to the OS.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    return rss_bytes(os.getpid())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = Parser(
        prog="kvtwin soak",
        description="Replay traffic with random faults, compare reference and fast, and watch the "
        "memory.",
        examples=("--minutes 20",),
        statuses={
            0: "all results are equal, and the memory did not grow",
            1: "a result differs, or the memory grew",
        },
    )
    parser.add_number("--minutes", "how long to run", 20)
    parser.add_number("--seed", "seed of the random faults", 0, minimum=0)
    parser.add_json("the counts")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    fast.warmup()
    soak = Soak(seed=options.seed).run(60 * options.minutes)
    if options.json is not None:
        write_json({**vars(soak), "growth": soak.growth, "passed": soak.passed}, options.json)
    with redirect_stdout_for_json(options.json):
        print_soak(soak)
    return 0 if soak.passed else 1


def print_soak(soak: Soak) -> None:
    """Print the counters and the verdict."""
    print(f"rounds                       {soak.num_rounds:,}")
    print(f"steps compared               {soak.num_steps:,}")
    for kind in FAULTS:
        print(f"steps with fault: {kind:18} {soak.num_faults_by_kind[kind]:,}")
    print(f"preemptions, out of blocks   {soak.num_preemptions:,}")
    print(f"memory in the first minute   {soak.first_memory_bytes / 2**20:,.1f} MiB")
    print(f"memory after it, at most     {soak.last_memory_bytes / 2**20:,.1f} MiB")
    print(f"growth (at most {MAX_GROWTH:.0%})          {soak.growth:.2%}")
    print(f"differences                  {soak.problem or 'none'}")
    print("passed" if soak.passed else "FAILED")
