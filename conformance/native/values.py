"""The values that a thread computes with: its registers, special registers, and constants.

Registers are variables of the thread's function. At a barrier they are saved in the thread's frame,
from which they are restored when the thread resumes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from llvmlite import ir

from conformance.native.memory import Access, Layout, base_of, build_access_check
from conformance.native.operations import intrinsic
from conformance.native.ptx import (
    BITS,
    Address,
    Entry,
    Instruction,
    Operand,
    Register,
    Symbol,
    live_at_barriers,
)
from conformance.native.state import I1, I8, I32, I64, POINTER, Field, constant, load, place

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
    return live_at_barriers(entry) | {EXECUTED}


class Values:
    """The values of a thread.

    Attributes:
        builder: The IR builder of the thread's function.
        state: The state of the launch.
        thread: The index of the thread.
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
        """Return the value of an operand, or the lower bits of a wider one."""
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
        """Write a value to a register, which may be wider; the target `_` discards it."""
        if target == Symbol("_"):
            return
        if not isinstance(target, Register) or target.bits < value.type.width:
            raise UnknownOperandError(target)
        if target.bits > value.type.width:
            extend = self.builder.sext if is_signed else self.builder.zext
            value = extend(value, ir.IntType(target.bits))
        self.builder.store(value, self._registers[target])

    def save(self) -> None:
        for number, (register, pointer) in enumerate(self._saved()):
            value = self.builder.load(pointer, typ=ir.IntType(register.bits))
            if register.bits == 1:
                value = self.builder.zext(value, I8)
            self.builder.store(value, place(self.builder, self._frame, number))

    def restore(self) -> None:
        for number, (register, pointer) in enumerate(self._saved()):
            kind = I8 if register.bits == 1 else ir.IntType(register.bits)
            value = self.builder.load(place(self.builder, self._frame, number), typ=kind)
            if register.bits == 1:
                value = self.builder.trunc(value, I1)
            self.builder.store(value, pointer)

    def _saved(self) -> Iterator[tuple[Register, Any]]:
        yield from (one for one in self._registers.items() if one[0] in self._live)

    @property
    def frame_words(self) -> int:
        return len(self._live)


# Memory.


_QUALIFIERS: Final = r"(?:\.(?:volatile|relaxed|cta|gpu|sys|nc))*"
_SPACE: Final = rf"{_QUALIFIERS}(?:\.(?P<space>global|shared|local))?{_QUALIFIERS}"
_TYPE: Final = r"(?P<type>[bus](?:8|16|32|64))"


class Accesses:
    """Translates the instructions that access memory or convert addresses."""

    def __init__(self, values: Values, fail: Callable[[int], None]) -> None:
        self._values = values
        self._builder = values.builder
        self._fail = fail
        self._patterns: Final = {
            r"ld\.param\.u64": self._load_parameter,
            r"cvta(?P<to>\.to)?\.(?P<space>global|shared|local)\.u64": self._convert,
            rf"(?P<name>ld|st){_SPACE}(?:\.v[24])?\.{_TYPE}": self._move,
            rf"(?P<name>atom|red){_SPACE}\.(?P<do>\w+)\.{_TYPE}": self._update,
        }

    def translate(self, instruction: Instruction) -> bool:
        """Translate an instruction if it is one of these; return whether it is."""
        for pattern, build in self._patterns.items():
            if found := re.fullmatch(pattern, instruction.opcode):
                build(found, instruction)
                return True
        return False

    def _load_parameter(self, _found: "re.Match[str]", instruction: Instruction) -> None:
        target, source = instruction.operands
        if not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
            raise UnknownOperandError(source)
        number = int(source.base.name.rpartition("_param_")[2])
        self._values.write(target, load(self._builder, self._values.state, Field.WORDS + number))

    def _convert(self, found: "re.Match[str]", instruction: Instruction) -> None:
        """Convert between an address of a space and a generic one, which is a host address."""
        target, source = instruction.operands
        value = self._values.read(source, 64)
        if found["space"] != "global":
            values = self._values
            base, _ = base_of(
                self._builder, values.state, values.layout, found["space"], values.thread
            )
            value = (self._builder.sub if found["to"] else self._builder.add)(value, base)
        self._values.write(target, value)

    def _locate(
        self, space: str | None, access: Access, at: Operand, size: int, instruction: Instruction
    ) -> Any:
        if not isinstance(at, Address):
            raise UnknownOperandError(at)
        builder, values = self._builder, self._values
        bits = at.base.bits if isinstance(at.base, Register) else 64
        address = values.read(at.base, bits)
        if bits < 64:  # of shared or local memory
            address = builder.zext(address, I64)
        address = builder.add(address, constant(at.offset))
        check = build_access_check(builder.module, values.layout, space or "generic", access)
        real = builder.call(check, (values.state, address, constant(size), values.thread))
        with builder.if_then(builder.icmp_unsigned("==", real, constant(0)), likely=False):
            self._fail(instruction.line)
        return builder.inttoptr(real, POINTER)

    def _move(self, found: "re.Match[str]", instruction: Instruction) -> None:
        is_load = found["name"] == "ld"
        moved, at = instruction.operands if is_load else instruction.operands[::-1]
        several = moved if isinstance(moved, tuple) else (moved,)
        kind = ir.IntType(BITS[found["type"]])
        size = kind.width // 8
        access = Access.LOAD if is_load else Access.STORE
        pointer = self._locate(found["space"], access, at, size * len(several), instruction)
        places = [
            self._builder.gep(pointer, [constant(number)], source_etype=kind)
            for number in range(len(several))
        ]
        if is_load:
            loaded = [self._builder.load(each, typ=kind, align=size) for each in places]
            for target, value in zip(several, loaded, strict=True):
                self._values.write(target, value, is_signed=found["type"][0] == "s")
        else:
            for each, source in zip(places, several, strict=True):
                self._builder.store(self._values.read(source, kind.width), each, align=size)

    def _update(self, found: "re.Match[str]", instruction: Instruction) -> None:
        """Replace a value atomically; threads run one at a time, so a load and a store suffice."""
        operands = list(instruction.operands)
        target = operands.pop(0) if found["name"] == "atom" else Symbol("_")
        at, *rest = operands
        kind = ir.IntType(BITS[found["type"]])
        pointer = self._locate(found["space"], Access.ATOMIC, at, kind.width // 8, instruction)
        old = self._builder.load(pointer, typ=kind)
        value, *more = [self._values.read(each, kind.width) for each in rest]
        builder, name, sign = self._builder, found["do"], found["type"][0]
        if name == "cas":
            value = builder.select(builder.icmp_unsigned("==", old, value), more[0], old)
        elif name in {"add", "xor", "and", "or"}:
            value = getattr(builder, name + "_" * (name in {"and", "or"}))(old, value)
        elif name in {"min", "max"} and sign in "us":
            value = intrinsic(builder, f"{sign}{name}", old, value)
        elif name != "exch":
            raise UnknownOperandError(name)
        builder.store(value, pointer)
        self._values.write(target, old)
