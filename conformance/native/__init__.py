"""Runs the machine code of numba CUDA kernels on the CPU, for machines without a GPU.

numba-cuda and NVVM compile a kernel to PTX, as for a GPU. Its instructions are translated to this
CPU's, and every access is checked: bounds, alignment, races, and memory that was never written.
docs/targets.md says which errors it does not detect.
"""

from conformance.native.compiled import CompileError
from conformance.native.launch import launch_natively
from conformance.native.ptx import UnknownPtxError
from conformance.native.state import Kind, NativeFault

__all__ = ["CompileError", "Kind", "NativeFault", "UnknownPtxError", "launch_natively"]
