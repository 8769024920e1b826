"""The values that a thread computes with: its registers, special registers, and constants.

Registers are variables of the thread's function. At a barrier they are saved in the thread's frame,
from which they are restored when the thread resumes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from llvmlite import ir

from conformance.native.liveness import live_at_barriers
from conformance.native.memory import Layout
from conformance.native.ptx import Entry, Operand, Register, Symbol
from conformance.native.state import I1, I8, I32, Field, constant, load, place

EXECUTED: Final = Register("the instructions executed", 64)
"""An extra register, which counts the instructions that the thread has executed."""

_SIZES: Final = {
    "%ntid.x": Field.NUM_THREADS,
    "%nctaid.x": Field.GRID_X,
    "%nctaid.y": Field.GRID_Y,
}
_FIXED: Final = {
    **dict.fromkeys(("%tid.y", "%tid.z", "%ctaid.z"), 0),
    **dict.fromkeys(("%ntid.y", "%ntid.z", "%nctaid.z"), 1),
}
"""Blocks have one dimension, and grids two."""


class UnknownOperandError(Exception):
    """An operand is unknown, or invalid for its instruction."""


def registers_to_save(entry: Entry) -> set[Register]:
    """Return the registers that a thread saves at a barrier."""
    return live_at_barriers(entry) | {EXECUTED}


class Values:
    """The values of a thread.

    Attributes:
        builder: The IR builder of the thread's function.
        state: The state of the launch.
        thread: The index of the thread.
        layout: The memory layout.

    Args:
        builder: The IR builder, at the beginning of the function.
        arguments: The function's state, frame, thread, and block along x and y.
        entry: The kernel.
        layout: The memory layout.
    """

    def __init__(
        self, builder: Any, arguments: Sequence[Any], entry: Entry, layout: Layout
    ) -> None:
        self.builder = builder
        self.state, self._frame, self.thread, *block = arguments
        self.layout = layout
        self._special = dict(
            zip(("%tid.x", "%ctaid.x", "%ctaid.y"), (self.thread, *block), strict=True)
        )
        for name, field in _SIZES.items():
            self._special[name] = builder.trunc(load(builder, self.state, field), I32)
        for name, value in _FIXED.items():
            self._special[name] = constant(value, I32)
        self._registers = {
            each: builder.alloca(ir.IntType(each.bits)) for each in (*entry.registers, EXECUTED)
        }
        self._live = registers_to_save(entry)
        # A register that is read before it is written is undefined in PTX; here it is always 0.
        for each, pointer in self._registers.items():
            builder.store(constant(0, ir.IntType(each.bits)), pointer)

    def read(self, operand: Operand, bits: int) -> Any:
        """Return the value of an operand, or the lower bits of a wider one.

        Raises:
            UnknownOperandError: The operand is unknown, or has fewer bits.
        """
        kind = ir.IntType(bits)
        if isinstance(operand, int):
            return constant(operand, kind)
        if isinstance(operand, Register):
            value = self.builder.load(self._registers[operand], typ=ir.IntType(operand.bits))
        elif isinstance(operand, Symbol) and operand.name in self._special:
            value = self._special[operand.name]
        elif isinstance(operand, Symbol) and operand.name in self.layout.places:
            value = constant(self.layout.places[operand.name][1])
        else:
            raise UnknownOperandError(operand)
        if value.type.width < bits:
            raise UnknownOperandError(operand)
        return value if value.type.width == bits else self.builder.trunc(value, kind)

    def write(self, target: Operand, value: Any, *, is_signed: bool = False) -> None:
        """Write a value to a register, which may be wider; the target `_` discards it.

        Raises:
            UnknownOperandError: The target is not a register, or has fewer bits.
        """
        if target == Symbol("_"):
            return
        if not isinstance(target, Register) or target.bits < value.type.width:
            raise UnknownOperandError(target)
        if target.bits > value.type.width:
            extend = self.builder.sext if is_signed else self.builder.zext
            value = extend(value, ir.IntType(target.bits))
        self.builder.store(value, self._registers[target])

    def save(self) -> None:
        """Save to the frame the registers that are needed after a barrier."""
        for number, (register, pointer) in enumerate(self._saved()):
            value = self.builder.load(pointer, typ=ir.IntType(register.bits))
            if register.bits == 1:
                value = self.builder.zext(value, I8)
            self.builder.store(value, place(self.builder, self._frame, number))

    def restore(self) -> None:
        """Restore from the frame the registers that were saved."""
        for number, (register, pointer) in enumerate(self._saved()):
            kind = I8 if register.bits == 1 else ir.IntType(register.bits)
            value = self.builder.load(place(self.builder, self._frame, number), typ=kind)
            if register.bits == 1:
                value = self.builder.trunc(value, I1)
            self.builder.store(value, pointer)

    def _saved(self) -> Iterator[tuple[Register, Any]]:
        """Yield the registers that are saved."""
        yield from (one for one in self._registers.items() if one[0] in self._live)

    @property
    def frame_words(self) -> int:
        """The size of a frame in words."""
        return len(self._live)
