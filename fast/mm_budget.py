"""Compute the multimodal budget of a step. `fast.multimodal` exports the names."""

from typing import Any

from fast._checks import check_bool, check_int, check_type


def compute_mm_encoder_budget(
    scheduler_config: Any, max_tokens_by_modality: dict[str, int]
) -> tuple[int, int]:
    """Return how many tokens the encoder may compute in a step, and how many its cache holds.

    Definition: `reference.compute_mm_encoder_budget`.
    """
    largest = _check_counts("max_tokens_by_modality", max_tokens_by_modality)
    if not max_tokens_by_modality:
        return 0, 0
    no_chunks = scheduler_config.disable_chunked_mm_input
    check_bool("scheduler_config.disable_chunked_mm_input", no_chunks)
    if no_chunks:
        step = _read(scheduler_config, "scheduler_config.max_num_batched_tokens", 1)
        if largest > step:
            modality = max(max_tokens_by_modality, key=lambda name: max_tokens_by_modality[name])
            raise ValueError(
                f"scheduler_config.max_num_batched_tokens is {step}, less than"
                f" max_tokens_by_modality[{modality!r}], {largest}: with"
                " disable_chunked_mm_input an item must fit into one step"
            )
    compute = _read(scheduler_config, "scheduler_config.max_num_encoder_input_tokens", 0)
    cache = _read(scheduler_config, "scheduler_config.encoder_cache_size", 0)
    return max(compute, largest), max(cache, largest)


class MultiModalBudget:
    """Compute how many multimodal items of each modality a prompt and a batch may have.

    Definition: `reference.MultiModalBudget`.
    """

    def __init__(self, model_config: Any, scheduler_config: Any, mm_registry: Any) -> None:
        self.max_model_len = _read(model_config, "model_config.max_model_len", 1)
        self.max_num_reqs = _read(scheduler_config, "scheduler_config.max_num_seqs", 1)
        self._max_num_batched_tokens = _read(
            scheduler_config, "scheduler_config.max_num_batched_tokens", 1
        )
        self._enable_chunked_prefill = scheduler_config.enable_chunked_prefill
        check_bool("scheduler_config.enable_chunked_prefill", self._enable_chunked_prefill)
        make_cache = getattr(mm_registry, "processor_only_cache_from_config", None)
        self._cache: Any = None if make_cache is None else make_cache(model_config)
        self.mm_limits: Any = mm_registry.get_mm_limits_per_prompt(model_config, cache=self._cache)
        _check_counts("mm_limits", self.mm_limits)
        self.max_tokens_by_modality: Any = mm_registry.get_max_tokens_per_item_by_modality(
            model_config, cache=self._cache, profiler_limits=self.mm_limits
        )
        self.encoder_compute_budget, self.encoder_cache_size = compute_mm_encoder_budget(
            scheduler_config, self.max_tokens_by_modality
        )
        self.max_items_per_prompt_by_modality: dict[str, int] = {}
        self.max_items_per_batch_by_modality: dict[str, int] = {}
        for modality, tokens in self.max_tokens_by_modality.items():
            per_prompt, per_batch = self.get_max_items(modality, tokens)
            self.max_items_per_prompt_by_modality[modality] = per_prompt
            self.max_items_per_batch_by_modality[modality] = per_batch

    def get_encoder_budget(self) -> int:
        """Return how many encoder tokens a step may have.

        Definition: `reference.MultiModalBudget.get_encoder_budget`.
        """
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    def get_modality_with_max_tokens(self) -> str:
        """Return the modality with the largest item; of equal ones the last by name.

        Definition: `reference.MultiModalBudget.get_modality_with_max_tokens`.
        """
        if not self.max_tokens_by_modality:
            raise ValueError("max_tokens_by_modality is empty: the model has no modalities")
        tokens: dict[str, int] = self.max_tokens_by_modality
        return max(tokens, key=lambda modality: (tokens[modality], modality))

    def get_max_items(self, modality: str, max_tokens_per_item: int) -> tuple[int, int]:
        """Return how many items of a size a prompt and a batch may have.

        Definition: `reference.MultiModalBudget.get_max_items`.
        """
        check_type("modality", modality, str, "a str")
        if modality not in self.mm_limits:
            known = sorted(self.mm_limits)
            raise KeyError(f"modality is {modality!r}, expected one of mm_limits: {known}")
        size = check_int("max_tokens_per_item", max_tokens_per_item, 0, None)
        encoder_budget = self.get_encoder_budget()
        if size == 0 or encoder_budget == 0:
            return 0, 0
        limit = check_int(f"mm_limits[{modality!r}]", self.mm_limits[modality], 0, None)
        per_prompt = max(1, min(limit, self.max_model_len // size))
        num_reqs = self.max_num_reqs
        if not self._enable_chunked_prefill:
            num_reqs = min(num_reqs, self._max_num_batched_tokens // size)
        return per_prompt, max(1, min(num_reqs * per_prompt, encoder_budget // size))

    def reset_cache(self) -> None:
        """Clear the processor cache, if there is one.

        Definition: `reference.MultiModalBudget.reset_cache`.
        """
        if self._cache is not None:
            self._cache.clear_cache()


def _check_counts(name: str, counts: object) -> int:
    """Return the greatest count of a dict by modality, 0 if it is empty; or raise."""
    check_type(name, counts, dict, "a dict")
    by_modality: Any = counts
    greatest = 0
    for modality, count in by_modality.items():
        check_type(f"a key of {name}", modality, str, "a str")
        greatest = max(greatest, check_int(f"{name}[{modality!r}]", count, 0, None))
    return greatest


def _read(config: Any, name: str, minimum: int) -> int:
    """Return an int of at least `minimum` from a configuration; `name` is the dotted path."""
    return check_int(name, getattr(config, name.partition(".")[2]), minimum, None)
