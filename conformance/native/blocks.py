"""Builds the function that runs the blocks of a launch, one after another."""

from typing import Any

from conformance.native.faults import Kind
from conformance.native.memory import Layout
from conformance.native.state import (
    I8,
    I32,
    I64,
    NUM_ORDERS,
    POINTER,
    Field,
    constant,
    counting,
    ir,
    load,
    load_pointer,
    place,
    store,
)
from conformance.native.thread import ENDED, FAULTED

POISON = 0xA5
"""Each byte of shared and local memory when a block begins."""


def build_blocks(module: Any, thread: Any, layout: Layout, words_of_frame: int) -> None:
    """Add the function `run` to a module: it takes the state, and returns at the first fault.

    In each epoch all threads of a block run until they end or wait, in an order of the epoch's.
    All must end, or wait at one barrier.

    Args:
        module: It has the function of a thread.
        thread: That function.
        layout: Of memory.
        words_of_frame: What a thread saves at a barrier.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    [state] = function.args
    num_threads = load(builder, state, Field.NUM_THREADS)
    together = builder.alloca(I64)  # where the first thread of an epoch waits

    def fault(kind: Kind | None, index: Any, number: Any) -> None:
        """Store where a fault happened, and return."""
        if kind is not None:
            store(builder, state, Field.KIND, kind)
        store(builder, state, Field.THREAD, index)
        store(builder, state, Field.BLOCK, number)
        builder.ret_void()

    def start_epoch() -> Any:
        now = builder.add(load(builder, state, Field.NOW), constant(1))
        store(builder, state, Field.NOW, now)
        return now

    with counting(builder, load(builder, state, Field.NUM_BLOCKS)) as number:
        blocks = load_pointer(builder, state, Field.BLOCKS)
        block, width = load(builder, blocks, number), load(builder, state, Field.GRID_X)
        x = builder.trunc(builder.urem(block, width), I32)
        y = builder.trunc(builder.udiv(block, width), I32)
        _poison(builder, state, layout, num_threads)
        began = builder.add(load(builder, state, Field.NOW), constant(1))
        store(builder, state, Field.BEGAN, began)
        store(builder, load_pointer(builder, state, Field.EPOCHS), number, began)

        before = builder.block
        epoch = builder.append_basic_block("epoch")
        following = builder.append_basic_block("next_block")
        builder.branch(epoch)
        builder.position_at_end(epoch)
        waiting = builder.phi(I64)
        waiting.add_incoming(constant(ENDED), before)
        now = start_epoch()
        first_row = builder.mul(builder.urem(now, constant(NUM_ORDERS)), num_threads)
        orders = load_pointer(builder, state, Field.ORDERS)
        order = place(builder, orders, first_row)
        first = load(builder, order, 0)
        with counting(builder, num_threads) as turn:
            index = load(builder, order, turn)
            frame = place(
                builder,
                load_pointer(builder, state, Field.FRAMES),
                builder.mul(index, constant(words_of_frame)),
            )
            there = builder.call(
                thread, (state, frame, builder.trunc(index, I32), x, y, waiting)
            )
            with builder.if_then(
                builder.icmp_unsigned("==", there, constant(FAULTED)), likely=False
            ):
                fault(None, index, number)
            is_first = builder.icmp_unsigned("==", turn, constant(0))
            with builder.if_then(is_first):
                builder.store(there, together)
            others = builder.load(together, typ=I64)
            with builder.if_then(builder.icmp_unsigned("!=", there, others), likely=False):
                store(builder, state, Field.LINE, there)
                store(builder, state, Field.OTHER, first)
                store(builder, state, Field.OTHER_ACCESS, others)
                fault(Kind.BARRIER, index, number)
        reached = builder.load(together, typ=I64)
        store(builder, state, Field.RESULT, load(builder, state, Field.VOTES))
        store(builder, state, Field.VOTES, 0)
        waiting.add_incoming(reached, builder.block)
        has_ended = builder.icmp_unsigned("==", reached, constant(ENDED))
        builder.cbranch(has_ended, following, epoch)
        builder.position_at_end(following)
    builder.ret_void()


def _poison(builder: Any, state: Any, layout: Layout, num_threads: Any) -> None:
    """Fill a block's shared and local memory, so that nothing of an earlier block is left."""
    fill = builder.module.declare_intrinsic("llvm.memset", [POINTER, I64])
    for field, space in ((Field.SHARED, "shared"), (Field.LOCAL, "local")):
        if size := layout.sizes[space]:
            total = builder.mul(constant(size), num_threads) if space == "local" else constant(size)
            pointer = load_pointer(builder, state, field)
            builder.call(fill, (pointer, constant(POISON, I8), total, constant(0, ir.IntType(1))))
