"""Bad calls of the functions that split or order a batch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from conformance.contracts import Breaks, Call, Draw, Fault, replaced
from conformance.faults.arrays import int_faults
from conformance.faults.metadata import metadata_faults

SPLIT_FAULTS = [*int_faults("decode_threshold"), *metadata_faults()]

UNIFORM_FAULTS = [
    Fault("require_uniform is an int", TypeError, "require_uniform", replaced("require_uniform", 1))
]


def _scheduled(count: object) -> Breaks:
    """Return a fault that gives the last request another number of scheduled tokens."""

    def breaks(call: Call, _: Draw) -> Call | None:
        names = call.arguments["input_batch"].req_ids
        if not names:
            return None
        output = call.arguments["scheduler_output"]
        scheduled = dict(output.num_scheduled_tokens)
        if count is None:
            del scheduled[names[-1]]
        else:
            scheduled[names[-1]] = count
        return call.replacing(
            scheduler_output=dataclasses.replace(output, num_scheduled_tokens=scheduled)
        )

    return breaks


def _computed(change: Callable[[Any, int], Any]) -> Breaks:
    def breaks(call: Call, _: Draw) -> Call | None:
        batch = copy.deepcopy(call.arguments["input_batch"])
        if not batch.req_ids:
            return None
        batch.num_computed_tokens_cpu = change(batch.num_computed_tokens_cpu, len(batch.req_ids))
        return call.replacing(input_batch=batch)

    return breaks


def _negative(array: Any, count: int) -> Any:
    array[count - 1] = -1
    return array


def _negative_prompt(call: Call, _: Draw) -> Call | None:
    batch = copy.deepcopy(call.arguments["input_batch"])
    if not batch.req_ids:
        return None
    batch.num_prompt_tokens[0] = -1
    return call.replacing(input_batch=batch, regions=4)


REORDER_FAULTS = [
    Fault(
        "prompt tokens are negative",
        ValueError,
        "num_prompt_tokens",
        _negative_prompt,
        is_value=True,
    ),
    *int_faults("decode_threshold"),
    Fault("regions is 5", ValueError, "regions", replaced("regions", 5)),
    Fault("regions is a float", TypeError, "regions", replaced("regions", 3.0)),
    Fault("a request was not scheduled", KeyError, "num_scheduled_tokens", _scheduled(None)),
    Fault("a scheduled count is negative", ValueError, "num_scheduled_tokens", _scheduled(-1)),
    Fault("a scheduled count is a float", TypeError, "num_scheduled_tokens", _scheduled(1.5)),
    Fault("a scheduled count is a bool", TypeError, "num_scheduled_tokens", _scheduled(True)),
    Fault(
        "fewer computed counts than requests",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(lambda array, count: array[: count - 1]),
    ),
    Fault(
        "computed tokens are floats",
        TypeError,
        "num_computed_tokens_cpu",
        _computed(lambda array, _: array * 1.0),
    ),
    Fault(
        "computed tokens are negative",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(_negative),
        is_value=True,
    ),
]
