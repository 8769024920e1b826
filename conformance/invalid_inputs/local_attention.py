"""Invalid inputs of `make_local_attention_virtual_batches`."""

from __future__ import annotations

from conformance.invalid_inputs.changes import refusals
from conformance.invalid_inputs.kinds import invalid_by_kind, size
from conformance.invalid_inputs.metadata import invalid_fields, invalid_metadata
from conformance.values.call import Call


def _without_block_size(call: Call) -> Call:
    return call.without("block_size")


LOCAL_ATTENTION_INVALID_INPUTS = [
    *invalid_by_kind(attn_chunk_size=size(), block_size=size(divides="attn_chunk_size")),
    *refusals({(ValueError, "block_size"): {"there is no block size": _without_block_size}}),
    *invalid_fields(
        "common_attn_metadata",
        "num_reqs",
        "num_actual_tokens",
        "query_start_loc_cpu",
        "seq_lens_cpu",
        "block_table_tensor",
        "slot_mapping",
    ),
    *invalid_metadata(has_block_size=True),
]
