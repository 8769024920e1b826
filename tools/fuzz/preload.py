"""What each worker needs: imported once in the fork server, from which workers are forked."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path

import hypothesis
import torch
from hypothesis.internal.conjecture import engine

import conformance
import fast
from tools.fuzz import cases, growth, minimize, profile, slices  # noqa: F401  # jobs' modules

torch.set_num_threads(1)  # a fork copies one thread alone
for _path in sorted(Path(conformance.__file__).parent.glob("test_*.py")):
    importlib.import_module(f"conformance.{_path.stem}")


def prepare() -> None:
    """Prepare a worker that was just started."""
    torch.set_num_threads(1)
    profile.load()
    gc.collect()
    gc.freeze()  # the modules need not be looked at again by each collection: 5% of a worker's time
