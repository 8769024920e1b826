"""Makes the modules next to the tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
torch.set_num_threads(1)  # as `conformance.conftest` does
