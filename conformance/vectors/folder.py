"""A folder of test vectors, as checks."""

from __future__ import annotations

from pathlib import Path

from conformance.cases.check import CaseCheck, read_json
from conformance.cases.recorded import reading
from conformance.cases.replay import case_check, read_case
from conformance.cases.subjects import functions


def vector_checks(directory: Path) -> list[CaseCheck]:
    """Return the checks of a folder of vectors, one for each case.

    Args:
        directory: What `python -m tools.vectors --out` made, or another's of the same schema.

    Raises:
        ValueError: A folder that has no index or no case, is of another version of the schema or of
            functions that are unknown, or is damaged.
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
    """Return the checks of a function's cases, of which the index says how many there are."""
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
