"""Makes the modules that stand beside the tests importable: tests are no package."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "conformance"):
    sys.path.insert(0, str(folder))
