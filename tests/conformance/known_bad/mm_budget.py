"""Multimodal budgets, as one computes them in a hurry."""

# ruff: noqa: ANN401  # engines' own objects

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL_COMPUTE = fast.compute_mm_encoder_budget
REAL_BUDGET = fast.MultiModalBudget
REAL_ITEMS = REAL_BUDGET.get_max_items


def _make_compute(bug: str | None) -> Callable[..., tuple[int, int]]:
    def compute_mm_encoder_budget(
        scheduler_config: Any, max_tokens_by_modality: Any
    ) -> tuple[int, int]:
        given = max_tokens_by_modality
        can_clamp = isinstance(given, dict) and hasattr(
            scheduler_config, "disable_chunked_mm_input"
        )
        if bug == "a negative item is none" and can_clamp:
            given = {k: max(n, 0) if type(n) is int else n for k, n in given.items()}
        if bug == "items may always be cut" and scheduler_config is not None:
            scheduler_config = copy.copy(scheduler_config)
            if getattr(scheduler_config, "disable_chunked_mm_input", None) is True:
                scheduler_config.disable_chunked_mm_input = False
        REAL_COMPUTE(scheduler_config, given)
        if not given:
            return (0, 0) if bug != "no modalities have the configured budget" else (1, 1)
        largest = (sum if bug == "the sum of the items" else max)(given.values())
        is_whole = scheduler_config.disable_chunked_mm_input
        step = scheduler_config.max_num_batched_tokens if is_whole else 2**31
        if bug == "an item may not fill a step" and largest >= step:
            raise ValueError("max_num_batched_tokens is too small")
        compute = scheduler_config.max_num_encoder_input_tokens
        cache = scheduler_config.encoder_cache_size
        if bug == "the cache holds the budget":
            cache = max(cache, compute)
        if bug == "a budget of less than an item stays":
            return compute or largest, max(cache, largest)
        if bug == "the lesser of both":
            return min(compute, largest), min(cache, largest)
        return max(int(compute), int(largest)), max(int(cache), int(largest))

    return compute_mm_encoder_budget


class _Asks:
    """A registry that is asked in other words."""

    def __init__(self, bug: str, registry: Any) -> None:
        self._bug, self._registry = bug, registry
        if bug == "no cache is asked for":
            self.processor_only_cache_from_config = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._registry, name)
        if name == "get_max_tokens_per_item_by_modality":
            if self._bug == "limits are not handed on":
                return lambda *args, **words: found(*args, **{**words, "profiler_limits": {}})
            if self._bug == "items are asked for without a cache":
                return lambda *args, **words: found(*args, **{**words, "cache": None})
        if name == "get_mm_limits_per_prompt" and self._bug == "a limit for every modality":
            return lambda *args, **words: _Defaults(found(*args, **words))
        return found


class _Defaults(dict[str, int]):
    """Limits of one item for a modality that has none."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 1


def _make_budget(bug: str | None) -> type:
    class MultiModalBudget(REAL_BUDGET):  # type: ignore[misc,valid-type]
        """The same, or nearly."""

        def __init__(self, model_config: Any, scheduler_config: Any, mm_registry: Any) -> None:
            asked = mm_registry if bug is None else _Asks(bug, mm_registry)
            super().__init__(model_config, scheduler_config, asked)
            if bug == "limits are copied":
                self.mm_limits = dict(self.mm_limits)
            if bug == "requests are tokens":
                self.max_num_reqs = scheduler_config.max_num_batched_tokens
            if bug == "a batch holds what a prompt does":
                self.max_items_per_batch_by_modality = self.max_items_per_prompt_by_modality
            if bug == "modalities are sorted":
                items = self.max_items_per_prompt_by_modality
                self.max_items_per_prompt_by_modality = dict(sorted(items.items()))
            if bug == "the cache is the budget":
                self.encoder_cache_size = self.encoder_compute_budget
            if bug == "numbers are as they came":
                self.max_model_len = model_config.max_model_len

    return MultiModalBudget


def _make_encoder(bug: str | None) -> Callable[[Any], int]:
    def get_encoder_budget(self: Any) -> int:
        if bug == "the budget alone":
            return int(self.encoder_compute_budget)
        sizes = self.encoder_compute_budget, self.encoder_cache_size
        return max(sizes) if bug == "the greater" else min(sizes)

    return get_encoder_budget


def _make_modality(bug: str | None) -> Callable[[Any], Any]:
    def get_modality_with_max_tokens(self: Any) -> Any:
        tokens = self.max_tokens_by_modality
        if not tokens:
            if bug == "no modalities have none":
                return None
            raise ValueError("max_tokens_by_modality has no modalities")
        if bug == "the first of equals":
            return max(tokens, key=tokens.get)
        if bug == "the last of equals as they stand":
            return max(reversed(tokens), key=tokens.get)
        if bug == "the first of equals by name":
            return min(tokens, key=lambda name: (-tokens[name], name))
        if bug == "the last by name":
            return max(tokens)
        return max(tokens, key=lambda name: (tokens[name], name))

    return get_modality_with_max_tokens


def _make_items(bug: str | None) -> Callable[..., tuple[int, int]]:
    def get_max_items(self: Any, modality: Any, max_tokens_per_item: Any) -> tuple[int, int]:
        size = max_tokens_per_item
        if bug == "items of no tokens are of any kind" and size == 0 and type(size) is int:
            return 0, 0
        if bug == "a negative item is none" and type(size) is int:
            size = max(size, 0)
        REAL_ITEMS(self, modality, size)
        encoder_budget, size = self.get_encoder_budget(), int(size)
        if not size or not encoder_budget:
            return (0, 0) if bug != "one item at least, always" else (1, 1)
        limit = int(self.mm_limits[modality])
        length = self.max_model_len
        fit = -(-length // size) if bug == "items may pass a prompt's end" else length // size
        per_prompt = max(1, min(limit, fit))
        if bug == "a limit of 0 is none":
            per_prompt = min(limit, max(1, fit))
        if bug == "the limit is not asked":
            per_prompt = max(1, fit)
        prompts = self.max_num_reqs
        if self._enable_chunked_prefill == (bug == "chunks the other way round"):
            prompts = min(prompts, self._max_num_batched_tokens // size)
        if bug == "a step's tokens bound all":
            prompts = min(prompts, self._max_num_batched_tokens // size)
        decoder, encoder = prompts * per_prompt, encoder_budget // size
        if bug == "requests are items":
            decoder = prompts
        per_batch = {"the encoder alone": encoder, "the decoder alone": decoder}.get(
            str(bug), min(decoder, encoder)
        )
        return per_prompt, per_batch if bug == "a batch may have none" else max(1, per_batch)

    return get_max_items


def _make_reset(bug: str | None) -> Callable[[Any], None]:
    def reset_cache(self: Any) -> None:
        if self._cache is None:
            return
        if bug == "the cache is let go":
            self._cache = None
            return
        self._cache.clear_cache()
        if bug == "once is enough":
            self._cache = None

    return reset_cache


MM_BUDGET = [
    *rewritten(
        "compute_mm_encoder_budget",
        _make_compute,
        answers={
            "no modalities have the configured budget": "Nobody has items then.",
            "the sum of the items": "Right with one modality.",
            "an item may not fill a step": "`>=` for `>`.",
            "the cache holds the budget": "What is computed is cached, one thinks.",
            "a budget of less than an item stays": "`or`: right for 0.",
            "the lesser of both": "The word budget.",
        },
        refusals={
            "a negative item is none": "It has no tokens.",
            "items may always be cut": "The scheduler waits for ever.",
        },
    ),
    *rewritten(
        "MultiModalBudget",
        _make_budget,
        answers={
            "limits are copied": "Equal, until the registry's change.",
            "requests are tokens": "Both are the most of something in a step.",
            "a batch holds what a prompt does": "Right with one request.",
            "modalities are sorted": "Equal as dicts.",
            "the cache is the budget": "They are configured alike.",
            "numbers are as they came": "NumPy's ints print alike.",
            "no cache is asked for": "Slower, and a reset clears nothing.",
        },
        refusals={"a limit for every modality": "One is a fine default."},
        laws={
            "test_a_registry_is_asked_in_these_words": {
                "limits are not handed on": "Registries fall back on their own.",
                "items are asked for without a cache": "Slower.",
            }
        },
    ),
    *rewritten(
        "MultiModalBudget.get_encoder_budget",
        _make_encoder,
        answers={
            "the greater": "Right where both are alike.",
            "the budget alone": "The cache is larger, mostly.",
        },
    ),
    *rewritten(
        "MultiModalBudget.get_modality_with_max_tokens",
        _make_modality,
        answers={
            "the first of equals": "`max` of a dict: ranks with another order disagree.",
            "the last of equals as they stand": "Likewise.",
            "the first of equals by name": "All ranks agree, with each other.",
            "the last by name": "Often the video, which is the largest.",
        },
        refusals={"no modalities have none": "The caller asks for an item of None."},
    ),
    *rewritten(
        "MultiModalBudget.get_max_items",
        _make_items,
        answers={
            "one item at least, always": "Profiling makes an item of no tokens.",
            "items may pass a prompt's end": "Rounded up.",
            "a limit of 0 is none": "Nobody sets it.",
            "the limit is not asked": "It is large, mostly.",
            "chunks the other way round": "A flag's name.",
            "a step's tokens bound all": "Right where prompts are not spread.",
            "requests are items": "Right for one item a prompt.",
            "the encoder alone": "It is the narrower, mostly.",
            "the decoder alone": "Encoders are small.",
            "a batch may have none": "Then no step can run.",
        },
        refusals={
            "items of no tokens are of any kind": "An early return comes too early.",
            "a negative item is none": "It has no tokens.",
        },
    ),
    *rewritten(
        "MultiModalBudget.reset_cache",
        _make_reset,
        laws={
            "test_a_reset_clears_the_cache": {
                "the cache is let go": "Others hold it still.",
                "once is enough": "It is called once in tests.",
            }
        },
    ),
]
