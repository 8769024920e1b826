"""Finds the registers that a thread must save at a barrier: those that it may read afterwards."""

from collections.abc import Iterator
from typing import Final

from conformance.native.ptx import Address, Entry, Instruction, Label, Operand, Register, Symbol

_WITHOUT_TARGET: Final = ("st.", "red.", "bra", "bar.sync", "barrier.sync", "ret", "exit")
"""Prefixes of opcodes without a target: their first operand is read, or they have no operands."""


def live_at_barriers(entry: Entry) -> set[Register]:
    """Return the registers whose values are needed after some barrier."""
    labels = {each.name: at for at, each in enumerate(entry.body) if isinstance(each, Label)}
    live: list[set[Register]] = [set() for _ in range(len(entry.body) + 1)]  # before each
    has_changed = True
    while has_changed:
        has_changed = False
        for at in reversed(range(len(entry.body))):
            one = entry.body[at]
            needed = set(live[at + 1])
            if isinstance(one, Instruction):
                if one.opcode.startswith("bra"):
                    target = one.operands[0]
                    there = labels.get(target.name) if isinstance(target, Symbol) else None
                    fallen_through = needed if one.guard else set()
                    needed = fallen_through | (set() if there is None else live[there])
                elif one.opcode in {"ret", "exit"} and one.guard is None:
                    needed = set()
                if one.guard is None:
                    needed -= set(_written(one))
                needed |= set(_read(one))
            if needed != live[at]:
                live[at], has_changed = needed, True
    return {
        register
        for at, one in enumerate(entry.body)
        if isinstance(one, Instruction) and one.opcode.startswith("bar")
        for register in live[at + 1] - set(_written(one))
    }


def _written(one: Instruction) -> Iterator[Register]:
    """Yield the registers that an instruction writes."""
    if one.operands and not one.opcode.startswith(_WITHOUT_TARGET):
        yield from _registers(one.operands[0])


def _read(one: Instruction) -> Iterator[Register]:
    """Yield the registers that an instruction reads."""
    if one.guard is not None:
        yield one.guard
    for number, operand in enumerate(one.operands):
        if number or one.opcode.startswith(_WITHOUT_TARGET):
            yield from _registers(operand)


def _registers(operand: Operand) -> Iterator[Register]:
    """Yield the registers in an operand."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Address):
        yield from _registers(operand.base)
    elif isinstance(operand, tuple):
        for part in operand:
            yield from _registers(part)
