"""Bad calls of `make_local_attention_virtual_batches`."""

from __future__ import annotations

from conformance.contracts import InvalidInput
from conformance.invalid_inputs.arrays import int_faults
from conformance.invalid_inputs.metadata import metadata_faults

LOCAL_ATTENTION_INVALID_INPUTS = [
    *int_faults("attn_chunk_size"),
    *int_faults("block_size"),
    InvalidInput(
        "the block size does not divide the chunk",
        ValueError,
        "block_size",
        lambda call: call.replacing(block_size=call.arguments["attn_chunk_size"] + 1),
    ),
    InvalidInput(
        "there is no block size",
        ValueError,
        "block_size",
        lambda call: call.without("block_size"),
    ),
    *metadata_faults(has_block_size=True),
]
