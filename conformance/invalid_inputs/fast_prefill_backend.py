"""Invalid inputs of `create_fast_prefill_custom_backend`."""

from __future__ import annotations

from conformance.invalid_inputs.changes import refusals, replaced
from conformance.invalid_inputs.kinds import Class, Str, invalid_by_kind
from conformance.strategies.stub_factories import BackendClass

BACKEND = "underlying_attn_backend"

NO_BACKEND = replaced(BACKEND, BackendClass)

CREATE_BACKEND_INVALID_INPUTS = [
    *invalid_by_kind(
        prefix=Str(), **{BACKEND: Class(), f"{BACKEND}.builder": Class(names=BACKEND)}
    ),
    *refusals({(AttributeError, "get_builder_cls"): {"no backend at all": NO_BACKEND}}),
]
