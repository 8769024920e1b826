"""Translates the PTX of a kernel to LLVM IR: the function that one thread runs.

The function runs until the thread ends or waits at a barrier. There it saves the registers, and the
next call resumes after the barrier. `operations` translates the instructions that compute,
`accesses` those that access memory, and this module control flow and barriers.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

from conformance.native.memory import Layout
from conformance.native.operations import Compute, find_operation, operand_bits
from conformance.native.ptx import Entry, Instruction, Label, Operand, Symbol, UnknownPtxError
from conformance.native.state import (
    I1,
    I8,
    I32,
    I64,
    NUM_ORDERS,
    POINTER,
    Field,
    Kind,
    constant,
    counting,
    define,
    load,
    load_pointer,
    place,
    store,
)
from conformance.native.values import EXECUTED, Accesses, UnknownOperandError, Values

ENDED: Final = 0
FAULTED: Final = -1
"""The function returns one of these, or the PTX line of the barrier at which the thread waits."""


def build_thread(module: Any, entry: Entry, layout: Layout) -> tuple[Any, int]:
    """Add the function of a thread to a module; return it, and the size of a frame in words.

    It takes the state, the thread's frame, the thread, the block along x and y, and the PTX line of
    the barrier at which the thread waits (`ENDED` at first).
    """
    made = _Translator(module, entry, layout)
    return made.function, made.values.frame_words


class _Translator:
    """Builds the function, instruction by instruction."""

    def __init__(self, module: Any, entry: Entry, layout: Layout) -> None:
        parameters = (POINTER, POINTER, I32, I32, I32, I64)
        self.function, self._builder = define(module, "thread", I64, *parameters)
        *arguments, waiting = self.function.args
        self._labels = {
            each.name: self.function.append_basic_block(each.name)
            for each in entry.body
            if isinstance(each, Label)
        }
        self._end, self._fault, self._wait = (
            self.function.append_basic_block(name) for name in ("end", "fault", "wait")
        )
        self._faults: list[tuple[int, Any]] = []
        self._waits: list[tuple[int, Any]] = []
        self._resumptions: list[tuple[int, Any]] = []
        self._uncounted = 0
        self.values = Values(self._builder, arguments, entry, layout)
        self._accesses = Accesses(self.values, self._fail)
        start, resume = (self._builder.append_basic_block(name) for name in ("start", "resume"))
        is_new = self._builder.icmp_unsigned("==", waiting, constant(ENDED))
        self._builder.cbranch(is_new, start, resume)

        self._builder.position_at_end(start)
        for each in entry.body:
            if isinstance(each, Label):
                self._enter(each)
            elif not self._builder.block.is_terminated:
                self._translate(each)
        if not self._builder.block.is_terminated:
            self._count()
            self._builder.branch(self._end)
        self._build_exits()
        self._builder.position_at_end(resume)
        self.values.restore()
        self._go_on(waiting)

    def _enter(self, label: Label) -> None:
        """Begin a basic block; fault if the thread has executed too many instructions."""
        builder = self._builder
        if not builder.block.is_terminated:
            self._count()
            builder.branch(self._labels[label.name])
        builder.position_at_end(self._labels[label.name])
        executed = self.values.read(EXECUTED, 64)
        most = load(builder, self.values.state, Field.MOST_INSTRUCTIONS)
        with builder.if_then(builder.icmp_unsigned(">", executed, most), likely=False):
            store(builder, self.values.state, Field.KIND, Kind.ENDLESS)
            self._fail(0)

    def _count(self) -> None:
        """Count the instructions since the last call, which are straight-line code."""
        total = self._builder.add(self.values.read(EXECUTED, 64), constant(self._uncounted))
        self.values.write(EXECUTED, total)
        self._uncounted = 0

    def _fail(self, line: int) -> None:
        self._faults.append((line, self._builder.block))
        self._builder.branch(self._fault)

    def _translate(self, instruction: Instruction) -> None:
        """Translate an instruction; raise UnknownPtxError if it is unknown."""
        builder = self._builder
        self._uncounted += 1
        if instruction.opcode.startswith(("bra", "ret", "exit", "bar")):
            self._count()
        try:
            if instruction.guard is None:
                self._execute(instruction)
                return
            condition = self.values.read(instruction.guard, 1)
            if instruction.is_negated:
                condition = builder.not_(condition)
            guarded, following = (builder.append_basic_block(name) for name in ("guarded", "next"))
            builder.cbranch(condition, guarded, following)
            builder.position_at_end(guarded)
            self._execute(instruction)
            if not builder.block.is_terminated:
                builder.branch(following)
            builder.position_at_end(following)
        except (UnknownOperandError, ValueError, KeyError):
            raise UnknownPtxError(
                f"PTX line {instruction.line}: {instruction.opcode} is not translated:"
                f" {instruction.text}"
            ) from None

    def _execute(self, instruction: Instruction) -> None:
        opcode, operands = instruction.opcode, instruction.operands
        if found := find_operation(opcode):
            if any(isinstance(each, tuple) for each in operands):
                self._move_parts(operands, operand_bits(found[0]))
            else:
                self._compute(operands, *found)
        elif self._accesses.translate(instruction):
            pass
        elif opcode in {"bra", "bra.uni"} and isinstance(operands[0], Symbol):
            self._builder.branch(self._labels[operands[0].name])
        elif opcode in {"ret", "exit"}:
            self._builder.branch(self._end)
        elif re.fullmatch(r"bar(rier)?\.(sync|red\.(popc\.u32|(and|or)\.pred))", opcode):
            self._suspend(instruction)
        elif not re.fullmatch(r"membar\.(cta|gl|sys)|fence\.\w+\.\w+", opcode):
            # Fences do nothing: threads run one at a time, and fences order no accesses.
            raise UnknownOperandError(opcode)

    def _compute(
        self, operands: Sequence[Operand], found: "re.Match[str]", compute: Compute
    ) -> None:
        """Translate an instruction whose result depends only on the values of its operands."""
        bits = operand_bits(found)
        widths = [bits] * (len(operands) - 1)
        if found.string.startswith(("shl", "shr")):
            widths[-1] = 32
        elif found.string.startswith("selp"):
            widths[-1] = 1
        elif found.string.startswith("mad.wide"):
            widths[-1] = 2 * bits
        values = [
            self.values.read(each, width) for each, width in zip(operands[1:], widths, strict=True)
        ]
        is_signed = found.groupdict().get("to_type", "u")[0] == "s"
        self.values.write(operands[0], compute(self._builder, values, found), is_signed=is_signed)

    def _move_parts(self, operands: Sequence[Operand], bits: int) -> None:
        """Split a register into others, or join others into one, the lowest bits first."""
        builder, whole = self._builder, ir.IntType(bits)
        target, source = operands
        if isinstance(target, tuple):
            value, width = self.values.read(source, bits), bits // len(target)
            for number, part in enumerate(target):
                moved = builder.lshr(value, constant(width * number, whole))
                self.values.write(part, builder.trunc(moved, ir.IntType(width)))
        elif isinstance(source, tuple):
            value, width = constant(0, whole), bits // len(source)
            for number, part in enumerate(source):
                extended = builder.zext(self.values.read(part, width), whole)
                shifted = builder.shl(extended, constant(width * number, whole))
                value = builder.or_(value, shifted)
            self.values.write(target, value)

    def _suspend(self, instruction: Instruction) -> None:
        """Return from the function at a barrier, and resume here when it is called again."""
        builder, state, operands = self._builder, self.values.state, instruction.operands
        is_vote = ".red." in instruction.opcode
        if operands[is_vote] != 0 or len(operands) != (3 if is_vote else 1):
            raise UnknownOperandError(operands)  # a barrier other than 0, or of some threads only
        if is_vote:
            vote = builder.zext(self.values.read(operands[2], 1), I64)
            votes = builder.add(load(builder, state, Field.VOTES), vote)
            store(builder, state, Field.VOTES, votes)
        self._waits.append((instruction.line, builder.block))
        builder.branch(self._wait)
        after = builder.append_basic_block("after_barrier")
        self._resumptions.append((instruction.line, after))
        builder.position_at_end(after)
        if is_vote:
            votes = load(builder, state, Field.RESULT)
            result = {
                "popc": lambda: builder.trunc(votes, I32),
                "and": lambda: builder.icmp_unsigned(
                    "==", votes, load(builder, state, Field.NUM_THREADS)
                ),
                "or": lambda: builder.icmp_unsigned("!=", votes, constant(0)),
            }[instruction.opcode.split(".")[2]]()
            self.values.write(operands[0], result)

    def _build_exits(self) -> None:
        """Build the exits of the function for threads that end, wait, or have a fault."""
        builder = self._builder
        builder.position_at_end(self._end)
        before = load(builder, self.values.state, Field.EXECUTED)
        executed = builder.add(before, self.values.read(EXECUTED, 64))
        store(builder, self.values.state, Field.EXECUTED, executed)
        builder.ret(constant(ENDED))
        builder.position_at_end(self._fault)
        store(builder, self.values.state, Field.LINE, self._line(self._faults))
        builder.ret(constant(FAULTED))
        builder.position_at_end(self._wait)
        line = self._line(self._waits)
        self.values.save()
        builder.ret(line)

    def _line(self, incoming: Sequence[tuple[int, Any]]) -> Any:
        """Return the line of PTX from which an exit is reached."""
        if not incoming:  # it is never reached
            return constant(0)
        line = self._builder.phi(I64)
        for number, block in incoming:
            line.add_incoming(constant(number), block)
        return line

    def _go_on(self, waiting: Any) -> None:
        """Jump to the code after the barrier at which a thread waits."""
        nowhere = self._builder.append_basic_block("nowhere")
        switch = self._builder.switch(waiting, nowhere)
        for line, after in self._resumptions:
            switch.add_case(constant(line), after)
        self._builder.position_at_end(nowhere)
        self._builder.unreachable()


# The blocks of a launch, one after another.


POISON: Final = 0xA5
"""Each byte of shared and local memory when a block begins."""


def build_blocks(module: Any, thread: Any, layout: Layout, words_of_frame: int) -> None:
    """Add the function `run` to a module: it takes the state, and returns at the first fault.

    In each epoch all threads of a block run until they end or wait, in the epoch's own order. All
    must end, or all must wait at the same barrier.
    """
    epoch = _build_epoch(module, thread, words_of_frame)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    [state] = function.args
    with counting(builder, load(builder, state, Field.NUM_BLOCKS)) as number:
        _poison(builder, state, layout)
        began = builder.add(load(builder, state, Field.NOW), constant(1))
        store(builder, state, Field.BEGAN, began)
        store(builder, load_pointer(builder, state, Field.EPOCHS), number, began)
        before = builder.block
        again = builder.append_basic_block("again")
        builder.branch(again)
        builder.position_at_end(again)
        waiting = builder.phi(I64)
        waiting.add_incoming(constant(ENDED), before)
        reached = builder.call(epoch, (state, number, waiting))
        with builder.if_then(builder.icmp_unsigned("==", reached, constant(FAULTED)), likely=False):
            store(builder, state, Field.BLOCK, number)
            builder.ret_void()
        waiting.add_incoming(reached, builder.block)
        following = builder.append_basic_block("next_block")
        has_ended = builder.icmp_unsigned("==", reached, constant(ENDED))
        builder.cbranch(has_ended, following, again)
        builder.position_at_end(following)
    builder.ret_void()


def _build_epoch(module: Any, thread: Any, words_of_frame: int) -> Any:
    """Add the function that runs the threads of a block until they end or wait, and return it.

    It takes the state, the index of the block in the order in which blocks run, and the PTX line of
    the barrier at which its threads wait (`ENDED` at first). It returns that line after the epoch,
    `ENDED` if all threads have ended, or `FAULTED`.
    """
    function, builder = define(module, "epoch", I64, POINTER, I64, I64)
    state, number, waiting = function.args
    together = builder.alloca(I64)  # where the first of the threads waits
    now = builder.add(load(builder, state, Field.NOW), constant(1))
    store(builder, state, Field.NOW, now)
    store(builder, state, Field.RESULT, load(builder, state, Field.VOTES))
    store(builder, state, Field.VOTES, 0)
    block = load(builder, load_pointer(builder, state, Field.BLOCKS), number)
    width = load(builder, state, Field.GRID_X)
    x = builder.trunc(builder.urem(block, width), I32)
    y = builder.trunc(builder.udiv(block, width), I32)
    num_threads = load(builder, state, Field.NUM_THREADS)
    first_turn = builder.mul(builder.urem(now, constant(NUM_ORDERS)), num_threads)
    order = place(builder, load_pointer(builder, state, Field.ORDERS), first_turn)
    frames = load_pointer(builder, state, Field.FRAMES)
    with counting(builder, num_threads) as turn:
        index = load(builder, order, turn)
        frame = place(builder, frames, builder.mul(index, constant(words_of_frame)))
        reached = builder.call(thread, (state, frame, builder.trunc(index, I32), x, y, waiting))
        with builder.if_then(builder.icmp_unsigned("==", turn, constant(0))):
            builder.store(reached, together)
        has_fault = builder.icmp_unsigned("==", reached, constant(FAULTED))
        others = builder.load(together, typ=I64)
        is_apart = builder.icmp_unsigned("!=", reached, others)
        with builder.if_then(builder.or_(has_fault, is_apart), likely=False):
            store(builder, state, Field.THREAD, index)
            with builder.if_then(builder.not_(has_fault)):
                store(builder, state, Field.KIND, Kind.BARRIER)
                store(builder, state, Field.LINE, reached)
                store(builder, state, Field.OTHER, load(builder, order, 0))
                store(builder, state, Field.OTHER_ACCESS, others)
            builder.ret(constant(FAULTED))
    builder.ret(builder.load(together, typ=I64))
    return function


def _poison(builder: Any, state: Any, layout: Layout) -> None:
    """Overwrite a block's shared and local memory, so that no value of an earlier block remains."""
    fill = builder.module.declare_intrinsic("llvm.memset", [POINTER, I64])
    for field, space in ((Field.SHARED, "shared"), (Field.LOCAL, "local")):
        if size := layout.sizes[space]:
            total = constant(size)
            if space == "local":
                total = builder.mul(total, load(builder, state, Field.NUM_THREADS))
            pointer = load_pointer(builder, state, field)
            builder.call(fill, (pointer, constant(POISON, I8), total, constant(0, I1)))
