"""Model inputs other than attention metadata; each function returns results by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.model_runner.batch import Batch
from conformance.model_runner.buffers import NUM_TP_RANKS
from conformance.targets.mm_registries import Cache, CachingRegistry
from conformance.targets.target import Answer, Target

NUM_HEADS, HEAD_DIM = 2, 3
"""The sizes of made-up queries."""
EMBED_DTYPES = ("bfloat16", "float32", "float8_e4m3fn", "float16", "float8_e5m2", "float64")
MAX_PLACEHOLDERS = 40
"""The most tokens of the made-up item."""


def prefill_fast(target: Target, batch: Batch) -> dict[str, Answer]:
    """Reduce the batch to the tokens with logits, and build the metadata of fast-prefill layers.

    Each request needs the logits of its last token. A batch of one token each is returned itself.
    """
    batches = [metadata for _, metadata in batch.rotating_groups]
    make = "make_kv_sharing_fast_prefill_common_attn_metadata"
    cut = [target.call(make, metadata) for metadata in batches]
    number = batch.rotating_group
    builder = target.method(batch.fast_prefill[number], "get_metadata_builder")
    built = target.method(builder, "build", 0, batch.metadata[number])
    has_logits_fields = target.find("KVSharingFastPrefillMetadata")
    return {
        "logits_tokens": cut,
        "logits_tokens_are_all": [a is b for a, b in zip(cut, batches, strict=True)],
        "fast_prefill_metadata": built,
        "fast_prefill_fields": isinstance(built, has_logits_fields),
    }


def list_convolution_programs(target: Target, batch: Batch) -> dict[str, Answer]:
    """List the programs of a causal convolution over the tokens of extends and prefills."""
    if batch.num_decodes == batch.num_reqs:
        return {}
    prefills = slice(batch.num_decodes, batch.num_reqs)
    starts = batch.metadata[batch.rotating_group].query_start_loc
    own_starts = target.call("slice_query_start_locs", starts, prefills)
    return {"convolution": target.call("compute_causal_conv1d_metadata", own_starts)}


def reshape_speculative_queries(target: Target, batch: Batch) -> dict[str, Answer]:
    """View the queries of decodes, all with as many drafts, request by request, and back.

    Nothing is copied, so a write to the last token is visible in all results.
    """
    num_reqs, query_len = batch.uniform_decodes
    if num_reqs == 0:
        return {}
    shape = (batch.num_tokens, NUM_HEADS, HEAD_DIM)
    queries = target.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    of_decodes = queries[: num_reqs * query_len]
    by_request = target.call("reshape_query_for_spec_decode", of_decodes, num_reqs)
    by_token = target.call("reshape_attn_output_for_spec_decode", by_request)
    by_token[-1] = -1
    return {
        "speculative_queries": of_decodes,
        "speculative_queries_by_request": by_request,
        "speculative_outputs": by_token,
        "speculative_outputs_as_they_were": target.call(
            "reshape_attn_output_for_spec_decode", by_token
        ),
    }


def fill_placeholders(target: Target, batch: Batch) -> dict[str, Answer]:
    """Scatter a made-up item into the longest request's tokens, and gather a later chunk of it.

    In every fourth step each of its tokens is an embedding, and it has no mask.
    """
    _, start, stop = batch.longest_request
    num_placeholders = min(stop - start, MAX_PLACEHOLDERS)
    is_embed = np.arange(num_placeholders) % 5 != batch.step_index % 5  # an image ends its lines
    dtype = target.dtype(EMBED_DTYPES[batch.step_index % len(EMBED_DTYPES)])
    has_mask = batch.step_index % 4 != 3
    num_embeds = int(is_embed.sum()) if has_mask else num_placeholders
    row_bytes = dtype.itemsize * (1, 5, 16)[batch.step_index % 3]
    data = (np.arange(num_embeds * row_bytes) * 37 + batch.step_index) % 251
    embeds = target.array(data.astype(np.uint8).reshape(num_embeds, row_bytes)).view(dtype)
    target.call("sanity_check_mm_encoder_outputs", [embeds], 1)
    mask = target.array(is_embed) if has_mask else None
    placeholders = target.call("scatter_mm_placeholders", embeds, mask)
    chunk = slice(num_placeholders // 3, num_placeholders)
    mask_of_chunk = None if mask is None else mask[chunk]
    return {
        "placeholders": placeholders,
        "gathered_embeds": target.call(
            "gather_mm_placeholders", placeholders[chunk], mask_of_chunk
        ),
    }


def scatter_residual(target: Target, batch: Batch) -> dict[str, Answer]:
    """Check whether the residual is scattered over ranks, for tokens that they divide evenly."""
    num_tokens = -(-batch.num_padded_tokens // NUM_TP_RANKS) * NUM_TP_RANKS
    is_scattered = target.call("is_residual_scattered_for_sp", batch.config, num_tokens)
    return {"residual_is_scattered": is_scattered}


DERIVATIONS: tuple[Callable[[Target, Batch], dict[str, Answer]], ...] = (
    prefill_fast,
    list_convolution_programs,
    reshape_speculative_queries,
    fill_placeholders,
    scatter_residual,
)
"""All derivations, in the order in which a runner makes them."""


MAX_ITEMS = {"image": 8, "video": 1, "audio": 3}
"""The most items of a prompt, by modality."""
LARGEST_ITEMS = {"video": 1568, "image": 576, "audio": 1568}
"""In tokens. Two modalities tie for the largest: video comes first here, audio by alphabet."""
SMALL_ITEM_TOKENS = 64


def make_budget(target: Target, config: Answer) -> dict[str, Answer]:
    """Make a `MultiModalBudget`, call all its methods, and return their results by name.

    Example:
        >>> import reference
        >>> from conformance.targets.target import REFERENCE
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
    registry = CachingRegistry(dict(MAX_ITEMS), dict(LARGEST_ITEMS), cache)
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
            for modality in MAX_ITEMS
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
