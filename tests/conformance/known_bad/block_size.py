"""Block sizes of kernels, as one chooses them in a hurry."""

# a branch for each bug

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL_MULTIPLE_OF = fast.MultipleOf
REAL_SELECT = fast.select_common_block_size
REAL_PREPARE = fast.prepare_kernel_block_sizes


def _make_multiple_of(bug: str | None) -> type[Any]:
    if bug == "compares by identity":

        @dataclasses.dataclass(frozen=True, eq=False)
        class MultipleOf(REAL_MULTIPLE_OF):  # type: ignore[misc, valid-type]  # a class at hand
            """A multiple with a bug."""

            __eq__ = object.__eq__
            __hash__ = object.__hash__

        return MultipleOf

    @dataclasses.dataclass(frozen=True)
    class Checked(REAL_MULTIPLE_OF):  # type: ignore[misc, valid-type]  # likewise
        """A multiple, with a bug or without."""

        def __post_init__(self) -> None:
            if bug == "0 passes" and self.base == 0:
                return
            super().__post_init__()

    Checked.__name__ = "MultipleOf"
    return Checked


def _is_multiple(entry: object) -> bool:
    return type(entry).__name__ == "MultipleOf"


def _supports(bug: str | None, listed: Any, size: int) -> bool:  # noqa: ANN401  # a list or tuple
    if bug == "an empty list supports all" and not listed:
        return True
    for entry in listed:
        if not _is_multiple(entry):
            if int(entry) == size:
                return True
        elif bug == "divided the wrong way round":
            if entry.base % size == 0:
                return True
        elif size % entry.base == 0:
            return True
    return False


def _make_select(bug: str | None) -> Callable[[Any, Any], int]:
    def select_common_block_size(kv_manager_block_size: Any, attn_groups: Any) -> int:  # noqa: ANN401  # any
        answer: int | None = None
        try:
            answer = REAL_SELECT(kv_manager_block_size, attn_groups)
        except ValueError:
            is_judged = bug in {"an empty list supports all", "it need not divide"}
            if not is_judged or not all(_is_clean(group) for group in attn_groups):
                raise
        size = int(kv_manager_block_size)
        lists = [group.backend.get_supported_kernel_block_sizes() for group in attn_groups]
        if bug == "only this package's multiples" and any(
            _is_multiple(entry) and not isinstance(entry, fast.MultipleOf)
            for listed in lists
            for entry in listed
        ):
            raise ValueError("attn_groups list what is no MultipleOf")
        judge = any if bug == "one that supports it is enough" else all
        if judge(_supports(bug, listed, size) for listed in lists) or not lists:
            return size
        ints = {int(entry) for listed in lists for entry in listed if not _is_multiple(entry)}
        if bug == "only what the first lists is tried":
            ints = {int(entry) for entry in lists[0] if not _is_multiple(entry)}
        fitting = [
            number
            for number in sorted(ints, reverse=bug != "the least, not the greatest")
            if size % number == 0 or bug == "it need not divide"
        ]
        for number in fitting:
            if all(_supports(bug, listed, number) for listed in lists):
                return number
        if answer is None:
            raise ValueError("attn_groups have no size in common")
        return answer + 1

    return select_common_block_size


def _is_clean(group: Any) -> bool:  # noqa: ANN401  # a group
    listed = group.backend.get_supported_kernel_block_sizes()
    return all((type(entry) is int and entry > 0) or _is_multiple(entry) for entry in listed)


def _kind(spec: Any, *, last: bool = False) -> str:  # noqa: ANN401  # a spec
    inner = list(getattr(spec, "kv_cache_specs", {"": spec}).values())
    names = [cls.__name__ for cls in type(inner[-1 if last else 0]).__mro__]
    known = ("EncoderOnlyAttentionSpec", "MambaSpec", "AttentionSpec")
    return next((name for name in known if name in names), "another")


def _make_prepare(bug: str | None) -> Callable[[Any, Any], list[int]]:
    def prepare_kernel_block_sizes(kv_cache_config: Any, attn_groups: Any) -> list[int]:  # noqa: ANN401  # any
        REAL_PREPARE(kv_cache_config, attn_groups)
        found = []
        cached = 0
        for g, group in enumerate(kv_cache_config.kv_cache_groups):
            spec = group.kv_cache_spec
            kind = _kind(spec, last=bug == "a uniform group is of its last kind")
            size = int(spec.block_size)
            is_uniform = hasattr(spec, "kv_cache_specs")
            if bug == "a uniform group is of no kind" and is_uniform:
                raise NotImplementedError("UniformTypeKVCacheSpecs")
            if kind == "EncoderOnlyAttentionSpec":
                if bug == "encoder-only groups have a size":
                    found.append(size)
                continue
            place = cached if bug == "lists are counted without encoder-only groups" else g
            cached += 1
            if kind == "MambaSpec" and bug != "states ask their backends":
                found.append(size)
            else:
                groups = attn_groups[place] if place < len(attn_groups) else []
                found.append(fast.select_common_block_size(size, groups))
        return found

    return prepare_kernel_block_sizes


BLOCK_SIZE = [
    *rewritten(
        "MultipleOf",
        _make_multiple_of,
        refusals={"0 passes": "A division by it, in the middle of a search."},
        laws={
            "test_multiples_are_values": {
                "compares by identity": "A plain class: every backend makes its own."
            }
        },
    ),
    *rewritten(
        "select_common_block_size",
        _make_select,
        answers={
            "divided the wrong way round": "`base % size`: right where they are equal.",
            "only this package's multiples": "`isinstance`: an engine has its own class.",
            "one that supports it is enough": "`any` for `all`: right for one backend.",
            "only what the first lists is tried": "Right where backends list alike.",
            "the least, not the greatest": "`sorted` without `reverse`: slow, not wrong.",
        },
        refusals={
            "an empty list supports all": "`not listed or ...`, as for other options.",
            "it need not divide": "Blocks of the manager's that are no whole number of a kernel's.",
        },
    ),
    *rewritten(
        "prepare_kernel_block_sizes",
        _make_prepare,
        answers={
            "a uniform group is of its last kind": "Mostly they are of one.",
            "a uniform group is of no kind": "Its class extends the base alone.",
            "encoder-only groups have a size": "One more than there are caches.",
            "lists are counted without encoder-only groups": "Right without an encoder.",
            "states ask their backends": "A Mamba backend supports anything, mostly.",
        },
    ),
]
