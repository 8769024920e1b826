"""vLLM's intended differences from `reference`, each with a call that shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np

import reference
from conformance.adapters.base import Deviation

SPEC: Final = reference.FullAttentionSpec(16, 8, 64, np.dtype(np.float16))
STATES: Final = {"block_size": 16, "shapes": ((4,),), "dtypes": (np.dtype(np.float16),)}

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
    views = r"shares memory with \w+\.seq_lens(_cpu)?, but should|an earlier result.*\.seq_lens"
    reason = "the lengths of a micro-batch that cuts no request are views: builders only read them"
    one = {"ubatch_slice": WHOLE, "attn_metadata": METADATA}
    yield Deviation("_make_metadata_with_slice", reason, one, views)
    several = {"ubatch_slices": [WHOLE], "common_attn_metadata": METADATA}
    yield Deviation("split_attn_metadata", reason, several, views)
    reason = "no batch of an encoder-decoder model is cut into micro-batches"
    encoded = dataclasses.replace(METADATA, encoder_seq_lens=np.array([3], np.int32))
    fails = r"encoder_seq_lens\)? = None"
    one = {"ubatch_slice": WHOLE, "attn_metadata": encoded}
    yield Deviation("_make_metadata_with_slice", reason, one, fails)
    several = {"ubatch_slices": [WHOLE], "common_attn_metadata": encoded}
    yield Deviation("split_attn_metadata", reason, several, fails)
    whole = {"positions": np.array([0, 1], np.int64), "is_prefilling": np.array([True])}
    yield Deviation(
        "make_local_attention_virtual_batches",
        "no builder of chunked local attention reads positions or is_prefilling",
        {
            "attn_chunk_size": 4,
            "common_attn_metadata": dataclasses.replace(METADATA, **whole),
            "block_size": 4,
        },
        r"(positions|is_prefilling)\)? = None",
    )
    layers = {"layers.0.attn": reference.PerLayerParameters(-1, None, 0.5)}
    yield Deviation(
        "infer_global_hyperparameters",
        "the result is the first layer's object, which also records whether the layers agree",
        {"per_layer_params": layers},
        r"result = an argument, but should be a new one|has_same_|an earlier result",
    )
    held = r"result = an argument, but should be a new one"
    specs = {"layers.0.attn": SPEC}
    reason = "uniform specs store the dict itself, not a copy: it is not changed afterwards"
    yield Deviation(
        "UniformTypeKVCacheSpecs",
        reason,
        {"block_size": 16, "kv_cache_specs": specs},
        held,
    )
    yield Deviation("UniformTypeKVCacheSpecs.from_specs", reason, {"specs": specs}, held)
    yield Deviation(
        "MambaSpec",
        "mamba_type is an enum",
        STATES,
        r"mamba_type\)? = a MambaAttentionBackendEnum",
    )


DEVIATIONS: Final = tuple(_deviations())
