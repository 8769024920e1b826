"""Invalid inputs of the functions about multimodal budgets."""

from __future__ import annotations

import dataclasses

from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    prepared,
    refusals,
    replaced,
    set_arguments,
)
from conformance.invalid_inputs.kinds import Bool, Dict, Int, Object, Str, invalid_by_kind
from conformance.strategies.attention_layers import own_config
from conformance.strategies.mm_budget import Budget, Registry
from conformance.values.call import Call

SCHEDULER, TOKENS = "scheduler_config", "max_tokens_by_modality"
COUNTS = Dict(has_str_keys=True, value=Int(0))
"""Counts by modality."""


def _where_a_step_is_read(call: Call) -> Call | None:
    """Return the call without chunking of items, so that `max_num_batched_tokens` is read."""
    return replaced(f"{SCHEDULER}.disable_chunked_mm_input", True)(call)  # the value


def _with_large_item(call: Call) -> Call | None:
    """Return the call without chunking, with an item that is one token larger than a step."""
    tokens = {**call.arguments[TOKENS], "image": 2}
    step = replaced(f"{SCHEDULER}.max_num_batched_tokens", max(tokens.values()) - 1)
    return chained(set_arguments(**{TOKENS: tokens}), _where_a_step_is_read, step)(call)


LARGE_ITEMS: Refusals = {
    (ValueError, name): {f"an item larger than a step, which names {name}": _with_large_item}
    for name in ("max_num_batched_tokens", "disable_chunked_mm_input")
}

COMPUTE_INVALID_INPUTS = [
    *invalid_by_kind(
        **{
            TOKENS: COUNTS,
            f"{SCHEDULER}.max_num_encoder_input_tokens": Int(0, is_attribute=True),
            f"{SCHEDULER}.encoder_cache_size": Int(0, is_attribute=True),
            f"{SCHEDULER}.disable_chunked_mm_input": Bool(is_attribute=True),
        }
    ),
    *prepared(
        _where_a_step_is_read,
        invalid_by_kind(**{f"{SCHEDULER}.max_num_batched_tokens": Int(is_attribute=True)}),
    ),
    *refusals(LARGE_ITEMS),
]


def _with_limits(call: Call) -> Call:
    """Return the call with one modality, whose limit and tokens are read."""
    registry = call.arguments["mm_registry"]
    limits, tokens = {"image": 1}, {"image": 1}
    return call.replacing(mm_registry=dataclasses.replace(registry, limits=limits, tokens=tokens))


def _without_limit(call: Call) -> Call | None:
    registry = call.arguments["mm_registry"]
    if not registry.tokens:
        return None
    return call.replacing(mm_registry=Registry({}, registry.tokens, registry.cache))


BUDGET_REFUSALS: Refusals = {
    (AttributeError, "get_mm_limits_per_prompt"): {
        "no registry": replaced("mm_registry", own_config())
    },
    (KeyError, "modality"): {"a modality without a limit": _without_limit},
}

BUDGET_INVALID_INPUTS = [
    *invalid_by_kind(
        model_config=Object(reads="max_model_len"),
        **{
            "model_config.max_model_len": Int(),
            SCHEDULER: Object(reads="max_num_seqs"),
            f"{SCHEDULER}.max_num_seqs": Int(is_attribute=True),
            f"{SCHEDULER}.max_num_batched_tokens": Int(is_attribute=True),
            f"{SCHEDULER}.enable_chunked_prefill": Bool(is_attribute=True),
        },
    ),
    *prepared(
        _with_limits,
        invalid_by_kind(
            **{
                "mm_registry.limits": dataclasses.replace(COUNTS, names="mm_limits"),
                "mm_registry.tokens": dataclasses.replace(COUNTS, names=TOKENS),
            }
        ),
    ),
    *refusals(BUDGET_REFUSALS),
]


def _with_later_limit(limit: object) -> Change:
    """Return the change to a budget whose limit of images was set after it was made."""

    def change(call: Call) -> Call:
        made = _with_limits(call.source)
        scheduler = dataclasses.replace(
            made.arguments[SCHEDULER], max_num_encoder_input_tokens=1, encoder_cache_size=1
        )
        made = made.replacing(**{SCHEDULER: scheduler})
        budget = Budget(made.arguments, {"image": limit})
        return call.replacing(self=budget, modality="image", max_tokens_per_item=1)

    return change


MAX_ITEMS_REFUSALS: Refusals = {
    (ValueError, "mm_limits"): {"a limit was set to -1": _with_later_limit(-1)},
    (TypeError, "mm_limits"): {"a limit was set to a float": _with_later_limit(1.0)},
    (KeyError, "modality"): {
        "an unknown modality": "smell",
        "an unknown modality of items of no tokens": set_arguments(
            modality="smell", max_tokens_per_item=0
        ),
    },
}

MAX_ITEMS_INVALID_INPUTS = [
    *invalid_by_kind(modality=Str(), max_tokens_per_item=Int(0)),
    *refusals(MAX_ITEMS_REFUSALS),
]


def _without_modalities(call: Call) -> Call:
    made = call.arguments["self"]
    registry = Registry({"image": 1}, {}, made.arguments["mm_registry"].cache)
    return call.replacing(
        self=dataclasses.replace(made, arguments={**made.arguments, "mm_registry": registry})
    )


MODALITY_INVALID_INPUTS = refusals({(ValueError, TOKENS): {"no modalities": _without_modalities}})
