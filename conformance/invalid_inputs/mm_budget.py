"""Bad calls of the functions about multimodal budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.strategies.attention_layers import own_config
from conformance.strategies.engines import Own
from conformance.strategies.mm_budget import Registry, without

NO_INTS: tuple[object, ...] = (True, np.True_, 2.0, "2", None)


def bad_ints(least: int) -> tuple[tuple[type[Exception], object], ...]:
    """Return what is no int of at least so much, and the exception that it gets."""
    return ((ValueError, least - 1), *((TypeError, bad) for bad in NO_INTS))


def _fields(argument: str, change: Callable[[Any], dict[str, Any]]) -> Change:
    """Return a fault of fields of a configuration that are read."""

    def breaks(call: Call) -> Call | None:
        config = call.arguments[argument]
        if config is None or isinstance(config, Own):
            return None
        return call.replacing(**{argument: dataclasses.replace(config, **change(config))})

    return breaks


def _field(argument: str, name: str, value: object) -> Change:
    return _fields(argument, lambda _: {name: value})


def _lacking(argument: str, name: str, **needed: object) -> Change:
    """Return a fault of a configuration without an attribute, which others make it read."""

    def breaks(call: Call) -> Call | None:
        config = call.arguments[argument]
        if config is None or isinstance(config, Own):
            return None
        whole = dataclasses.replace(config, **needed)
        return call.replacing(**{argument: without(whole, name)})

    return breaks


SCHEDULER, TOKENS = "scheduler_config", "max_tokens_by_modality"

BAD_COUNTS: tuple[tuple[str, type[Exception], Any], ...] = (
    ("a list", TypeError, [("image", 1)]),
    ("None", TypeError, None),
    ("of an int", TypeError, {3: 1}),
    ("negative", ValueError, {"image": -1}),
    ("of a bool", TypeError, {"image": True}),
    ("of a float", TypeError, {"image": 1.0}),
)
"""What are no counts by modality."""


def _step(value: object) -> Change:
    """Return a fault of the tokens of a step, in which items must stay, so that it is read."""
    fields = {"disable_chunked_mm_input": True, "max_num_batched_tokens": value}
    return _fields(SCHEDULER, lambda _: fields)


def _with_large_item(call: Call) -> Call | None:
    """Return the call with an item a token larger than a step, in which it must stay."""
    tokens = {**call.arguments[TOKENS], "image": 2}
    bad = call.replacing(max_tokens_by_modality=tokens)
    return _step(max(tokens.values()) - 1)(bad)


COMPUTE_INVALID_INPUTS = [
    *(
        InvalidInput(f"the items are {what}", error, TOKENS, replaced(TOKENS, bad))
        for what, error, bad in BAD_COUNTS
    ),
    *(
        InvalidInput(f"{name} is {bad!r}", error, name, _field(SCHEDULER, name, bad))
        for name in ("max_num_encoder_input_tokens", "encoder_cache_size")
        for error, bad in bad_ints(0)
    ),
    *(
        InvalidInput(
            f"the flag is {bad!r}",
            TypeError,
            "disable_chunked_mm_input",
            _field(SCHEDULER, "disable_chunked_mm_input", bad),
        )
        for bad in (1, None, "no")
    ),
    *(
        InvalidInput(
            f"the step is {bad!r}",
            error,
            "max_num_batched_tokens",
            _step(bad),
        )
        for error, bad in bad_ints(1)
    ),
    *(
        InvalidInput(f"no {name}", AttributeError, name, _lacking(SCHEDULER, name))
        for name in (
            *("max_num_encoder_input_tokens", "encoder_cache_size", "disable_chunked_mm_input"),
        )
    ),
    InvalidInput(
        "no max_num_batched_tokens where it matters",
        AttributeError,
        "max_num_batched_tokens",
        _lacking(SCHEDULER, "max_num_batched_tokens", disable_chunked_mm_input=True),
    ),
    *(
        InvalidInput(
            f"an item larger than a step, which names {name}", ValueError, name, _with_large_item
        )
        for name in ("max_num_batched_tokens", "disable_chunked_mm_input")
    ),
]


def _registry(**changes: Any) -> Change:
    def breaks(call: Call) -> Call:
        registry = dataclasses.replace(call.arguments["mm_registry"], **changes)
        return call.replacing(mm_registry=registry)

    return breaks


def _without_limit(call: Call) -> Call | None:
    registry = call.arguments["mm_registry"]
    if not registry.tokens:
        return None
    return call.replacing(mm_registry=Registry({}, registry.tokens, registry.cache))


BUDGET_INVALID_INPUTS = [
    *(
        InvalidInput(f"{name} is {bad!r}", error, name, _field(argument, name, bad))
        for argument, name in (
            ("model_config", "max_model_len"),
            (SCHEDULER, "max_num_seqs"),
            (SCHEDULER, "max_num_batched_tokens"),
        )
        for error, bad in bad_ints(1)
    ),
    *(
        InvalidInput(
            f"chunked prefill is {bad!r}",
            TypeError,
            "enable_chunked_prefill",
            _field(SCHEDULER, "enable_chunked_prefill", bad),
        )
        for bad in (1, None)
    ),
    *(
        InvalidInput(f"no {name}", AttributeError, name, _lacking(SCHEDULER, name))
        for name in ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")
    ),
    InvalidInput("no model", AttributeError, "max_model_len", replaced("model_config", None)),
    InvalidInput("no scheduler", AttributeError, "max_num_seqs", replaced(SCHEDULER, None)),
    InvalidInput(
        "no registry",
        AttributeError,
        "get_mm_limits_per_prompt",
        replaced("mm_registry", own_config()),
    ),
    *(
        InvalidInput(f"the limits are {what}", error, "mm_limits", _registry(limits=bad, tokens={}))
        for what, error, bad in BAD_COUNTS
    ),
    *(
        InvalidInput(
            f"the items are {what}", error, TOKENS, _registry(tokens=bad, limits={"image": 1})
        )
        for what, error, bad in BAD_COUNTS
    ),
    InvalidInput("a modality without a limit", KeyError, "modality", _without_limit),
]

MAX_ITEMS_INVALID_INPUTS = [
    InvalidInput("an unknown modality", KeyError, "modality", replaced("modality", "smell")),
    InvalidInput("a modality that is None", TypeError, "modality", replaced("modality", None)),
    InvalidInput("a modality that is an int", TypeError, "modality", replaced("modality", 3)),
    InvalidInput(
        "an unknown modality of items of no tokens",
        KeyError,
        "modality",
        lambda call: call.replacing(modality="smell", max_tokens_per_item=0),
    ),
    *(
        InvalidInput(
            f"the size is {bad!r}",
            error,
            "max_tokens_per_item",
            replaced("max_tokens_per_item", bad),
        )
        for error, bad in bad_ints(0)
    ),
]


def _without_modalities(call: Call) -> Call:
    made = call.arguments["self"]
    registry = Registry({"image": 1}, {}, made.arguments["mm_registry"].cache)
    return call.replacing(
        self=dataclasses.replace(made, arguments={**made.arguments, "mm_registry": registry})
    )


MODALITY_INVALID_INPUTS = [InvalidInput("no modalities", ValueError, TOKENS, _without_modalities)]
