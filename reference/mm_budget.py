"""How many multimodal items a step may have, given the encoder's compute budget and cache."""

from __future__ import annotations

from typing import Any

from reference._checks import check_bool, check_int, check_type


def compute_mm_encoder_budget(
    scheduler_config: Any, max_tokens_by_modality: dict[str, int]
) -> tuple[int, int]:
    """Return how many tokens the encoder may compute in a step, and how many its cache holds.

    Each is the value in the scheduler's configuration, or the size of the largest item if that is
    greater.

    Args:
        scheduler_config: `max_num_encoder_input_tokens` and `encoder_cache_size`, ints of at least
            0, and the bool `disable_chunked_mm_input` are read; if that is True, also
            `max_num_batched_tokens`, an int of at least 1.
        max_tokens_by_modality: The tokens of the largest item of each modality, at least 0. If it
            is empty, the configuration is not read.

    Returns:
        The compute budget and the cache size, in tokens, Python ints; (0, 0) without modalities.

    Raises:
        TypeError: A number, a flag, a modality or the dict of the wrong type.
        ValueError: A number out of range; with `disable_chunked_mm_input`, an item that is larger
            than a step.
        AttributeError: A configuration that lacks an attribute that is read.

    Example:
        >>> from reference.config import SchedulerConfig
        >>> config = SchedulerConfig(
        ...     max_num_batched_tokens=512,
        ...     max_num_seqs=8,
        ...     max_num_encoder_input_tokens=2048,
        ...     encoder_cache_size=512,
        ... )
        >>> compute_mm_encoder_budget(config, {"image": 1024, "audio": 300})
        (2048, 1024)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    token_counts = _check_counts_by_modality("max_tokens_by_modality", max_tokens_by_modality)
    if not token_counts:
        return 0, 0
    largest = max(token_counts.values())
    compute = check_int(
        "scheduler_config.max_num_encoder_input_tokens",
        scheduler_config.max_num_encoder_input_tokens,
        0,
    )
    cache_size = check_int(
        "scheduler_config.encoder_cache_size", scheduler_config.encoder_cache_size, 0
    )
    if check_bool(
        "scheduler_config.disable_chunked_mm_input", scheduler_config.disable_chunked_mm_input
    ):
        step = check_int(
            "scheduler_config.max_num_batched_tokens", scheduler_config.max_num_batched_tokens, 1
        )
        if largest > step:
            modality = max(token_counts, key=lambda name: token_counts[name])
            raise ValueError(
                f"scheduler_config.max_num_batched_tokens is {step}, less than "
                f"max_tokens_by_modality[{modality!r}], {largest}: with "
                "disable_chunked_mm_input an item must fit into one step"
            )
    return max(compute, largest), max(cache_size, largest)


class MultiModalBudget:
    """Compute how many multimodal items of each modality a prompt and a batch may have.

    The constructor reads `max_model_len` from the model's configuration; from the scheduler's it
    reads `max_num_seqs`, `max_num_batched_tokens`, `enable_chunked_prefill` and what
    `compute_mm_encoder_budget` reads. Of the registry it calls these methods, and no others:

    - `processor_only_cache_from_config(model_config)`, if it is there and not None, returns the
      processor cache; otherwise the cache is None.
    - `get_mm_limits_per_prompt(model_config, cache=...)` returns `mm_limits`.
    - `get_max_tokens_per_item_by_modality(model_config, cache=..., profiler_limits=mm_limits)`
      returns `max_tokens_by_modality`. Each of its modalities must have a limit.

    Args:
        model_config: `max_model_len` is an int of at least 1. It is passed to the registry.
        scheduler_config: `max_num_seqs` and `max_num_batched_tokens` are ints of at least 1,
            `enable_chunked_prefill` is a bool.
        mm_registry: The registry of the model's modalities; both dicts map them to ints of at least
            0.

    Attributes:
        max_model_len: The most tokens of a sequence.
        max_num_reqs: The most requests of a step, `max_num_seqs`.
        mm_limits: The most items of each modality in a prompt; the object that the registry
            returned.
        max_tokens_by_modality: The tokens of the largest item of each modality; likewise.
        encoder_compute_budget: The most tokens that the encoder may compute in a step.
        encoder_cache_size: The most tokens that the encoder's cache holds.
        max_items_per_prompt_by_modality: For each modality of `max_tokens_by_modality`, the first
            result of `get_max_items` for its largest item.
        max_items_per_batch_by_modality: The second result.

    Raises:
        TypeError: A number, a flag, a modality or a dict of the wrong type.
        ValueError: A number out of range; an item that does not fit into a step, as in
            `compute_mm_encoder_budget`.
        KeyError: A modality without a limit.
        AttributeError: A configuration or a registry that lacks an attribute that is read.

    Example:
        >>> from types import SimpleNamespace
        >>> from reference.config import ModelConfig, SchedulerConfig
        >>> registry = SimpleNamespace(
        ...     get_mm_limits_per_prompt=lambda model_config, cache: {"image": 4, "audio": 9},
        ...     get_max_tokens_per_item_by_modality=lambda model_config, cache, profiler_limits: {
        ...         "image": 1000,
        ...         "audio": 300,
        ...     },
        ... )
        >>> scheduler_config = SchedulerConfig(
        ...     max_num_batched_tokens=8192,
        ...     max_num_seqs=2,
        ...     max_num_encoder_input_tokens=5000,
        ...     encoder_cache_size=6000,
        ... )
        >>> budget = MultiModalBudget(ModelConfig(max_model_len=2048), scheduler_config, registry)
        >>> budget.get_encoder_budget(), budget.get_modality_with_max_tokens()
        (5000, 'image')
        >>> budget.max_items_per_prompt_by_modality
        {'image': 2, 'audio': 6}
        >>> budget.max_items_per_batch_by_modality
        {'image': 4, 'audio': 12}

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def __init__(self, model_config: Any, scheduler_config: Any, mm_registry: Any) -> None:
        self.max_model_len = check_int("model_config.max_model_len", model_config.max_model_len, 1)
        self.max_num_reqs = check_int(
            "scheduler_config.max_num_seqs", scheduler_config.max_num_seqs, 1
        )
        self._max_num_batched_tokens = check_int(
            "scheduler_config.max_num_batched_tokens", scheduler_config.max_num_batched_tokens, 1
        )
        self._enable_chunked_prefill = check_bool(
            "scheduler_config.enable_chunked_prefill", scheduler_config.enable_chunked_prefill
        )

        make_cache = getattr(mm_registry, "processor_only_cache_from_config", None)
        self._cache: Any = None if make_cache is None else make_cache(model_config)
        self.mm_limits: dict[str, int] = mm_registry.get_mm_limits_per_prompt(
            model_config, cache=self._cache
        )
        _check_counts_by_modality("mm_limits", self.mm_limits)
        self.max_tokens_by_modality: dict[str, int] = (
            mm_registry.get_max_tokens_per_item_by_modality(
                model_config, cache=self._cache, profiler_limits=self.mm_limits
            )
        )
        self.encoder_compute_budget, self.encoder_cache_size = compute_mm_encoder_budget(
            scheduler_config, self.max_tokens_by_modality
        )

        self.max_items_per_prompt_by_modality: dict[str, int] = {}
        self.max_items_per_batch_by_modality: dict[str, int] = {}
        for modality, max_tokens in self.max_tokens_by_modality.items():
            per_prompt, per_batch = self.get_max_items(modality, max_tokens)
            self.max_items_per_prompt_by_modality[modality] = per_prompt
            self.max_items_per_batch_by_modality[modality] = per_batch

    def get_encoder_budget(self) -> int:
        """Return how many encoder tokens a step may have: the minimum of budget and cache size."""
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    def get_modality_with_max_tokens(self) -> str:
        """Return the modality with the largest item; the last by name if several are largest.

        All ranks therefore agree, whatever the order of their dicts.

        Raises:
            ValueError: There are no modalities.
        """
        if not self.max_tokens_by_modality:
            raise ValueError("max_tokens_by_modality is empty: the model has no modalities")
        _, modality = max(
            (max_tokens, modality) for modality, max_tokens in self.max_tokens_by_modality.items()
        )
        return modality

    def get_max_items(self, modality: str, max_tokens_per_item: int) -> tuple[int, int]:
        """Return how many items of a size a prompt and a batch may have, at least 1 each.

        A prompt may have as many items as its limit allows and as fit into `max_model_len`. A batch
        may have as many as fit into the encoder's budget, but at most those of `max_num_reqs`
        prompts or, if prompts are not split over steps (`enable_chunked_prefill` is off) and that
        is fewer, of `max_num_batched_tokens // max_tokens_per_item` prompts.

        Args:
            modality: The modality of the items, a key of `mm_limits`. It is checked first.
            max_tokens_per_item: The size of each item, in tokens, at least 0.

        Returns:
            The numbers for a prompt and for a batch; (0, 0) if the size, or the encoder's budget,
            is 0.

        Raises:
            TypeError: A modality that is not a str, a size that is not an int.
            KeyError: A modality without a limit.
            ValueError: A negative size.
        """
        if check_type("modality", modality, str) not in self.mm_limits:
            raise KeyError(
                f"modality is {modality!r}, expected one of mm_limits: {sorted(self.mm_limits)}"
            )
        size = check_int("max_tokens_per_item", max_tokens_per_item, 0)
        encoder_budget = self.get_encoder_budget()
        if size == 0 or encoder_budget == 0:
            return 0, 0
        limit = check_int(f"mm_limits[{modality!r}]", self.mm_limits[modality], 0)
        per_prompt = max(1, min(limit, self.max_model_len // size))

        num_prompts = self.max_num_reqs
        if not self._enable_chunked_prefill:
            num_prompts = min(num_prompts, self._max_num_batched_tokens // size)
        decoder_items = num_prompts * per_prompt
        encoder_items = encoder_budget // size
        return per_prompt, max(1, min(decoder_items, encoder_items))

    def reset_cache(self) -> None:
        """Clear the processor cache with its `clear_cache()`, if there is one."""
        if self._cache is not None:
            self._cache.clear_cache()


def _check_counts_by_modality(name: str, value: object) -> dict[str, int]:
    """Return a dict of counts, none negative, by modality."""
    return {
        check_type(f"a key of {name}", modality, str): check_int(f"{name}[{modality!r}]", count, 0)
        for modality, count in check_type(name, value, dict).items()
    }
