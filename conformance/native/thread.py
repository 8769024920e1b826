"""Translates the PTX of a kernel to LLVM IR: the function that one thread runs.

It runs until the thread ends or waits at a barrier, where the values of all registers are saved in
a frame, from which the thread goes on when it is called again. The instructions that compute are in
`operations`; here are those of control flow, memory and barriers.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from conformance.native.faults import Kind
from conformance.native.memory import Layout, base_of, checking
from conformance.native.operations import find_operation, intrinsic, operand_bits
from conformance.native.ptx import (
    BITS,
    Address,
    Entry,
    Instruction,
    Label,
    Operand,
    Register,
    Symbol,
    UnknownPtxError,
)
from conformance.native.shadow import Access
from conformance.native.state import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Field,
    constant,
    define,
    ir,
    load,
    place,
    store,
)

ENDED: Final = 0
FAULTED: Final = -1
"""What the function returns; otherwise the line of PTX of the barrier at which the thread waits."""

_QUALIFIERS: Final = r"(?:\.(?:volatile|relaxed|cta|gpu|sys|nc))*"
_SPACE: Final = rf"{_QUALIFIERS}(?:\.(?P<space>global|shared|local))?{_QUALIFIERS}"
_SIZE: Final = r"(?P<type>[bus](?:8|16|32|64))"
_NUMBER_OF_STEPS: Final = Register("the steps", 64)


def build_thread(module: Any, entry: Entry, layout: Layout) -> Any:
    """Add the function of a thread to a module, and return it.

    It takes the state, the thread's frame, the thread, the block along x and y, and where the
    thread waits: at first `ENDED`.

    Raises:
        UnknownPtxError: The kernel has an instruction that is not translated.
    """
    return _Translator(module, entry, layout).function


def frame_words(entry: Entry) -> int:
    """Return the words of a thread's frame."""
    return len(entry.registers) + 1


class _Translator:
    """Builds the function, instruction by instruction."""

    def __init__(self, module: Any, entry: Entry, layout: Layout) -> None:
        self.module = module
        self.layout = layout
        parameters = (POINTER, POINTER, I32, I32, I32, I64)
        self.function, self.builder = define(module, "thread", I64, *parameters)
        self.state, self.frame, self.thread, *blocks, resumed = self.function.args
        self.blocks = {
            each.name: self.function.append_basic_block(each.name)
            for each in entry.body
            if isinstance(each, Label)
        }
        self.exits = {
            name: self.function.append_basic_block(name) for name in ("wait", "fault", "end")
        }
        self.lines = {name: self._line(self.exits[name]) for name in ("wait", "fault")}
        self.resumptions: list[tuple[int, Any]] = []
        self.special = self._special(blocks)
        self.registers = {
            each: self.builder.alloca(ir.IntType(each.bits))
            for each in (*entry.registers, _NUMBER_OF_STEPS)
        }
        # A register that is read before it is written has any value: it has the same in each run.
        for each, pointer in self.registers.items():
            self.builder.store(constant(0, ir.IntType(each.bits)), pointer)
        start = self.builder.append_basic_block("start")
        restore = self.builder.append_basic_block("restore")
        is_first = self.builder.icmp_unsigned("==", resumed, constant(ENDED))
        self.builder.cbranch(is_first, start, restore)

        self.builder.position_at_end(start)
        for each in entry.body:
            if isinstance(each, Label):
                self._enter(each)
            elif not self.builder.block.is_terminated:
                self._translate(each)
        if not self.builder.block.is_terminated:
            self.builder.branch(self.exits["end"])
        self._exit()
        self._restore(restore, resumed)

    def _line(self, block: Any) -> Any:
        with self.builder.goto_block(block):
            return self.builder.phi(I64)

    def _special(self, blocks: Sequence[Any]) -> dict[str, Any]:
        """Return the values of the special registers: those of a grid of two dimensions."""
        fields = {
            "%ntid.x": Field.NUM_THREADS,
            "%nctaid.x": Field.GRID_X,
            "%nctaid.y": Field.GRID_Y,
        }
        fixed = {"%tid.y": 0, "%tid.z": 0, "%ctaid.z": 0, "%ntid.y": 1, "%ntid.z": 1}
        return {
            **{
                name: self.builder.trunc(load(self.builder, self.state, field), I32)
                for name, field in fields.items()
            },
            **{name: constant(value, I32) for name, value in (*fixed.items(), ("%nctaid.z", 1))},
            **dict(zip(("%tid.x", "%ctaid.x", "%ctaid.y"), (self.thread, *blocks), strict=True)),
        }

    # Values.

    def read(self, operand: Operand, bits: int) -> Any:
        """Return the value of an operand, or the lower bits of a wider register."""
        kind = ir.IntType(bits)
        if isinstance(operand, int):
            return constant(operand, kind)
        if isinstance(operand, Register):
            value = self.builder.load(self.registers[operand], typ=ir.IntType(operand.bits))
        elif isinstance(operand, Symbol) and operand.name in self.special:
            value = self.special[operand.name]
        elif isinstance(operand, Symbol) and operand.name in self.layout.places:
            value = constant(self.layout.places[operand.name][1])
        else:
            raise ValueError(operand)
        if value.type.width < bits:
            raise ValueError(operand)
        return value if value.type.width == bits else self.builder.trunc(value, kind)

    def write(self, target: Operand, value: Any, *, is_signed: bool = False) -> None:
        """Put a value into a register, which may be wider."""
        if target == Symbol("_"):
            return
        if not isinstance(target, Register) or target.bits < value.type.width:
            raise ValueError(target)
        if target.bits > value.type.width:
            extend = self.builder.sext if is_signed else self.builder.zext
            value = extend(value, ir.IntType(target.bits))
        self.builder.store(value, self.registers[target])

    # Control flow.

    def _enter(self, label: Label) -> None:
        """Begin a basic block of the PTX, and count it."""
        if not self.builder.block.is_terminated:
            self.builder.branch(self.blocks[label.name])
        self.builder.position_at_end(self.blocks[label.name])
        steps = self.builder.add(self.read(_NUMBER_OF_STEPS, 64), constant(1))
        self.write(_NUMBER_OF_STEPS, steps)
        is_endless = self.builder.icmp_unsigned(
            ">", steps, load(self.builder, self.state, Field.MOST_STEPS)
        )
        with self.builder.if_then(is_endless, likely=False):
            store(self.builder, self.state, Field.KIND, Kind.ENDLESS)
            self._leave("fault", 0)

    def _leave(self, name: str, line: int) -> None:
        """Go to an exit."""
        self.lines[name].add_incoming(constant(line), self.builder.block)
        self.builder.branch(self.exits[name])

    def _translate(self, instruction: Instruction) -> None:
        """Translate an instruction; refuse by name what is not known."""
        try:
            if instruction.guard is None:
                self._execute(instruction)
                return
            condition = self.read(instruction.guard, 1)
            if instruction.is_negated:
                condition = self.builder.not_(condition)
            following = self.builder.append_basic_block("next")
            guarded = self.builder.append_basic_block("guarded")
            self.builder.cbranch(condition, guarded, following)
            self.builder.position_at_end(guarded)
            self._execute(instruction)
            if not self.builder.block.is_terminated:
                self.builder.branch(following)
            self.builder.position_at_end(following)
        except (ValueError, KeyError, IndexError):
            raise UnknownPtxError(
                f"PTX line {instruction.line}: {instruction.opcode} is not translated:"
                f" {instruction.text}"
            ) from None

    def _execute(self, instruction: Instruction) -> None:
        """Translate an instruction without its guard; raise ValueError if it is unknown."""
        opcode, operands = instruction.opcode, instruction.operands
        if found := find_operation(opcode):
            if any(isinstance(each, tuple) for each in operands):
                self._pack(operands, operand_bits(found[0]))
            else:
                self._compute(opcode, operands, *found)
        elif opcode in {"bra", "bra.uni"} and isinstance(operands[0], Symbol):
            self.builder.branch(self.blocks[operands[0].name])
        elif opcode in {"ret", "exit"}:
            self.builder.branch(self.exits["end"])
        elif opcode == "ld.param.u64":
            self._load_parameter(*operands)
        elif found_space := re.fullmatch(r"cvta(?P<to>\.to)?\.(?P<space>\w+)\.u64", opcode):
            self._convert_address(found_space, *operands)
        elif memory := re.fullmatch(rf"(?P<name>ld|st){_SPACE}(?:\.v[24])?\.{_SIZE}", opcode):
            self._move(memory, instruction)
        elif memory := re.fullmatch(rf"(?P<name>atom|red){_SPACE}\.(?P<do>\w+)\.{_SIZE}", opcode):
            self._change_atomically(memory, instruction)
        elif re.fullmatch(r"bar(rier)?\.(sync|red\.(popc\.u32|(and|or)\.pred))", opcode):
            self._wait(instruction)
        elif not re.fullmatch(r"membar\.(cta|gl|sys)|fence\.\w+\.\w+", opcode):
            # Fences: threads run one at a time, and nothing is ordered by them.
            raise ValueError(opcode)

    def _compute(self, opcode: str, operands: Sequence[Operand], found: Any, compute: Any) -> None:
        """Translate an instruction that has a result of values alone."""
        bits = operand_bits(found)
        widths = [bits] * (len(operands) - 1)
        if opcode.startswith(("shl", "shr")):
            widths[-1] = 32
        elif opcode.startswith("selp"):
            widths[-1] = 1
        elif opcode.startswith("mad.wide"):
            widths[-1] = 2 * bits
        values = [self.read(each, width) for each, width in zip(operands[1:], widths, strict=True)]
        is_signed = found.groupdict().get("to_type", "u")[0] == "s"
        self.write(operands[0], compute(self.builder, values, found), is_signed=is_signed)

    def _pack(self, operands: Sequence[Operand], bits: int) -> None:
        """Move the parts of a register, the lowest first, to other registers, or together."""
        target, source = operands
        whole = ir.IntType(bits)
        if isinstance(target, tuple):
            value, width = self.read(source, bits), bits // len(target)
            for number, part in enumerate(target):
                moved = self.builder.lshr(value, constant(width * number, whole))
                self.write(part, self.builder.trunc(moved, ir.IntType(width)))
        elif isinstance(source, tuple):
            value, width = constant(0, whole), bits // len(source)
            for number, part in enumerate(source):
                bits_of_part = self.builder.zext(self.read(part, width), whole)
                shifted = self.builder.shl(bits_of_part, constant(width * number, whole))
                value = self.builder.or_(value, shifted)
            self.write(target, value)

    # Memory.

    def _load_parameter(self, target: Operand, source: Operand) -> None:
        """Load a word that the kernel takes."""
        if not isinstance(source, Address) or not isinstance(source.base, Symbol):
            raise ValueError(source)
        number = int(source.base.name.rpartition("_param_")[2])
        if source.offset or number >= self.layout.num_words:
            raise ValueError(source)
        self.write(target, load(self.builder, self.state, Field.WORDS + number))

    def _convert_address(self, found: "re.Match[str]", target: Operand, source: Operand) -> None:
        """Convert between an address of a space and a generic one, which is this machine's."""
        value = self.read(source, 64)
        space = found["space"]
        if space != "global":
            if space not in self.layout.sizes:
                raise ValueError(space)
            base, _ = base_of(self.builder, self.state, self.layout, space, self.thread)
            value = (self.builder.sub if found["to"] else self.builder.add)(value, base)
        self.write(target, value)

    def _locate(self, space: str | None, access: Access, at: Operand, size: int, line: int) -> Any:
        """Return the pointer that an access uses, once it has been checked."""
        if not isinstance(at, Address):
            raise ValueError(at)
        is_wide = not isinstance(at.base, Register) or at.base.bits == 64
        address = self.read(at.base, 64 if is_wide else 32)
        address = address if is_wide else self.builder.zext(address, I64)
        address = self.builder.add(address, constant(at.offset))
        check = checking(self.module, self.layout, space or "generic", access)
        found = self.builder.call(check, (self.state, address, constant(size), self.thread))
        is_wrong = self.builder.icmp_unsigned("==", found, constant(0))
        with self.builder.if_then(is_wrong, likely=False):
            self._leave("fault", line)
        return self.builder.inttoptr(found, POINTER)

    def _move(self, found: "re.Match[str]", instruction: Instruction) -> None:
        """Load or store a value or several in a row."""
        is_load = found["name"] == "ld"
        values, at = instruction.operands if is_load else instruction.operands[::-1]
        several = values if isinstance(values, tuple) else (values,)
        kind = ir.IntType(BITS[found["type"]])
        access = Access.LOAD if is_load else Access.STORE
        size = kind.width // 8 * len(several)
        pointer = self._locate(found["space"], access, at, size, instruction.line)
        places = [
            self.builder.gep(pointer, [constant(number)], source_etype=kind)
            for number in range(len(several))
        ]
        if not is_load:
            for each, value in zip(places, several, strict=True):
                self.builder.store(self.read(value, kind.width), each, align=kind.width // 8)
            return
        loaded = [self.builder.load(each, typ=kind, align=kind.width // 8) for each in places]
        for target, value in zip(several, loaded, strict=True):
            self.write(target, value, is_signed=found["type"][0] == "s")

    def _change_atomically(self, found: "re.Match[str]", instruction: Instruction) -> None:
        """Replace a value; threads run one at a time, so nothing comes between."""
        operands = list(instruction.operands)
        target = operands.pop(0) if found["name"] == "atom" else Symbol("_")
        at, *rest = operands
        kind = ir.IntType(BITS[found["type"]])
        size = kind.width // 8
        pointer = self._locate(found["space"], Access.ATOMIC, at, size, instruction.line)
        old = self.builder.load(pointer, typ=kind)
        values = [self.read(each, kind.width) for each in rest]
        self.builder.store(self._changed(found["do"], found["type"][0], old, *values), pointer)
        self.write(target, old)

    def _changed(self, name: str, sign: str, old: Any, value: Any, *more: Any) -> Any:
        """Return what an atomic operation stores."""
        builder = self.builder
        if name == "cas":
            return builder.select(builder.icmp_unsigned("==", old, value), more[0], old)
        if name in {"add", "xor"}:
            return getattr(builder, name)(old, value)
        if name in {"and", "or"}:
            return getattr(builder, f"{name}_")(old, value)
        if name in {"min", "max"} and sign in "us":
            return intrinsic(builder, f"{sign}{name}", old, value)
        if name != "exch":
            raise ValueError(name)
        return value

    # Barriers.

    def _wait(self, instruction: Instruction) -> None:
        """Leave, and go on here when all threads of the block have come."""
        operands = instruction.operands
        is_vote = ".red." in instruction.opcode
        if operands[is_vote] != 0 or len(operands) != (3 if is_vote else 1):
            raise ValueError(operands)  # not barrier 0, or not of all threads
        if is_vote:
            vote = self.builder.zext(self.read(operands[2], 1), I64)
            votes = load(self.builder, self.state, Field.VOTES)
            store(self.builder, self.state, Field.VOTES, self.builder.add(votes, vote))
        self._leave("wait", instruction.line)
        after = self.builder.append_basic_block("after_barrier")
        self.resumptions.append((instruction.line, after))
        self.builder.position_at_end(after)
        if is_vote:
            votes = load(self.builder, self.state, Field.RESULT)
            least = load(self.builder, self.state, Field.NUM_THREADS)
            result = {
                "popc": lambda: self.builder.trunc(votes, I32),
                "and": lambda: self.builder.icmp_unsigned("==", votes, least),
                "or": lambda: self.builder.icmp_unsigned("!=", votes, constant(0)),
            }[instruction.opcode.split(".")[2]]()
            self.write(operands[0], result)

    def _exit(self) -> None:
        """Build the exits of the function."""
        self.builder.position_at_end(self.exits["end"])
        self.builder.ret(constant(ENDED))
        self.builder.position_at_end(self.exits["fault"])
        if self.lines["fault"].incomings:
            store(self.builder, self.state, Field.LINE, self.lines["fault"])
            self.builder.ret(constant(FAULTED))
        else:
            self._discard("fault")
        self.builder.position_at_end(self.exits["wait"])
        if not self.resumptions:
            self._discard("wait")
            return
        for number, (register, pointer) in enumerate(self.registers.items()):
            value = self.builder.load(pointer, typ=ir.IntType(register.bits))
            if register.bits == 1:
                value = self.builder.zext(value, I8)
            self.builder.store(value, place(self.builder, self.frame, number))
        self.builder.ret(self.lines["wait"])

    def _discard(self, name: str) -> None:
        """End an exit that nothing goes to; a phi without values is no IR."""
        self.exits[name].instructions.remove(self.lines[name])
        self.builder.unreachable()

    def _restore(self, block: Any, resumed: Any) -> None:
        """Build what lets a thread go on where it waits."""
        self.builder.position_at_end(block)
        for number, (register, pointer) in enumerate(self.registers.items()):
            kind = I8 if register.bits == 1 else ir.IntType(register.bits)
            value = self.builder.load(place(self.builder, self.frame, number), typ=kind)
            if register.bits == 1:
                value = self.builder.trunc(value, I1)
            self.builder.store(value, pointer)
        nowhere = self.builder.append_basic_block("nowhere")
        switch = self.builder.switch(resumed, nowhere)
        for line, after in self.resumptions:
            switch.add_case(constant(line), after)
        self.builder.position_at_end(nowhere)
        self.builder.unreachable()
