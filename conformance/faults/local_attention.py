"""Bad calls of `make_local_attention_virtual_batches`."""

from __future__ import annotations

from conformance.contracts import Fault
from conformance.faults.arrays import int_faults
from conformance.faults.metadata import metadata_faults

LOCAL_ATTENTION_FAULTS = [
    *int_faults("attn_chunk_size"),
    *int_faults("block_size"),
    Fault(
        "the block size does not divide the chunk",
        ValueError,
        "block_size",
        lambda call, _: call.replacing(block_size=call.arguments["attn_chunk_size"] + 1),
    ),
    Fault(
        "there is no block size",
        ValueError,
        "block_size",
        lambda call, _: call.without("block_size"),
    ),
    *metadata_faults(has_block_size=True),
]
