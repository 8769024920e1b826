"""Differential and property tests: does an implementation do what `reference` defines?

`pytest conformance -n auto` tests `fast`. `test_x.py` has the contracts, properties and worked
examples of module `x` of the two twins; everything else is in the packages here; README.md has a
map of them.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""The folder of this package, with its tests and the corpus."""
