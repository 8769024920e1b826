"""The parameters of each architecture, counted from the fields of a model's `config.json`.

Only the language model of a multimodal model is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from conformance.zoo.config_json import ConfigJson


class WeightSharding(Enum):
    """How tensor parallelism and quantization treat a matrix.

    The matrices of layers are quantized; all others keep the model's dtype.
    """

    RANKS = "divided by the ranks of tensor parallelism"
    KV_HEADS = "divided as KV heads are"
    EXPERTS = "divided by all ranks, those of data parallelism included"
    COPIES = "whole on each rank"
    ATTENTION = "divided by the ranks; keeps the model's dtype"
    EMBEDDINGS = "divided by the ranks; keeps the model's dtype, as most checkpoints have it"
    OTHER = "whole on each rank; keeps the model's dtype: norms, biases, routers, convolutions"


Weights: TypeAlias = Counter[WeightSharding]
"""Numbers of parameters."""


def attention(config: ConfigJson, *, gate: bool = False) -> Weights:
    """Count the projections of attention; with `gate`, queries have a gate of the same size."""
    hidden, head_dim = config.count("hidden_size"), config.head_dim
    queries = config.count("num_attention_heads") * head_dim
    keys = config.num_key_value_heads * head_dim
    return Counter(
        {
            WeightSharding.RANKS: hidden * queries * (3 if gate else 2),
            WeightSharding.KV_HEADS: 2 * hidden * keys,
        }
    )


def attention_biases(config: ConfigJson, *, output: bool) -> Weights:
    """Count the biases of the projections of attention; `output` includes the last projection."""
    heads = config.count("num_attention_heads") + 2 * config.num_key_value_heads
    biases = heads * config.head_dim + (config.count("hidden_size") if output else 0)
    return Counter({WeightSharding.OTHER: biases})


def mlp(config: ConfigJson, field: str = "intermediate_size", *, matrices: int = 3) -> Weights:
    """Count an MLP, or a shared expert, whose inner size is in a field."""
    return Counter(
        {WeightSharding.RANKS: matrices * config.count("hidden_size") * config.count(field)}
    )


def experts(config: ConfigJson, number: str, field: str, *, num_idle: int = 0) -> Weights:
    """Count a layer's experts and their router, which also routes to `num_idle` zero experts."""
    hidden, count = config.count("hidden_size"), config.count(number)
    return Counter(
        {
            WeightSharding.EXPERTS: count * 3 * hidden * config.count(field),
            WeightSharding.OTHER: (count + num_idle) * hidden,
        }
    )


def times(count: int, weights: Weights) -> Weights:
    """Return the weights of so many equal layers."""
    return Counter({share: count * number for share, number in weights.items()})


def other(number: int) -> Weights:
    """Return so many parameters of norms and the like."""
    return Counter({WeightSharding.OTHER: number})


def with_embeddings(config: ConfigJson, layers: Weights) -> Weights:
    """Add the embeddings, the last projection unless it is tied to them, and the last norm."""
    hidden = config.count("hidden_size")
    tables = 1 if config.get("tie_word_embeddings") else 2
    embeddings = Counter({WeightSharding.EMBEDDINGS: tables * config.count("vocab_size") * hidden})
    return layers + embeddings + other(hidden)


def dense_weights(config: ConfigJson) -> Weights:
    """Count Llama, Mistral, Qwen2 and Phi-3: attention and an MLP in each layer."""
    hidden = config.count("hidden_size")
    layer = attention(config) + mlp(config) + other(2 * hidden)
    if config.model_type == "qwen2" or config.get("attention_bias"):
        layer += attention_biases(config, output=config.model_type != "qwen2")
    if config.get("mlp_bias"):
        layer += other(2 * config.count("intermediate_size") + hidden)
    return with_embeddings(config, times(config.count("num_hidden_layers"), layer))


def gemma_weights(config: ConfigJson) -> Weights:
    """Count Gemma 2 and 3: four norms in each layer, and from 3 on norms of queries and keys."""
    norms = 4 * config.count("hidden_size")
    norms += 0 if config.model_type == "gemma2" else 2 * config.head_dim
    layer = attention(config) + mlp(config) + other(norms)
    return with_embeddings(config, times(config.count("num_hidden_layers"), layer))


def gemma3n_weights(config: ConfigJson) -> Weights:
    """Count Gemma 3n, which has per-layer embeddings, AltUp and Laurel."""
    hidden, num_layers = config.count("hidden_size"), config.count("num_hidden_layers")
    inputs, rank = config.count("altup_num_inputs"), config.count("laurel_rank")
    per_layer = config.count("hidden_size_per_layer_input")
    sizes = config.require("intermediate_size")
    sizes = sizes if isinstance(sizes, list) else [sizes] * num_layers
    norms = 8 * hidden + 2 * config.head_dim  # with those of AltUp and Laurel
    small = hidden * inputs + inputs**2 + inputs**3 + 2 * hidden * rank
    layer = attention(config) + other(norms + small)
    layer[WeightSharding.RANKS] += 2 * hidden * per_layer
    found = times(num_layers, layer)
    found[WeightSharding.RANKS] += 3 * hidden * sum(sizes)
    found[WeightSharding.COPIES] += hidden * num_layers * per_layer + 2 * (inputs - 1) * hidden**2
    vocab = config.count("vocab_size_per_layer_input")
    found[WeightSharding.EMBEDDINGS] += vocab * num_layers * per_layer
    return with_embeddings(config, found + other(per_layer))


def gpt_oss_weights(config: ConfigJson) -> Weights:
    """Count gpt-oss: experts with biases; heads with sinks."""
    hidden, inner = config.count("hidden_size"), config.count("intermediate_size")
    count = config.count("num_local_experts")
    layer = attention(config) + experts(config, "num_local_experts", "intermediate_size")
    layer += attention_biases(config, output=True)
    layer += other(config.count("num_attention_heads") + 2 * hidden)
    layer += other(count * (2 * inner + hidden + 1))
    return with_embeddings(config, times(config.count("num_hidden_layers"), layer))


def llama4_weights(config: ConfigJson) -> Weights:
    """Count Llama 4: experts and a shared expert in each layer, or in each second one."""
    num_layers, step = config.count("num_hidden_layers"), config.count("interleave_moe_layer_step")
    listed = config.get("moe_layers") or range(step - 1, num_layers, step)
    num_sparse = len(listed)
    layer = attention(config) + other(2 * config.count("hidden_size"))
    sparse = experts(config, "num_local_experts", "intermediate_size") + mlp(config)
    found = times(num_layers, layer) + times(num_sparse, sparse)
    if num_sparse < num_layers:
        found += times(num_layers - num_sparse, mlp(config, "intermediate_size_mlp"))
    return with_embeddings(config, found)


def latent_attention(config: ConfigJson) -> Weights:
    """Count the projections of multi-head latent attention, and the norms of the latents."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    value, latent = config.count("v_head_dim"), config.count("kv_lora_rank")
    q_rank = config.get("q_lora_rank")
    queries = heads * (nope + rope)
    found = Counter(
        {
            WeightSharding.COPIES: hidden * (latent + rope),
            WeightSharding.RANKS: heads * (latent * (nope + value) + value * hidden),
            WeightSharding.OTHER: latent,
        }
    )
    if q_rank is None:
        return found + Counter({WeightSharding.RANKS: hidden * queries})
    down = Counter({WeightSharding.COPIES: hidden * q_rank, WeightSharding.OTHER: q_rank})
    return found + down + Counter({WeightSharding.RANKS: q_rank * queries})


def deepseek_weights(config: ConfigJson) -> Weights:
    """Count DeepSeek V3 and V3.2, without the multi-token prediction module."""
    hidden, num_layers = config.count("hidden_size"), config.count("num_hidden_layers")
    num_dense = int(config.require("first_k_dense_replace"))
    layer = latent_attention(config) + other(2 * hidden)
    if config.model_type == "deepseek_v32":
        heads, size = config.count("index_n_heads"), config.count("index_head_dim")
        indexer = config.count("q_lora_rank") * heads * size + hidden * (size + heads)
        layer += Counter({WeightSharding.COPIES: indexer}) + other(2 * size)
    sparse = experts(config, "n_routed_experts", "moe_intermediate_size")
    sparse += other(config.count("n_routed_experts"))
    sparse += times(config.count("n_shared_experts"), mlp(config, "moe_intermediate_size"))
    found = times(num_layers, layer) + times(num_dense, mlp(config))
    return with_embeddings(config, found + times(num_layers - num_dense, sparse))


def longcat_weights(config: ConfigJson) -> Weights:
    """Count LongCat Flash: a layer has two attentions, two MLPs, and one set of experts."""
    num_idle = config.count("zero_expert_num")
    layer = times(2, latent_attention(config) + mlp(config, "ffn_hidden_size"))
    layer += other(4 * config.count("hidden_size"))
    layer += experts(config, "n_routed_experts", "expert_ffn_hidden_size", num_idle=num_idle)
    layer += other(config.count("n_routed_experts") + num_idle)
    return with_embeddings(config, times(config.count("num_layers"), layer))


def qwen3_next_weights(config: ConfigJson) -> Weights:
    """Count Qwen3-Next, without the multi-token prediction module."""
    hidden, num_layers = config.count("hidden_size"), config.count("num_hidden_layers")
    key_heads, value_heads = (config.count(f"linear_num_{x}_heads") for x in ("key", "value"))
    value_dim = config.count("linear_value_head_dim")
    keys, values = key_heads * config.count("linear_key_head_dim"), value_heads * value_dim
    linear = Counter({WeightSharding.RANKS: hidden * (2 * keys + 3 * values + 2 * value_heads)})
    kernel = config.count("linear_conv_kernel_dim")
    linear += other((2 * keys + values) * kernel + 2 * value_heads + value_dim)
    full = attention(config, gate=True) + other(2 * config.head_dim)
    num_full = num_layers // config.count("full_attention_interval")
    layer = experts(config, "num_experts", "moe_intermediate_size") + other(3 * hidden)
    layer += mlp(config, "shared_expert_intermediate_size")
    found = times(num_full, full) + times(num_layers - num_full, linear)
    return with_embeddings(config, found + times(num_layers, layer))


def jamba_weights(config: ConfigJson) -> Weights:
    """Count Jamba: Mamba or attention, and an MLP or experts."""
    hidden, num_layers = config.count("hidden_size"), config.count("num_hidden_layers")
    inner, size = config.count("mamba_expand") * hidden, config.count("mamba_d_state")
    rank = config.get("mamba_dt_rank", -(-hidden // 16))
    rank = -(-hidden // 16) if rank == "auto" else rank
    mamba = Counter({WeightSharding.RANKS: inner * (3 * hidden + rank + 2 * size + rank)})
    mamba += other(inner * (config.count("mamba_d_conv") + 3 + size) + rank + 2 * size)
    period, offset = (int(config.require(f"attn_layer_{x}")) for x in ("period", "offset"))
    num_full = len(range(offset, num_layers, period))
    period, offset = (int(config.require(f"expert_layer_{x}")) for x in ("period", "offset"))
    num_sparse = len(range(offset, num_layers, period))
    found = times(num_full, attention(config)) + times(num_layers - num_full, mamba)
    found += times(num_sparse, experts(config, "num_experts", "intermediate_size"))
    found += times(num_layers - num_sparse, mlp(config)) + other(2 * hidden * num_layers)
    return with_embeddings(config, found)


def nemotron_h_weights(config: ConfigJson) -> Weights:
    """Count Nemotron-H: Mamba-2, attention, or an MLP of two matrices in each layer."""
    hidden, heads = config.count("hidden_size"), config.count("mamba_num_heads")
    inner = heads * config.count("mamba_head_dim")
    states = 2 * config.count("n_groups", "mamba_n_groups") * config.count("ssm_state_size")
    mamba = Counter({WeightSharding.RANKS: hidden * (3 * inner + states + heads)})
    mamba += other((inner + states) * (config.count("conv_kernel") + 1) + 3 * heads + inner)
    kinds = {"M": mamba, "*": attention(config), "-": mlp(config, matrices=2)}
    pattern = config.require("hybrid_override_pattern")
    unknown = sorted(set(pattern) - set(kinds))
    if unknown:
        raise ValueError(
            f"{config.source}: hybrid_override_pattern has {unknown[0]!r}, whose weights the "
            f"planner cannot count; it supports {', '.join(kinds)}"
        )
    found = other(hidden * len(pattern))
    for letter, count in Counter(pattern).items():
        found += times(count, kinds[letter])
    return with_embeddings(config, found)


def whisper_weights(config: ConfigJson) -> Weights:
    """Count Whisper: encoder and decoder."""
    width = config.count("d_model")
    attentions = Counter(
        {WeightSharding.RANKS: 2 * width**2, WeightSharding.KV_HEADS: 2 * width**2}
    )
    attentions += other(3 * width)
    norm = other(2 * width)

    def part(name: str, num_attentions: int) -> Weights:
        inner = config.count(f"{name}_ffn_dim")
        layer = times(num_attentions, attentions + norm) + norm
        layer += Counter({WeightSharding.RANKS: 2 * width * inner}) + other(inner + width)
        return times(config.count(f"{name}_layers"), layer) + norm

    convolutions = other(3 * width * (config.count("num_mel_bins") + width) + 2 * width)
    rows = config.count("max_source_positions") + config.count("max_target_positions")
    embeddings = Counter({WeightSharding.EMBEDDINGS: config.count("vocab_size") * width})
    found = part("encoder", 1) + part("decoder", 2) + convolutions
    return found + embeddings + other(rows * width)


COUNTS: Mapping[str, Callable[[ConfigJson], Weights]] = MappingProxyType(
    {
        "llama": dense_weights,
        "qwen2": dense_weights,
        "mistral": dense_weights,
        "phi3": dense_weights,
        "gemma2": gemma_weights,
        "gemma3_text": gemma_weights,
        "gemma3n_text": gemma3n_weights,
        "gpt_oss": gpt_oss_weights,
        "llama4_text": llama4_weights,
        "deepseek_v3": deepseek_weights,
        "deepseek_v32": deepseek_weights,
        "longcat_flash": longcat_weights,
        "qwen3_next": qwen3_next_weights,
        "jamba": jamba_weights,
        "nemotron_h": nemotron_h_weights,
        "whisper": whisper_weights,
    }
)
"""Functions that count weights, by the `model_type` of a `config.json` or of its `text_config`."""
