"""Bad calls of `request_memory`."""

from __future__ import annotations

import dataclasses
import math

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.kv_cache_spec import Bad, bad_ints
from conformance.strategies.memory import MAX_INT64


def _changed(argument: str, field: str, value: object) -> Change:
    def breaks(call: Call) -> Call:
        return call.replacing(
            **{argument: dataclasses.replace(call.arguments[argument], **{field: value})}
        )

    return breaks


def _byte_too_few(call: Call) -> Call | None:
    snapshot = call.arguments["init_snapshot"]
    share = float(call.arguments["cache_config"].gpu_memory_utilization)
    wanted = math.ceil(snapshot.total_memory * share)
    if not wanted:
        return None
    return call.replacing(init_snapshot=dataclasses.replace(snapshot, free_memory=wanted - 1))


def _too_few_and_named(name: str) -> InvalidInput:
    """Return the fault of too little memory, whose message must say a number too."""

    def breaks(call: Call) -> Call:
        snapshot = dataclasses.replace(
            call.arguments["init_snapshot"],
            free_memory=5 * 2**28,
            total_memory=5 * 2**29,
            device="cuda:7",
        )
        config = dataclasses.replace(call.arguments["cache_config"], gpu_memory_utilization=0.875)
        return call.replacing(init_snapshot=snapshot, cache_config=config)

    return InvalidInput(f"too little is free, told with {name}", ValueError, name, breaks)


TOO_MANY: Bad = ("2**63", ValueError, MAX_INT64 + 1)

SHARE = "gpu_memory_utilization"

BAD_SHARES: tuple[tuple[type[Exception], object], ...] = (
    (ValueError, 0),
    (ValueError, 0.0),
    (ValueError, -0.5),
    (ValueError, math.nextafter(1.0, 2.0)),
    (ValueError, 2),
    (ValueError, math.inf),
    (ValueError, math.nan),
    (TypeError, True),
    (TypeError, "0.9"),
    (TypeError, None),
    (TypeError, 0.5 + 0j),
)

REQUEST_INVALID_INPUTS = [
    *(
        InvalidInput(f"{field} is {what}", error, field, _changed("init_snapshot", field, value))
        for field in ("free_memory", "total_memory")
        for what, error, value in (*bad_ints(0), TOO_MANY)
    ),
    *(
        InvalidInput(
            f"the utilization is {share!r}", kind, SHARE, _changed("cache_config", SHARE, share)
        )
        for kind, share in BAD_SHARES
    ),
    InvalidInput("a byte too little is free", ValueError, "free_memory", _byte_too_few),
    *map(
        _too_few_and_named,
        ("cuda:7", r"1\.25", r"2\.50", r"2\.19", r"0\.875", "lower gpu_memory_utilization"),
    ),
    InvalidInput(
        "there is no snapshot", AttributeError, "free_memory", replaced("init_snapshot", None)
    ),
    InvalidInput(
        "there is no configuration",
        AttributeError,
        "gpu_memory_utilization",
        replaced("cache_config", None),
    ),
]
