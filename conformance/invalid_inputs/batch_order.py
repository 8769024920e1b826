"""Bad calls of the functions that split or order a batch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import int_faults
from conformance.invalid_inputs.metadata import metadata_faults

SPLIT_INVALID_INPUTS = [*int_faults("decode_threshold"), *metadata_faults()]

UNIFORM_INVALID_INPUTS = [
    InvalidInput(
        "require_uniform is an int", TypeError, "require_uniform", replaced("require_uniform", 1)
    )
]


def _scheduled(count: object) -> Change:
    """Return a fault that gives the last request another number of scheduled tokens."""

    def breaks(call: Call) -> Call | None:
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


def _computed(change: Callable[[Any, int], Any]) -> Change:
    return _of_batch("num_computed_tokens_cpu", change)


def _prompts(change: Callable[[Any, int], Any]) -> Change:
    return _of_batch("num_prompt_tokens", change, regions=4)


def _of_batch(attribute: str, change: Callable[[Any, int], Any], **arguments: Any) -> Change:
    """Return a fault that changes an attribute of the batch, which has so many requests."""

    def breaks(call: Call) -> Call | None:
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


REORDER_INVALID_INPUTS = [
    InvalidInput(
        "prompt tokens are negative",
        ValueError,
        "num_prompt_tokens",
        _prompts(_negative),
        is_value=True,
    ),
    InvalidInput(
        "fewer prompts than requests", ValueError, "num_prompt_tokens", _prompts(_too_short)
    ),
    InvalidInput("prompt tokens are floats", TypeError, "num_prompt_tokens", _prompts(_floats)),
    InvalidInput(
        "the requests are a tuple",
        TypeError,
        "req_ids",
        _of_batch("req_ids", lambda req_ids, _: tuple(req_ids)),
    ),
    *int_faults("decode_threshold"),
    *(
        InvalidInput(f"regions is {number}", ValueError, "regions", replaced("regions", number))
        for number in (2, 5)
    ),
    InvalidInput("regions is a float", TypeError, "regions", replaced("regions", 3.0)),
    InvalidInput("a request was not scheduled", KeyError, "num_scheduled_tokens", _scheduled(None)),
    InvalidInput(
        "a scheduled count is negative", ValueError, "num_scheduled_tokens", _scheduled(-1)
    ),
    InvalidInput(
        "a scheduled count is 2**63", ValueError, "num_scheduled_tokens", _scheduled(2**63)
    ),
    InvalidInput(
        "a scheduled count is a float", TypeError, "num_scheduled_tokens", _scheduled(1.5)
    ),
    InvalidInput(
        "a scheduled count is a bool", TypeError, "num_scheduled_tokens", _scheduled(True)
    ),
    InvalidInput(
        "fewer computed counts than requests",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(_too_short),
    ),
    InvalidInput(
        "computed tokens are floats",
        TypeError,
        "num_computed_tokens_cpu",
        _computed(_floats),
    ),
    InvalidInput(
        "computed tokens are negative",
        ValueError,
        "num_computed_tokens_cpu",
        _computed(_negative),
        is_value=True,
    ),
]
