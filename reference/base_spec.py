"""What one layer keeps in the KV cache: the base of all kinds of spec."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from reference._checks import check_int, check_list, check_not_empty, describe, is_kind, show


def read_config(vllm_config: object, path: str, minimum: int = 1) -> int:
    """Return an int of an engine's configuration, at least the minimum, by its dotted path."""
    return check_int(f"vllm_config.{path}", attrgetter(path)(vllm_config), minimum)


def check_specs_list(specs: object) -> list[Any]:
    """Return a list of specs, with at least one."""
    entries = check_list("specs", specs)
    check_not_empty("specs", entries, "spec")
    for i, spec in enumerate(entries):
        check_spec(f"specs[{i}]", spec)
    return entries


def check_spec(name: str, value: object) -> None:
    """Check that a value is a spec: its class extends a class named `KVCacheSpec`."""
    if not is_kind(value, "KVCacheSpec"):
        raise TypeError(f"{name} must be a KVCacheSpec, got {describe(value)}")


@dataclass(frozen=True)
class KVCacheSpec:
    """What one layer keeps in the KV cache: the base of all kinds of spec.

    Specs are equal if their classes and all fields are; equal specs have equal hashes.

    Attributes:
        block_size: Positions in a block, at least 1.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: A number that is too small.

    Example:
        >>> KVCacheSpec(16).copy_with_new_block_size(32)
        KVCacheSpec(block_size=32)
        >>> KVCacheSpec(16).page_size_bytes
        Traceback (most recent call last):
        NotImplementedError: KVCacheSpec has no page_size_bytes

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    block_size: int

    def __post_init__(self) -> None:
        self._store("block_size", check_int("block_size", self.block_size, 1))

    def _store(self, field: str, value: object) -> None:
        """Replace a field by its checked value; only while the spec is being constructed."""
        object.__setattr__(self, field, value)

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block.

        Raises:
            NotImplementedError: A kind of spec that does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no page_size_bytes")

    def max_memory_usage_bytes(self, vllm_config: object) -> int:
        """Return the most bytes that one request may need.

        Args:
            vllm_config: An engine's configuration; only the attributes in the kind's formula are
                read.

        Raises:
            AttributeError: A configuration that is None or lacks an attribute that is read.
            NotImplementedError: A kind of spec that does not define it.
            TypeError: A number in it that is not an int.
            ValueError: A number in it that is too small.
        """
        raise NotImplementedError(f"{type(self).__name__} has no max_memory_usage_bytes")

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same spec with another block size.

        Args:
            block_size: Positions in a block, at least 1.

        Returns:
            A new spec of the same class.

        Raises:
            TypeError: A block size that is not an int.
            ValueError: A block size below 1.
        """
        return dataclasses.replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """Return one spec for the layers of one group; they must be equal.

        Args:
            specs: The specs of the layers.

        Returns:
            A spec equal to the first.

        Raises:
            TypeError: An argument that is not a list, an entry that is not a spec.
            ValueError: No specs, specs that are not equal.
        """
        entries = check_specs_list(specs)
        for i, spec in enumerate(entries):
            if spec != entries[0]:
                raise ValueError(
                    f"specs[{i}] is {show(spec)}, expected the same as specs[0], {show(entries[0])}"
                )
        first: Self = entries[0]
        return first

    def _pages_bytes(self, num_positions: int) -> int:
        """Return the bytes of the blocks that `num_positions` need."""
        return -(-num_positions // self.block_size) * self.page_size_bytes
