"""The layers of attention-only architectures, from the fields of a model's `config.json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from conformance.zoo.config_json import ConfigJson
from conformance.zoo.layer import (
    CHUNKED_LOCAL,
    CROSS,
    ENCODER_ONLY,
    FULL,
    LATENT,
    MAMBA,
    SLIDING_WINDOW,
    Layer,
)

KINDS = {
    "full_attention": FULL,
    "sliding_attention": SLIDING_WINDOW,
    "chunked_attention": CHUNKED_LOCAL,
    "linear_attention": MAMBA,
}
"""The kinds of layers by their name in `layer_types`."""


def attention(config: ConfigJson, kind: str) -> Layer:
    """Return an attention layer without its name."""
    return Layer(
        name="",
        kind=kind,
        num_query_heads=config.count("num_attention_heads"),
        num_kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        scale=float(config.get("query_pre_attn_scalar", config.head_dim)) ** -0.5,
        sliding_window=config.count("sliding_window") if kind == SLIDING_WINDOW else None,
        attention_chunk_size=config.count("attention_chunk_size")
        if kind == CHUNKED_LOCAL
        else None,
        logits_soft_cap=config.get("attn_logit_softcapping"),
    )


def layer_kinds(config: ConfigJson, is_full: Callable[[int], bool], other: str) -> list[str]:
    """Return the kind of each layer: from `layer_types` if the file has it, else from a pattern."""
    num_layers = config.count("num_hidden_layers")
    listed = config.get("layer_types")
    if listed is None:
        return [FULL if is_full(number) else other for number in range(num_layers)]
    for kind in listed:
        if kind not in KINDS:
            raise ValueError(
                f"{config.source}: layer_types has {kind!r}, expected one of {', '.join(KINDS)}"
            )
    if len(listed) != num_layers:
        raise ValueError(
            f"{config.source}: layer_types has {len(listed)} entries, expected {num_layers}, as "
            "many as num_hidden_layers"
        )
    return [KINDS[kind] for kind in listed]


def _named(name: str, kinds: Sequence[str], make: Callable[[str], Layer]) -> list[Layer]:
    """Return layers of these kinds, with numbers in their names."""
    return [replace(make(kind), name=name.format(i)) for i, kind in enumerate(kinds)]


ATTENTION = "model.layers.{}.self_attn.attn"


def full_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of a Llama-like model: full, or from some layer on a sliding window."""
    window = config.get("sliding_window") if config.model_type != "llama" else None
    first_window = 0
    if config.model_type == "qwen2":
        if config.get("use_sliding_window"):
            first_window = config.count("max_window_layers")
        else:
            window = None
    kinds = layer_kinds(config, lambda i: window is None or i < first_window, SLIDING_WINDOW)
    return _named(ATTENTION, kinds, partial(attention, config))


def every_nth_full(config: ConfigJson, n: int, *, prefix: str = "model.") -> list[Layer]:
    """Return layers in which every n-th has full attention and the others a sliding window."""
    kinds = layer_kinds(config, lambda i: (i + 1) % n == 0, SLIDING_WINDOW)
    return _named(prefix + ATTENTION.removeprefix("model."), kinds, partial(attention, config))


def gemma3_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Gemma 3, text-only or multimodal."""
    prefix = "model." if config.fields.get("text_config") is None else "language_model.model."
    return every_nth_full(config, config.count("sliding_window_pattern"), prefix=prefix)


def gemma3n_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Gemma 3n: the last ones share the last own cache of their kind."""
    layers = [
        replace(layer, scale=1.0)  # queries and keys are normalised
        for layer in every_nth_full(config, 5, prefix="model.language_model.")
    ]
    num_own = len(layers) - int(config.require("num_kv_shared_layers"))
    last = {layer.kind: layer.name for layer in layers[:num_own]}
    return [
        *layers[:num_own],
        *(replace(layer, kv_sharing_target=last[layer.kind]) for layer in layers[num_own:]),
    ]


def gpt_oss_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of gpt-oss, whose heads have sinks."""
    return [replace(layer, has_sinks=True) for layer in every_nth_full(config, 2)]


def llama4_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Llama 4: those with rotary embeddings attend within chunks."""
    interval = config.count("no_rope_layer_interval")
    listed = config.get("no_rope_layers") or [
        int((i + 1) % interval != 0) for i in range(config.count("num_hidden_layers"))
    ]
    kinds = layer_kinds(config, lambda i: not listed[i], CHUNKED_LOCAL)
    name = "language_model." + ATTENTION
    return _named(name, kinds, partial(attention, config))


def _latent(config: ConfigJson) -> Layer:
    """Return a layer of multi-head latent attention."""
    rope = config.count("qk_rope_head_dim")
    scaling = config.get("rope_scaling") or {}
    mscale = 1.0
    if scaling.get("mscale_all_dim"):
        mscale += 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"])
    return Layer(
        name="",
        kind=LATENT,
        backend="FLASH_ATTN_MLA",
        num_query_heads=config.count("num_attention_heads"),
        num_kv_heads=1,
        head_size=config.count("kv_lora_rank") + rope,
        scale=float(config.count("qk_nope_head_dim") + rope) ** -0.5 * mscale**2,
    )


def deepseek_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of DeepSeek V3."""
    return _named(
        ATTENTION, [LATENT] * config.count("num_hidden_layers"), lambda _: _latent(config)
    )


def deepseek_v32_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of DeepSeek V3.2: MLA, and an indexer's keys.

    An indexer's key has float8 elements and one float32 scale. 8-bit latents have the format of
    FlashMLA, `fp8_ds_mla`.
    """
    index_head_dim = config.count("index_head_dim")
    indexer = Layer(
        name="model.layers.{}.self_attn.indexer.k_cache",
        kind=LATENT,
        backend="DEEPSEEK_V32_INDEXER",
        num_query_heads=config.count("index_n_heads"),
        num_kv_heads=1,
        head_size=index_head_dim + 4,
        scale=float(index_head_dim) ** -0.5,
        dtype="uint8",
    )
    return [
        module
        for i, layer in enumerate(deepseek_layers(config))
        for module in (
            replace(layer, backend="FLASHMLA_SPARSE", fp8_format="fp8_ds_mla"),
            replace(indexer, name=indexer.name.format(i)),
        )
    ]


def longcat_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of LongCat Flash, each of two MLA modules."""
    latent = _latent(config)
    return [
        replace(latent, name=f"model.layers.{i}.self_attn.{module}.attn")
        for i in range(config.count("num_layers"))
        for module in (0, 1)
    ]


def whisper_layers(config: ConfigJson) -> list[Layer]:
    """Return the layers of Whisper: encoder, decoder self-attention, and cross attention."""
    heads = config.count("decoder_attention_heads")
    head_size = config.count("d_model") // heads
    layer = Layer(
        name="",
        kind=FULL,
        num_query_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        scale=head_size**-0.5,
    )
    return [
        replace(layer, name=f"model.{part}.layers.{i}.{module}.attn", kind=kind)
        for part, module, kind in (
            ("encoder", "self_attn", ENCODER_ONLY),
            ("decoder", "self_attn", FULL),
            ("decoder", "encoder_attn", CROSS),
        )
        for i in range(config.count(f"{part}_layers"))
    ]
