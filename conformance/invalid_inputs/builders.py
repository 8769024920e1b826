"""Bad calls of the functions about builders and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.strategies.attention_layers import own_config

NO_INTS: Sequence[tuple[str, object]] = (
    ("a bool", True),
    ("NumPy's bool", np.True_),
    ("a float", 1.0),
    ("a str", "1"),
)


def _no_ints(argument: str) -> list[InvalidInput]:
    return [
        InvalidInput(f"{argument} is {what}", TypeError, argument, replaced(argument, bad))
        for what, bad in NO_INTS
    ]


def _configured(*, num_drafts: object = 2, num_ranks: object = 1, **parts: Any) -> Change:
    """Return a fault of the builder's configuration, which is read for a threshold with drafts."""

    def breaks(call: Call) -> Call:
        drafts = reference.SpeculativeConfig(num_speculative_tokens=num_drafts)  # type: ignore[arg-type]  # a fault
        parallel = reference.ParallelConfig(decode_context_parallel_size=num_ranks)  # type: ignore[arg-type]  # likewise
        given = {"speculative_config": drafts, "parallel_config": parallel, **parts}
        config = own_config(**{name: part for name, part in given.items() if part is not ...})
        builder = dataclasses.replace(call.arguments["self"], vllm_config=config)
        return call.replacing(
            self=builder,
            reorder_batch_threshold=2,
            supports_spec_as_decode=True,
            supports_dcp_with_varlen=False,
        )

    return breaks


THRESHOLD_INVALID_INPUTS = [
    *_no_ints("reorder_batch_threshold"),
    *(
        InvalidInput(
            f"the threshold is {bad}",
            ValueError,
            "reorder_batch_threshold",
            replaced("reorder_batch_threshold", bad),
        )
        for bad in (0, -1)
    ),
    *(
        InvalidInput(f"{name} is {bad!r}", TypeError, name, replaced(name, bad))
        for name in ("supports_spec_as_decode", "supports_dcp_with_varlen")
        for bad in (1, None)
    ),
    *(
        InvalidInput(
            f"drafts are {bad!r}", error, "num_speculative_tokens", _configured(num_drafts=bad)
        )
        for error, bad in ((ValueError, -1), (TypeError, 2.0), (TypeError, True))
    ),
    *(
        InvalidInput(
            f"ranks are {bad!r}",
            error,
            "decode_context_parallel_size",
            _configured(num_ranks=bad),
        )
        for error, bad in ((ValueError, 0), (TypeError, 2.0), (TypeError, True), (TypeError, None))
    ),
    InvalidInput(
        "parallel_config is None",
        AttributeError,
        "decode_context_parallel_size",
        _configured(parallel_config=None),
    ),
    InvalidInput(
        "there is no speculative_config",
        AttributeError,
        "speculative_config",
        _configured(speculative_config=...),
    ),
]

CREATE_GROUP_INVALID_INPUTS = [
    *_no_ints("num_metadata_builders"),
    *(
        InvalidInput(
            f"{bad} builders",
            ValueError,
            "num_metadata_builders",
            replaced("num_metadata_builders", bad),
        )
        for bad in (0, -1)
    ),
    InvalidInput("no backend", AttributeError, "get_builder_cls", replaced("backend", None)),
]

GET_METADATA_BUILDER_INVALID_INPUTS = [
    *_no_ints("ubatch_id"),
    InvalidInput("no micro-batch", TypeError, "ubatch_id", replaced("ubatch_id", None)),
    InvalidInput("a negative micro-batch", IndexError, "ubatch_id", replaced("ubatch_id", -1)),
    InvalidInput("a number past int64", IndexError, "ubatch_id", replaced("ubatch_id", 2**64)),
    InvalidInput(
        "one micro-batch too many",
        IndexError,
        "ubatch_id",
        lambda call: call.replacing(ubatch_id=len(call.arguments["self"].metadata_builders)),
    ),
]
