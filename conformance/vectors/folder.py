"""Lists the functions with test vectors, and makes checks of a folder of vectors."""

from __future__ import annotations

from pathlib import Path

import reference
from conformance.cases.check import CaseCheck, case_check, read_case, reading
from conformance.checks.registry import contracts
from conformance.encoding import read_json

SESSIONS = ("BlockTables", "CpuGpuBuffer", "get_kv_cache_layout", "set_kv_cache_layout")
"""Functions and classes that keep state: their vectors are sessions."""

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


def functions() -> list[str]:
    """Return the names of all functions and classes that have vectors."""
    return sorted({*contracts(), *SESSIONS})


def uncovered() -> list[str]:
    """Return public names of `reference` that neither have vectors nor a reason to have none.

    Settings and specs are arguments of others; classes are covered by vectors of their methods.
    """
    covered = {name.split(".")[0] for name in functions()} | set(WITHOUT_VECTORS)
    settings = {name for name in reference.__all__ if name.endswith("Config")}
    specs = {name for name in reference.__all__ if name.endswith(("Spec", "Specs", "Tensor"))}
    return sorted(set(reference.__all__) - covered - settings - specs)


def vector_checks(directory: Path) -> list[CaseCheck]:
    """Return the checks of a folder of vectors, one for each case.

    Args:
        directory: A folder from `kvtwin vectors --out`, or another one of the same schema.

    Raises:
        ValueError: The folder has no index, no case, another version of the schema or unknown
            functions, or is damaged.
    """
    index = directory / "index.json"
    with reading(index):
        numbers = dict(read_json(index)["functions"])
    found = [
        check for function, number in numbers.items() for check in _of(directory, function, number)
    ]
    if not found:
        raise ValueError(f"{directory} has no cases")
    return found


def _of(directory: Path, function: str, number: int) -> list[CaseCheck]:
    """Return the checks of a function's cases; `number` is their count in the index."""
    if function not in functions():
        raise ValueError(f"{directory} has vectors of {function!r}, which is unknown")
    manifest = directory / function / "manifest.json"
    with reading(manifest):
        cases = [(str(case["file"]), case["about"]) for case in read_json(manifest)["cases"]]
    if len(cases) != number:
        raise ValueError(f"{manifest} has {len(cases)} cases, but the index says {number}")
    for file, _ in cases:
        if Path(file).name != file:
            raise ValueError(f"{manifest} names {file!r}, which is not a file next to it")
    found = []
    for file, about in cases:
        path = directory / function / file
        name = f"{function}/{path.stem}"
        found.append(case_check(path, read_case(path), name=name, function=function, about=about))
    return found
