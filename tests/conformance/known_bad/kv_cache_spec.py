"""Specs of the KV cache, as one writes them in a hurry."""

# a branch, or an answer, for each bug

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import fast
from known_bad.entries import KnownBad, rewritten

REAL_UNIFORM = fast.UniformTypeKVCacheSpecs
REAL_CHECKS = {
    cls.__name__: cls.__post_init__ for cls in (fast.AttentionSpec, fast.MambaSpec, REAL_UNIFORM)
}
REAL_MAX_MEMORY = {
    cls.__name__: cls.max_memory_usage_bytes
    for cls in (fast.FullAttentionSpec, fast.SlidingWindowSpec, fast.MambaSpec)
}

FLOATS8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def also(entries: list[KnownBad]) -> list[KnownBad]:
    """Return the bad ones of a second place of a function whose honest one is elsewhere."""
    return [entry for entry in entries if entry.bug]


def _make_check(bug: str | None) -> Callable[[Any], None]:
    def check(self: Any) -> None:  # noqa: ANN401  # a spec of any kind
        given = dict(vars(self))
        if bug == "0 passes" and given["num_kv_heads"] == 0:
            object.__setattr__(self, "num_kv_heads", 1)
        if bug == "bools pass":
            for field in ("num_kv_heads", "head_size"):
                if isinstance(given[field], bool):
                    object.__setattr__(self, field, int(given[field]))
        REAL_CHECKS["AttentionSpec"](self)
        if bug == "NumPy's ints stay":
            object.__setattr__(self, "head_size", given["head_size"])

    return check


def _make_states(bug: str | None) -> Callable[[Any], None]:
    def check(self: Any) -> None:  # noqa: ANN401  # a spec
        given = dict(vars(self))
        is_small = bug == "padding is not compared" and type(given["page_size_padded"]) is int
        if is_small and given["page_size_padded"] > 0:
            object.__setattr__(self, "page_size_padded", None)
        REAL_CHECKS["MambaSpec"](self)
        if is_small:
            object.__setattr__(self, "page_size_padded", given["page_size_padded"])
        if bug == "shapes stay as they are":
            object.__setattr__(self, "shapes", given["shapes"])

    return check


def _make_uniform(bug: str | None) -> Callable[[Any], None]:
    def check(self: Any) -> None:  # noqa: ANN401  # a spec
        given = self.kv_cache_specs
        try:
            REAL_CHECKS["UniformTypeKVCacheSpecs"](self)
        except ValueError as error:
            if bug != "block sizes are not compared" or "block_size" not in str(error):
                raise
        if bug == "the dict is the caller's":
            object.__setattr__(self, "kv_cache_specs", given)

    return check


def _make_page(bug: str | None) -> property:
    def page_size_bytes(self: Any) -> int:  # noqa: ANN401  # a spec
        itemsize = self.dtype.itemsize
        if bug == "float8 takes two bytes" and self.dtype in FLOATS8:
            itemsize = 2
        if bug == "whatever is no float takes four" and not self.dtype.is_floating_point:
            itemsize = 4
        numbers = self.block_size * self.num_kv_heads * self.head_size
        return int(numbers * itemsize * (1 if bug == "a key alone" else 2))

    return property(page_size_bytes)


def _make_latent_page(bug: str | None) -> property:
    def page_size_bytes(self: Any) -> int:  # noqa: ANN401  # a spec
        cache_dtype = self.cache_dtype_str or ""
        if bug == "any fp8 takes 656 bytes":
            cache_dtype = "fp8_ds_mla" if cache_dtype.startswith("fp8") else ""
        if cache_dtype == "fp8_ds_mla" and bug != "fp8_ds_mla is as wide as its dtype":
            return 656 if bug == "656 bytes for all tokens" else int(self.block_size * 656)
        numbers = self.block_size * self.num_kv_heads * self.head_size
        return int(numbers * self.dtype.itemsize * (2 if bug == "a key and a value" else 1))

    return property(page_size_bytes)


def _make_full_memory(bug: str | None) -> Callable[[Any, Any], int]:
    def max_memory_usage_bytes(self: Any, vllm_config: Any) -> int:  # noqa: ANN401  # any
        REAL_MAX_MEMORY["FullAttentionSpec"](self, vllm_config)
        length = int(vllm_config.model_config.max_model_len)
        parallel = vllm_config.parallel_config
        ranks = int(parallel.decode_context_parallel_size)
        if bug != "divided by dcp only":
            ranks *= int(parallel.prefill_context_parallel_size)
        length = length // ranks if bug == "a rank's share is cut" else -(-length // ranks)
        blocks = -(-length // self.block_size)
        if bug == "blocks that begin do not count":
            blocks = length // self.block_size
        return int(blocks * self.page_size_bytes)

    return max_memory_usage_bytes


def _make_window_memory(bug: str | None) -> Callable[[Any, Any], int]:
    def max_memory_usage_bytes(self: Any, vllm_config: Any) -> int:  # noqa: ANN401  # any
        REAL_MAX_MEMORY["SlidingWindowSpec"](self, vllm_config)
        step = int(vllm_config.scheduler_config.max_num_batched_tokens)
        most = int(vllm_config.model_config.max_model_len)
        kept = self.sliding_window + step - (bug != "the token itself is counted twice")
        length = max(kept, most) if bug == "max for min" else min(kept, most)
        blocks = -(-length // self.block_size) + (bug != "windows begin with a block")
        return int(blocks * self.page_size_bytes)

    return max_memory_usage_bytes


def _make_state_memory(bug: str | None) -> Callable[[Any, Any], int]:
    def max_memory_usage_bytes(self: Any, vllm_config: Any) -> int:  # noqa: ANN401  # any
        found: int = REAL_MAX_MEMORY["MambaSpec"](self, vllm_config)
        mode = vllm_config.cache_config.mamba_cache_mode
        if bug == "align is none" and mode == "align":
            return found - self.page_size_bytes
        if bug == "speculative blocks are added in mode all" and mode == "all":
            return found + self.num_speculative_blocks * self.page_size_bytes
        return found

    return max_memory_usage_bytes


def _make_uniform_memory(bug: str | None) -> Callable[[Any, Any], int]:
    def max_memory_usage_bytes(self: Any, vllm_config: Any) -> int:  # noqa: ANN401  # any
        specs = self.kv_cache_specs.values()
        needed = [spec.max_memory_usage_bytes(vllm_config) for spec in specs]
        if bug == "the greatest need times the layers":
            return max(needed) * len(needed)
        pages = [need // spec.page_size_bytes for need, spec in zip(needed, specs, strict=True)]
        return max(pages) * int(self.page_size_bytes)

    return max_memory_usage_bytes


def _make_copy(bug: str | None) -> Callable[[Any, int], Any]:
    def copy_with_new_block_size(self: Any, block_size: int) -> Any:  # noqa: ANN401  # a spec
        if bug == "what has a default is lost" and isinstance(self, fast.AttentionSpec):
            fields = {
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(self)
                if field.default is dataclasses.MISSING
            }
            return type(self)(**{**fields, "block_size": block_size})
        if bug == "not checked anew" and isinstance(block_size, int) and block_size < 1:
            return self
        return dataclasses.replace(self, block_size=block_size)

    return copy_with_new_block_size


def _make_uniform_copy(bug: str | None) -> Callable[[Any, int], Any]:
    def copy_with_new_block_size(self: Any, block_size: int) -> Any:  # noqa: ANN401  # a spec
        specs = {
            name: spec.copy_with_new_block_size(block_size)
            for name, spec in self.kv_cache_specs.items()
        }
        copy = dataclasses.replace(self, block_size=block_size, kv_cache_specs=specs)
        if bug == "inner specs keep their size":
            object.__setattr__(copy, "kv_cache_specs", dict(self.kv_cache_specs))
        return copy

    return copy_with_new_block_size


KV_CACHE_SPEC = [
    *rewritten(
        "KVCacheSpec",
        _make_check,
        place="AttentionSpec.__post_init__",
        answers={"NumPy's ints stay": "Equal, until one of them overflows in a product."},
        refusals={
            "0 passes": "A page of no bytes, and a division by it much later.",
            "bools pass": "`isinstance(True, int)`.",
        },
    ),
    *rewritten(
        "MambaSpec",
        _make_states,
        place="MambaSpec.__post_init__",
        answers={"shapes stay as they are": "Lists: the spec has no hash, where tuples have one."},
        refusals={"padding is not compared": "States run into the next block's page."},
    ),
    *rewritten(
        "UniformTypeKVCacheSpecs",
        _make_uniform,
        place="UniformTypeKVCacheSpecs.__post_init__",
        answers={"the dict is the caller's": "Frozen, until the caller uses its dict again."},
        refusals={"block sizes are not compared": "One block table for two sizes of block."},
    ),
    *rewritten(
        "KVCacheSpec.page_size_bytes",
        _make_page,
        place="AttentionSpec.page_size_bytes",
        answers={
            "a key alone": "Half of the memory, and views of it that are refused.",
            "float8 takes two bytes": "A table of dtypes from before there was float8.",
            "whatever is no float takes four": "Ints are int32, as everywhere but in caches.",
        },
    ),
    *also(
        rewritten(
            "KVCacheSpec.page_size_bytes",
            _make_latent_page,
            place="MLAAttentionSpec.page_size_bytes",
            answers={
                "a key and a value": "Inherited: twice the memory, half of it never read.",
                "any fp8 takes 656 bytes": "`startswith`: plain fp8 has another layout.",
                "656 bytes for all tokens": "Of a block, not of a token.",
                "fp8_ds_mla is as wide as its dtype": "Scales and the unquantised part are lost.",
            },
        )
    ),
    *rewritten(
        "KVCacheSpec.max_memory_usage_bytes",
        _make_full_memory,
        place="FullAttentionSpec.max_memory_usage_bytes",
        answers={
            "divided by dcp only": "Prefill context parallelism is rare.",
            "a rank's share is cut": "Right where the length divides.",
            "blocks that begin do not count": "Right where the length is whole blocks.",
        },
    ),
    *also(
        rewritten(
            "KVCacheSpec.max_memory_usage_bytes",
            _make_window_memory,
            place="SlidingWindowSpec.max_memory_usage_bytes",
            answers={
                "windows begin with a block": "The extra page is missing; most windows fit.",
                "the token itself is counted twice": "Off by one, which rounding mostly hides.",
                "max for min": "A window costs as much as no window.",
            },
        )
    ),
    *also(
        rewritten(
            "KVCacheSpec.max_memory_usage_bytes",
            _make_state_memory,
            place="MambaSpec.max_memory_usage_bytes",
            answers={
                "align is none": "The state at the last boundary has no place.",
                "speculative blocks are added in mode all": "All blocks are there already.",
            },
        )
    ),
    *also(
        rewritten(
            "KVCacheSpec.max_memory_usage_bytes",
            _make_uniform_memory,
            place="UniformTypeKVCacheSpecs.max_memory_usage_bytes",
            answers={"the greatest need times the layers": "Right where pages are alike."},
        )
    ),
    *rewritten(
        "KVCacheSpec.copy_with_new_block_size",
        _make_copy,
        place="KVCacheSpec.copy_with_new_block_size",
        answers={"what has a default is lost": "Made anew field by field, from an old list."},
        refusals={"not checked anew": "`object.__setattr__` on a copy."},
    ),
    *also(
        rewritten(
            "KVCacheSpec.copy_with_new_block_size",
            _make_uniform_copy,
            place="UniformTypeKVCacheSpecs.copy_with_new_block_size",
            answers={"inner specs keep their size": "The page is that of the old block size."},
        )
    ),
]
