"""Select the block size of kernels: one that all backends of a group support."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fast._checks import check_int, check_list, check_type, is_int, is_kind
from fast.kv_cache_spec import KVCacheConfig, find_inner_specs, is_encoder_only


@dataclass(frozen=True)
class MultipleOf:
    """Every multiple of a block size, in a backend's list of supported sizes.

    Definition: `reference.MultipleOf`.
    """

    base: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", check_int("base", self.base, 1, None))


def select_common_block_size(kv_manager_block_size: int, attn_groups: list[Any]) -> int:
    """Return the block size that the kernels of all attention groups work with.

    Definition: `reference.select_common_block_size`.
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
    """Return the block size that the kernels of each KV cache group work with.

    Definition: `reference.prepare_kernel_block_sizes`.
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
    """The block sizes that a backend supports; `size in supported` checks one.

    Attributes:
        ints: The sizes listed as ints.
        bases: The bases of the `MultipleOf`s.
        entries: The list itself.
    """

    def __init__(self, name: str, backend: Any) -> None:
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
