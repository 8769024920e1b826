"""Finds the checks and contracts of functions by name, for `--functions` and others."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from conformance import FOLDER
from conformance.checks.contract_checks import checks_in
from conformance.contracts.contract import Contract
from conformance.invalid_inputs.block_table import CONSTRUCTOR_INVALID_INPUTS
from conformance.name_lists import names_in, near
from conformance.strategies.block_table import block_tables_sessions
from conformance.targets.factories import DEVICE
from conformance.targets.implementations import NAMES
from conformance.targets.target import STATEFUL_TEST

RENAMED = {"a runner's life": STATEFUL_TEST}
"""Former names, which are still accepted."""


def checked_functions(modules: Iterable[Path] | None = None) -> list[str]:
    """Return the functions with checks in some conformance modules, or in all, sorted."""
    found = [
        importlib.import_module(f"conformance.{path.stem}")
        for path in (conformance_modules() if modules is None else modules)
    ]
    return sorted({check.function for module in found for _, check in checks_in(vars(module))})


def is_about(module: Path, functions: Iterable[str]) -> bool:
    """Return whether a conformance module may have checks of some functions.

    The module is not imported: its text contains the names of the functions that it checks.
    """
    text = module.read_text(encoding="utf-8")
    return any(
        all(re.search(rf"\b{re.escape(part)}\b", text) for part in name.split("."))
        for name in functions
    )


def modules_about(functions: Sequence[str]) -> list[Path]:
    """Return the files of the conformance modules that may have checks of some functions.

    >>> [path.name for path in modules_about(["slice_query_start_locs"])]
    ['test_ubatch.py']
    """
    return [path for path in conformance_modules() if is_about(path, functions)]


def conformance_modules() -> list[Path]:
    """Return the files of all conformance modules."""
    return sorted(FOLDER.glob("test_*.py"))


def choose_functions(names: str | None) -> Sequence[str] | None:
    """Return the functions of a comma-separated list; None means all.

    The name of a class includes its methods.

    Raises:
        ValueError: The list is empty, or has a name without checks.
    """
    if names is None:
        return None
    try:
        requested = [RENAMED.get(name, name) for name in names_in(names)]
    except ValueError as error:
        raise ValueError(f"--functions {error}") from error
    known, chosen = checked_functions(modules_about(requested)), []
    for name in requested:
        found = [other for other in known if other == name or other.startswith(f"{name}.")]
        if not found and name in _functions_of_harness():
            found = [name]
        if not found:
            if name in NAMES:
                raise ValueError(f"function {name!r} has no checks of its own")
            raise ValueError(
                f"function {name!r} is unknown; see --list for functions such as"
                f" {near(name, checked_functions())}"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


@cache
def _functions_of_harness() -> frozenset[str]:
    """Return the functions of `conformance.functions`, a package above this one."""
    functions = importlib.import_module("conformance.functions")
    return frozenset(contract.function for contract in functions.contracts())


@cache
def contracts() -> dict[str, Contract]:
    """Return the contracts of all conformance modules, by function.

    Raises:
        ValueError: A function has two contracts.
    """
    return _contracts_in(conformance_modules())


@cache
def find_contract(function: str) -> Contract | None:
    """Return the contract of a function, if it has one; only modules that name it are imported.

    >>> find_contract("compute_slot_mapping").has_kernel
    True
    """
    return _contracts_in(modules_about([function])).get(function)


def _contracts_in(modules: Iterable[Path]) -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    for module in modules:
        for value in vars(importlib.import_module(f"conformance.{module.stem}")).values():
            if not isinstance(value, Contract):
                continue
            if found.setdefault(value.function, value) is not value:
                raise ValueError(f"{value.function} has two contracts")
    return {**found, CONSTRUCTOR.function: CONSTRUCTOR}


CONSTRUCTOR = Contract(
    "BlockTables",
    lambda preset: block_tables_sessions(preset).map(
        lambda session: session.constructor.replacing(device=DEVICE)
    ),
    {},
    invalid_inputs=CONSTRUCTOR_INVALID_INPUTS,
)
"""The refusals of the constructor of block tables. Sessions test the methods."""
