"""Print a plan as tables."""

from __future__ import annotations

import math

from rich.console import Console, JustifyMethod
from rich.table import Table

from conformance.zoo.layer import ENCODER_ONLY, MAMBA
from kvtwin.device_memory import GIB
from kvtwin.sizing import GroupPlan, Plan


def print_plan(plan: Plan) -> None:
    """Print a plan as tables."""
    console = Console()
    for table in (_summary_table(plan), _capacity_table(plan), _group_table(plan)):
        console.print(table)
    for backend in plan.backends:
        sizes = [str(size) for size in backend["kernel_block_sizes"]]
        sizes += [f"multiples of {base}" for base in backend["multiples_of"]]
        console.print(f"{backend['name']} supports blocks of {', '.join(sizes)} tokens")


def _summary_table(plan: Plan) -> Table:
    """Make the table of the deployment and its memory."""
    number = plan.num_devices
    devices = "1 device with" if number == 1 else f"{number} devices, each with"
    memory = plan.device_memory
    of_what = "" if memory is not None else " for its KV cache"
    total = plan.memory_bytes if memory is None else memory.gpu_bytes
    table = Table(
        title=f"{plan.model} on {devices} {total / GIB:.4g} GiB{of_what}", show_header=False
    )
    table.add_column("what")
    table.add_column("how much", justify="right", overflow="fold")
    table.add_row("published as", plan.published_as)
    table.add_row("cache formats", ", ".join(plan.formats))
    table.add_row("longest request served (max-model-len)", f"{plan.max_model_len:,} tokens")
    table.add_row("tokens of a step", f"{plan.max_num_batched_tokens:,} tokens")
    if plan.num_speculative_tokens:
        table.add_row("draft tokens of a decode", f"{plan.num_speculative_tokens}")
    if plan.kv_head_copies > 1:
        table.add_row("ranks that keep the same KV head", f"{plan.kv_head_copies}")
    table.add_section()
    if memory is not None:
        taken = memory.gpu_bytes * memory.utilization
        table.add_row(f"memory, {memory.utilization:.0%} of the device", _gib(taken))
        weights = f"{plan.num_parameters / 1e9:.2f} billion, {memory.weights_dtype}"
        table.add_row(f"weights of the language model ({weights})", _gib(memory.weights_bytes))
        if plan.uncounted_weights:
            table.add_row("weights not counted", ", ".join(plan.uncounted_weights))
        table.add_row("reserve (activations, CUDA graphs)", _gib(memory.reserve_bytes))
        table.add_row("left for the KV cache", _gib(plan.memory_bytes))
        table.add_section()
    table.add_row("one block, all tensors", f"{plan.block_bytes / 2**20:,.3f} MiB")
    table.add_row("blocks, including the null block", f"{plan.num_blocks:,}")
    table.add_row("memory used", _gib(plan.used_bytes))
    table.add_row("one token", _kib(plan.bytes_per_token))
    if plan.bytes_per_token_beyond_windows != plan.bytes_per_token:
        beyond = _kib(plan.bytes_per_token_beyond_windows)
        table.add_row("one token beyond windows and chunks", beyond)
    if plan.longest_request_tokens < plan.max_model_len:
        longest = f"{plan.longest_request_tokens:,}"
        table.add_row("longest request that fits, in tokens", longest, style="red")
    return table


def _capacity_table(plan: Plan) -> Table:
    """Make the table of the requests that fit."""
    engines = plan.engine.data_parallel_size
    title = "Requests that fit at once"
    table = Table(title=title if engines == 1 else f"{title}, in each of {engines} engines")
    for heading in (
        "tokens",
        "worst case",
        "blocks of one",
        "steady state",
        "blocks of one",
        "step",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for capacity in plan.capacities:
        worst, steady = capacity.worst_case_requests, capacity.steady_requests
        table.add_row(
            f"{capacity.request_tokens:,}",
            _hundredths(worst),
            f"{capacity.worst_case_blocks:,}",
            _hundredths(steady),
            f"{capacity.steady_blocks:,}",
            f"{capacity.step_blocks:,}",
            style="green" if worst >= 1 else "red",
        )
    table.caption = (
        "worst case: each request has a whole step's tokens beyond its windows and chunks, as in "
        "the engine's own estimate; steady state: all requests decode, and the blocks for the "
        "tokens of a step are needed only once"
    )
    return table


def _group_table(plan: Plan) -> Table:
    """Make the table of KV cache groups; equal groups share a row."""
    table = Table(title="KV cache groups")
    headings = ("#", "kind", "layers", "block", "kernel", "page", "blocks", "steady", "share")
    for heading in headings:
        justify: JustifyMethod = "left" if heading == "kind" else "right"
        width = 7 if heading == "kind" else None  # kinds have two words
        table.add_column(heading, justify=justify, overflow="fold", min_width=width)
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
            f"{group.steady_blocks:,}",
            "100%" if group.share == 1 else f"{group.share:.1%}",
        )
    table.caption = (
        "each row is for # equal groups; block and kernel block are in tokens; page is a block of "
        "one layer, or of all layers if they differ; blocks (worst case), steady and share are of "
        "a request of max-model-len; + counts layers that share a cache"
    )
    return table


def _hundredths(number: float) -> str:
    """Format a number with two decimals, rounded down."""
    return f"{math.floor(number * 100) / 100:,.2f}"


def _gib(size_bytes: float) -> str:
    """Format a size in GiB."""
    return f"{size_bytes / GIB:,.2f} GiB"


def _kib(size_bytes: int) -> str:
    """Format a size in KiB, or in MiB from 1 MiB on."""
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:,.4g} MiB"
    return f"{size_bytes / 1024:,.{0 if size_bytes % 1024 == 0 else 1}f} KiB"
