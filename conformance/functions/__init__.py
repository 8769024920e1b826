"""One file for each idea: strategies, contracts, specials and properties of its functions.

`CONTRACTS` of a module lists the contracts from which `conformance.harness` makes tests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from conformance.harness.contract import Contract


def contracts() -> Iterator[Contract]:
    """Yield the contracts of all functions, module by module."""
    for module in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{module.name}").CONTRACTS
