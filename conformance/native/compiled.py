"""A kernel's PTX as machine code of this CPU."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from conformance.native.blocks import build_blocks
from conformance.native.memory import Layout
from conformance.native.ptx import Entry, read_entry
from conformance.native.thread import build_thread


class CompiledPtx:
    """A kernel's PTX as machine code of this CPU.

    Attributes:
        entry: The PTX, as it was read.
        layout: Of memory.
        frame_words: The words that a thread saves at a barrier.
        run: Runs a launch; it takes the address of its state.

    Args:
        ptx: Of one kernel.
        num_arrays: The arrays among its arguments.

    Raises:
        UnknownPtxError: It has what is not translated.
    """

    def __init__(self, ptx: str, num_arrays: int) -> None:
        self.entry: Entry = read_entry(ptx)
        self.layout = Layout(self.entry.num_words, num_arrays, self.entry.variables)
        module = ir.Module(context=ir.Context())
        module.triple = llvm.get_process_triple()
        thread, self.frame_words = build_thread(module, self.entry, self.layout)
        build_blocks(module, thread, self.layout, self.frame_words)
        self._engine = _compile(str(module))
        # It keeps the GIL: state and shadow memory are those of one launch at a time.
        signature = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
        self.run: Callable[[int], None] = signature(self._engine.get_function_address("run"))


def _compile(text: str) -> Any:
    """Compile a module, and return the engine that holds its machine code."""
    module = llvm.parse_assembly(text)
    module.verify()
    # An engine owns its machine: one for all crashes when the first engine goes.
    machine = _target().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=2, jit=True)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


@cache
def _target() -> Any:
    """Return LLVM's description of this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()
