"""Size a deployment: the KV cache of a model, and the number of requests that fit.

    kvtwin plan --model NAME --memory-gib X --tensor-parallel N

The memory is what each device has for its KV cache: what is left after weights, activations and
CUDA graphs. The numbers are computed by `fast`'s functions for a model of the zoo. The exit status
is 0, or 2 if the command line is wrong or nothing fits.

`--json` prints one object:

- `model`, `published_as`, `tensor_parallel_size`, `formats` (of the caches, by name),
  `max_model_len`, `max_num_batched_tokens`;
- `memory_bytes` and `used_bytes` on each device;
- `block_bytes`: of one block over all tensors; `num_blocks`: the null block, number 0, included;
- `blocks_per_request`: of a request of `max_model_len` tokens; `requests`: how many of these fit at
  once, as a fraction; `tokens`: in that many requests, or in the one that fits if not even one of
  them does; `longest_request_tokens`: of a single request, up to `max_model_len`;
- `backends`: a list of `name`, `kernel_block_sizes`, `multiples_of`;
- `groups`, for each KV cache group `kind`, `num_layers` (with a cache of their own, or with none),
  `num_sharing_layers`, `block_size` (tokens), `kernel_block_size` (None if no backend has one),
  `page_size_bytes` (a block of one layer; of all layers if they differ), `blocks_per_request` and
  `share` (of the blocks of a request, 0 to 1).
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("plan")

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table

from conformance.zoo.catalogue import BACKENDS
from conformance.zoo.layer import ENCODER_ONLY, MAMBA
from conformance.zoo.models import MODELS, get_model
from conformance.zoo.serving import DTYPES, Serving
from kvtwin.parser import Parser
from kvtwin.sizing import GIB, GroupPlan, Plan, make_plan

MAX_GIB = 2**33 - 1
"""The largest memory whose bytes an int64 can count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        serving = Serving(
            model=get_model(options.model),
            tensor_parallel_size=options.tensor_parallel,
            dtype=options.dtype,
            requested_block_size=options.block_size,
            requested_max_model_len=options.max_model_len,
            max_num_batched_tokens=options.max_num_batched_tokens,
            backends=options.backend,
        )
        plan = make_plan(serving, int(options.memory_gib * GIB))
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    if options.json:
        print(json.dumps(dataclasses.asdict(plan), indent=2))
    else:
        _print_plan(plan)
    return 0


def _print_plan(plan: Plan) -> None:
    """Print the plan as tables."""
    console = Console()
    number = plan.tensor_parallel_size
    devices = "1 device with" if number == 1 else f"{number} devices, each with"
    summary = Table(
        title=f"{plan.model} on {devices} {plan.memory_bytes / GIB:.4g} GiB for its KV cache",
        show_header=False,
    )
    summary.add_column("what")
    summary.add_column("how much", justify="right", overflow="fold")
    summary.add_row("published as", plan.published_as)
    summary.add_row("cache formats", ", ".join(plan.formats))
    summary.add_row("longest request served (max-model-len)", f"{plan.max_model_len:,} tokens")
    step = f"{plan.max_num_batched_tokens:,} tokens"
    summary.add_row("tokens of a step (added to windows and chunks)", step)
    summary.add_section()
    summary.add_row("one block, all tensors", f"{plan.block_bytes / 2**20:,.3f} MiB")
    summary.add_row("blocks, including the null block", f"{plan.num_blocks:,}")
    summary.add_row("memory used", f"{plan.used_bytes / GIB:,.2f} GiB")
    summary.add_section()
    summary.add_row("blocks of a request of max-model-len", f"{plan.blocks_per_request:,}")
    colour = "green" if plan.requests >= 1 else "red"
    summary.add_row("such requests that fit", _hundredths(plan.requests), style=colour)
    if plan.requests >= 1:
        summary.add_row("tokens in them", f"{plan.tokens:,}")
    else:
        summary.add_row("longest request that fits, in tokens", f"{plan.tokens:,}", style="red")
    console.print(summary)
    console.print(_group_table(plan))
    for backend in plan.backends:
        sizes = [str(size) for size in backend["kernel_block_sizes"]]
        sizes += [f"multiples of {base}" for base in backend["multiples_of"]]
        console.print(f"{backend['name']} supports blocks of {', '.join(sizes)} tokens")


def _group_table(plan: Plan) -> Table:
    """Make the table of groups; equal ones share a row."""
    table = Table(title="KV cache groups")
    headings = ("groups", "kind", "layers", "block", "kernel", "page", "blocks", "share")
    for heading in headings:
        justify: JustifyMethod = "left" if heading == "kind" else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    equal: dict[GroupPlan, int] = {}
    for group in plan.groups:
        equal[group] = equal.get(group, 0) + 1
    for group, count in equal.items():
        sharing = f" +{group.num_sharing_layers}" if group.num_sharing_layers else ""
        table.add_row(
            str(count),
            group.kind.replace("_", " "),
            f"{group.num_layers}{sharing}",
            f"{group.block_size:,}" if group.kind not in (MAMBA, ENCODER_ONLY) else "-",
            str(group.kernel_block_size or "-"),
            _kib(group.page_size_bytes) if group.kind != ENCODER_ONLY else "-",
            f"{group.blocks_per_request:,}",
            "100%" if group.share == 1 else f"{group.share:.1%}",
        )
    table.caption = (
        "each row is for one group; block and kernel block are in tokens; page is a block of one "
        "layer, or of all layers if they differ; blocks and share are of a request; + counts "
        "layers that share a cache"
    )
    return table


def _hundredths(number: float) -> str:
    """Format a number with two decimals, rounded down."""
    return f"{math.floor(number * 100) / 100:,.2f}"


def _kib(size_bytes: int) -> str:
    """Format a size in KiB."""
    return f"{size_bytes / 1024:,.{0 if size_bytes % 1024 == 0 else 1}f} KiB"


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin plan",
        description="Size a model's KV cache: blocks, and the requests that fit into a memory.",
        examples=("--model gemma-3-27b --memory-gib 40 --tensor-parallel 2",),
        statuses={0: "requests fit", 2: "the command line is wrong, or nothing fits"},
    )
    add = parser.add_argument
    add("--model", metavar="NAME", required=True, help=f"one of {', '.join(MODELS)}")
    add(
        "--memory-gib",
        type=_memory,
        metavar="X",
        required=True,
        help="GiB that each device has for its KV cache",
    )
    parser.add_number("--tensor-parallel", "devices that share each layer", 1)
    parser.add_number("--max-model-len", "tokens of the longest request; default: as published")
    parser.add_number(
        "--max-num-batched-tokens", "tokens of a step, in addition to windows and chunks", 8192
    )
    add(
        "--dtype",
        metavar="D",
        help=f"dtype of keys, values and latents: one of {', '.join(DTYPES)}; default: the model's",
    )
    parser.add_number("--block-size", "tokens in a block; default: what the backends need")
    add(
        "--backend",
        type=_names,
        metavar="NAME[,NAME]",
        default=(),
        help="backends that share blocks; default: those of the zoo for the model; "
        f"the backends are {', '.join(BACKENDS)}",
    )
    add("--json", action="store_true", help="print JSON")
    return parser


def _names(text: str) -> tuple[str, ...]:
    """Read names, separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def _memory(text: str) -> float:
    """Read a number of GiB."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= MAX_GIB:
        raise argparse.ArgumentTypeError(
            f"must be a number of GiB greater than 0 and at most {MAX_GIB:,}, got {text!r}"
        )
    return number
