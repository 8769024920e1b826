"""The state that a launch shares with its machine code, the IR that reads it, and its faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, auto
from typing import Any, Final

from llvmlite import ir

I1: Final = ir.IntType(1)
I8: Final = ir.IntType(8)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
POINTER: Final = ir.PointerType()


class Field(IntEnum):
    """The index of a word of the state; the kernel's parameters begin at `WORDS`."""

    # The fault: its `Kind`, 0 for none, and the details.
    KIND = 0
    LINE = auto()
    """The line of PTX."""
    ADDRESS = auto()
    SIZE = auto()
    THREAD = auto()
    BLOCK = auto()
    """Its place in the order in which blocks run."""
    OTHER = auto()
    """A cell of shadow memory, or the thread that waits elsewhere."""
    OTHER_ACCESS = auto()
    """An `Access`, or the line of PTX at which the other thread waits."""

    # The launch.
    NUM_THREADS = auto()
    GRID_X = auto()
    GRID_Y = auto()
    NUM_BLOCKS = auto()
    BLOCKS = auto()
    """The address of the numbers of the blocks, in the order in which they run."""
    ORDERS = auto()
    """The address of `NUM_ORDERS` orders of the threads."""
    FRAMES = auto()
    """The address of the frames, to which threads save their registers at a barrier."""
    SHARED = auto()
    LOCAL = auto()
    MOST_INSTRUCTIONS = auto()
    """The most instructions that a thread may execute."""
    EXECUTED = auto()
    """How many instructions the threads that have ended executed."""

    # Shadow memory.
    CELLS = auto()
    """The address of its cells; 0 if there are none."""
    EPOCHS = auto()
    """The address of the first epoch of each block."""
    SHARED_CELLS = auto()
    """The index of the first cell of shared memory; the next field is that of local memory."""
    LOCAL_CELLS = auto()
    LAUNCHED = auto()
    """The first epoch of the launch."""
    BEGAN = auto()
    """The first epoch of the block."""
    NOW = auto()
    """The current epoch; it ends at a barrier, and at the end of a block."""

    # Votes at a barrier: those so far, and those of the last barrier.
    VOTES = auto()
    RESULT = auto()

    WORDS = auto()


NUM_ORDERS: Final = 8
"""How many orders of the threads a launch has; its epochs cycle through them."""

WORDS_OF_ARRAY: Final = 3
"""The words of each array, after the kernel's parameters: address, size in bytes, first cell."""


def constant(value: int, kind: Any = I64) -> Any:
    """Return a constant; a number outside the type wraps around."""
    value &= (1 << kind.width) - 1
    return ir.Constant(kind, value - (value >> (kind.width - 1) << kind.width))


def place(builder: Any, address: Any, index: Any) -> Any:
    """Return the pointer to a word of an array of words."""
    index = constant(index) if isinstance(index, int) else index
    return builder.gep(address, [index], source_etype=I64)


def load(builder: Any, state: Any, index: Any) -> Any:
    return builder.load(place(builder, state, index), typ=I64)


def load_pointer(builder: Any, state: Any, index: int) -> Any:
    return builder.inttoptr(load(builder, state, index), POINTER)


def store(builder: Any, state: Any, index: Any, value: Any) -> None:
    value = constant(value) if isinstance(value, int) else value
    builder.store(value, place(builder, state, index))


def define(module: Any, name: str, result: Any, *parameters: Any) -> tuple[Any, Any]:
    """Add an internal function to a module; return it and a builder of its code."""
    function = ir.Function(module, ir.FunctionType(result, parameters), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


@contextmanager
def counting(builder: Any, count: Any) -> Iterator[Any]:
    """Build a loop around the code built inside, over the numbers below `count` (at least 1)."""
    before = builder.block
    body = builder.append_basic_block("body")
    after = builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(I64)
    number.add_incoming(constant(0), before)
    yield number
    following = builder.add(number, constant(1))
    number.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), body, after)
    builder.position_at_end(after)


# Faults.


class Kind(IntEnum):
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
