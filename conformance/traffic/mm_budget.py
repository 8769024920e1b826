"""The budget of multimodal items that a runner makes at its start, of a made-up registry."""

from __future__ import annotations

from conformance.zoo.calls import Answer, Calls

LIMITS = {"image": 8, "video": 1, "audio": 3}
"""Items of a prompt."""
LARGEST_ITEMS = {"video": 1568, "image": 576, "audio": 1568}
"""In tokens; two are the largest, and either comes first in an order."""
SMALL_ITEM_TOKENS = 64


class _Cache:
    """A cache of processed items, which counts how often it was cleared."""

    def __init__(self) -> None:
        self.num_cleared = 0

    def clear_cache(self) -> None:
        """Forget all."""
        self.num_cleared += 1


class _Registry:
    """What an engine's registry says of a model, and what it was asked."""

    def __init__(self) -> None:
        self.cache = _Cache()
        self.caches_asked_with: list[object] = []

    def processor_only_cache_from_config(self, _model_config: Answer) -> _Cache:
        """Return the one cache."""
        return self.cache

    def get_mm_limits_per_prompt(self, _model_config: Answer, *, cache: object) -> dict[str, int]:
        """Return the limits."""
        self.caches_asked_with.append(cache)
        return dict(LIMITS)

    def get_max_tokens_per_item_by_modality(
        self, _model_config: Answer, *, cache: object, profiler_limits: dict[str, int]
    ) -> dict[str, int]:
        """Return the sizes of the modalities that may occur."""
        self.caches_asked_with.append(cache)
        return {name: LARGEST_ITEMS[name] for name in LARGEST_ITEMS if profiler_limits[name] > 0}


def make_budget(call: Calls, config: Answer) -> dict[str, Answer]:
    """Make a `MultiModalBudget`, and ask it everything.

    Args:
        call: The calls of an implementation.
        config: Its `VllmConfig`.

    Returns:
        What it answers, by name.

    Example:
        >>> import reference
        >>> config = reference.VllmConfig(
        ...     model_config=reference.ModelConfig(max_model_len=4096),
        ...     scheduler_config=reference.SchedulerConfig(
        ...         max_num_batched_tokens=2048, max_num_seqs=4
        ...     ),
        ... )
        >>> made = make_budget(Calls(reference), config)
        >>> made["modality_with_max_tokens"], made["max_items_per_batch_by_modality"]
        ('video', {'video': 1, 'image': 2, 'audio': 1})
    """
    registry = _Registry()
    budget = call("MultiModalBudget", config.model_config, config.scheduler_config, registry)
    call.method(budget, "reset_cache")
    return {
        "budget_and_cache": call(
            "compute_mm_encoder_budget", config.scheduler_config, LARGEST_ITEMS
        ),
        "encoder_budget": call.method(budget, "get_encoder_budget"),
        "modality_with_max_tokens": call.method(budget, "get_modality_with_max_tokens"),
        "small_items": [
            call.method(budget, "get_max_items", modality, SMALL_ITEM_TOKENS) for modality in LIMITS
        ],
        "was_asked_with_cache": [cache is registry.cache for cache in registry.caches_asked_with],
        "num_cleared": registry.cache.num_cleared,
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
