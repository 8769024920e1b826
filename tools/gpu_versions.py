"""Print the versions of a GPU machine, and run `fast.warmup()` with warnings as errors.

    python -m tools.gpu_versions

This is the first section of `tools/gpu_check.sh`. Exit status: 0; 1 if there is no GPU, or if
`fast.warmup()` fails.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("tools.gpu_versions")

import importlib.metadata
import os
import sys
import time
import warnings
from typing import Final

import torch

import fast
from fast.launch import launcher
from fast.numba_cuda import import_cuda

PACKAGES: Final = (
    "torch",
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-core",
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-nvjitlink",
    "ml_dtypes",
    "hypothesis",
    "pytest",
    "pytest-xdist",
    "transformers",
)


def main() -> int:
    """Print versions, warm up, and return the exit status."""
    print(f"Python {sys.version.split()[0]}")
    for package in PACKAGES:
        print(f"{package} {_version(package)}")
    print(f"CUDA_HOME {os.environ.get('CUDA_HOME', 'is not set')}")
    if not torch.cuda.is_available():
        print("no GPU")
        return 1
    major, minor = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()}, sm_{major}{minor}, CUDA {torch.version.cuda} of torch")
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # numba-cuda 0.30.4 uses what NumPy 2.5 deprecates.
        warnings.filterwarnings("default", category=DeprecationWarning, module=r"numba\.")
        print(f"numba.cuda is {import_cuda().__file__}")
        print(f"launcher: {launcher().__name__}")
        fast.warmup()
    print(f"warmup() ok: {time.monotonic() - begin:.1f} s")
    return 0


def _version(package: str) -> str:
    """Return the version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "is missing"
