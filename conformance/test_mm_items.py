"""How many multimodal items a prompt and a batch may hold: the methods of a budget."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.size_axes import of_ints
from conformance.execution.invocations import Invocation
from conformance.generation.profiles import Kind
from conformance.invalid_inputs.mm_budget import (
    MAX_ITEMS_INVALID_INPUTS,
    MODALITY_INVALID_INPUTS,
)
from conformance.strategies.mm_budget import (
    CACHE_SIZE,
    CACHES,
    ENCODER_TOKENS,
    ITEM_TOKENS,
    NUM_MODALITIES,
    Budget,
    max_items_calls,
    method_calls,
)
from conformance.strategies.mm_budget_axes import BUDGET_AXES, largest
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call

NUM_RESETS = 1000
"""The number of resets of one budget, enough for an 8-bit counter to wrap."""


def _cache(kind: str) -> Any:
    return lambda call: call["mm_registry"].cache == kind


test_get_encoder_budget = Contract(
    "MultiModalBudget.get_encoder_budget",
    partial(method_calls, method="get_encoder_budget"),
    {
        "no modalities": lambda call: not call.source.arguments["mm_registry"].tokens,
        "the cache is the lesser": lambda call: (
            _made(call).encoder_cache_size < _made(call).encoder_compute_budget
        ),
        "the budget is the lesser": lambda call: (
            _made(call).encoder_cache_size > _made(call).encoder_compute_budget
        ),
    },
    axes={name: BUDGET_AXES[name] for name in (ENCODER_TOKENS, CACHE_SIZE)},
)


def _made(call: Call) -> reference.MultiModalBudget:
    """Return the budget, as `reference` makes it."""
    made: reference.MultiModalBudget = REFERENCE.converter().convert(call["self"], "self")
    return made


modality_calls = partial(method_calls, method="get_modality_with_max_tokens", has_modalities=True)

test_get_modality_with_max_tokens = Contract(
    "MultiModalBudget.get_modality_with_max_tokens",
    modality_calls,
    {
        "one modality": lambda call: len(_tokens(call)) == 1,
        "the largest comes last": lambda call: _order(call)[-1:] == [max(_order(call))],
        "the largest comes first": lambda call: (
            len(_tokens(call)) > 1 and _order(call)[0] == max(_order(call))
        ),
        "equals": lambda call: sorted(_order(call))[-2:] == [max(_order(call))] * 2,
        "equals, the last by name first": lambda call: (
            sorted(_order(call))[-2:] == [max(_order(call))] * 2
            and max(n for n, t in _tokens(call).items() if t == max(_order(call)))
            == next(iter(_tokens(call)))
        ),
    },
    axes={
        ITEM_TOKENS: BUDGET_AXES[ITEM_TOKENS],
        NUM_MODALITIES: dataclasses.replace(BUDGET_AXES[NUM_MODALITIES], first=1),
    },
    invalid_inputs=MODALITY_INVALID_INPUTS,
)


def _tokens(call: Call) -> dict[str, int]:
    found: dict[str, int] = call.source.arguments["mm_registry"].tokens
    return found


def _order(call: Call) -> list[int]:
    return list(_tokens(call).values())


@property_check("MultiModalBudget.get_modality_with_max_tokens", modality_calls)
def test_all_ranks_agree_on_a_modality(target: Target, call: Call) -> None:
    """Whatever the order of their dicts, all ranks choose the same modality with largest items."""
    tokens = _tokens(call)
    chosen = set()
    for names in (list(tokens), list(tokens)[::-1], sorted(tokens)):
        given = call.source.arguments
        registry = dataclasses.replace(
            given["mm_registry"], tokens={name: tokens[name] for name in names}
        )
        budget = Budget({**given, "mm_registry": registry})
        chosen.add(Invocation(target, call.replacing(self=budget)).answer(checked=False))
    assert len(chosen) == 1
    assert largest(tokens) == tokens[chosen.pop()]


def _items(holds: Any) -> Any:
    """Return a coverage goal about `reference`'s budget, the limit, and the size of items."""

    def is_so(call: Call) -> bool:
        budget, size = _made(call), call["max_tokens_per_item"]
        return bool(
            size
            and budget.get_encoder_budget()
            and holds(budget, budget.mm_limits[call["modality"]], size)
        )

    return is_so


def _prompts(call: Call) -> tuple[int, int]:
    """Return how many prompts a step may have, and how many with one item each fit into it."""
    scheduler = call.source.arguments["scheduler_config"]
    size = call["max_tokens_per_item"] or 1
    return scheduler.max_num_seqs, scheduler.max_num_batched_tokens // size


def _is_spread(call: Call) -> bool:
    return bool(call.source.arguments["scheduler_config"].enable_chunked_prefill)


test_get_max_items = Contract(
    "MultiModalBudget.get_max_items",
    max_items_calls,
    {
        "items of no tokens": lambda call: not call["max_tokens_per_item"],
        "no encoder budget": lambda call: not _made(call).get_encoder_budget(),
        "the limit bounds a prompt": _items(lambda b, limit, size: limit < b.max_model_len // size),
        "the length bounds a prompt": _items(
            lambda b, limit, size: limit > b.max_model_len // size > 0
        ),
        "an item is longer than a prompt": _items(lambda b, _, size: size > b.max_model_len),
        "a limit of 0": _items(lambda _, limit, __: limit == 0),
        "the encoder bounds a batch": _items(
            lambda b, _, size: b.max_num_reqs > b.get_encoder_budget() // size > 0
        ),
        "the decoder bounds a batch": _items(
            lambda b, limit, size: b.max_num_reqs * max(limit, 1) < b.get_encoder_budget() // size
        ),
        "an item is larger than the encoder budget": _items(
            lambda b, _, size: size > b.get_encoder_budget()
        ),
        "prompts are not spread, and few fit": lambda call: (
            not _is_spread(call) and 0 < _prompts(call)[1] < _prompts(call)[0]
        ),
        "prompts are not spread, and none fits": lambda call: (
            not _is_spread(call) and _prompts(call)[1] == 0
        ),
        "prompts are spread, and few would fit": lambda call: (
            _is_spread(call) and _prompts(call)[1] < _prompts(call)[0]
        ),
    },
    axes={
        **BUDGET_AXES,
        ITEM_TOKENS: of_ints(lambda call: call["max_tokens_per_item"]),
    },
    invalid_inputs=MAX_ITEMS_INVALID_INPUTS,
    returns=("items_per_prompt", "items_per_batch"),
)


@property_check("MultiModalBudget.get_max_items", max_items_calls)
def test_items_stay_within_their_bounds(target: Target, call: Call) -> None:
    """One item is always allowed, in a prompt and in a batch; more must be within every bound."""
    invocation = Invocation(target, call)
    with target.running():
        per_prompt, per_batch = invocation.run()
        encoder = invocation.arguments["self"].get_encoder_budget()
    size = call["max_tokens_per_item"]
    if not size or not encoder:
        assert (0, 0) == (per_prompt, per_batch)
        return
    given = call.source.arguments
    scheduler, limits = given["scheduler_config"], given["mm_registry"].limits
    assert 1 <= per_prompt <= max(1, limits[call["modality"]])
    assert per_prompt * size <= max(size, given["model_config"].max_model_len)
    assert per_batch >= 1
    assert per_batch * size <= max(size, encoder)
    assert per_batch <= max(1, scheduler.max_num_seqs * per_prompt)
    if not scheduler.enable_chunked_prefill:
        maximum = scheduler.max_num_batched_tokens // size * per_prompt
        assert per_batch <= max(1, maximum)


def _cache_of_source(kind: str) -> Any:
    return lambda call: _cache(kind)(call.source)


test_reset_cache = Contract(
    "MultiModalBudget.reset_cache",
    partial(method_calls, method="reset_cache"),
    {f"a registry with {kind}": _cache_of_source(kind) for kind in CACHES},
)


@property_check("MultiModalBudget.reset_cache", partial(method_calls, method="reset_cache"))
def test_a_reset_clears_the_cache(target: Target, call: Call) -> None:
    """Each reset clears the cache that the registry returned, and does not call the registry."""
    invocation = Invocation(target, call)
    registry = invocation.converter.convert(call.source.arguments["mm_registry"], "mm_registry")
    calls = list(registry.calls)
    for times in (1, 2):
        invocation.answer(checked=False)
        cleared = None if registry.cache is None else registry.cache.cleared
        assert (None if registry.cache is None else times) == cleared
    assert calls == registry.calls


@property_check(
    "MultiModalBudget.reset_cache",
    partial(method_calls, method="reset_cache", cache="a cache"),
    kind=Kind.CONDITIONS,
)
def test_each_of_a_thousand_resets_clears_the_cache(target: Target, call: Call) -> None:
    """Each of a thousand resets clears the cache exactly once."""
    invocation = Invocation(target, call)
    registry = invocation.converter.convert(call.source.arguments["mm_registry"], "mm_registry")
    for times in range(1, NUM_RESETS + 1):
        invocation.answer(checked=False)
        assert times == registry.cache.cleared
