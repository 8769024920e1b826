"""Invalid inputs of the functions that split or order a batch."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    chained,
    changed,
    changed_with_source,
    prepared,
    refusals,
    removed,
    set_arguments,
)
from conformance.invalid_inputs.kinds import MAX_INT32, MAX_INT64, Bool, Int, invalid_by_kind, size
from conformance.invalid_inputs.metadata import (
    invalid_fields,
    invalid_metadata,
    with_decrease,
)
from conformance.strategies.batch_order import InputBatch, SchedulerOutput
from conformance.values.call import Call

METADATA = "common_attn_metadata"

READ = ("num_reqs", "num_actual_tokens", "query_start_loc_cpu")

WITHOUT_DEVICE = chained(
    removed(f"{METADATA}.query_start_loc"),
    removed(f"{METADATA}.seq_lens"),
    changed_with_source(f"{METADATA}.query_start_loc_cpu", with_decrease),
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

BOTH_ARE_LISTS = chained(
    set_arguments(decode_threshold=MAX_INT32),  # no value is read
    changed(f"{METADATA}.query_start_loc_cpu", lambda starts: starts.tolist()),
    changed(f"{METADATA}.num_computed_tokens_cpu", lambda computed: computed.tolist()),
)

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
            },
            (TypeError, "query_start_loc_cpu"): {
                "starts and computed tokens on the CPU are lists": BOTH_ARE_LISTS
            },
        }
    )
)

UNIFORM_INVALID_INPUTS = invalid_by_kind(require_uniform=Bool())


def _with_prompts(call: Call) -> Call | None:
    """Return the call with four regions, which makes the function read prompt lengths."""
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
"""Counts by position; only those of requests are read."""

SCHEDULED = "scheduler_output.num_scheduled_tokens"

UNSCHEDULED = changed(SCHEDULED, lambda scheduled: dict(list(scheduled.items())[:-1]))

NOT_HASHABLE = changed(
    "input_batch.req_ids", lambda names: [*names[:-1], [names[-1]]] if names else None
)

HASH_RAISES = changed(
    "input_batch.req_ids", lambda names: [*names[:-1], (names[-1], [])] if names else None
)


def _of_as_many_bytes(call: Call) -> Call:
    """Return the call with bools and large ints that `marshal` writes in as many bytes as ints."""
    counts = [True, True, True, 2**31, 2**31, *[1] * 123]
    names = [f"r{i}" for i in range(len(counts))]
    zeros = np.zeros(len(names), np.int64)
    return call.replacing(
        input_batch=InputBatch(names, zeros, zeros.copy()),
        scheduler_output=SchedulerOutput(dict(zip(names, counts, strict=True))),
    )


def _one_request_of_a_list(call: Call) -> Call:
    """Return the call with one request, whose scheduled tokens are a list instead of an int."""
    batch = InputBatch(["r0"], np.zeros(1, np.int32), np.zeros(1, np.int32))
    return call.replacing(input_batch=batch, scheduler_output=SchedulerOutput({"r0": [1]}))  # type: ignore[dict-item]  # that is invalid


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
                "the scheduled tokens of the only request are a list": _one_request_of_a_list,
                "bools and large ints have as many bytes as ints": _of_as_many_bytes,
            },
            (TypeError, "unhashable"): {"a request is a tuple without a hash": HASH_RAISES},
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
