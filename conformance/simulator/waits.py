"""What a thread can wait for."""

import dataclasses
from typing import NamedTuple, TypeAlias


class Site(NamedTuple):
    """A call in a kernel's source: two calls on one line are two sites."""

    file: str
    function: str
    line: int
    instruction: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, slots=True)
class BarrierWait:
    """A thread waits for all threads of its block.

    Attributes:
        site: The call; all must come to the same.
        value: What the thread brings, for the others to count.
    """

    site: Site
    value: object = None

    def __str__(self) -> str:
        return f"syncthreads ({self.site})"


@dataclasses.dataclass(frozen=True, slots=True)
class WarpWait:
    """A thread waits for the threads of its warp that its mask names.

    Attributes:
        operation: The name of the warp operation; all must come to the same.
        mask: Bit i names lane i; all must name the same.
        value: What the thread brings, for the others to read.
    """

    operation: str
    mask: int
    value: object = None

    def __str__(self) -> str:
        return f"{self.operation} of lanes 0x{self.mask:08x}"


Wait: TypeAlias = BarrierWait | WarpWait
