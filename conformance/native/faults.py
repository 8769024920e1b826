"""The kinds of faults of a kernel, and the exception that reports one."""

from enum import IntEnum, auto


class Kind(IntEnum):
    """The kind of a fault."""

    OUTSIDE = auto()
    OUTSIDE_SHARED = auto()
    OUTSIDE_LOCAL = auto()
    MISALIGNED = auto()
    UNINITIALIZED = auto()
    RACE = auto()
    BARRIER = auto()
    ENDLESS = auto()


class NativeFault(Exception):  # noqa: N818  # the word for what an MMU reports
    """A kernel did something that a GPU forbids, or that has an undefined result.

    Attributes:
        kind: The kind of the fault.
        kernel: The name of the kernel.
        block: The index of the block.
        thread: The index of the thread in its block, along x.
        array: The argument that the address is in, or nearest to; empty if there is none.
        offset: The bytes from the beginning of that array to the address.
        size: The size of the access in bytes.
        line: The line of the Python source; 0 if it is unknown.
        ptx_line: The line of PTX.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Kind,
        kernel: str,
        block: tuple[int, int, int],
        thread: int,
        array: str = "",
        offset: int = 0,
        size: int = 0,
        line: int = 0,
        ptx_line: int = 0,
    ) -> None:
        super().__init__(f"kernel {kernel}, block {block}, thread {(thread, 0, 0)}: {message}")
        self.kind = kind
        self.kernel = kernel
        self.block = block
        self.thread = thread
        self.array = array
        self.offset = offset
        self.size = size
        self.line = line
        self.ptx_line = ptx_line
