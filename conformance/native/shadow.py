"""Shadow memory: which thread touched each byte when, and whether two accesses are ordered.

A byte has three cells: its last store, and the last loads and atomic operations since. A cell holds
an epoch, a thread, and another thread that did the same in that epoch, if there is one. Epochs are
numbered through all launches, so that cells of an earlier launch need not be cleared.

Two accesses are ordered if they are by one thread, or by one block with a barrier between them,
which ends an epoch. Nothing orders the blocks of a launch. Warp operations are not translated.
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple

from conformance.native.faults import Kind
from conformance.native.state import I1, I32, I64, POINTER, Field, constant, define, load, store


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
        """Decode a cell."""
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
    """Return the epoch and the threads of a cell."""
    low = constant(0xFFFF)
    first = builder.and_(builder.lshr(cell, constant(16)), low)
    return builder.lshr(cell, constant(32)), first, builder.and_(cell, low)


def _record(
    builder: Any, access: Access, cells: Any, cell: Any, times: tuple[Any, Any, Any, Any]
) -> None:
    """Record an ordered access in its cell."""
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
