"""Invalid inputs of the functions that split or order a batch."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.calls import Call
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    changed,
    changed_with_facts,
    in_turn,
    prepared,
    refusals,
    removed,
)
from conformance.invalid_inputs.kinds import MAX_INT64, Bool, Int, invalid_by_kind, size
from conformance.invalid_inputs.metadata import (
    invalid_fields,
    invalid_metadata,
    with_decrease,
)

METADATA = "common_attn_metadata"

READ = ("num_reqs", "num_actual_tokens", "query_start_loc_cpu")

WITHOUT_DEVICE = in_turn(
    removed(f"{METADATA}.query_start_loc"),
    removed(f"{METADATA}.seq_lens"),
    changed_with_facts(f"{METADATA}.query_start_loc_cpu", with_decrease),
)

SPLIT_INVALID_INPUTS = [
    *invalid_by_kind(decode_threshold=size()),
    *invalid_fields(METADATA, *READ),
    *invalid_metadata(),
    *refusals(
        {
            (ValueError, "query_start_loc"): {
                "starts decrease in metadata with copies on the CPU alone": WITHOUT_DEVICE
            }
        },
        is_value=True,
    ),
]

EXTENDS_INVALID_INPUTS = (
    [
        invalid
        for invalid in invalid_fields(METADATA, "query_start_loc_cpu", "num_computed_tokens_cpu")
        if invalid.argument != "query_start_loc_cpu"  # they are among the others
    ]
    + refusals(
        {
            (ValueError, "query_start_loc_cpu"): {
                "starts on the CPU are two short": changed(
                    f"{METADATA}.query_start_loc_cpu", lambda a: a[:-2] if len(a) > 1 else None
                )
            }
        }
    )
)

UNIFORM_INVALID_INPUTS = invalid_by_kind(require_uniform=Bool())


def _with_prompts(call: Call) -> Call | None:
    """Return the call with four regions, for which the lengths of prompts are read."""
    return call.replacing(regions=4) if call.arguments["input_batch"].req_ids else None


def _last_request_last(call: Call) -> Call | None:
    """Return the call with the scheduled tokens of the batch's last request after all others."""
    names, output = call.arguments["input_batch"].req_ids, call.arguments["scheduler_output"]
    if not names:
        return None
    scheduled = dict(output.num_scheduled_tokens)
    scheduled[names[-1]] = scheduled.pop(names[-1])
    return call.replacing(
        scheduler_output=dataclasses.replace(output, num_scheduled_tokens=scheduled)
    )


def _num_reqs(call: Call) -> int:
    return len(call.arguments["input_batch"].req_ids)


COUNTS = Array([np.float64], length=_num_reqs, minimum=0)
"""Counts by position, of which as many are read as there are requests."""

SCHEDULED = "scheduler_output.num_scheduled_tokens"

UNSCHEDULED = changed(SCHEDULED, lambda scheduled: dict(list(scheduled.items())[:-1]))

NOT_HASHABLE = changed(
    "input_batch.req_ids", lambda names: [*names[:-1], [names[-1]]] if names else None
)

REORDER_INVALID_INPUTS = [
    *invalid_by_kind(decode_threshold=size(), regions=Int(3, 4)),
    *refusals(
        {
            (TypeError, "req_ids"): {
                "the requests are a tuple": changed("input_batch.req_ids", tuple),
                "a request has no hash": NOT_HASHABLE,
            },
            (TypeError, "num_scheduled_tokens"): {
                "the scheduled tokens are a list": changed(SCHEDULED, lambda old: [*old.values()]),
            },
        }
    ),
    *prepared(
        _with_prompts,
        invalid_by_kind(
            **{
                "input_batch.num_computed_tokens_cpu": COUNTS,
                "input_batch.num_prompt_tokens": COUNTS,
            }
        ),
    ),
    *prepared(
        _last_request_last,
        [
            *invalid_by_kind(
                **{f"{SCHEDULED}[-1]": Int(0, MAX_INT64, names="num_scheduled_tokens")}
            ),
            *refusals(
                {(KeyError, "num_scheduled_tokens"): {"a request was not scheduled": UNSCHEDULED}}
            ),
        ],
    ),
]
