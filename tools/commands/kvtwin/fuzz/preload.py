"""The imports of every worker, done once in the fork server from which workers are forked."""

from __future__ import annotations

import gc
import os
import random
from unittest import mock

import torch
from hypothesis.control import BuildContext
from hypothesis.internal.conjecture.data import ConjectureData

import fast
from conformance.coverage.presets import MINIMAL
from conformance.strategies.batches import batches
from kvtwin.checked_mode import warm_checked_mode
from kvtwin.fuzz import slices  # noqa: F401  # the jobs' modules
from kvtwin.fuzz.cases import profile
from kvtwin.fuzz.cases.properties import all_checks
from kvtwin.fuzz.findings import growth, minimize, replay  # noqa: F401  # the jobs' modules


def _draw() -> None:
    """Draw once: Hypothesis then collects the constants of all modules, which takes seconds."""
    data = ConjectureData(random=random.Random(0))  # noqa: S311  # no secret
    with BuildContext(data, is_final=False, wrapped_test=_draw):
        data.draw(batches(MINIMAL))


# A process that has used CUDA cannot be forked. Without this, counting GPUs with torch uses it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

torch.set_num_threads(1)  # a fork copies only one thread
with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
    all_checks()  # imports the harness
    fast.warmup()  # compiling a loop in a case would count as a hang
    warm_checked_mode()
    _draw()


def prepare() -> None:
    """Prepare a worker that was just started."""
    torch.set_num_threads(1)
    profile.load()
    gc.collect()
    gc.freeze()  # later collections skip the modules' objects
