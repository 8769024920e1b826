"""Stub multimodal registries, which record their calls."""

from __future__ import annotations

from typing import Any


class Cache:
    """A processor cache, which counts how often it is cleared."""

    compared = ("cleared",)

    def __init__(self) -> None:
        self.cleared = 0

    def clear_cache(self) -> None:
        """Count one clearing."""
        self.cleared += 1


class MadeRegistry:
    """A registry that records its calls.

    Args:
        limits: The limit of items in a prompt, by modality.
        tokens: Tokens of the largest item by modality.
        cache: The processor cache that a subclass returns.
    """

    compared = ("calls",)

    def __init__(self, limits: Any, tokens: Any, cache: Cache | None) -> None:
        self.limits, self.tokens, self.cache = limits, tokens, cache
        self.calls: list[Any] = []

    def get_mm_limits_per_prompt(self, *args: Any, **keywords: Any) -> Any:
        """Return the limits."""
        self.calls.append(("limits", args, keywords))
        return self.limits

    def get_max_tokens_per_item_by_modality(self, *args: Any, **keywords: Any) -> Any:
        """Return the largest items."""
        self.calls.append(("tokens", args, keywords))
        return self.tokens


class CachingRegistry(MadeRegistry):
    """A registry that has a method to get the processor cache."""

    def processor_only_cache_from_config(self, *args: Any, **keywords: Any) -> Cache | None:
        """Return the cache."""
        self.calls.append(("cache", args, keywords))
        return self.cache


class NoCacheMethodRegistry(MadeRegistry):
    """A registry whose method to get the processor cache is None."""

    processor_only_cache_from_config = None
