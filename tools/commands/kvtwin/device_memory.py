"""The part of a device's memory that is left for its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from conformance.zoo.layer import LATENT, MAMBA
from conformance.zoo.serving import Serving
from conformance.zoo.weights import BITS, weight_bytes

GIB = 2**30
MAX_RANKS = 1024
"""The most ranks that an error message suggests."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of each device.

    Attributes:
        gpu_bytes: The total.
        utilization: The part that the engine takes, 0 to 1.
        weights_bytes: The weights of the language model.
        weights_dtype: Their dtype.
        reserve_bytes: For activations, CUDA graphs and all that is not counted.
    """

    gpu_bytes: int
    utilization: float
    weights_bytes: int
    weights_dtype: str
    reserve_bytes: int

    @property
    def cache_bytes(self) -> int:
        """The bytes left for the KV cache; negative if the weights do not fit."""
        return int(self.gpu_bytes * self.utilization) - self.weights_bytes - self.reserve_bytes


def make_device_memory(
    serving: Serving,
    *,
    gpu_bytes: int,
    utilization: float,
    weights_dtype: str | None,
    reserve_bytes: int,
    data_parallel_size: int = 1,
) -> DeviceMemory:
    """Return how the memory of each device is divided.

    Args:
        serving: The model, and how it is served.
        gpu_bytes: The memory of a device.
        utilization: The part of it that the engine takes.
        weights_dtype: The dtype of quantized weights, one of `BITS`; None: as published.
        reserve_bytes: For activations, CUDA graphs and all that is not counted.
        data_parallel_size: Engines that share experts.

    Raises:
        ValueError: The weights do not fit: the message says by how much. An unknown dtype.
    """
    dtype = weights_dtype or serving.model.weights_dtype
    if dtype is None:
        raise ValueError(
            f"{serving.model.name} is published in a quantization that is not known here, so "
            f"--weights-dtype must be one of {', '.join(BITS)}"
        )
    memory = DeviceMemory(
        gpu_bytes=gpu_bytes,
        utilization=utilization,
        weights_bytes=_weights_bytes(serving, dtype, data_parallel_size),
        weights_dtype=dtype,
        reserve_bytes=reserve_bytes,
    )
    if memory.cache_bytes <= 0:
        available = int(gpu_bytes * utilization) - reserve_bytes
        raise ValueError(
            f"the weights of {serving.model.name} take {memory.weights_bytes / GIB:,.1f} GiB of "
            f"each device in {dtype}, but {gpu_bytes / GIB:,.4g} GiB at utilization "
            f"{utilization:g}, less {reserve_bytes / GIB:g} GiB in reserve, leave "
            f"{available / GIB:,.1f} GiB: {-memory.cache_bytes / GIB:,.1f} GiB too few"
            f"{_enough(serving, dtype, data_parallel_size, available)}"
        )
    return memory


def kv_head_copies(serving: Serving) -> int:
    """Return the ranks that have the same KV head: 1 if there are as many heads as ranks.

    Example:
        >>> from conformance.zoo.models import get_model
        >>> kv_head_copies(Serving(model=get_model("qwen2.5-7b"), tensor_parallel_size=14))
        Traceback (most recent call last):
        ValueError: tensor_parallel_size is 14, and model.layers.0.self_attn.attn has 4 KV heads: \
neither divides the other
        >>> kv_head_copies(Serving(model=get_model("qwen2.5-7b"), tensor_parallel_size=28))
        7
    """
    heads = [
        layer.num_kv_heads for layer in serving.model.layers if layer.kind not in (LATENT, MAMBA)
    ]
    return max([serving.tensor_parallel_size // number for number in heads] + [1])


def _weights_bytes(serving: Serving, dtype: str, data_parallel_size: int) -> int:
    """Return the bytes of the weights on each device."""
    return weight_bytes(
        serving.model.weights,
        dtype,
        _itemsize(serving.model.dtype),
        ranks=serving.tensor_parallel_size,
        kv_head_copies=kv_head_copies(serving),
        replicas=data_parallel_size,
    )


def _itemsize(dtype: str) -> int:
    """Return the bytes of an element of a dtype."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize


def _enough(serving: Serving, dtype: str, data_parallel_size: int, available: int) -> str:
    """Return a hint with a number of ranks on which the weights fit; empty if none is found."""
    ranks = serving.tensor_parallel_size
    while (ranks := 2 * ranks) <= MAX_RANKS:
        try:
            more = replace(serving, tensor_parallel_size=ranks)
        except ValueError:  # heads that do not divide
            continue
        if _weights_bytes(more, dtype, data_parallel_size) < available:
            return f"; they fit with --tensor-parallel {ranks}"
    return ""
