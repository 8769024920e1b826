"""Checks each access to memory before it is made: bounds, alignment, and shadow memory."""

from collections.abc import Sequence
from typing import Any, Final

from conformance.native.faults import Kind
from conformance.native.ptx import Variable
from conformance.native.shadow import CELLS_OF_BYTE, Access, touching
from conformance.native.state import (
    I1,
    I32,
    I64,
    POINTER,
    WORDS_OF_ARRAY,
    Field,
    constant,
    counting,
    define,
    load,
    store,
)

GAP: Final = 64
"""Bytes between variables, so that an index past one is not inside the next."""


class Layout:
    """Where the arrays of a kernel are: its arguments, and variables in shared and local memory.

    Attributes:
        num_words: The words that the kernel takes.
        num_arrays: The arrays among its arguments.
        places: For each variable, where it begins in its memory, in bytes.
        sizes: The bytes of each memory: of all a block's shared, or one thread's local variables.
    """

    def __init__(self, num_words: int, num_arrays: int, variables: Sequence[Variable]) -> None:
        self.num_words = num_words
        self.num_arrays = num_arrays
        self.sizes = {"shared": 0, "local": 0}
        self.places: dict[str, tuple[Variable, int]] = {}
        for variable in variables:
            begin = -(-self.sizes[variable.space] // GAP) * GAP
            self.places[variable.name] = variable, begin
            self.sizes[variable.space] = begin + variable.size + GAP

    def of(self, space: str) -> list[tuple[Variable, int]]:
        """Return the variables of one memory, and where they begin."""
        return [found for found in self.places.values() if found[0].space == space]


def base_of(builder: Any, state: Any, layout: Layout, space: str, thread: Any) -> tuple[Any, Any]:
    """Return the address of a block's shared, or a thread's local memory, and its first cell."""
    base, cell = (
        load(builder, state, field)
        for field in (
            (Field.SHARED, Field.SHARED_CELLS)
            if space == "shared"
            else (Field.LOCAL, Field.LOCAL_CELLS)
        )
    )
    if space == "local":
        skipped = builder.mul(builder.zext(thread, I64), constant(layout.sizes["local"]))
        return builder.add(base, skipped), builder.add(cell, skipped)
    return base, cell


def checking(module: Any, layout: Layout, space: str, access: Access) -> Any:
    """Return the function that checks accesses of one kind to one space.

    It takes the state, the address as PTX has it, the bytes and the thread. It returns the address
    in this machine's memory, or 0 if the access is wrong, and then the state says why.
    """
    name = f"{space}_{access.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    function, builder = define(module, name, I64, POINTER, I64, I64, I32)
    state, address, size, thread = function.args
    found = function.append_basic_block("found")
    real, cell, since = (_phi(builder, found) for _ in range(3))
    is_blank = _phi(builder, found, I1)

    def fail(kind: Kind) -> None:
        store(builder, state, Field.KIND, kind)
        store(builder, state, Field.ADDRESS, address)
        store(builder, state, Field.SIZE, size)
        builder.ret(constant(0))

    def allow(base: Any, num_bytes: Any, first_cell: Any, origin: Any, *, blank: bool) -> None:
        """Go on if the access is inside an array, which begins at `base` of a memory."""
        offset = builder.sub(address, base)
        room = builder.sub(num_bytes, offset)
        begins = builder.icmp_unsigned("<", offset, num_bytes)
        is_inside = builder.and_(begins, builder.icmp_unsigned(">=", room, size))
        following = function.append_basic_block("outside")
        epoch = load(builder, state, Field.BEGAN if blank else Field.LAUNCHED)
        incoming = (
            (real, builder.add(address, origin)),
            (cell, builder.add(first_cell, offset)),
            (since, epoch),
            (is_blank, constant(blank, I1)),
        )
        for phi, value in incoming:
            phi.add_incoming(value, builder.block)
        builder.cbranch(is_inside, found, following)
        builder.position_at_end(following)

    misplaced = builder.and_(address, builder.sub(size, constant(1)))
    with builder.if_then(builder.icmp_unsigned("!=", misplaced, constant(0)), likely=False):
        fail(Kind.MISALIGNED)
    if space in {"global", "generic"}:
        for array in range(layout.num_arrays):
            at = Field.WORDS + layout.num_words + WORDS_OF_ARRAY * array
            begin, num_bytes, first_cell = (load(builder, state, at + part) for part in range(3))
            allow(begin, num_bytes, first_cell, constant(0), blank=False)
    for memory in ("shared", "local"):
        if space not in {memory, "generic"} or not layout.of(memory):
            continue
        base, first_cell = base_of(builder, state, layout, memory, thread)
        # A generic address is that of this machine; others count from the memory's beginning.
        window, origin = (constant(0), base) if space == memory else (base, constant(0))
        for variable, begin in layout.of(memory):
            start = builder.add(window, constant(begin))
            cells = builder.add(first_cell, constant(begin))
            allow(start, constant(variable.size), cells, origin, blank=True)
    fail(Kind.OUTSIDE if space in {"global", "generic"} else Kind[f"OUTSIDE_{space.upper()}"])

    builder.position_at_end(found)
    cells = load(builder, state, Field.CELLS)
    with builder.if_then(builder.icmp_unsigned("!=", cells, constant(0))), counting(
        builder, size
    ) as number:
        at = builder.mul(builder.add(cell, number), constant(8 * CELLS_OF_BYTE))
        pointer = builder.inttoptr(builder.add(cells, at), POINTER)
        touch = touching(module, access)
        with builder.if_then(
            builder.call(touch, (state, pointer, since, is_blank, thread)), likely=False
        ):
            store(builder, state, Field.ADDRESS, address)
            store(builder, state, Field.SIZE, size)
            builder.ret(constant(0))
    builder.ret(real)
    return function


def _phi(builder: Any, block: Any, kind: Any = I64) -> Any:
    """Add a phi to a block."""
    with builder.goto_block(block):
        return builder.phi(kind)
