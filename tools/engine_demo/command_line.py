"""The demo's command line: engines with and without the plugin, their tokens and times."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvtwin.machine import cpu_model, num_cores
from kvtwin.parser import Parser, names, positive
from kvtwin.processes import started
from tools.engine_demo.engine import ENVIRONMENT
from tools.engine_demo.models import MODELS
from tools.engine_demo.own_process import check_own_process
from tools.engine_demo.session import Outcome, Plan, run_engine
from tools.engine_demo.step_times import METHODS, Time

PLUGIN = Path(__file__).parents[1] / "vllm_plugin"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    options = _make_parser().parse_args(arguments)
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError("the engine is vLLM", name="vllm")
    if importlib.util.find_spec("kvtwin_vllm") is None:
        sys.path.append(str(PLUGIN))  # processes that are started inherit it
    os.environ.update(ENVIRONMENT)  # OpenMP reads it when a process imports torch
    print(f"vLLM in float32 on one thread of {cpu_model()}, {num_cores()} cores")
    sizes = tuple(options.batch) if options.steps else ()
    if options.own_process:
        return _check_own_process(options)
    all_equal = True
    for model in options.model:
        plain = _run(Plan(model, False, options.requests, sizes, options.steps))
        plugin = _run(Plan(model, True, options.requests, sizes, options.steps))
        all_equal &= _report_tokens(model, plain, plugin)
        for size in sizes:
            _report_times(model, size, plugin)
    return 0 if all_equal else 1


def _check_own_process(options: argparse.Namespace) -> int:
    """Print the results of engines in their own processes, and return the exit status."""
    is_right = True
    for model in options.model:
        print(f"\n{model}, the engine in its own process, the plugin loaded by its entry point")
        for line, holds in check_own_process(model, options.requests):
            print(f"  {'' if holds else 'WRONG: '}{line}", flush=True)
            is_right &= holds
    return 0 if is_right else 1


def _run(plan: Plan) -> Outcome:
    """Run an engine in a process of its own: numba must not be imported before an engine starts."""
    context = multiprocessing.get_context("spawn")
    with started(context, run_engine, plan) as (_, outcomes):
        try:
            outcome: Outcome = outcomes.recv()
        except EOFError:
            raise SystemExit(f"the engine of {plan.model} ended without an outcome") from None
    return outcome


def _report_tokens(model: str, plain: Outcome, plugin: Outcome) -> bool:
    """Print which outputs differ; return whether none does, and shifted slots change some."""
    count = sum(map(len, plain.tokens))
    equal = plain.tokens == plugin.tokens
    pairs = list(zip(plain.tokens, plugin.tokens, strict=True))
    unequal = [i for i, (expected, actual) in enumerate(pairs) if expected != actual]
    changed = sum(a != b for a, b in zip(plain.tokens, plugin.wrong_tokens, strict=True))
    different = len(set(map(tuple, plain.tokens)))
    print(f"\n{model}: {len(pairs)} requests, {count} new tokens, {different} different outputs")
    verdict = "equal, each token" if equal else f"requests {unequal} differ"
    print(f"  plain and with the plugin: {verdict}")
    print(f"  with slots shifted by one: {changed} of {len(pairs)} outputs differ")
    print(f"  replaced: {', '.join(plugin.replaced)}")
    for name, reason in plugin.kept.items():
        print(f"  vLLM's own {name} is kept: {reason}")
    return equal and changed > 0


def _report_times(model: str, size: int, outcome: Outcome) -> None:
    """Print the CPU times of a step, by function."""
    table = Table(title=f"{model}, {size} requests: CPU time of a step in µs, medians")
    for heading in ("function", "vLLM", "plugin", "ratio"):
        table.add_column(heading, justify="left" if heading == "function" else "right")

    def add_row(name: str, spent: Time) -> None:
        plain, plugin = spent
        table.add_row(name, f"{plain:.0f}", f"{plugin:.0f}", f"{plugin / plain:.2f}")

    methods = outcome.methods[size]
    for name in METHODS:
        add_row(name, methods[name])
    plain, plugin = (sum(methods[name][i] for name in METHODS) for i in range(2))
    add_row("both", Time(plain, plugin))
    table.add_section()
    for name, spent in outcome.functions[size].items():
        add_row(name, spent)
    Console().print(table)


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.engine_demo",
        description="Run vLLM with and without the plugin, and compare tokens and times.",
        examples=["", "--model tiny-qwen2 --requests 8 --steps 0", "--batch 12 --steps 500"],
        statuses={0: "all tokens are equal", 1: "a token differs, or an engine failed"},
    )
    parser.add_argument(
        "--model",
        type=_models,
        metavar="NAME[,NAME]",
        default=list(MODELS),
        help=f"models to run, from {', '.join(MODELS)}; default: all",
    )
    parser.add_number("--requests", "requests whose tokens are compared", 24)
    parser.add_argument(
        "--batch",
        type=_sizes,
        metavar="N[,N]",
        default=[12, 128],
        help="numbers of requests for which steps are timed; default: 12,128",
    )
    parser.add_argument(
        "--own-process",
        action="store_true",
        help="test the installed plugin and its options in engines that run in separate processes",
    )
    parser.add_number(
        "--steps", "steps to time for each number of requests; 0: none", 200, minimum=0
    )
    return parser


def _models(text: str) -> list[str]:
    """Read names of models, separated by commas."""
    models = names(text)
    for name in models:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(
                f"unknown model {name!r}; the models are {', '.join(MODELS)}"
            )
    return models


def _sizes(text: str) -> list[int]:
    """Read numbers of requests, separated by commas."""
    return [positive(size) for size in names(text)]
