"""Translates the instructions that access memory or convert addresses."""

import re
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir

from conformance.native.memory import base_of, build_access_check
from conformance.native.operations import intrinsic
from conformance.native.ptx import BITS, Address, Instruction, Operand, Register, Symbol
from conformance.native.shadow import Access
from conformance.native.state import I64, POINTER, Field, constant, load
from conformance.native.values import UnknownOperandError, Values

_QUALIFIERS: Final = r"(?:\.(?:volatile|relaxed|cta|gpu|sys|nc))*"
_SPACE: Final = rf"{_QUALIFIERS}(?:\.(?P<space>global|shared|local))?{_QUALIFIERS}"
_TYPE: Final = r"(?P<type>[bus](?:8|16|32|64))"


class Accesses:
    """Translates the instructions that access memory or convert addresses.

    Args:
        values: The values of the thread.
        fail: Called with a line of PTX; builds the code that ends the thread with a fault.
    """

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
        """Translate an instruction if it is one of these; return whether it is.

        Raises:
            UnknownOperandError: An operand is invalid for the instruction.
        """
        for pattern, build in self._patterns.items():
            if found := re.fullmatch(pattern, instruction.opcode):
                build(found, instruction)
                return True
        return False

    def _load_parameter(self, _found: "re.Match[str]", instruction: Instruction) -> None:
        """Load a kernel parameter."""
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
        """Check an access, and return the host pointer that it uses."""
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
        """Load or store one value or a vector."""
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
