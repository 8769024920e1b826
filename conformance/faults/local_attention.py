"""Bad calls of `make_local_attention_virtual_batches`."""

from __future__ import annotations

import dataclasses

from conformance.contracts import Call, Draw, Fault
from conformance.faults.arrays import int_faults
from conformance.faults.metadata import metadata_faults


def _without_block_size(call: Call, _: Draw) -> Call:
    """Return the call without what is no block size by default."""
    arguments = {name: value for name, value in call.arguments.items() if name != "block_size"}
    return dataclasses.replace(call, arguments=arguments)


LOCAL_ATTENTION_FAULTS = [
    *int_faults("attn_chunk_size"),
    *int_faults("block_size"),
    Fault(
        "the block size does not divide the chunk",
        ValueError,
        "block_size",
        lambda call, _: call.replacing(block_size=call.arguments["attn_chunk_size"] + 1),
    ),
    Fault("there is no block size", ValueError, "block_size", _without_block_size),
    *metadata_faults(has_block_size=True),
]
