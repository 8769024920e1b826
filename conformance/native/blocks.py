"""Builds the function that runs the blocks of a launch, one after another."""

from typing import Any, Final

from llvmlite import ir

from conformance.native.faults import Kind
from conformance.native.memory import Layout
from conformance.native.state import (
    I1,
    I8,
    I32,
    I64,
    NUM_ORDERS,
    POINTER,
    Field,
    constant,
    counting,
    define,
    load,
    load_pointer,
    place,
    store,
)
from conformance.native.thread import ENDED, FAULTED

POISON: Final = 0xA5
"""Each byte of shared and local memory when a block begins."""


def build_blocks(module: Any, thread: Any, layout: Layout, words_of_frame: int) -> None:
    """Add the function `run` to a module: it takes the state, and returns at the first fault.

    In each epoch all threads of a block run until they end or wait, in the epoch's own order. All
    must end, or all must wait at the same barrier.

    Args:
        module: The module that has the thread function.
        thread: The thread function.
        layout: The memory layout.
        words_of_frame: The size in words of a thread's frame, to which it saves its registers.
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
