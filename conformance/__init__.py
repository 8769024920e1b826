"""Differential and property tests: does an implementation do what `reference` defines?

`pytest conformance -n auto` tests `fast`. `functions/x.py` has the contracts of module `x` of both
twins; README.md has a map of everything else.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""The folder of this package, with its tests and the corpus."""
