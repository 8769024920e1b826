"""How many multimodal items a model may have: the limits of a step, and the budget."""

from __future__ import annotations

from typing import Any

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.mm_budget import (
    BUDGET_INVALID_INPUTS,
    COMPUTE_INVALID_INPUTS,
)
from conformance.strategies.mm_budget import (
    CACHES,
    budget_calls,
    compute_budget_calls,
)
from conformance.strategies.mm_budget_axes import BUDGET_AXES, COMPUTE_AXES, largest
from conformance.strategies.stub_factories import Own
from conformance.targets.target import Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call


def _scheduler(holds: Any) -> Any:
    """Return a coverage goal about the scheduler's configuration and the largest item."""

    def is_so(call: Call) -> bool:
        config, tokens = (
            call["scheduler_config"],
            call["max_tokens_by_modality"],
        )
        return isinstance(config, reference.SchedulerConfig) and holds(config, largest(tokens))

    return is_so


test_compute_mm_encoder_budget = Contract(
    "compute_mm_encoder_budget",
    compute_budget_calls,
    {
        "no modalities": lambda call: not call["max_tokens_by_modality"],
        "no modalities, and no configuration": lambda call: call["scheduler_config"] is None,
        "an engine's own configuration": lambda call: (
            isinstance(call["scheduler_config"], Own) and bool(call["max_tokens_by_modality"])
        ),
        "items of no tokens": lambda call: (
            bool(call["max_tokens_by_modality"]) and not largest(call["max_tokens_by_modality"])
        ),
        "the budget is less than an item": _scheduler(
            lambda config, largest: config.max_num_encoder_input_tokens < largest
        ),
        "the budget is more": _scheduler(
            lambda config, largest: config.max_num_encoder_input_tokens > largest > 0
        ),
        "the cache is less than an item": _scheduler(
            lambda config, largest: config.encoder_cache_size < largest
        ),
        "the cache is more": _scheduler(
            lambda config, largest: config.encoder_cache_size > largest > 0
        ),
        "an item fills a step in which it must stay": _scheduler(
            lambda config, largest: (
                config.disable_chunked_mm_input and config.max_num_batched_tokens == largest
            )
        ),
        "an item larger than a step, in which it need not stay": _scheduler(
            lambda config, largest: config.max_num_batched_tokens < largest
        ),
    },
    axes=COMPUTE_AXES,
    invalid_inputs=COMPUTE_INVALID_INPUTS,
    takes_objects=True,
    returns=("compute_budget", "cache_size"),
)


ATTRIBUTES = (
    *("max_model_len", "max_num_reqs", "mm_limits", "max_tokens_by_modality"),
    *("encoder_compute_budget", "encoder_cache_size"),
    *("max_items_per_prompt_by_modality", "max_items_per_batch_by_modality"),
)


def _shown(budget: Any) -> dict[str, Any]:
    return {name: getattr(budget, name) for name in ATTRIBUTES}


def _asked(arguments: Any) -> Any:
    return arguments["mm_registry"].calls


def _cache(kind: str) -> Any:
    return lambda call: call["mm_registry"].cache == kind


test_multimodal_budget = Contract(
    "MultiModalBudget",
    budget_calls,
    {
        "no modalities": lambda call: not call["mm_registry"].tokens,
        "several modalities": lambda call: len(call["mm_registry"].tokens) > 1,
        "a limit of 0": lambda call: 0 in call["mm_registry"].limits.values(),
        **{f"a registry with {kind}": _cache(kind) for kind in CACHES},
        "prompts are not spread": lambda call: not call["scheduler_config"].enable_chunked_prefill,
    },
    axes=BUDGET_AXES,
    invalid_inputs=BUDGET_INVALID_INPUTS,
    changes=frozenset({"mm_registry"}),
    observe=_asked,
    aliases=(
        Alias("mm_limits", Relation.SAME, "mm_registry.limits"),
        Alias("max_tokens_by_modality", Relation.SAME, "mm_registry.tokens"),
    ),
    observes_refusals=False,  # a registry may be called before its answer is refused
    shows=_shown,
    takes_objects=True,
)


@property_check("MultiModalBudget", budget_calls)
def test_the_registry_gets_these_arguments(target: Target, call: Call) -> None:
    """The registry gets the same model, cache and limits objects, as the documented arguments."""
    invocation = Invocation(target, call)
    invocation.answer(checked=False)
    registry, model = invocation.arguments["mm_registry"], invocation.arguments["model_config"]
    known = {"cache": registry.cache}
    expected = [
        ("limits", (model,), known),
        ("tokens", (model,), {**known, "profiler_limits": registry.limits}),
    ]
    if call["mm_registry"].cache in {"no cache", "a cache"}:
        expected.insert(0, ("cache", (model,), {}))
    assert [word for word, _, _ in expected] == [word for word, _, _ in registry.calls]
    for (_, args, keywords), (_, got_args, got) in zip(expected, registry.calls, strict=True):
        assert keywords.keys() == got.keys()
        assert all(got[name] is value for name, value in keywords.items())
        assert all(one is other for one, other in zip(args, got_args, strict=True))


@property_check("MultiModalBudget", budget_calls)
def test_a_budget_has_room_for_the_largest_item(target: Target, call: Call) -> None:
    """The encoder budget fits the largest item, and allows one of each modality with tokens."""
    budget = Invocation(target, call).answer(checked=False)
    tokens = call["mm_registry"].tokens
    assert largest(tokens) <= budget.get_encoder_budget()
    minimum = min(1, largest(tokens))
    for name, size in tokens.items():
        items = (
            budget.max_items_per_prompt_by_modality[name],
            budget.max_items_per_batch_by_modality[name],
        )
        assert items == budget.get_max_items(name, size)
        assert min(items) >= (minimum if size else 0)
    check_equal(target, call, [*tokens], [*budget.max_items_per_batch_by_modality], "modalities")
