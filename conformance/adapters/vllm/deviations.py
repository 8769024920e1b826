"""vLLM's intended differences from `reference`, each with a call that shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np

import reference
from conformance.adapters.base import Deviation

SPEC: Final = reference.FullAttentionSpec(16, 8, 64, np.dtype(np.float16))

METADATA: Final = reference.CommonAttentionMetadata(
    query_start_loc=np.array([0, 2], np.int32),
    query_start_loc_cpu=np.array([0, 2], np.int32),
    seq_lens=np.array([2], np.int32),
    seq_lens_cpu=np.array([2], np.int32),
    num_computed_tokens_cpu=np.array([0], np.int32),
    num_reqs=1,
    num_actual_tokens=2,
    max_query_len=2,
    max_seq_len=2,
    block_table_tensor=np.array([[1]], np.int32),
    slot_mapping=np.array([16, 17], np.int64),
)
"""A batch of one request of two tokens."""

WHOLE: Final = reference.UBatchSlice(slice(0, 1), slice(0, 2))


def _deviations() -> Iterator[Deviation]:
    views = (
        r"shares memory with \w+\.seq_lens(_cpu)?, but should|an earlier result.*\.seq_lens"
        r"|result = elements that share memory"  # a view of lengths that are expanded
    )
    reason = (
        "a micro-batch that cuts no request has views of the runner's lengths: CUDA graphs read"
        " that buffer"
    )
    one = {"ubatch_slice": WHOLE, "attn_metadata": METADATA}
    yield Deviation("_make_metadata_with_slice", reason, one, views)
    several = {"ubatch_slices": [WHOLE], "common_attn_metadata": METADATA}
    yield Deviation("split_attn_metadata", reason, several, views)
    reason = "only mixtures of experts run in micro-batches, and no encoder-decoder model is one"
    encoded = dataclasses.replace(METADATA, encoder_seq_lens=np.array([3], np.int32))
    fails = r"encoder_seq_lens\)? = None"
    one = {"ubatch_slice": WHOLE, "attn_metadata": encoded}
    yield Deviation("_make_metadata_with_slice", reason, one, fails)
    several = {"ubatch_slices": [WHOLE], "common_attn_metadata": encoded}
    yield Deviation("split_attn_metadata", reason, several, fails)
    located = dataclasses.replace(METADATA, positions=np.array([0, 1], np.int64))
    yield Deviation(
        "make_local_attention_virtual_batches",
        "no builder of chunked local attention reads what is only needed elsewhere",
        {"attn_chunk_size": 4, "common_attn_metadata": located, "block_size": 4},
        r"(positions|is_prefilling|max_logits_per_req|req_idx)\)? = None",
    )
    held = r"result = an argument, but should be a new one"
    layers = {"layers.0.attn": reference.PerLayerParameters(-1, None, 0.5)}
    yield Deviation(
        "infer_global_hyperparameters",
        "the result is the first layer's object, which also records whether the layers agree",
        {"per_layer_params": layers},
        rf"{held}|arguments\[.*\]\.has_same_|an earlier result",
    )
    specs = {"layers.0.attn": SPEC}
    reason = "uniform specs store the dict itself: it is not changed, and they are not hashed"
    yield Deviation(
        "UniformTypeKVCacheSpecs",
        reason,
        {"block_size": 16, "kv_cache_specs": specs},
        rf"{held}|unhashable type: 'dict'",
    )
    yield Deviation("UniformTypeKVCacheSpecs.from_specs", reason, {"specs": specs}, held)


DEVIATIONS: Final = tuple(_deviations())
