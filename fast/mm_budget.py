"""How much of the encoder's work a step may hold; imported from `fast.multimodal`."""

from typing import Any

from fast._checks import check_bool, check_int, check_type


def compute_mm_encoder_budget(
    scheduler_config: Any,  # noqa: ANN401  (an engine's own config serves too)
    max_tokens_by_modality: dict[str, int],
) -> tuple[int, int]:
    """Compute how many encoder tokens a step may hold, and how many the cache.

    Both hold at least the largest item.

    Args:
        scheduler_config: `max_num_encoder_input_tokens` and `encoder_cache_size` are read, and
            whether an item must stay in one step; nothing where there are no modalities.
        max_tokens_by_modality: tokens of the largest item of each modality.

    Returns:
        The encoder tokens of a step and those that are cached; (0, 0) without modalities.

    Raises:
        TypeError: not a dict of ints by name, or a setting of another type.
        ValueError: a negative number; an item that must stay in one step and is larger than one.
        AttributeError: a configuration without what is read.

    Example:
        >>> from fast.config import SchedulerConfig
        >>> config = SchedulerConfig(
        ...     max_num_batched_tokens=2048, max_num_seqs=8, max_num_encoder_input_tokens=2048
        ... )
        >>> compute_mm_encoder_budget(config, {"image": 576, "video": 1000})
        (2048, 1000)

    Source: the definition is kvtwin's own; the name is vLLM's.
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
    """How many multimodal items a prompt and a batch may hold.

    Attributes:
        max_model_len: the longest sequence, in tokens.
        max_num_reqs: the most requests of a step.
        mm_limits: items of a prompt, by modality, the very object that the registry gave.
        max_tokens_by_modality: tokens of the largest item, by modality, likewise.
        encoder_compute_budget: encoder tokens of a step.
        encoder_cache_size: encoder outputs kept, in tokens.
        max_items_per_prompt_by_modality: items of the largest size that a prompt may hold.
        max_items_per_batch_by_modality: items of the largest size that a step may hold.

    Args:
        model_config: `max_model_len` is read, and it is handed to the registry.
        scheduler_config: `max_num_seqs`, `max_num_batched_tokens` and `enable_chunked_prefill` are
            read, and what `compute_mm_encoder_budget` reads.
        mm_registry: knows the limits and the items: `get_mm_limits_per_prompt`,
            `get_max_tokens_per_item_by_modality` and, if it has one,
            `processor_only_cache_from_config` are called.

    Raises:
        TypeError: a setting, or what the registry gives, of another type.
        ValueError: a number that is too small; what `compute_mm_encoder_budget` refuses.
        KeyError: a modality with an item size that has no limit.
        AttributeError: an object without what is read.

    Example:
        >>> from fast.config import ModelConfig, SchedulerConfig
        >>> class Registry:
        ...     def get_mm_limits_per_prompt(self, model_config, *, cache):
        ...         return {"image": 4}
        ...
        ...     def get_max_tokens_per_item_by_modality(
        ...         self, model_config, *, cache, profiler_limits
        ...     ):
        ...         return {"image": 576}
        >>> scheduler = SchedulerConfig(
        ...     max_num_batched_tokens=2048, max_num_seqs=8, encoder_cache_size=2048
        ... )
        >>> budget = MultiModalBudget(ModelConfig(max_model_len=2048), scheduler, Registry())
        >>> budget.get_encoder_budget(), budget.get_max_items("image", 100)
        (576, (4, 5))

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    def __init__(
        self,
        model_config: Any,  # noqa: ANN401  (an engine's own config serves too)
        scheduler_config: Any,  # noqa: ANN401  (likewise)
        mm_registry: Any,  # noqa: ANN401  (an engine's own registry)
    ) -> None:
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
        """Return how many encoder tokens a step may hold and the cache too.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return min(self.encoder_compute_budget, self.encoder_cache_size)

    def get_modality_with_max_tokens(self) -> str:
        """Return the modality with the largest item; of equals the last by name, on all ranks.

        Raises:
            ValueError: there are no modalities.

        Example:
            >>> budget = object.__new__(MultiModalBudget)
            >>> budget.max_tokens_by_modality = {"video": 9, "audio": 9, "image": 4}
            >>> budget.get_modality_with_max_tokens()
            'video'

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        if not self.max_tokens_by_modality:
            raise ValueError("max_tokens_by_modality is empty: the model has no modalities")
        tokens: dict[str, int] = self.max_tokens_by_modality
        return max(tokens, key=lambda modality: (tokens[modality], modality))

    def get_max_items(self, modality: str, max_tokens_per_item: int) -> tuple[int, int]:
        """Return how many items of a size a prompt and a step may hold.

        Args:
            modality: the items'.
            max_tokens_per_item: tokens of each.

        Returns:
            The items of a prompt and of a step, at least one each; (0, 0) for items of no tokens,
            or where the encoder has no budget.

        Raises:
            TypeError: a modality that is no text, or tokens that are no int.
            ValueError: a negative number of tokens.
            KeyError: a modality without a limit.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
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
        """Clear the processor's cache, if there is one.

        Example:
            >>> budget = object.__new__(MultiModalBudget)
            >>> budget._cache = None
            >>> budget.reset_cache()

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        if self._cache is not None:
            self._cache.clear_cache()


def _check_counts(name: str, counts: object) -> int:
    """Return the greatest count by modality, 0 of none.

    Raises:
        TypeError: not a dict of ints by name.
        ValueError: a negative count.
    """
    check_type(name, counts, dict, "a dict")
    by_modality: Any = counts
    greatest = 0
    for modality, count in by_modality.items():
        check_type(f"a key of {name}", modality, str, "a str")
        greatest = max(greatest, check_int(f"{name}[{modality!r}]", count, 0, None))
    return greatest


def _read(config: Any, name: str, minimum: int) -> int:  # noqa: ANN401  (an engine's own config serves too)
    """Return the int of a configuration that a name such as `scheduler_config.max_num_seqs` says.

    Raises:
        TypeError: it is no int.
        ValueError: it is below the minimum.
        AttributeError: it is not there.
    """
    return check_int(name, getattr(config, name.partition(".")[2]), minimum, None)
