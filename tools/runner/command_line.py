"""The runner's command line: serves requests with models, and prints a table for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import fast
from kvtwin.parser import Parser, natural
from tools.runner.requests import make_requests
from tools.runner.settings import MODEL_NAMES, Settings

if TYPE_CHECKING:
    from tools.runner.engine import Outcome

DEFAULT_MICRO_BATCHES = (1, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device")
    token_budget = Settings().token_budget
    if options.micro_batches is not None and options.micro_batches > token_budget:
        parser.error(
            f"argument --micro-batches: {options.micro_batches} is more than the {token_budget} "
            "tokens of a step"
        )
    try:
        import tools.runner.models  # noqa: F401, PLC0415  # transformers may be missing, or too old
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        parser.error(f"the models need transformers ({reason}): pip install -e '.[runner]'")
    torch.set_num_threads(1)
    # Tokens are compared exactly, so float32 products must not be computed in TF32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    fast.warmup()
    for name in options.model:
        difference = _serve_with(name, options)
        if difference is not None:
            print(difference)
            return 1
    return 0


def _serve_with(name: str, options: argparse.Namespace) -> str | None:
    """Serve with one model, and print its table; return the first difference, if there is any."""
    # Imported here: without transformers the process ends with a one-line error.
    from tools.runner.engine import expect, serve  # noqa: PLC0415
    from tools.runner.models import make_model  # noqa: PLC0415

    model = make_model(name, options.seed, torch.device(options.device))
    requests = make_requests(options.requests, options.seed)

    def on_each(what: str) -> tqdm[NoReturn]:
        return tqdm(total=len(requests), desc=f"{name}, {what}", unit="request", file=sys.stderr)

    with on_each("generate") as progress:
        expected = expect(model, requests, progress.update)
    counts = DEFAULT_MICRO_BATCHES if options.micro_batches is None else (options.micro_batches,)
    outcomes: dict[str, Outcome] = {}
    difference = None
    for count in counts:
        what = "whole batches" if count == 1 else f"{count} micro-batches"
        with on_each(what) as progress:
            outcomes[what] = outcome = serve(
                model,
                requests,
                expected,
                Settings(micro_batches=count),
                wrong_slot_step=options.wrong_slot,
                on_finished=progress.update,
            )
        if outcome.difference is not None:
            mode = name if count == 1 else f"{name}, {what}"
            difference = f"{mode}: {outcome.difference}"
            break
    _print_table(name, len(requests), sum(map(len, expected.values())), outcomes)
    if options.wrong_slot is not None:
        _print_wrong_slots(options.wrong_slot, outcomes)
    return difference


def _print_table(
    name: str, num_requests: int, num_expected_tokens: int, outcomes: dict[str, Outcome]
) -> None:
    """Print the outcome of a model's runs, one column each."""
    table = Table(title=f"{name}: {num_requests:,} requests, {num_expected_tokens:,} new tokens")
    table.add_column("served in")
    for what in outcomes:
        table.add_column(what, justify="right")

    def add_row(heading: str, cell: Callable[[Outcome], str]) -> None:
        table.add_row(heading, *map(cell, outcomes.values()))

    add_row("requests finished", lambda outcome: f"{outcome.num_finished:,}")
    add_row("tokens computed", lambda outcome: f"{outcome.num_computed_tokens:,}")
    add_row("steps", lambda outcome: f"{outcome.num_steps:,}")
    add_row("preemptions", lambda outcome: f"{outcome.num_preemptions:,}")
    add_row("steps in micro-batches", lambda outcome: f"{outcome.num_micro_batched_steps:,}")
    add_row("requests cut by micro-batches", lambda outcome: f"{outcome.num_cut_requests:,}")
    add_row("time", lambda outcome: f"{outcome.seconds:.1f} s")
    table.add_section()
    add_row("new tokens equal to generate's", lambda outcome: f"{outcome.num_equal_tokens:,}")
    add_row("all equal", lambda o: "[green]yes" if o.difference is None else "[red]no")
    Console().print(table)


def _print_wrong_slots(step_index: int, outcomes: dict[str, Outcome]) -> None:
    """Print the injected error, and whether it changed no token."""
    for what, outcome in outcomes.items():
        if outcome.wrong_slot is None:
            print(f"no slot was shifted: no step from {step_index} on has a suitable token")
        else:
            seen = "" if outcome.difference is not None else ", which changed no token"
            print(f"shifted in {what}: {outcome.wrong_slot}{seen}")


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.runner",
        description="Serve requests with fast, and compare each token with that of generate in "
        "transformers.",
        examples=("--model llama --requests 8",),
        statuses={0: "all tokens are equal", 1: "a token differs"},
    )
    add = parser.add_argument
    add(
        "--model",
        type=_models,
        metavar="NAME[,NAME]",
        default=MODEL_NAMES,
        help=f"models to run, from {', '.join(MODEL_NAMES)}; default: all",
    )
    parser.add_number("--requests", "number of requests", 32)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_number(
        "--micro-batches",
        "split each batch of at least N tokens into N; default: run with 1, then with 2",
    )
    add(
        "--seed",
        type=_seed,
        metavar="N",
        default=0,
        help="seed of weights, prompts and arrivals; default: %(default)s",
    )
    parser.add_number(
        "--wrong-slot",
        "shift the slot of one token by one in step N, to show that such an error is detected",
        minimum=0,
    )
    return parser


def _models(text: str) -> tuple[str, ...]:
    """Read names of models, separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in MODEL_NAMES:
            raise argparse.ArgumentTypeError(
                f"unknown model {name!r}; the models are {', '.join(MODEL_NAMES)}"
            )
    return names


def _seed(text: str) -> int:
    """Read a seed for torch."""
    number = natural(text)
    if number >= 2**64:
        raise argparse.ArgumentTypeError(f"must be less than 2**64, got {text!r}")
    return number
