"""Models whose layers keep one latent for all heads (MLA), in one or two modules of a layer."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

from conformance.zoo.layer import LATENT, Layer, repeat
from conformance.zoo.model import Model

LATENT_SIZE = 512 + 64
"""`kv_lora_rank` and `qk_rope_head_dim`."""
QUERY_SIZE = 128 + 64
"""`qk_nope_head_dim` and `qk_rope_head_dim`: what scores are scaled by."""
YARN_SCALE = 0.1 * math.log(40) + 1
"""Of DeepSeek's `rope_scaling`: factor 40, mscale_all_dim 1."""

DEEPSEEK_V3 = Layer(
    name="model.layers.{}.self_attn.attn",
    kind=LATENT,
    backend="FLASHMLA",
    num_query_heads=128,
    num_kv_heads=1,
    head_size=LATENT_SIZE,
    scale=QUERY_SIZE**-0.5 * YARN_SCALE**2,
)
DEEPSEEK_V3_2 = replace(
    DEEPSEEK_V3, backend="FLASHMLA_SPARSE", dtype="uint8", cache_dtype_str="fp8_ds_mla"
)
INDEXER = Layer(
    name="model.layers.{}.self_attn.indexer.k_cache",
    kind=LATENT,
    backend="DEEPSEEK_V32_INDEXER",
    num_query_heads=64,
    num_kv_heads=1,
    head_size=128 + 4,  # a key of float8s, and one float32 that scales it
    scale=128**-0.5,
    dtype="uint8",
)
LONGCAT = replace(DEEPSEEK_V3, num_query_heads=64, scale=QUERY_SIZE**-0.5)
LONGCAT_FIRST = replace(LONGCAT, name="model.layers.{}.self_attn.0.attn")
LONGCAT_SECOND = replace(LONGCAT, name="model.layers.{}.self_attn.1.attn")


def _two_by_two(first: Layer, second: Layer, count: int) -> tuple[Layer, ...]:
    """Return both modules of each of so many layers."""
    pairs = zip(repeat((first,), count), repeat((second,), count), strict=True)
    return tuple(chain.from_iterable(pairs))


LATENT_MODELS = (
    Model(
        name="deepseek-v3",
        published_as="deepseek-ai/DeepSeek-V3",
        source="config.json at the hub; DeepSeek-V3 Technical Report (arXiv 2412.19437), "
        "section 4.2",
        layers=repeat((DEEPSEEK_V3,), 61),
        max_context_tokens=163_840,
    ),
    Model(
        name="deepseek-v3.2-exp",
        published_as="deepseek-ai/DeepSeek-V3.2-Exp",
        source="config.json at the hub (index_head_dim: 128, index_n_heads: 64); the format of "
        "656 bytes: 512 float8s, 4 float32 scales, 64 bfloat16s of the rotary part (FlashMLA)",
        layers=_two_by_two(DEEPSEEK_V3_2, INDEXER, 61),
        max_context_tokens=163_840,
    ),
    Model(
        name="longcat-flash",
        published_as="meituan-longcat/LongCat-Flash-Chat",
        source="config.json at the hub; LongCat-Flash Technical Report (arXiv 2509.01322), "
        "section 2: 28 layers of two MLA modules each",
        layers=_two_by_two(LONGCAT_FIRST, LONGCAT_SECOND, 28),
        max_context_tokens=131_072,
        num_attn_module=2,
    ),
)
"""In the order in which they are listed."""
