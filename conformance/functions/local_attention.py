"""Chunked local attention as ordinary attention of virtual requests."""

from __future__ import annotations

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
    batch_of_sizes = draw(batches(layout, has_optional=True))
    count = draw(sizes(1, 300, small=3))
    [is_any] = choices(draw, (False, False, True))
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


def _ends(arguments: Arguments) -> tuple[Any, Any]:
    """Return the first position of each request with tokens, and the one past its last."""
    metadata = arguments["common_attn_metadata"]
    query_lens, seq_lens = np.diff(metadata.query_start_loc), metadata.seq_lens
    return (seq_lens - query_lens)[query_lens > 0], seq_lens[query_lens > 0]


CONTRACTS = [
    Contract(
        function="make_local_attention_virtual_batches",
        calls=calls(),
        specials=(
            lambda arguments, _: {k: v for k, v in arguments.items() if k != "block_size"},
            *metadata_specials("common_attn_metadata"),
        ),
        # `fast` reads the copies on the CPU, and no other field; all of them in checked mode.
        unread=COPIED,
        checked_only=(
            r"^(query_start_loc|seq_lens|num_computed_tokens_cpu|max_query_len|max_seq_len|causal"
            r"|num_logits_indices|logits_indices_padded|encoder_seq_lens|dcp_local_seq_lens) "
            r"|, but \w+_cpu has"
        ),
        laws=(
            laws.chunks_restrict,
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
            "a request enters a chunk inside, and touches three": lambda args: bool(
                (
                    (_ends(args)[0] % args["attn_chunk_size"] > 0)
                    & (
                        (_ends(args)[1] - 1) // args["attn_chunk_size"]
                        > _ends(args)[0] // args["attn_chunk_size"] + 1
                    )
                ).any()
            ),
            "a chunk reaches past the table": lambda args: bool(
                (
                    -(-_ends(args)[1] // args["attn_chunk_size"]) * args["attn_chunk_size"]
                    > args["common_attn_metadata"].block_table_tensor.shape[1] * args["block_size"]
                ).any()
            ),
            "more than 1,023 virtual requests": lambda args: (
                args["common_attn_metadata"].num_reqs > 1023
            ),
        },
        has_kernel=True,
        takes_own_objects=True,
    ),
]
