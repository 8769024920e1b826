"""What has vectors: every contract of the conformance run, and every object that keeps state."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import reference
from conformance.contracts import Contract
from conformance.factories import DEVICE
from conformance.functions import conformance_modules, modules_about
from conformance.invalid_inputs.block_table import CONSTRUCTOR_INVALID_INPUTS
from conformance.strategies.block_table import block_tables_sessions

SESSIONS = ("BlockTables", "CpuGpuBuffer", "get_kv_cache_layout", "set_kv_cache_layout")
"""What keeps state: its vectors are sessions."""

WITHOUT_VECTORS = {
    "AttentionBackend": "an abstract class; its subclasses are arguments of others",
    "AttentionCGSupport": "an enum",
    "AttentionMetadata": "an empty class, to be extended",
    "AttentionType": "four constants",
    "KVCacheLayoutType": "a type for annotations",
    "KVSharingFastPrefillMetadata": "a protocol",
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS": "a constant",
    "NULL_BLOCK_ID": "a constant",
    "PAD_SLOT_ID": "a constant",
    "UBatchSlice": "an object of data; an argument and a result of others",
    "dense_attention": "an oracle of floating point, in reference alone",
    "kv_reads": "a definition of what a batch means, in reference alone",
    "kv_writes": "a definition of what a batch means, in reference alone",
    "merge_attention_states": "an oracle of floating point, in reference alone",
    "paged_attention": "an oracle of floating point, in reference alone",
    "write_kv_cache": "an oracle of floating point, in reference alone",
}
"""Public names that have none, each with the reason; settings are arguments of others."""


@cache
def contracts() -> dict[str, Contract]:
    """Return the contracts of all conformance modules, by the function that they are about.

    Raises:
        ValueError: Two contracts of one function.
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
"""How block tables refuse to be made; what they answer once they are, sessions tell."""


def functions() -> list[str]:
    """Return the names of all functions and classes that have vectors."""
    return sorted({*contracts(), *SESSIONS})


def uncovered() -> list[str]:
    """Return public names of `reference` that neither have vectors nor a reason to have none.

    Settings, and classes of whose methods there are vectors, are covered by these.
    """
    covered = {name.split(".")[0] for name in functions()} | set(WITHOUT_VECTORS)
    settings_ = {name for name in reference.__all__ if name.endswith("Config")}
    specs = {name for name in reference.__all__ if name.endswith(("Spec", "Specs", "Tensor"))}
    return sorted(set(reference.__all__) - covered - settings_ - specs)
