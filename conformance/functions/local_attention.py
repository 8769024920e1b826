"""Chunked local attention as ordinary attention of virtual requests."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.functions.ubatch import COPIED
from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import sizes
from conformance.laws import batch_laws as laws
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    MAX_INT32,
    Batch,
    batches,
    choices,
    deferred,
    layouts,
    metadata_specials,
)


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw chunks of some of the table's blocks, mostly those of some of the manager's."""
    layout = draw(layouts(most=260, has_ranks=False))
    batch_of_sizes = draw(batches(layout, has_optional=True, may_lack_lens=False))
    count, is_any = choices(draw, (1, 1, 2, None), (False, False, True))
    count = draw(sizes(1, 300)) if count is None else count
    block_size = layout.kernel_block_size or layout.block_size
    columns = count if is_any else count * layout.blocks_per_kv_block
    columns = min(columns, MAX_INT32 // block_size)

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        # A request touches at most two chunks besides those that it fills.
        few = min(columns, max(40_000 // (2 * batch.num_reqs + 1), 1))
        return {
            "attn_chunk_size": few * block_size,
            "common_attn_metadata": batch.metadata(),
            "block_size": block_size,
        }

    return deferred(contents)


def _chunked(batch: Batch, blocks_of_chunk: int) -> Arguments:
    layout = batch.layout
    return {
        "attn_chunk_size": blocks_of_chunk * layout.block_size,
        "common_attn_metadata": batch.metadata(),
        "block_size": layout.kernel_block_size or layout.block_size,
    }


def _chunks(arguments: Arguments) -> tuple[Any, Any]:
    """Return the first position of each request with tokens, in chunks, and the last one."""
    metadata, chunk = arguments["common_attn_metadata"], arguments["attn_chunk_size"]
    query_lens, seq_lens = np.diff(metadata.query_start_loc), metadata.seq_lens
    first, last = seq_lens - query_lens, seq_lens - 1
    return first[query_lens > 0] / chunk, last[query_lens > 0] // chunk


def _enters_inside(arguments: Arguments) -> bool:
    first, last = _chunks(arguments)
    return bool(((first % 1 > 0) & (last - first > 2)).any())


def _is_cut_off(arguments: Arguments) -> bool:
    width = arguments["common_attn_metadata"].block_table_tensor.shape[1]
    columns = arguments["attn_chunk_size"] // arguments["block_size"]
    return bool((_chunks(arguments)[1] + 1).max(initial=0) * columns > width > 0)


def without_lens(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the lengths be known on the device only; the bounds on the host are not enough."""
    metadata = arguments["common_attn_metadata"]
    bounds = rng.choice((None, metadata.seq_lens, metadata.seq_lens_cpu_upper_bound))
    changes = {"seq_lens_cpu": None, "seq_lens_cpu_upper_bound": bounds}
    return {**arguments, "common_attn_metadata": dataclasses.replace(metadata, **changes)}


CONTRACTS = [
    Contract(
        function="make_local_attention_virtual_batches",
        calls=calls(),
        specials=(
            lambda arguments, _: {k: v for k, v in arguments.items() if k != "block_size"},
            without_lens,
            *metadata_specials("common_attn_metadata"),
        ),
        # `fast` reads the copies on the CPU, and no other field; all of them in checked mode.
        unread=COPIED,
        checked_only=(
            r"^(query_start_loc|seq_lens|num_computed_tokens_cpu|max_query_len|max_seq_len|causal"
            r"|num_logits_indices|logits_indices_padded|encoder_seq_lens|dcp_local_seq_lens\w*) "
            r"|, but \w+_cpu has"
        ),
        laws=(
            laws.chunks_restrict,
            laws.fields_follow_their_axes,
            laws.writes_are_read_back,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _chunked,
            lambda _batch, _arguments, result: [Part(result)],
            lambda _: st.integers(1, 3),
            chunk=lambda arguments: arguments["attn_chunk_size"],
            has_ranks=False,
        ),
        hard_cases={
            "a request enters a chunk inside, and fills another": _enters_inside,
            "a chunk reaches past the table": _is_cut_off,
            "more than 1,024 virtual requests": lambda args: (
                sum(1 + last - int(first) for first, last in zip(*_chunks(args), strict=True))
                > 1024
            ),
        },
        has_kernel=True,
        examples=0.7,
        takes_own_objects=True,
    ),
]
