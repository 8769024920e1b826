"""Parses PTX, as NVVM prints it: one instruction a line.

An unknown line raises `UnknownPtxError`; only directives that change no result are skipped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

BITS: Final = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
}
"""The bits of each PTX type; floats are missing, since no kernel computes with them."""

_WORD = r"[%$\w][\w$.]*"
_INSTRUCTION: Final = re.compile(rf"(?:@(!?)({_WORD})\s+)?([a-z][\w.]*)\s*(.*);")
_OPERAND: Final = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^\s,{}\[\]]+")
_REGISTERS: Final = re.compile(r"\.reg \.(\w+)\s+(%?\w+)(?:<(\d+)>)?;")
_VARIABLE: Final = re.compile(
    r"(?:\.visible |\.extern )?\.(shared|local) \.align (\d+) \.b8\s+([\w$]+)\[(\d+)\];?"
)
_IGNORED: Final = re.compile(
    r"\.(version|target|address_size|common \.global|pragma|maxntid|file|section)\b.*"
)


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a thread."""

    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a special register, a variable, a parameter or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """A memory address: a base, and an offset in bytes."""

    base: "Register | Symbol | int"
    offset: int


Operand: TypeAlias = "Register | Symbol | int | Address | tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Variable:
    """An array in shared or local memory."""

    space: str
    name: str
    align: int
    size: int


@dataclass(frozen=True, slots=True)
class Label:
    """The target of a branch."""

    name: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction."""

    opcode: str  # with all its modifiers
    operands: tuple[Operand, ...]  # the target first
    guard: Register | None  # the predicate under which it is executed; None: always
    is_negated: bool  # whether it is executed if the predicate is false
    line: int  # the number of its line of PTX
    text: str  # that line
    source_line: int  # the line of the Python source that it was compiled from; 0 if it is unknown


class Entry(NamedTuple):
    """The kernel of a PTX module."""

    num_words: int  # its parameters, of 8 bytes each
    variables: list[Variable]  # its arrays in shared and local memory
    registers: list[Register]  # all of them, in all scopes
    body: list[Instruction | Label]  # its instructions and labels
    file: str  # the Python source file of the line numbers


class UnknownPtxError(NotImplementedError):
    """PTX has a construct that is not translated."""


def read_entry(ptx: str) -> Entry:
    """Parse the PTX of one kernel.

    Example:
        >>> entry = read_entry('''
        ... .visible .entry f(
        ...   .param .u64 f_param_0
        ... )
        ... {
        ...   .reg .b64 %rd<3>;
        ...   ld.param.u64 %rd1, [f_param_0];
        ...   ret;
        ... }''')
        >>> entry.num_words, entry.body[0].operands
        (1, (Register(name='%rd1', bits=64), Address(base=Symbol(name='f_param_0'), offset=0)))
    """
    return _Reader(ptx).entry


class _Reader:
    """Parses PTX line by line."""

    def __init__(self, ptx: str) -> None:
        self._scopes: list[dict[str, Register]] = []
        self._source_line = 0
        files = re.findall(r'^\s*\.file\s+\d+ "(.*)"', ptx, re.MULTILINE)
        self.entry = Entry(0, [], [], [], files[0] if len(files) == 1 else "")
        is_parameter = False
        for number, text in enumerate(ptx.splitlines(), 1):
            line = text.split("//")[0].strip()
            if re.match(r"(\.visible )?\.entry ", line):
                is_parameter = not line.endswith(")")
                if self.entry.num_words or self._scopes:
                    raise UnknownPtxError(f"PTX line {number}: a second kernel")
            elif is_parameter:
                is_parameter = line != ")"
                self._count_parameter(number, line)
            elif line:
                self._read(number, line)

    def _count_parameter(self, number: int, line: str) -> None:
        """Count a parameter, which must be a word of 8 bytes."""
        if re.fullmatch(r"\.param \.u64( \.ptr( \.align \d+)?)? \S+?,?", line):
            self.entry = self.entry._replace(num_words=self.entry.num_words + 1)
        elif line not in {"(", ")"}:
            raise UnknownPtxError(f"PTX line {number}: {line}")

    def _read(self, number: int, line: str) -> None:
        if line == "{":
            self._scopes.append({})
        elif line == "}":
            self._scopes.pop()
        elif found := _REGISTERS.fullmatch(line):
            self._declare(*found.groups(), number=number)
        elif found := _VARIABLE.fullmatch(line):
            space, align, name, size = found.groups()
            self.entry.variables.append(Variable(space, name, int(align), int(size)))
        elif found := re.match(r"\.loc\s+(\d+) (\d+) \d+", line):
            self._source_line = int(found[2]) or self._source_line
        elif found := re.fullmatch(rf"({_WORD}):", line):
            self.entry.body.append(Label(found[1]))
        elif (found := _INSTRUCTION.fullmatch(line)) and self._scopes:
            self.entry.body.append(self._instruction(number, line, found))
        elif not _IGNORED.fullmatch(line):
            raise UnknownPtxError(f"PTX line {number}: {line}")

    def _declare(self, kind: str, name: str, count: str | None, *, number: int) -> None:
        """Declare registers of the innermost scope, whose names may shadow those of outer ones."""
        if kind not in BITS:
            raise UnknownPtxError(f"PTX line {number}: a register of type {kind}")
        names = [f"{name}{place}" for place in range(int(count))] if count else [name]
        inner = f"@{number}" if len(self._scopes) > 1 else ""
        for each in names:
            register = Register(each + inner, BITS[kind])
            self._scopes[-1][each] = register
            self.entry.registers.append(register)

    def _instruction(self, number: int, line: str, found: re.Match[str]) -> Instruction:
        negation, guard, opcode, rest = found.groups()
        try:
            operands = tuple(self._operand(each) for each in _OPERAND.findall(rest))
            predicate = self._operand(guard) if guard else None
        except ValueError:
            raise UnknownPtxError(f"PTX line {number}: {line}") from None
        if predicate is not None and not isinstance(predicate, Register):
            raise UnknownPtxError(f"PTX line {number}: {line}")
        is_negated = bool(negation)
        return Instruction(opcode, operands, predicate, is_negated, number, line, self._source_line)

    def _operand(self, text: str) -> Operand:
        """Parse an operand; raise ValueError if its kind is unknown."""
        if text[0] == "{":
            return tuple(self._operand(each) for each in _split(text))
        if text[0] == "[":
            base, _, offset = text.strip("[]").replace(" ", "").partition("+")
            inside = self._operand(base)
            if isinstance(inside, Address | tuple):
                raise ValueError(text)
            return Address(inside, int(offset or 0))
        for scope in reversed(self._scopes):
            if text in scope:
                return scope[text]
        if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+U?", text):
            return int(text.rstrip("U"), 0)
        if re.fullmatch(_WORD, text) and not text[0].isdigit():
            return Symbol(text)
        raise ValueError(text)


def _split(text: str) -> Iterator[str]:
    yield from (each.strip() for each in text.strip("{}").split(","))


# The registers that a thread must save at a barrier: those that it may read afterwards.


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
    if one.operands and not one.opcode.startswith(_WITHOUT_TARGET):
        yield from _registers(one.operands[0])


def _read(one: Instruction) -> Iterator[Register]:
    if one.guard is not None:
        yield one.guard
    for number, operand in enumerate(one.operands):
        if number or one.opcode.startswith(_WITHOUT_TARGET):
            yield from _registers(operand)


def _registers(operand: Operand) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Address):
        yield from _registers(operand.base)
    elif isinstance(operand, tuple):
        for part in operand:
            yield from _registers(part)
