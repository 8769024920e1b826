"""The block sizes that kernels work with: one that all backends of a group support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reference._checks import check_int, check_list, check_type, is_kind
from reference.kv_cache_spec import KVCacheConfig, get_kind_spec


@dataclass(frozen=True)
class MultipleOf:
    """Every multiple of a block size, in a backend's list of supported sizes.

    Attributes:
        base: The size, at least 1.

    Raises:
        TypeError: A base that is not an int.
        ValueError: A base below 1.

    Example:
        >>> MultipleOf(16) == MultipleOf(base=16)
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """

    base: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", check_int("base", self.base, 1))


def select_common_block_size(kv_manager_block_size: int, attn_groups: list[Any]) -> int:
    """Return the block size that the kernels of all attention groups work with.

    A backend supports a size when its list has that int, or a `MultipleOf` whose base divides it; a
    backend with an empty list supports none.

    Args:
        kv_manager_block_size: Positions in a block of the KV cache manager, at least 1.
        attn_groups: The attention groups; `backend.get_supported_kernel_block_sizes()` of each
            gives a list or tuple of ints and `MultipleOf` objects.

    Returns:
        The manager's size if every backend supports it (also when there are no groups). Otherwise
        the greatest size that divides it, that every backend supports, and that is an int in at
        least one of the lists. (If every backend supported a size through a `MultipleOf` only, it
        would support the manager's size too, so no other candidates are needed.)

    Raises:
        AttributeError: A group or a backend that lacks an attribute that is read.
        TypeError: A size that is not an int, groups that are not a list, sizes that are not a list
            or tuple.
        ValueError: A size below 1, an entry that is neither an int nor a `MultipleOf`, or no size
            that all backends support. All entries are checked first.

    Example:
        >>> from types import SimpleNamespace
        >>> def group(*sizes):
        ...     backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: sizes)
        ...     return SimpleNamespace(backend=backend)
        >>> select_common_block_size(32, [group(MultipleOf(16)), group(16, 32)])
        32
        >>> select_common_block_size(256, [group(16, 32, 64), group(MultipleOf(32))])
        64

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    manager_size = check_int("kv_manager_block_size", kv_manager_block_size, 1)
    supported = [
        _check_supported_sizes(f"attn_groups[{i}]", group.backend)
        for i, group in enumerate(check_list("attn_groups", attn_groups))
    ]
    listed = {size for sizes in supported for size in sizes if isinstance(size, int)}
    for size in [manager_size, *sorted(listed, reverse=True)]:
        if manager_size % size == 0 and all(_supports(sizes, size) for sizes in supported):
            return size
    raise ValueError(
        f"kv_manager_block_size is {manager_size}, but attn_groups support no divisor of it in "
        f"common: they support {supported}"
    )


def _check_supported_sizes(name: str, backend: Any) -> list[int | MultipleOf]:
    """Return the block sizes that a backend supports, multiples as this module's `MultipleOf`."""
    name = f"{name}.backend.get_supported_kernel_block_sizes()"
    sizes = check_type(name, backend.get_supported_kernel_block_sizes(), list | tuple)
    checked: list[int | MultipleOf] = []
    for i, size in enumerate(sizes):
        is_multiple = is_kind(size, "MultipleOf")
        number = size.base if is_multiple else size
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(
                f"{name}[{i}] is {size!r}, expected an int or a MultipleOf of at least 1"
            )
        checked.append(MultipleOf(int(number)) if is_multiple else int(number))
    return checked


def _supports(sizes: list[int | MultipleOf], size: int) -> bool:
    """Return whether a size is supported."""
    return any(
        size % entry.base == 0 if isinstance(entry, MultipleOf) else size == entry
        for entry in sizes
    )


def prepare_kernel_block_sizes(
    kv_cache_config: KVCacheConfig, attn_groups: list[list[Any]]
) -> list[int]:
    """Return the block size that the kernels of each KV cache group work with.

    A group with a `UniformTypeKVCacheSpecs` is of the kind of its first inner spec, and has the
    block size of the outer spec.

    Args:
        kv_cache_config: The KV cache; its `kv_cache_groups` are read.
        attn_groups: `attn_groups[g]` is the list of attention groups of KV cache group `g`; the
            index counts encoder-only groups too. Mamba and encoder-only groups need no list; lists
            past the last group that needs one are ignored.

    Returns:
        One size for each KV cache group that is not encoder-only, in their order: for an attention
        group `select_common_block_size` of its block size, for a Mamba group its block size.

    Raises:
        AttributeError: An object that lacks an attribute that is read.
        NotImplementedError: A group that is neither attention nor Mamba.
        TypeError: An argument that is not a list; as `select_common_block_size`.
        ValueError: Fewer lists than groups that need one; as `select_common_block_size`.

    Example:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> from reference.kv_cache_spec import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        >>> backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: [16, 32])
        >>> spec = FullAttentionSpec(64, 8, 128, np.float16)
        >>> config = KVCacheConfig(0, [], [KVCacheGroupSpec(["layers.0.attn"], spec)])
        >>> prepare_kernel_block_sizes(config, [[SimpleNamespace(backend=backend)]])
        [32]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_list("attn_groups", attn_groups)
    kernel_block_sizes = []
    for g, group in enumerate(
        check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    ):
        kind = get_kind_spec(group.kv_cache_spec)
        if is_kind(kind, "EncoderOnlyAttentionSpec"):
            continue
        if is_kind(kind, "AttentionSpec"):
            if g >= len(attn_groups):
                raise ValueError(
                    f"attn_groups has {len(attn_groups)} lists, none for kv_cache_groups[{g}]"
                )
            groups = check_list(f"attn_groups[{g}]", attn_groups[g])
            block_size = group.kv_cache_spec.block_size
            kernel_block_sizes.append(select_common_block_size(block_size, groups))
        elif is_kind(kind, "MambaSpec"):
            block_size = group.kv_cache_spec.block_size
            kernel_block_sizes.append(
                check_int(f"block_size of kv_cache_groups[{g}]", block_size, 1)
            )
        else:
            raise NotImplementedError(
                f"kv_cache_groups[{g}] has a spec of class {type(kind).__name__}, "
                "expected AttentionSpec or MambaSpec"
            )
    return kernel_block_sizes
