"""The budget of multimodal items that a runner makes at its start, with a made-up registry."""

from __future__ import annotations

from conformance.strategies.mm_budget import Cache, CachingRegistry
from conformance.targets import Answer, Target

LIMITS = {"image": 8, "video": 1, "audio": 3}
"""Items of a prompt."""
LARGEST_ITEMS = {"video": 1568, "image": 576, "audio": 1568}
"""In tokens; two are the largest, and either comes first in an order."""
SMALL_ITEM_TOKENS = 64


def make_budget(target: Target, config: Answer) -> dict[str, Answer]:
    """Make a `MultiModalBudget`, call all its methods, and return their results by name.

    Example:
        >>> import reference
        >>> from conformance.targets import REFERENCE
        >>> config = reference.VllmConfig(
        ...     model_config=reference.ModelConfig(max_model_len=4096),
        ...     scheduler_config=reference.SchedulerConfig(
        ...         max_num_batched_tokens=2048, max_num_seqs=4
        ...     ),
        ... )
        >>> made = make_budget(REFERENCE, config)
        >>> made["modality_with_max_tokens"], made["max_items_per_batch_by_modality"]
        ('video', {'video': 1, 'image': 2, 'audio': 1})
    """
    cache = Cache()
    registry = CachingRegistry(dict(LIMITS), dict(LARGEST_ITEMS), cache)
    budget = target.call("MultiModalBudget", config.model_config, config.scheduler_config, registry)
    target.method(budget, "reset_cache")
    return {
        "budget_and_cache": target.call(
            "compute_mm_encoder_budget", config.scheduler_config, LARGEST_ITEMS
        ),
        "encoder_budget": target.method(budget, "get_encoder_budget"),
        "modality_with_max_tokens": target.method(budget, "get_modality_with_max_tokens"),
        "small_items": [
            target.method(budget, "get_max_items", modality, SMALL_ITEM_TOKENS)
            for modality in LIMITS
        ],
        "registry_calls": [
            (name, keywords.get("cache") is cache, keywords.get("profiler_limits"))
            for name, _, keywords in registry.calls
        ],
        "num_cleared": cache.cleared,
        **{
            name: getattr(budget, name)
            for name in (
                "max_model_len",
                "max_num_reqs",
                "mm_limits",
                "max_tokens_by_modality",
                "encoder_compute_budget",
                "encoder_cache_size",
                "max_items_per_prompt_by_modality",
                "max_items_per_batch_by_modality",
            )
        },
    }
