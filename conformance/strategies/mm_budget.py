"""Calls of the functions about multimodal budgets: registries, and limits near the item sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from hypothesis.strategies import SearchStrategy

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.attention_layers import own_config
from conformance.strategies.repeated import lists
from conformance.targets.factories import Factory, FactoryContext
from conformance.targets.mm_registries import (
    Cache,
    CachingRegistry,
    MadeRegistry,
    NoCacheMethodRegistry,
)
from conformance.values.call import Call

NUM_MODALITIES: Final = "modalities"
ITEM_TOKENS: Final = "tokens of an item"
ITEMS: Final = "items of a prompt"
MODEL_LENGTH: Final = "length of the model"
REQUESTS: Final = "requests"
STEP_TOKENS: Final = "tokens of a step"
ENCODER_TOKENS: Final = "encoder tokens of a step"
CACHE_SIZE: Final = "size of the encoder cache"

MODALITIES = ("image", "video", "audio", "", "Image")

CACHES = ("no method", "no method at all", "no cache", "a cache")
"""Variants of a registry's method that returns the processor cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class Registry(Factory):
    """A factory of a registry of a model's modalities.

    Attributes:
        limits: Items of a prompt by modality.
        tokens: Tokens of the largest item by modality.
        cache: One of `CACHES`.
    """

    limits: Any
    tokens: Any
    cache: str = CACHES[0]

    def make(self, converter: FactoryContext) -> MadeRegistry:
        """Return the registry."""
        cls = {"no method": MadeRegistry, "no method at all": NoCacheMethodRegistry}
        limits, tokens = (
            converter.convert(v, "mm_registry.given") for v in (self.limits, self.tokens)
        )
        cache = Cache() if self.cache == "a cache" else None
        return cls.get(self.cache, CachingRegistry)(limits, tokens, cache)


@dataclasses.dataclass(frozen=True, eq=False)
class Budget(Factory):
    """A factory of a budget.

    Attributes:
        arguments: The constructor's arguments.
        later: Limits that are set afterwards.
    """

    arguments: Mapping[str, Any]
    later: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make(self, converter: FactoryContext) -> Any:
        """Return the budget."""
        given = {name: converter.convert(value, name) for name, value in self.arguments.items()}
        budget = converter.implementation.find("MultiModalBudget")(**given)
        if self.later:
            budget.mm_limits = {**budget.mm_limits, **self.later}
        return budget


def _bounds(preset: Preset, usual: SearchStrategy[int]) -> SearchStrategy[int]:
    """Return usual bounds; for a preset that is large along an axis, bounds without effect."""
    return st.just(2**70) if preset.axis else usual


@st.composite
def _tokens(draw: st.DrawFn, preset: Preset) -> dict[str, int]:
    """Draw the tokens of the largest item of some modalities; some are equal."""
    sizes = (0, 1, 3, 3, 5, 8) if preset is MINIMAL else (0, 576, 576, 1024, 1500)
    tokens = preset.sizes(ITEM_TOKENS, st.sampled_from(sizes))
    if preset.axis == NUM_MODALITIES:
        found = lists(draw, preset, NUM_MODALITIES, tokens, max_size=0)
        return {f"modality {i}": number for i, number in enumerate(found)}
    number = draw(st.integers(int(bool(preset.axis)), 3))
    return {name: draw(tokens) for name in draw(st.permutations(MODALITIES))[:number]}


@st.composite
def scheduler_configs(
    draw: st.DrawFn, preset: Preset, tokens: Mapping[str, int]
) -> reference.SchedulerConfig:
    """Draw configurations whose limits are near the largest of these items, or above."""
    largest = max(tokens.values(), default=0)
    near = st.sampled_from((largest, 0, largest + 1, 2 * largest, max(largest - 1, 0), 5 * largest))
    requests = st.sampled_from((1, 2, 3, 64))
    is_whole = draw(st.SOMETIMES)
    step = max(largest, 1) + draw(st.sampled_from((0, 1, 0, 7, 2 * largest)))
    if not is_whole and draw(st.booleans()):
        step = draw(st.integers(1, step))
    if preset.axis:
        is_whole, step = False, draw(preset.sizes(STEP_TOKENS, st.just(2**70)))
    return reference.SchedulerConfig(
        max_num_batched_tokens=step,
        max_num_seqs=draw(preset.sizes(REQUESTS, _bounds(preset, requests))),
        max_num_encoder_input_tokens=draw(preset.sizes(ENCODER_TOKENS, _bounds(preset, near))),
        encoder_cache_size=draw(preset.sizes(CACHE_SIZE, _bounds(preset, near))),
        enable_chunked_prefill=draw(st.booleans()),
        disable_chunked_mm_input=is_whole,
    )


def without(config: reference.SchedulerConfig, *names: str) -> Any:
    """Return an engine's own configuration, without these attributes."""
    return own_config(**{name: value for name, value in vars(config).items() if name not in names})


@st.composite
def compute_budget_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `compute_mm_encoder_budget`; fields that are not read may be absent."""
    tokens = draw(_tokens(preset))
    config: Any = draw(scheduler_configs(preset, tokens))
    if not tokens:
        config = draw(st.sampled_from((None, own_config())))
    elif draw(st.SOMETIMES):
        unread = () if config.disable_chunked_mm_input else ("max_num_batched_tokens",)
        config = without(config, "max_num_seqs", "enable_chunked_prefill", *unread)
    arguments = {"scheduler_config": config, "max_tokens_by_modality": tokens}
    return Call("compute_mm_encoder_budget", arguments)


@st.composite
def budget_calls(draw: st.DrawFn, preset: Preset, *, cache: str | None = None) -> Call:
    """Draw calls of `MultiModalBudget`, of all kinds of registries unless one is given."""
    tokens = draw(_tokens(preset))
    some = st.lists(
        preset.sizes(ITEMS, _bounds(preset, st.sampled_from((1, 2, 0, 9, 999)))),
        min_size=4,
        max_size=4,
    )
    drawn = draw(some)
    limits = {name: drawn[i % 4] for i, name in enumerate((*tokens, "text"))}
    largest = max(tokens.values(), default=0)
    length = draw(st.sampled_from((1, largest - 1, largest, 2 * largest, 2 * largest + 1, 10**4)))
    arguments = {
        "model_config": reference.ModelConfig(
            max_model_len=draw(preset.sizes(MODEL_LENGTH, _bounds(preset, st.just(max(length, 1)))))
        ),
        "scheduler_config": draw(scheduler_configs(preset, tokens)),
        "mm_registry": Registry(limits, tokens, cache or draw(st.sampled_from(CACHES))),
    }
    return Call("MultiModalBudget", arguments)


@st.composite
def method_calls(
    draw: st.DrawFn,
    preset: Preset,
    *,
    method: str,
    has_modalities: bool = False,
    cache: str | None = None,
) -> Call:
    """Draw calls of a method without arguments; the source is the call that makes the budget."""
    call = draw(budget_calls(preset, cache=cache))
    if has_modalities and not call.arguments["mm_registry"].tokens:
        call.arguments["mm_registry"] = Registry({"image": 1}, {"image": 1})
    return Call(f"MultiModalBudget.{method}", {"self": Budget(call.arguments)}, call)


@st.composite
def max_items_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `MultiModalBudget.get_max_items`, of items of any size."""
    call = draw(method_calls(preset, method="get_max_items"))
    registry, scheduler = (call.source.arguments[n] for n in ("mm_registry", "scheduler_config"))
    modality = draw(st.sampled_from(tuple(registry.limits)))
    length = call.source.arguments["model_config"].max_model_len
    step = scheduler.max_num_batched_tokens
    sizes = (1, 0, 2, 3, registry.tokens.get(modality, 5), length, length + 1, step, step + 1)
    size = draw(preset.sizes(ITEM_TOKENS, st.sampled_from(sizes)))
    items: Call = call.replacing(modality=modality, max_tokens_per_item=size)
    return items
