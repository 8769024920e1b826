"""The size of the blocks that kernels work on: one that all of them support."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fast._checks import check_int, check_list, check_type, is_int, is_kind
from fast.kv_cache_spec import KVCacheConfig, find_inner_specs, is_encoder_only


@dataclass(frozen=True)
class MultipleOf:
    """Every multiple of a number, in a backend's list of block sizes.

    Attributes:
        base: the number, at least 1.

    Raises:
        TypeError: it is not an int.
        ValueError: it is below 1.

    Example:
        >>> MultipleOf(16) == MultipleOf(base=16)
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """

    base: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", check_int("base", self.base, 1, None))


def select_common_block_size(kv_manager_block_size: int, attn_groups: list[Any]) -> int:
    """Return the greatest block size that all backends support and that divides the manager's.

    Args:
        kv_manager_block_size: positions in a block of the block tables.
        attn_groups: the attention groups; of each `backend.get_supported_kernel_block_sizes()` is
            read, a list of ints and `MultipleOf`s.

    Returns:
        The manager's size where every backend supports it or there is none; otherwise the greatest
        that stands as an int in the list of at least one.

    Raises:
        TypeError: not an int, not a list.
        ValueError: no size suits, a number below 1, an entry that is neither an int nor a
            `MultipleOf`.
        AttributeError: a group without a backend, or a backend without the method.

    Example:
        >>> from types import SimpleNamespace as Object
        >>> def group(sizes):
        ...     return Object(backend=Object(get_supported_kernel_block_sizes=lambda: sizes))
        >>> select_common_block_size(256, [group([16, 32, 64]), group([MultipleOf(32)])])
        64

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    manager_size = check_int("kv_manager_block_size", kv_manager_block_size, 1, None)
    check_list("attn_groups", attn_groups)
    supported = [
        _SupportedSizes(f"attn_groups[{i}].backend", group.backend)
        for i, group in enumerate(attn_groups)
    ]
    if all(manager_size in sizes for sizes in supported):
        return manager_size
    stated = {size for sizes in supported for size in sizes.ints if manager_size % size == 0}
    common = [size for size in stated if all(size in sizes for sizes in supported)]
    if not common:
        raise ValueError(
            f"kv_manager_block_size is {manager_size}, but attn_groups support no divisor of it in"
            f" common: they support {[sizes.entries for sizes in supported]}"
        )
    return max(common)


def prepare_kernel_block_sizes(
    kv_cache_config: KVCacheConfig, attn_groups: list[list[Any]]
) -> list[int]:
    """Return the block size of each KV cache group's kernels.

    Args:
        kv_cache_config: its `kv_cache_groups` are read.
        attn_groups: for each KV cache group its attention groups. Groups of Mamba and encoder-only
            layers need none.

    Returns:
        In the groups' order: for attention what `select_common_block_size` selects, for Mamba the
        spec's own block size; for encoder-only groups nothing, so the list may be shorter.

    Raises:
        TypeError: not lists.
        ValueError: fewer lists than the groups need, or as `select_common_block_size` does.
        NotImplementedError: a group of another kind.
        AttributeError: an object without what is read.

    Example:
        >>> from fast.kv_cache_spec import KVCacheGroupSpec, MambaSpec
        >>> import torch
        >>> group = KVCacheGroupSpec(["layers.0"], MambaSpec(64, ((8,),), (torch.float32,)))
        >>> prepare_kernel_block_sizes(KVCacheConfig(2, [], [group]), [])
        [64]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_list("attn_groups", attn_groups)
    check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    block_sizes = []
    for g, group in enumerate(kv_cache_config.kv_cache_groups):
        if is_encoder_only(group):
            continue
        spec = group.kv_cache_spec
        kind = find_inner_specs(spec)[0]
        if is_kind(kind, "AttentionSpec"):
            if g >= len(attn_groups):
                raise ValueError(
                    f"attn_groups has {len(attn_groups)} lists, none for kv_cache_groups[{g}]"
                )
            check_list(f"attn_groups[{g}]", attn_groups[g])
            block_sizes.append(select_common_block_size(spec.block_size, attn_groups[g]))
        elif is_kind(kind, "MambaSpec"):
            block_sizes.append(
                check_int(f"block_size of kv_cache_groups[{g}]", spec.block_size, 1, None)
            )
        else:
            raise NotImplementedError(
                f"kv_cache_groups[{g}] has a spec of class {type(kind).__name__}, "
                "expected AttentionSpec or MambaSpec"
            )
    return block_sizes


class _SupportedSizes:
    """The block sizes that a backend supports; `size in supported` asks for one.

    Attributes:
        ints: those that it states one by one.
        bases: those of whose multiples it supports each.
        entries: all, in the order in which it states them.
    """

    def __init__(self, name: str, backend: Any) -> None:  # noqa: ANN401  (an engine's own)
        self.name = f"{name}.get_supported_kernel_block_sizes()"
        entries: Sequence[Any] = backend.get_supported_kernel_block_sizes()
        check_type(self.name, entries, list | tuple, "a list or tuple")
        self.ints: list[int] = []
        self.bases: list[int] = []
        self.entries: list[int | MultipleOf] = []
        for i, entry in enumerate(entries):
            multiple = is_kind(entry, "MultipleOf")
            size = entry.base if multiple else entry
            if not is_int(size) or size < 1:
                raise ValueError(
                    f"{self.name}[{i}] is {entry!r}, expected an int or a MultipleOf of at least 1"
                )
            (self.bases if multiple else self.ints).append(int(size))
            self.entries.append(MultipleOf(int(size)) if multiple else int(size))

    def __contains__(self, size: int) -> bool:
        return size in self.ints or any(size % base == 0 for base in self.bases)
