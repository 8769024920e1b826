"""The words of memory that a launch shares with its machine code, and how code reads them."""

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
    """A word by its place; `WORDS` is the first of those that the kernel takes."""

    # What went wrong: a `Kind`, 0 for nothing, and the details.
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
    """The address of what threads save at a barrier."""
    SHARED = auto()
    LOCAL = auto()
    MOST_INSTRUCTIONS = auto()
    """That a thread may execute."""
    EXECUTED = auto()
    """The instructions that threads have executed, once they have ended."""

    # Shadow memory.
    CELLS = auto()
    """The address of its cells; 0 if there are none."""
    EPOCHS = auto()
    """The address of the epoch in which each block began."""
    SHARED_CELLS = auto()
    """The place of the first cell of shared memory; that of local memory follows."""
    LOCAL_CELLS = auto()
    LAUNCHED = auto()
    """The epoch in which the launch began."""
    BEGAN = auto()
    """The epoch in which the block began."""
    NOW = auto()
    """The epoch: it ends at a barrier, and with a block."""

    # Votes at a barrier: those so far, and those of the last barrier.
    VOTES = auto()
    RESULT = auto()

    WORDS = auto()


NUM_ORDERS: Final = 8
"""Of the threads of a block, for its epochs in turn."""

WORDS_OF_ARRAY: Final = 3
"""Behind the words that the kernel takes are those of each array: address, bytes, first cell."""


def constant(value: int, kind: Any = I64) -> Any:
    """Return a constant; a number outside the type wraps around."""
    value &= (1 << kind.width) - 1
    return ir.Constant(kind, value - (value >> (kind.width - 1) << kind.width))


def place(builder: Any, address: Any, index: Any) -> Any:
    """Return the pointer to a word of an array of words."""
    index = constant(index) if isinstance(index, int) else index
    return builder.gep(address, [index], source_etype=I64)


def load(builder: Any, state: Any, index: Any) -> Any:
    """Load a word."""
    return builder.load(place(builder, state, index), typ=I64)


def load_pointer(builder: Any, state: Any, index: int) -> Any:
    """Load a word that is an address."""
    return builder.inttoptr(load(builder, state, index), POINTER)


def store(builder: Any, state: Any, index: Any, value: Any) -> None:
    """Store to a word."""
    value = constant(value) if isinstance(value, int) else value
    builder.store(value, place(builder, state, index))


def define(module: Any, name: str, result: Any, *parameters: Any) -> tuple[Any, Any]:
    """Add an internal function to a module; return it and a builder of its code."""
    function = ir.Function(module, ir.FunctionType(result, parameters), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


@contextmanager
def counting(builder: Any, count: Any) -> Iterator[Any]:
    """Repeat the code that is built inside, at least once, with the numbers below `count`."""
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
