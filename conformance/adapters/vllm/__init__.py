"""vLLM as an implementation under test: `python -m conformance --impl vllm`.

The installed release is imported and called as it is. `places` says where it has our names,
`calls` makes calls whose parameters differ, `objects` converts objects, and `deviations` lists what
vLLM does differently on purpose. Nothing here is imported unless vLLM is under test.

The functions and classes have the names of vLLM (Apache-2.0, https://github.com/vllm-project/vllm).
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

# Before vLLM is imported: it logs at import, and would look for a GPU.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

from conformance.adapters.vllm.objects import VllmAdapter
from conformance.adapters.vllm.places import DISTRIBUTIONS, prepare


def _installed() -> str:
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise ImportError(f"vLLM is not installed: pip install {DISTRIBUTIONS[0]}")


__version__ = _installed()
CONFORMANCE_ADAPTER = VllmAdapter
prepare()
