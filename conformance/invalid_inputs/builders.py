"""Invalid inputs of the functions about builders and groups."""

from __future__ import annotations

import dataclasses

import reference
from conformance.invalid_inputs.changes import Refusals, prepared, refusals, removed
from conformance.invalid_inputs.kinds import Bool, Int, Object, invalid_by_kind
from conformance.strategies.attention_layers import own_config
from conformance.values.call import Call


def _with_drafts(call: Call) -> Call:
    """Return the call with drafts, and a configuration with only the fields that it then reads."""
    config = own_config(
        speculative_config=reference.SpeculativeConfig(num_speculative_tokens=2),
        parallel_config=reference.ParallelConfig(decode_context_parallel_size=1),
    )
    return call.replacing(
        self=dataclasses.replace(call.arguments["self"], vllm_config=config),
        reorder_batch_threshold=2,
        supports_spec_as_decode=True,
        supports_dcp_with_varlen=False,
    )


CONFIG = "self.vllm_config"

UNKNOWN_DRAFTS: Refusals = {
    (AttributeError, "speculative_config"): {
        "there is no speculative_config": removed(f"{CONFIG}.speculative_config")
    }
}

THRESHOLD_INVALID_INPUTS = [
    *invalid_by_kind(
        reorder_batch_threshold=Int(is_optional=True),
        supports_spec_as_decode=Bool(),
        supports_dcp_with_varlen=Bool(),
    ),
    *prepared(
        _with_drafts,
        [
            *invalid_by_kind(
                **{
                    f"{CONFIG}.speculative_config.num_speculative_tokens": Int(0, is_optional=True),
                    f"{CONFIG}.parallel_config.decode_context_parallel_size": Int(),
                    f"{CONFIG}.parallel_config": Object(reads="decode_context_parallel_size"),
                }
            ),
            *refusals(UNKNOWN_DRAFTS),
        ],
    ),
]

CREATE_GROUP_INVALID_INPUTS = invalid_by_kind(
    num_metadata_builders=Int(), backend=Object(reads="get_builder_cls")
)


def _one_too_many(call: Call) -> Call:
    return call.replacing(ubatch_id=len(call.arguments["self"].metadata_builders))


GET_METADATA_BUILDER_INVALID_INPUTS = [
    *invalid_by_kind(ubatch_id=Int(0, 2**31 - 1, range_error=IndexError)),
    *refusals({(IndexError, "ubatch_id"): {"one micro-batch too many": _one_too_many}}),
]
