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
    return _of_batch("num_computed_tokens_cpu", change)


def _prompts(change: Callable[[Any, int], Any]) -> Breaks:
    return _of_batch("num_prompt_tokens", change, regions=4)


def _of_batch(attribute: str, change: Callable[[Any, int], Any], **arguments: Any) -> Breaks:
    """Return a fault that changes an attribute of the batch, which has so many requests."""

    def breaks(call: Call, _: Draw) -> Call | None:
        batch = copy.deepcopy(call.arguments["input_batch"])
        if not batch.req_ids:
            return None
        setattr(batch, attribute, change(getattr(batch, attribute), len(batch.req_ids)))
        return call.replacing(input_batch=batch, **arguments)

    return breaks


def _negative(array: Any, count: int) -> Any:
    array[count - 1] = -1
    return array


def _too_short(array: Any, count: int) -> Any:
    return array[: count - 1]


def _floats(array: Any, _: int) -> Any:
    return array * 1.0


REORDER_FAULTS = [
    Fault(
        "prompt tokens are negative",
        ValueError,
        "num_prompt_tokens",
        _prompts(_negative),
        is_value=True,
    ),
    Fault("fewer prompts than requests", ValueError, "num_prompt_tokens", _prompts(_too_short)),
    Fault("prompt tokens are floats", TypeError, "num_prompt_tokens", _prompts(_floats)),
    Fault(
        "the requests are a tuple",
        TypeError,
        "req_ids",
        _of_batch("req_ids", lambda req_ids, _: tuple(req_ids)),
    ),
    *int_faults("decode_threshold"),
    *(
        Fault(f"regions is {number}", ValueError, "regions", replaced("regions", number))
        for number in (2, 5)
    ),
    Fault("regions is a float", TypeError, "regions", replaced("regions", 3.0)),
    Fault("a request was not scheduled", KeyError, "num_scheduled_tokens", _scheduled(None)),
    Fault("a scheduled count is negative", ValueError, "num_scheduled_tokens", _scheduled(-1)),
    Fault("a scheduled count is 2**63", ValueError, "num_scheduled_tokens", _scheduled(2**63)),
    Fault("a scheduled count is a float", TypeError, "num_scheduled_tokens", _scheduled(1.5)),
    Fault("a scheduled count is a bool", TypeError, "num_scheduled_tokens", _scheduled(True)),
    Fault(
        "fewer computed counts than requests",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(_too_short),
    ),
    Fault(
        "computed tokens are floats",
        TypeError,
        "num_computed_tokens_cpu",
        _computed(_floats),
    ),
    Fault(
        "computed tokens are negative",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(_negative),
        is_value=True,
    ),
]
