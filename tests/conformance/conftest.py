"""Makes modules that stand beside the tests importable: tests are no package."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # as `conformance.conftest` does
