"""Bad calls of `create_fast_prefill_custom_backend`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.strategies.attention_layers import own_config
from conformance.strategies.engines import BackendClass


def _builders(bad: Callable[[Call], object]) -> Change:
    def breaks(call: Call) -> Call:
        backend = dataclasses.replace(call.arguments["underlying_attn_backend"], builder=bad(call))
        return call.replacing(underlying_attn_backend=backend)

    return breaks


BACKEND = "underlying_attn_backend"

CREATE_BACKEND_INVALID_INPUTS = [
    *(
        InvalidInput(f"the prefix is {bad!r}", TypeError, "prefix", replaced("prefix", bad))
        for bad in (None, 3, b"Fast")
    ),
    *(
        InvalidInput(f"the backend is {what}", TypeError, BACKEND, replaced(BACKEND, bad))
        for what, bad in (("None", None), ("a name", "Plain"), ("an object", own_config()))
    ),
    InvalidInput("the builder is None", TypeError, BACKEND, _builders(lambda _: None)),
    InvalidInput("the builder is an object", TypeError, BACKEND, _builders(lambda _: own_config())),
    InvalidInput(
        "no backend at all", AttributeError, "get_builder_cls", replaced(BACKEND, BackendClass)
    ),
]
