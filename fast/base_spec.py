"""Define `KVCacheSpec`, the KV cache format of one layer and the base class of all specs.

Kinds are compared by the names of their classes, so that an engine's own specs are accepted.
"""

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from fast._checks import check_int, check_list, check_not_empty, describe, is_kind, show


@dataclass(frozen=True)
class KVCacheSpec:
    """The KV cache format of one layer: the base class of all specs.

    Definition: `reference.KVCacheSpec`.
    """

    block_size: int

    def __post_init__(self) -> None:
        set_int(self, "block_size")

    @property
    def page_size_bytes(self) -> int:
        """The bytes of one block.

        Definition: `reference.KVCacheSpec.page_size_bytes`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no page_size_bytes")

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Return the most bytes that one request may need.

        Definition: `reference.KVCacheSpec.max_memory_usage_bytes`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no max_memory_usage_bytes")

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same spec with another block size.

        Definition: `reference.KVCacheSpec.copy_with_new_block_size`.
        """
        return dataclasses.replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: list[Any]) -> Any:
        """Return one spec for the layers of one group; they must be equal.

        Definition: `reference.KVCacheSpec.merge`.
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
    """Return an int of at least `minimum` from a configuration, by its dotted path."""
    return check_int(f"vllm_config.{path}", attrgetter(path)(vllm_config), minimum, None)


def check_specs(specs: list[Any]) -> None:
    """Check that a value is a list of specs, with at least one."""
    check_list("specs", specs)
    check_not_empty("specs", specs, "spec")
    for i, spec in enumerate(specs):
        check_spec(f"specs[{i}]", spec)


def check_spec(name: str, value: object) -> None:
    """Check that a value is a spec, kvtwin's or an engine's own."""
    if not is_kind(value, "KVCacheSpec"):
        raise TypeError(f"{name} must be a KVCacheSpec, got {describe(value)}")
