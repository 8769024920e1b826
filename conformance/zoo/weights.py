"""The memory that a model's weights take on each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from conformance.zoo.config_json import ConfigJson
from conformance.zoo.parameters import COUNTS, Weights, WeightSharding, attention, times

QUANTIZED = frozenset(
    {WeightSharding.RANKS, WeightSharding.KV_HEADS, WeightSharding.EXPERTS, WeightSharding.COPIES}
)

BITS: Mapping[str, float] = MappingProxyType(
    {
        "float32": 32,
        "bfloat16": 16,
        "float16": 16,
        "fp8": 8,
        "int8": 8,
        "nvfp4": 4 + 8 / 16,
        "mxfp4": 4 + 8 / 32,
        "int4": 4 + 16 / 128,
    }
)
"""Bits of a quantized parameter by dtype.

The four-bit formats include their scales: 8 bits for 16 parameters, 8 bits for 32, 16 bits for 128.
Those of the eight-bit formats, at most one for each row or block of 128 by 128, are left out.
"""


def count_weights(config: ConfigJson) -> Weights:
    """Count the weights of a model, by `WeightSharding`.

    Example:
        >>> fields = {"model_type": "llama", "num_hidden_layers": 32, "vocab_size": 128_256}
        >>> sizes = {"hidden_size": 4096, "intermediate_size": 14_336}
        >>> heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
        >>> count_weights(ConfigJson("Llama 3.1 8B", fields | sizes | heads)).total()
        8030261248
    """
    weights = COUNTS[config.model_type](config)
    kept = (config.get("quantization_config") or {}).get("modules_to_not_convert") or ()
    if any("self_attn" in name for name in kept):
        attended = times(config.count("num_hidden_layers"), attention(config))
        weights = weights - attended + Counter({WeightSharding.ATTENTION: attended.total()})
    return weights


def published_dtype(config: ConfigJson) -> str | None:
    """Return the dtype in which a model's weights are published, one of `BITS`; None: unknown.

    Example:
        >>> published_dtype(ConfigJson("", {"torch_dtype": "bfloat16", "model_type": "llama"}))
        'bfloat16'
    """
    quantization = config.get("quantization_config")
    if quantization is None:
        return str(config.require("torch_dtype", "dtype"))
    bits = quantization.get("bits", quantization.get("w_bit"))
    method = quantization.get("quant_method")
    dtype = {4: "int4", 8: "int8"}.get(bits) if method in ("awq", "gptq") else method
    return dtype if dtype in BITS else None


def weight_bytes(
    weights: Weights,
    weights_dtype: str,
    itemsize: int,
    *,
    ranks: int = 1,
    kv_head_copies: int = 1,
    replicas: int = 1,
) -> int:
    """Return the bytes of the weights on each device.

    Args:
        weights: The parameters.
        weights_dtype: The dtype of quantized parameters, one of `BITS`.
        itemsize: Bytes of a parameter that is not quantized.
        ranks: Tensor-parallel ranks.
        kv_head_copies: Ranks that have the same KV head.
        replicas: Engines of data parallelism, which share experts.

    Example:
        >>> weight_bytes(
        ...     Counter({WeightSharding.RANKS: 100, WeightSharding.OTHER: 8}), "fp8", 2, ranks=2
        ... )
        66
    """
    devices = {
        WeightSharding.RANKS: ranks,
        WeightSharding.ATTENTION: ranks,
        WeightSharding.EMBEDDINGS: ranks,
        WeightSharding.KV_HEADS: ranks / kv_head_copies,
        WeightSharding.EXPERTS: ranks * replicas,
    }
    bits = sum(
        number
        / devices.get(share, 1)
        * (BITS[weights_dtype] if share in QUANTIZED else 8 * itemsize)
        for share, number in weights.items()
    )
    return int(-(-bits // 8))
