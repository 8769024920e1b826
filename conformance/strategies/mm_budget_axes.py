"""The size axes of a multimodal budget, which all of its functions share."""

from __future__ import annotations

from typing import Any

from conformance.coverage.size_axes import Axes, Axis, of_ints
from conformance.strategies.mm_budget import (
    CACHE_SIZE,
    ENCODER_TOKENS,
    ITEM_TOKENS,
    ITEMS,
    MODEL_LENGTH,
    NUM_MODALITIES,
    REQUESTS,
    STEP_TOKENS,
)
from conformance.strategies.stub_factories import Own
from conformance.values.call import Call


def largest(tokens: Any) -> int:
    """Return the tokens of the largest item; 0 if there are no items."""
    return max(tokens.values(), default=0)


def _of_scheduler(name: str) -> Any:
    """Return the function that reads a size from a call's scheduler configuration."""

    def size(call: Call) -> int:
        config = _arguments(call)["scheduler_config"]
        attributes = config.attributes if isinstance(config, Own) else vars(config or object)
        return int(attributes.get(name, 0))

    return size


def _arguments(call: Call) -> Any:
    """Return the arguments of a call, or of the call that makes its budget."""
    return call.arguments if call.source is None else call.source.arguments


def _all_tokens(call: Call) -> Any:
    given = _arguments(call)
    return given.get("max_tokens_by_modality") or getattr(given.get("mm_registry"), "tokens", {})


COMPUTE_AXES: Axes = {
    NUM_MODALITIES: Axis(lambda call: len(_all_tokens(call)), 65_537),
    ITEM_TOKENS: of_ints(lambda call: largest(_all_tokens(call))),
    ENCODER_TOKENS: of_ints(_of_scheduler("max_num_encoder_input_tokens")),
    CACHE_SIZE: of_ints(_of_scheduler("encoder_cache_size")),
}

BUDGET_AXES: Axes = {
    **COMPUTE_AXES,
    NUM_MODALITIES: Axis(
        lambda call: len(_all_tokens(call)), 4097, "to compare more modalities takes seconds"
    ),
    ITEMS: of_ints(lambda call: largest(_arguments(call)["mm_registry"].limits)),
    MODEL_LENGTH: of_ints(lambda call: _arguments(call)["model_config"].max_model_len, 1),
    REQUESTS: of_ints(_of_scheduler("max_num_seqs"), 1),
    STEP_TOKENS: of_ints(_of_scheduler("max_num_batched_tokens"), 1),
}
