"""Specs of the layers of one group, as one merges them in a hurry."""

# a branch, or an answer, for each bug

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import fast
from known_bad.entries import rewritten
from known_bad.kv_cache_spec import REAL_UNIFORM, also

REAL_MERGE = fast.FullAttentionSpec.merge.__func__  # type: ignore[attr-defined]  # a classmethod


REAL_IS_UNIFORM = REAL_UNIFORM.is_uniform_type.__func__  # type: ignore[attr-defined]  # likewise


REAL_FROM_SPECS = REAL_UNIFORM.from_specs.__func__  # type: ignore[attr-defined]  # likewise


REAL_MLA_MERGE = fast.MLAAttentionSpec.merge.__func__  # type: ignore[attr-defined]  # likewise


def _make_merge(bug: str | None) -> Any:  # noqa: ANN401  # a classmethod
    def merge(cls: Any, specs: Any) -> Any:  # noqa: ANN401  # any
        if bug == "MLA counts as Full" and isinstance(specs, list):
            specs = [
                fast.FullAttentionSpec(
                    spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype
                )
                if isinstance(spec, fast.MLAAttentionSpec)
                else spec
                for spec in specs
            ]
        if bug == "a window and a chunk size pass" and isinstance(specs, list):
            no_chunk = {"attention_chunk_size": None}
            has_both = any(getattr(spec, "sliding_window", None) for spec in specs)
            if has_both and all(isinstance(spec, fast.FullAttentionSpec) for spec in specs):
                specs = [dataclasses.replace(spec, **no_chunk) for spec in specs]
        found = REAL_MERGE(cls, specs)
        if bug == "the window is the first's":
            return dataclasses.replace(found, sliding_window=specs[0].sliding_window)
        if bug == "the chunk size is lost":
            return dataclasses.replace(found, attention_chunk_size=None)
        return found

    return classmethod(merge)


def _make_latent_merge(bug: str | None) -> Any:  # noqa: ANN401  # a classmethod
    def merge(cls: Any, specs: Any) -> Any:  # noqa: ANN401  # any
        found = REAL_MLA_MERGE(cls, specs)
        if bug == "the cache's format is lost":
            return dataclasses.replace(found, cache_dtype_str=None)
        return found

    return classmethod(merge)


def _make_base_merge(bug: str | None) -> Any:  # noqa: ANN401  # a classmethod
    def merge(cls: Any, specs: Any) -> Any:  # noqa: ANN401, ARG001  # any
        real = fast.KVCacheSpec
        if not isinstance(specs, list) or not all(isinstance(spec, real) for spec in specs):
            raise TypeError("specs must be a list of specs")
        if not specs or any(spec != specs[0] for spec in specs):
            raise ValueError("specs must be equal")
        if bug == "`is` for `==`" and any(spec is not specs[0] for spec in specs):
            raise ValueError("specs must be equal")
        return specs[0]

    return classmethod(merge)


def _make_is_uniform(bug: str | None) -> Any:  # noqa: ANN401  # a classmethod
    def is_uniform_type(cls: Any, specs: Any) -> bool:  # noqa: ANN401  # any
        found = bool(REAL_IS_UNIFORM(cls, specs))
        entries = list(specs.values())
        kinds = [type(spec).__name__ for spec in entries]
        sizes = {spec.block_size for spec in entries}
        if bug == "MLA is a kind of its own":
            return found and len(set(kinds)) == 1
        if bug == "windows need not agree" and len(sizes) == 1:
            return found or set(kinds) == {"SlidingWindowSpec"}
        if bug == "speculative blocks need not agree" and len(sizes) == 1:
            return found or set(kinds) == {"MambaSpec"}
        if bug == "block sizes need not agree":
            return found or len({(kind, *_field(spec)) for kind, spec in zip(kinds, entries)}) == 1  # noqa: B905  # as long
        if bug == "the kind is asked first" and kinds[0] not in KNOWN:
            raise NotImplementedError(f"specs has a {kinds[0]}")
        if bug == "an answer of NumPy's":
            return np.bool_(found)  # type: ignore[return-value]  # the bug
        return found

    return classmethod(is_uniform_type)


KNOWN = (
    *("FullAttentionSpec", "MLAAttentionSpec", "CrossAttentionSpec", "SlidingWindowSpec"),
    *("ChunkedLocalAttentionSpec", "MambaSpec"),
)


def _field(spec: Any) -> tuple[object, ...]:  # noqa: ANN401  # a spec
    names = ("sliding_window", "attention_chunk_size", "num_speculative_blocks")
    if isinstance(spec, fast.FullAttentionSpec):
        return ()
    return tuple(getattr(spec, name, None) for name in names)


def _make_from(bug: str | None) -> Any:  # noqa: ANN401  # a classmethod
    def from_specs(cls: Any, specs: Any) -> Any:  # noqa: ANN401  # any
        found = REAL_FROM_SPECS(cls, specs)
        if bug == "one layer needs none" and len(specs) == 1:
            return next(iter(specs.values()))
        if bug == "refused where they are not uniform" and found is None:
            raise ValueError("specs are not uniform")
        if bug == "every layer has the first's" and found is not None:
            same = dict.fromkeys(specs, next(iter(specs.values())))
            return dataclasses.replace(found, kv_cache_specs=same)
        return found

    return classmethod(from_specs)


def _make_tensor(bug: str | None) -> type[Any]:
    @dataclasses.dataclass(frozen=bug == "it is frozen")
    class KVCacheTensor:
        """A tensor of a configuration, with a bug or without."""

        size: int
        shared_by: list[str]

        def __post_init__(self) -> None:
            if bug == "the list is copied" and isinstance(self.shared_by, list):
                self.shared_by = [*self.shared_by]
            if bug == "a size is checked" and self.size < 0:
                raise ValueError(f"size is {self.size}")

    return KVCacheTensor


SPEC_GROUPS = [
    *rewritten(
        "KVCacheConfig",
        _make_tensor,
        place="KVCacheTensor",
        answers={
            "a size is checked": "Kind, but whoever allocates checks it.",
            "the list is copied": "A layer that is added to the caller's list is missing.",
        },
        laws={
            "test_containers_can_be_changed": {
                "it is frozen": "As the specs are; whoever shares a cache adds a layer."
            }
        },
    ),
    *rewritten(
        "KVCacheSpec.merge",
        _make_merge,
        place="FullAttentionSpec.merge",
        answers={
            "the window is the first's": "Right where the first layer has a window.",
            "the chunk size is lost": "Full attention is correct, and needs more memory.",
        },
        refusals={
            "MLA counts as Full": "`isinstance`: its pages are half as large.",
            "a window and a chunk size pass": "One of them is forgotten.",
        },
    ),
    *also(
        rewritten(
            "KVCacheSpec.merge",
            _make_latent_merge,
            place="MLAAttentionSpec.merge",
            answers={"the cache's format is lost": "Inherited: the base knows no such field."},
        )
    ),
    *also(
        rewritten(
            "KVCacheSpec.merge",
            _make_base_merge,
            place="KVCacheSpec.merge",
            answers={"`is` for `==`": "Each layer makes its own."},
        )
    ),
    *rewritten(
        "UniformTypeKVCacheSpecs.is_uniform_type",
        _make_is_uniform,
        place="UniformTypeKVCacheSpecs.is_uniform_type",
        answers={
            "MLA is a kind of its own": "`type(...) is`: DeepSeek's indexer falls out.",
            "windows need not agree": "One group, two windows, and blocks freed too early.",
            "speculative blocks need not agree": "Right without speculation.",
            "block sizes need not agree": "One block table for two sizes of block.",
            "the kind is asked first": "An error where the answer is no.",
            "an answer of NumPy's": "Truthy alike, but `is False` is not.",
        },
    ),
    *rewritten(
        "UniformTypeKVCacheSpecs.from_specs",
        _make_from,
        place="UniformTypeKVCacheSpecs.from_specs",
        answers={
            "one layer needs none": "It has the same attributes but for one.",
            "refused where they are not uniform": "The caller asked whether, and meant None.",
            "every layer has the first's": "Right where they are alike.",
        },
    ),
]
