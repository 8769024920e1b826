"""Invalid inputs of `request_memory`."""

from __future__ import annotations

import dataclasses
import math

from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import Refusals, refusals, replaced
from conformance.invalid_inputs.kinds import MAX_INT64, Int, Object, invalid_by_kind
from conformance.values.call import Call

SHARE = "gpu_memory_utilization"


def _byte_too_few(call: Call) -> Call | None:
    snapshot = call.arguments["init_snapshot"]
    share = float(call.arguments["cache_config"].gpu_memory_utilization)
    requested = math.ceil(snapshot.total_memory * share)
    return replaced("init_snapshot.free_memory", requested - 1)(call) if requested else None


def _too_few_of_many(call: Call) -> Call:
    """Return the call with too little free memory, with numbers that the message must show."""
    snapshot = dataclasses.replace(
        call.arguments["init_snapshot"],
        free_memory=5 * 2**28,
        total_memory=5 * 2**29,
        device="cuda:7",
    )
    config = dataclasses.replace(call.arguments["cache_config"], gpu_memory_utilization=0.875)
    return call.replacing(init_snapshot=snapshot, cache_config=config)


ABOVE_ONE = math.nextafter(1.0, 2.0)


def _shares(*shares: object) -> dict[str, Change]:
    """Return the changes of the share of the memory that may be used."""
    return {f"{SHARE} is {share!r}": replaced(f"cache_config.{SHARE}", share) for share in shares}


SHOWN = ("cuda:7", r"1\.25", r"2\.50", r"2\.19", r"0\.875", "lower gpu_memory_utilization")
"""Texts that the message about too little memory must contain."""

REQUEST_REFUSALS: Refusals = {
    (ValueError, SHARE): _shares(0, 0.0, -0.5, ABOVE_ONE, 2, math.inf, math.nan),
    (TypeError, SHARE): _shares(True, "0.9", None, 0.5 + 0j),
    (ValueError, "free_memory"): {"a byte too little is free": _byte_too_few},
    **{
        (ValueError, shown): {f"too little is free, which shows {shown}": _too_few_of_many}
        for shown in SHOWN
    },
}

REQUEST_INVALID_INPUTS = [
    *invalid_by_kind(
        init_snapshot=Object(reads="free_memory"),
        cache_config=Object(reads=SHARE),
        **{
            "init_snapshot.free_memory": Int(0, MAX_INT64),
            "init_snapshot.total_memory": Int(0, MAX_INT64),
        },
    ),
    *refusals(REQUEST_REFUSALS),
]
