"""Compiles a kernel to PTX with numba-cuda, without a GPU, and to machine code of this CPU."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from conformance.native.memory import Layout
from conformance.native.ptx import Entry, read_entry
from conformance.native.thread import build_blocks, build_thread
from conformance.native.values import registers_to_save
from fast import numba_cuda
from fast.kernels.cuda import Kernel


class CompiledPtx:
    """A kernel's PTX, loaded as machine code of this CPU.

    Attributes:
        entry: The parsed PTX.
        layout: The memory layout.
        frame_words: The size in words of a thread's frame, to which it saves its registers.
        run: Runs a launch; it takes the address of its state.
    """

    def __init__(self, ptx: str, machine_code: bytes, num_arrays: int) -> None:
        self.entry: Entry = read_entry(ptx)
        self.layout = Layout(self.entry.num_words, num_arrays, self.entry.variables)
        self.frame_words = len(registers_to_save(self.entry))
        # An engine owns its target machine: a shared one crashes once the first engine is freed.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _make_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        self._engine.finalize_object()
        # PYFUNCTYPE keeps the GIL: state and shadow memory serve one launch at a time.
        signature = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
        self.run: Callable[[int], None] = signature(self._engine.get_function_address("run"))


def translate(ptx: str, num_arrays: int) -> bytes:
    """Translate a kernel's PTX to this CPU's machine code; return the object file."""
    entry = read_entry(ptx)
    layout = Layout(entry.num_words, num_arrays, entry.variables)
    built = ir.Module(context=ir.Context())
    built.triple = llvm.get_process_triple()
    thread, frame_words = build_thread(built, entry, layout)
    build_blocks(built, thread, layout, frame_words)
    machine = _make_machine()
    module = llvm.parse_assembly(str(built))
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    machine_code: bytes = machine.emit_object(module)
    return machine_code


def _make_machine() -> Any:
    return _target().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=2, jit=True)


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


# PTX, without a GPU.


class CompileError(Exception):
    """A kernel does not compile."""


def compile_offline(kernel: Kernel, arch: str, *, lineinfo: bool = False) -> tuple[str, str]:
    """Compile a kernel to PTX; return the PTX, and the name of its entry."""
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    with pretended_gpu((major, minor)):
        return numba_cuda.compile_ptx(kernel, (major, minor), lineinfo=lineinfo)


@contextlib.contextmanager
def pretended_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile as if this machine had a GPU, until the end of the block.

    Numba queries the current device even if the architecture is given. The function that it calls
    is private, and imported by name into several modules (numba-cuda 0.30): it is patched in each
    and then restored. This is the only place that touches numba's internals.
    """
    numba_cuda.import_cuda()
    name = "get_current_device"
    moved_layers = [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("numba.cuda") and name in vars(module)
    ]
    originals = [getattr(module, name) for module in moved_layers]
    gpu = SimpleNamespace(compute_capability=capability)
    try:
        for module in moved_layers:
            setattr(module, name, lambda: gpu)
        yield
    finally:
        for module, original in zip(moved_layers, originals, strict=True):
            setattr(module, name, original)
