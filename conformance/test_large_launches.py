"""Kernels in blocks of several warps, with rows longer than a block, and many requests.

A simulated thread costs 50 to 700 us, so in the simulator other checks launch small blocks. Here
each kernel is launched a few times, with fixed arguments.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from hypothesis.strategies import SearchStrategy

from conformance.checks.registry import contracts
from conformance.conditions.known_answer import KnownAnswer
from conformance.contracts.check import FixedCheck
from conformance.contracts.evaluation import check_equal
from conformance.coverage.goals import COVERAGE
from conformance.coverage.presets import MINIMAL, Preset
from conformance.generation.profiles import Kind
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout
from conformance.targets.simulated_launches import launches_seen, simulated_launches
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call

KERNELS: Final = {
    "BlockTables": (
        "append_block_ids",
        "move_row",
        "swap_rows",
        "gather_block_tables",
        "compute_slot_mappings",
    ),
    "compute_slot_mapping": ("compute_slot_mapping",),
    "compute_causal_conv1d_metadata": ("fill_programs",),
    "make_kv_sharing_fast_prefill_common_attn_metadata": ("count_logits_indices",),
    "make_local_attention_virtual_batches": ("gather_columns",),
    "scatter_mm_placeholders": ("count_embeds", "rank_embeds", "scatter_rows"),
    "gather_mm_placeholders": ("count_embeds", "rank_embeds", "gather_rows"),
}
"""The kernels that each function launches."""

LONG_ROW, MANY_REQUESTS = "a row longer than its block", "more than 64 requests"
MANY_ELEMENTS = "more than 4,096 elements"
PROPERTIES: Final = (
    "blocks of 64 threads",
    "blocks of 128 threads",
    LONG_ROW,
    MANY_REQUESTS,
    MANY_ELEMENTS,
)
"""The properties that the launches of each kernel must cover."""


@dataclasses.dataclass(frozen=True)
class Launches:
    """A call that launches kernels.

    Attributes:
        threads: The threads in a block.
        num_reqs: The requests, sequences or placeholders of the call.
        row: The length of the longest row, or of the mask, that the threads of a block share.
        call: The call; of `BlockTables`, its constructor, with a session of `_play_tables`.
    """

    threads: int
    num_reqs: int
    row: int
    call: Call


def _batch(query_lens: Sequence[int], computed: int, block_size: int) -> Batch:
    """Return a batch whose requests have equally many computed tokens, and separate blocks."""
    layout, rows, next_id = Layout(block_size), [], 3
    for query_len in query_lens:
        count = layout.num_blocks(query_len + computed)
        rows.append(tuple(range(next_id + count, next_id, -1)))
        next_id += count
    return Batch(tuple(query_lens), (computed,) * len(query_lens), layout, tuple(rows))


def _slots(threads: int, batch: Batch) -> Launches:
    layout = batch.layout
    arguments = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        "block_size": layout.block_size,
    }
    row = max(map(len, batch.rows))
    return Launches(threads, batch.num_reqs, row, Call("compute_slot_mapping", arguments, batch))


def _programs(threads: int, lens: Sequence[int]) -> Launches:
    starts = np.cumsum([0, *lens]).astype(np.int32)
    call = Call("compute_causal_conv1d_metadata", {"query_start_loc_p": starts})
    return Launches(threads, len(lens), max(lens) // 8, call)


def _logits(threads: int, lens: Sequence[int]) -> Launches:
    batch = _batch(lens, 0, 16)
    metadata = batch.metadata()
    metadata.logits_indices_padded = np.arange(batch.num_tokens, dtype=np.int64)
    metadata.num_logits_indices = batch.num_tokens
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    call = Call(name, {"common_attn_metadata": metadata}, batch)
    return Launches(threads, len(lens), len(lens), call)


def _chunks(threads: int, num_reqs: int, columns: int) -> Launches:
    batch = _batch((1,) * num_reqs, 2 * columns - 1, 2)
    arguments = {
        "attn_chunk_size": 2 * columns,
        "common_attn_metadata": batch.metadata(),
        "block_size": 2,
    }
    call = Call("make_local_attention_virtual_batches", arguments, batch)
    return Launches(threads, num_reqs, columns, call)


def _rows(function: str, threads: int, shape: tuple[int, int]) -> Launches:
    """Return the call that moves rows; two of three placeholders are embeddings."""
    is_embed = np.arange(shape[0]) % 3 > 0
    is_scattered = function == "scatter_mm_placeholders"
    num_rows = int(is_embed.sum()) if is_scattered else shape[0]
    rows = np.arange(num_rows * shape[1]).astype(np.float16).reshape(num_rows, shape[1])
    name = "embeds" if is_scattered else "placeholders"
    call = Call(function, {name: rows, "is_embed": is_embed})
    return Launches(threads, shape[0], max(shape), call)


def _tables(threads: int, num_reqs: int, row: int, num_tokens: int) -> Launches:
    arguments = {
        "block_sizes": [2],
        "max_num_reqs": num_reqs + 2,
        "max_num_batched_tokens": num_tokens,
        "max_model_len": 2 * row,
        "device": "cpu",
        "pin_memory": False,
    }
    return Launches(threads, num_reqs, row, Call("BlockTables", arguments))


def _play_tables(target: Target, launches: Launches) -> list[Any]:
    """Return the gathered tables after a move and after a swap, and the slots of a step."""
    num_reqs, row = launches.num_reqs, launches.row
    num_tokens = launches.call["max_num_batched_tokens"]
    tables = target.call("BlockTables", **launches.call.arguments)
    slots = list(range(num_reqs))[::-1]
    ids = np.random.default_rng(0).permutation(num_reqs * row).tolist()
    ends = [i * row for i in range(num_reqs + 1)]
    target.method(tables, "append_block_ids", slots, [ends], [ids], [True] * num_reqs)
    starts = np.linspace(0, num_tokens, num_reqs + 1).astype(np.int32)
    positions = np.arange(num_tokens, dtype=np.int64) * 7 % (2 * row)
    last = num_reqs + 1
    seen: list[Any] = []
    for act in (("move_row", slots[0], last), ("swap_rows", slots[-1], last)):
        target.method(tables, *act)
        listed = target.array(np.array([last, *slots[1:]], np.int32))
        gathered = target.method(tables, "gather_block_tables", listed)
        seen.append(copy.deepcopy(gathered))
    arrays = target.array(starts), target.array(positions)
    return [*seen, target.method(tables, "compute_slot_mappings", *arrays)]


MANY: Final = (*(1,) * 69, 4030)
"""Tokens of many requests, more than 4,096 in all."""

LAUNCHES: Final[dict[str, Callable[[], Sequence[Launches]]]] = {
    "BlockTables": lambda: [_tables(64, 66, 65, 4100), _tables(128, 2, 130, 140)],
    "compute_slot_mapping": lambda: [
        _slots(64, _batch(MANY, 17, 16)),
        _slots(128, _batch((1, 150), 1, 1)),
    ],
    "compute_causal_conv1d_metadata": lambda: [
        _programs(64, (*(1,) * 69, 8 * 2100)),
        _programs(128, (3, 8 * 130)),
    ],
    "make_kv_sharing_fast_prefill_common_attn_metadata": lambda: [
        _logits(64, MANY),
        _logits(128, (*(1,) * 150, 2)),
    ],
    "make_local_attention_virtual_batches": lambda: [_chunks(64, 66, 65), _chunks(128, 2, 130)],
    "scatter_mm_placeholders": lambda: [
        _rows("scatter_mm_placeholders", threads, shape)
        for threads, shape in ((64, (4100, 1)), (128, (6, 131)))
    ],
    "gather_mm_placeholders": lambda: [
        _rows("gather_mm_placeholders", threads, shape)
        for threads, shape in ((64, (4100, 1)), (128, (6, 131)))
    ],
}
"""The launches of each function, which are made when they are needed."""


class LaunchCheck(FixedCheck):
    """A check of fixed launches, for targets that run kernels on the CPU."""

    def runs_on(self, target: Target) -> bool:
        """Return whether a target runs kernels on the CPU."""
        return target.is_simulated


def large_launches(function: str) -> LaunchCheck:
    """Return the check that a function's kernels are right in large launches."""

    def examples(_preset: Preset) -> SearchStrategy[str]:
        return st.just(function)

    def body(target: Target, _example: str) -> None:
        __tracebackhide__ = True
        for launches in LAUNCHES[function]():
            _check(function, launches, target)

    return LaunchCheck(
        function,
        Kind.LARGE,
        examples,
        body,
        f"The kernels of {function} are right in blocks of several warps, with long rows.",
        [f"{kernel}: {what}" for kernel in KERNELS[function] for what in PROPERTIES],
        has_kernel=True,
        presets=(MINIMAL,),
    )


def _check(function: str, launches: Launches, target: Target) -> None:
    """Raise `Mismatch` if an answer is wrong, and count the properties of the launches."""
    __tracebackhide__ = True
    seen: list[tuple[Any, int, Sequence[Any]]] = []
    threads = launches.threads
    simulation = target.simulation or simulated_launches
    with (
        target.running(),
        simulation(threads, threads),
        launches_seen(lambda *one: seen.append(one)),
    ):
        if function == "BlockTables":
            expected, got = (_play_tables(one, launches) for one in (REFERENCE, target))
            check_equal(target, launches.call, expected, got, "tables and slots")
        else:
            known = KnownAnswer.of(contracts()[function], launches.call)
            known.check(known.invocation(target), f"in blocks of {threads} threads")
    for kernel, threads_in_block, args in seen:
        for what in _properties(launches, threads_in_block, args):
            COVERAGE.reached[function, f"{kernel.name}: {what}"] += 1


def _properties(launches: Launches, threads: int, args: Sequence[Any]) -> Iterator[str]:
    """Yield the properties of a launch."""
    yield f"blocks of {threads} threads"
    if launches.row > threads:
        yield LONG_ROW
    if launches.num_reqs > 64:
        yield MANY_REQUESTS
    if max(arg.numel() for arg in args if hasattr(arg, "numel")) > 4096:
        yield MANY_ELEMENTS


(
    test_block_tables,
    test_compute_slot_mapping,
    test_compute_causal_conv1d_metadata,
    test_make_kv_sharing_fast_prefill_common_attn_metadata,
    test_make_local_attention_virtual_batches,
    test_scatter_mm_placeholders,
    test_gather_mm_placeholders,
) = map(large_launches, KERNELS)
