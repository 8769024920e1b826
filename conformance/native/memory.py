"""Checks each access to memory before it is made: bounds, alignment, and shadow memory.

Shadow memory says which thread touched each byte when, so whether two accesses are ordered. A byte
has three cells: its last store, and the last loads and atomic operations since. A cell holds an
epoch, a thread, and another thread that did the same in that epoch, if there is one. Epochs are
numbered through all launches, so that cells of an earlier launch need not be cleared.

Two accesses are ordered if they are by one thread, or by one block with a barrier between them,
which ends an epoch. Nothing orders the blocks of a launch. Warp operations are not
translated.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from conformance.native.ptx import Variable
from conformance.native.state import (
    I1,
    I32,
    I64,
    POINTER,
    WORDS_OF_ARRAY,
    Field,
    Kind,
    constant,
    counting,
    define,
    load,
    store,
)


class Access(IntEnum):
    """The kind of an access to memory; also the index of its cell."""

    STORE = 0
    LOAD = 1
    ATOMIC = 2


CELLS_OF_BYTE: Final = len(Access)

NO_OTHER: Final = 0xFFFF
"""In a cell: no other thread."""

CONFLICTS: Final = {
    Access.LOAD: (Access.STORE, Access.ATOMIC),
    Access.STORE: (Access.STORE, Access.ATOMIC, Access.LOAD),
    Access.ATOMIC: (Access.STORE, Access.LOAD),
}
"""For each kind of access, the kinds of earlier accesses that must be ordered before it."""


class AccessEpoch(NamedTuple):
    """A cell: an epoch, the thread, and another thread or `NO_OTHER`."""

    epoch: int
    thread: int
    other: int

    @classmethod
    def of(cls, cell: int) -> "AccessEpoch":
        return cls(cell >> 32 & 0xFFFFFFFF, cell >> 16 & 0xFFFF, cell & 0xFFFF)


def build_shadow_update(module: Any, access: Access) -> Any:
    """Return the function that checks and records one access to one byte.

    It takes the state, the address of the byte's cells, the first epoch that counts, whether the
    byte must have been stored to since, and the thread. It returns whether the access is a fault.
    """
    name = f"touch_{access.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    function, builder = define(module, name, I1, POINTER, POINTER, I64, I1, I32)
    state, cells, since, is_uninitialized, thread = function.args
    thread = builder.zext(thread, I64)
    now, began = load(builder, state, Field.NOW), load(builder, state, Field.BEGAN)
    found = {each: load(builder, cells, each) for each in Access}
    moments = {each: _parts(builder, cell) for each, cell in found.items()}

    def has(condition: str, left: Any, right: Any) -> Any:
        return builder.icmp_unsigned(condition, left, right)

    if access is not Access.STORE:
        is_stored = has(">=", moments[Access.STORE][0], since)
        with builder.if_then(builder.and_(is_uninitialized, builder.not_(is_stored)), likely=False):
            store(builder, state, Field.KIND, Kind.UNINITIALIZED)
            builder.ret(constant(1, I1))
    for earlier in CONFLICTS[access]:
        epoch, first, other = moments[earlier]
        of_others = builder.or_(has("!=", first, thread), has("!=", other, constant(NO_OTHER)))
        is_unordered = builder.or_(
            has("<", epoch, began), builder.and_(has("==", epoch, now), of_others)
        )
        with builder.if_then(builder.and_(has(">=", epoch, since), is_unordered), likely=False):
            store(builder, state, Field.KIND, Kind.RACE)
            store(builder, state, Field.OTHER, found[earlier])
            store(builder, state, Field.OTHER_ACCESS, earlier)
            builder.ret(constant(1, I1))
    _record(builder, access, cells, found[access], (since, began, now, thread))
    builder.ret(constant(0, I1))
    return function


def _parts(builder: Any, cell: Any) -> tuple[Any, Any, Any]:
    low = constant(0xFFFF)
    first = builder.and_(builder.lshr(cell, constant(16)), low)
    return builder.lshr(cell, constant(32)), first, builder.and_(cell, low)


def _record(
    builder: Any, access: Access, cells: Any, cell: Any, times: tuple[Any, Any, Any, Any]
) -> None:
    since, began, now, thread = times
    both = builder.or_(builder.shl(now, constant(32)), builder.shl(thread, constant(16)))
    mine = builder.or_(both, constant(NO_OTHER))
    if access is Access.STORE:
        # Order is transitive: an access ordered after this store is ordered after earlier ones.
        for each in Access:
            store(builder, cells, each, mine if each is access else 0)
        return
    epoch, first, _ = _parts(builder, cell)
    # A load of an earlier block stays: no store of a later block is ordered after it.
    is_of_ended_block = builder.and_(
        builder.icmp_unsigned(">=", epoch, since), builder.icmp_unsigned("<", epoch, began)
    )
    with_mine = builder.or_(builder.and_(cell, constant(~NO_OTHER)), thread)
    is_mine = builder.icmp_unsigned("==", first, thread)
    shared = builder.select(is_mine, cell, with_mine)
    is_of_now = builder.icmp_unsigned("==", epoch, now)
    kept = builder.select(is_of_ended_block, cell, builder.select(is_of_now, shared, mine))
    store(builder, cells, access, kept)


# The check of an access.


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
    """An array that an access may be inside of; all fields but the last are values of LLVM IR."""

    begin: Any  # its address in PTX
    num_bytes: Any  # its size
    first_cell: Any  # the index of its first cell of shadow memory
    origin: Any  # the difference between a host address and its address in PTX
    since: Any  # the first epoch whose accesses count
    is_uninitialized: bool  # whether its bytes are uninitialised when that epoch begins


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
