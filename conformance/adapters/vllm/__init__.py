"""The adapter of vLLM: `python -m conformance --impl vllm` tests the installed release.

It is imported and called as it is. `places` finds our names in it, `calls` adapts calls whose
parameters differ, `objects` converts objects, and `deviations` lists intended differences. Nothing
here is imported unless vLLM is under test.

The functions and classes have the names of vLLM (Apache-2.0, https://github.com/vllm-project/vllm).
"""

from __future__ import annotations

import importlib.util
import os

# Before vLLM is imported: it logs at import, and would look for a GPU.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

from conformance.adapters.vllm.places import prepare
from conformance.entry_point import how_to_install

if importlib.util.find_spec("vllm") is None:
    raise ImportError(f"vLLM is not installed: {how_to_install('vllm')}")
prepare()

from conformance.adapters.vllm.objects import VllmAdapter  # noqa: E402  # it reads what vLLM has

ADAPTER = VllmAdapter
