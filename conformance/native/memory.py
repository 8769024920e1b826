"""Checks each access to memory before it is made: bounds, alignment, and shadow memory."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from conformance.native.faults import Kind
from conformance.native.ptx import Variable
from conformance.native.shadow import CELLS_OF_BYTE, Access, build_shadow_update
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
    """The memory layout of a kernel: its array arguments, and its shared and local variables.

    Attributes:
        num_words: How many parameters the kernel has, each a word.
        num_arrays: How many of its arguments are arrays.
        places: By name, each variable and its offset in its memory, in bytes.
        sizes: The bytes of a block's shared variables, and of one thread's local ones.
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
        """Return the variables of one memory, and their offsets in it."""
        return [found for found in self.places.values() if found[0].space == space]


def base_of(builder: Any, state: Any, layout: Layout, space: str, thread: Any) -> tuple[Any, Any]:
    """Return the address of a block's shared or a thread's local memory, and its first cell."""
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


class _Area(NamedTuple):
    """An array that an access may be inside of; all fields but the last are values of LLVM IR.

    Attributes:
        begin: Its address in PTX.
        num_bytes: Its size.
        first_cell: The index of its first cell of shadow memory.
        origin: The difference between a host address and its address in PTX.
        since: The first epoch whose accesses count.
        is_uninitialized: Whether its bytes are uninitialised when that epoch begins.
    """

    begin: Any
    num_bytes: Any
    first_cell: Any
    origin: Any
    since: Any
    is_uninitialized: bool


def build_access_check(module: Any, layout: Layout, space: str, access: Access) -> Any:
    """Return the function that checks accesses of one kind to one space.

    It takes the state, the address in PTX, the size in bytes and the thread. It returns the host
    address, or 0 if the access is a fault, which it records in the state.
    """
    name = f"{space}_{access.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    function, builder = define(module, name, I64, POINTER, I64, I64, I32)
    state, address, size, thread = function.args

    def fail(kind: Kind | None = None) -> None:
        if kind is not None:
            store(builder, state, Field.KIND, kind)
        store(builder, state, Field.ADDRESS, address)
        store(builder, state, Field.SIZE, size)
        builder.ret(constant(0))

    misplaced = builder.and_(address, builder.sub(size, constant(1)))
    with builder.if_then(builder.icmp_unsigned("!=", misplaced, constant(0)), likely=False):
        fail(Kind.MISALIGNED)
    found = function.append_basic_block("found")
    with builder.goto_block(found):
        origin, cell, since = (builder.phi(I64) for _ in range(3))
        is_uninitialized = builder.phi(I1)
    for area in _areas(builder, state, layout, space, thread):
        offset = builder.sub(address, area.begin)
        begins = builder.icmp_unsigned("<", offset, area.num_bytes)
        ends = builder.icmp_unsigned(">=", builder.sub(area.num_bytes, offset), size)
        origin.add_incoming(area.origin, builder.block)
        cell.add_incoming(builder.add(area.first_cell, offset), builder.block)
        since.add_incoming(area.since, builder.block)
        is_uninitialized.add_incoming(constant(area.is_uninitialized, I1), builder.block)
        following = function.append_basic_block("next")
        builder.cbranch(builder.and_(begins, ends), found, following)
        builder.position_at_end(following)
    fail(Kind[f"OUTSIDE_{space.upper()}"] if space in layout.sizes else Kind.OUTSIDE)

    builder.position_at_end(found)
    if not origin.incomings:  # the kernel has no such array
        builder.unreachable()
        found.instructions[:] = found.instructions[-1:]
        return function
    cells = load(builder, state, Field.CELLS)
    touch = build_shadow_update(module, access)
    with (
        builder.if_then(builder.icmp_unsigned("!=", cells, constant(0))),
        counting(builder, size) as number,
    ):
        skipped = builder.mul(builder.add(cell, number), constant(8 * CELLS_OF_BYTE))
        pointer = builder.inttoptr(builder.add(cells, skipped), POINTER)
        is_wrong = builder.call(touch, (state, pointer, since, is_uninitialized, thread))
        with builder.if_then(is_wrong, likely=False):
            fail()
    builder.ret(builder.add(address, origin))
    return function


def _areas(builder: Any, state: Any, layout: Layout, space: str, thread: Any) -> Iterator[_Area]:
    """Yield the arrays that an access to a space may be inside of."""
    if space in {"global", "generic"}:
        launched = load(builder, state, Field.LAUNCHED)
        for array in range(layout.num_arrays):
            first = Field.WORDS + layout.num_words + WORDS_OF_ARRAY * array
            begin, num_bytes, cell = (
                load(builder, state, first + word) for word in range(WORDS_OF_ARRAY)
            )
            yield _Area(begin, num_bytes, cell, constant(0), launched, is_uninitialized=False)
    for memory in layout.sizes:
        if space not in {memory, "generic"} or not layout.of(memory):
            continue
        base, first_cell = base_of(builder, state, layout, memory, thread)
        began = load(builder, state, Field.BEGAN)
        # A generic address is a host address; others are offsets from the memory's beginning.
        window, origin = (constant(0), base) if space == memory else (base, constant(0))
        for variable, place in layout.of(memory):
            begin = builder.add(window, constant(place))
            cell = builder.add(first_cell, constant(place))
            yield _Area(begin, constant(variable.size), cell, origin, began, is_uninitialized=True)
