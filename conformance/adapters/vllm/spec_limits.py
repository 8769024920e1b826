"""KV cache specs for which some releases of vLLM have other rules than ours.

Their memory depends on options that releases added, dropped or count differently.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterable
from typing import Any

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm.places import find


def check_memory(spec: Any, vllm_config: Any) -> None:
    """Check that vLLM computes `max_memory_usage_bytes` of a spec by our rules.

    Raises:
        Unsupported: It does not.
    """
    for inner in getattr(spec, "kv_cache_specs", {}).values():
        check_memory(inner, vllm_config)
    kind = [base.__name__ for base in type(spec).__mro__]
    parallel = getattr(vllm_config, "parallel_config", None)
    if "SlidingWindowSpec" in kind and getattr(parallel, DCP, 1) != 1:
        raise Unsupported("decode context parallelism with sliding windows")
    if "FullAttentionSpec" in kind and getattr(parallel, PCP, 1) != 1:
        names = find("FullAttentionSpec").max_memory_usage_bytes.__code__.co_names
        if PCP not in names:
            raise Unsupported(
                "prefill context parallelism, which does not divide the cache since 0.28"
            )
    if "MambaSpec" in kind:
        _check_mode(spec, vllm_config.cache_config.mamba_cache_mode)


def _check_mode(spec: Any, mode: str) -> None:
    config = importlib.import_module("vllm.config.cache")
    modes = typing.get_args(getattr(config, "MambaCacheMode", typing.Literal["all"]))
    if mode not in modes:
        raise Unsupported(f"the mode {mode!r} of Mamba's cache")
    names = type(spec).max_memory_usage_bytes.__code__.co_names
    counts_more = "mamba_cache_mode" in names and spec.num_speculative_blocks
    if mode == "all" and counts_more:
        raise Unsupported("speculative blocks in mode 'all', which vLLM adds to those of a request")


def check_uniform(specs: Iterable[Any]) -> None:
    """Check that vLLM decides by our rules whether specs are uniform.

    Raises:
        Unsupported: Recent releases also compare the pages of Mamba layers.
    """
    pages = {spec.page_size_bytes for spec in specs if type(spec).__name__ == "MambaSpec"}
    if len(pages) > 1 and hasattr(find("KVCacheSpec"), "has_layer_views"):
        raise Unsupported("Mamba layers with unequal page sizes, which are not uniform since 0.32")


DCP = "decode_context_parallel_size"
PCP = "prefill_context_parallel_size"
