"""What one layer keeps in the KV cache: the base of all kinds of spec, and what they check.

Kinds are told apart by the names of their classes, so that an engine's own specs pass too.
"""

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from fast._checks import check_int, check_list, describe, is_kind, show


@dataclass(frozen=True)
class KVCacheSpec:
    """What one layer keeps in the KV cache; the base of all kinds.

    Attributes:
        block_size: positions in a block.

    Raises:
        TypeError: a field of another type.
        ValueError: a number below 1.

    Example:
        >>> KVCacheSpec(16).block_size
        16

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    block_size: int

    def __post_init__(self) -> None:
        set_int(self, "block_size")

    @property
    def page_size_bytes(self) -> int:
        """What one block takes, in bytes.

        Raises:
            NotImplementedError: this kind of spec does not say.
        """
        raise NotImplementedError(f"{type(self).__name__} has no page_size_bytes")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:  # noqa: ANN401  (an engine's own)
        """Return what one request may take at most, in bytes.

        Args:
            vllm_config: the engine's configuration.

        Returns:
            Whole pages, in bytes.

        Raises:
            NotImplementedError: this kind of spec does not say.
            AttributeError: `vllm_config` lacks what is read.
            TypeError: what is read is no int.
            ValueError: what is read is out of range.

        Example:
            >>> KVCacheSpec(16).max_memory_usage_bytes(None)
            Traceback (most recent call last):
            NotImplementedError: KVCacheSpec has no max_memory_usage_bytes

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no max_memory_usage_bytes")

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same spec with another block size.

        Args:
            block_size: positions in a block.

        Returns:
            A new spec.

        Raises:
            TypeError: it is not an int.
            ValueError: it is below 1.

        Example:
            >>> KVCacheSpec(16).copy_with_new_block_size(8)
            KVCacheSpec(block_size=8)

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return dataclasses.replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: list[Any]) -> Any:  # noqa: ANN401  (an engine's own specs)
        """Return one spec for layers of one group: they must be equal.

        Args:
            specs: the layers' specs.

        Returns:
            A spec equal to each of them.

        Raises:
            TypeError: not a list, or of what is no spec.
            ValueError: none, or unequal ones.

        Example:
            >>> KVCacheSpec.merge([KVCacheSpec(16), KVCacheSpec(16)])
            KVCacheSpec(block_size=16)

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        check_specs(specs)
        for i, spec in enumerate(specs):
            if spec != specs[0]:
                raise ValueError(
                    f"specs[{i}] is {show(spec)}, expected the same as specs[0], {show(specs[0])}"
                )
        return specs[0]


def set_int(spec: KVCacheSpec, field: str, minimum: int = 1) -> None:
    """Check a field of a frozen spec and store it as a Python int."""
    object.__setattr__(spec, field, check_int(field, getattr(spec, field), minimum, None))


def read_size(vllm_config: object, path: str, minimum: int = 1) -> int:
    """Return a number that stands in a configuration.

    Raises:
        AttributeError: it does not.
        TypeError: it is no int.
        ValueError: it is below `minimum`.
    """
    return check_int(f"vllm_config.{path}", attrgetter(path)(vllm_config), minimum, None)


def check_specs(specs: list[Any]) -> None:
    """Refuse what is not a list of specs, with at least one.

    Raises:
        TypeError: it is not a list, or has an entry that is no spec.
        ValueError: it is empty.
    """
    check_list("specs", specs)
    if not specs:
        raise ValueError("specs is empty, expected at least 1 spec")
    for i, spec in enumerate(specs):
        check_spec(f"specs[{i}]", spec)


def check_spec(name: str, value: object) -> None:
    """Refuse what is no spec.

    Raises:
        TypeError: it is none.
    """
    if not is_kind(value, "KVCacheSpec"):
        raise TypeError(f"{name} must be a KVCacheSpec, got {describe(value)}")
