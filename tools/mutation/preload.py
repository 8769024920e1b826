"""What every process needs and no mutant changes, imported once, before they are forked.

Importing it takes 2 seconds. Then come those modules of the project that import nothing of what is
mutated: a process imports the rest in 0.1 seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys

import hypothesis
from hypothesis import strategies

from tools.mutation.mutant_process import PROJECT

for _name in ("greenlet", "ml_dtypes", "numba", "numpy", "pytest", "rich", "torch", "tqdm"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

with contextlib.suppress(ImportError):
    from numba import njit

    njit("int64(int64)")(lambda number: number)  # what numba sets up when it compiles first

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)


if PROJECT in os.environ:
    _root, _bytecode, _names = json.loads(os.environ[PROJECT])
    sys.path.insert(0, _root)
    sys.pycache_prefix, sys.dont_write_bytecode = _bytecode, False
    for _name in _names:
        with contextlib.suppress(Exception):  # the process that needs it reports it
            importlib.import_module(_name)


@hypothesis.settings(max_examples=100, database=None, derandomize=True)
@hypothesis.given(strategies.text() | strategies.floats() | strategies.integers())
def _draw(_: object) -> None:
    """Let Hypothesis load its tables, and look for constants in all modules there are."""


_draw()
