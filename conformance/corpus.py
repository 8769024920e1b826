"""The corpus: inputs that an implementation once got wrong, stored, and tried first in every run.

Each is a file in `corpus/`, a stored case without its result: that is what `reference` does, each
time it is tried.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.calls import Call
from conformance.cases.check import CaseCheck, read_json
from conformance.cases.compared import case_of_call, case_of_example, case_of_failure
from conformance.cases.replay import case_check
from conformance.checks import Check
from conformance.encoding import SCHEMA_VERSION, to_text
from conformance.encoding.elements import Json
from conformance.folders import folder_for

CORPUS = Path(__file__).with_name("corpus")
"""The corpus of this project."""


def add_to_corpus(
    call: Call,
    reason: str,
    *,
    contract: str | None = None,
    names: Sequence[str] = (),
    directory: Path | None = None,
) -> Path:
    """Store a call that an implementation got wrong.

    Args:
        call: The call, valid or bad.
        reason: What was wrong, for whoever meets it again.
        contract: The function of the contract that it is drawn by; None for the call's own.
        names: For a bad call, of which the message of its refusal must name one; nothing: any.
        directory: The corpus; None for this project's, or, where the package is installed, for a
            `conformance-corpus` in the working directory.

    Returns:
        The file. One call has one file: what is stored already stays as it is.

    Raises:
        KeyError: A function without a contract.
        TypeError: An argument of a kind that has no form in JSON.
    """
    return _add(case_of_call(call, reason, contract=contract, names=names), directory)


def add_example(
    check: str, example: object, reason: str, *, function: str, directory: Path | None = None
) -> Path:
    """Store an example of a check, such as a law or a session, that an implementation failed.

    Args:
        check: Where the check stands, `conformance.test_block_table:test_block_tables`; a law of a
            function, `conformance.test_ubatch:test_split_laws[split_partitions]`.
        example: What its strategy drew.
        reason: What was wrong.
        function: The function that it is about.
        directory: The corpus, as `add_to_corpus` has it.

    Returns:
        The file.

    Raises:
        ValueError: A check that is not there.
        TypeError: An example of a kind that has no form in JSON.
    """
    return _add(case_of_example(check, example, reason, function=function), directory)


def add_failure(
    check: Check,
    where: str,
    example: Any,
    error: BaseException,
    *,
    directory: Path | None = None,
) -> Path:
    """Store what failed a check, for `--corpus-add`.

    Args:
        check: The check.
        where: Where it stands, `conformance.test_ubatch:test_split`.
        example: What its strategy drew.
        error: What it raised.
        directory: The corpus, as `add_to_corpus` has it.

    Returns:
        The file.
    """
    return _add(case_of_failure(check, where, example, error), directory)


def _add(case: dict[str, Json], directory: Path | None) -> Path:
    """Write a case to a file that is named after what is in it, unless it is there already."""
    directory = folder_for(CORPUS) if directory is None else directory
    said = {"reason", "date"}
    content = json.dumps({name: value for name, value in case.items() if name not in said})
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    path = directory / f"{case['contract']}-{digest}.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(to_text({"schema_version": SCHEMA_VERSION, **case}), encoding="utf-8")
    return path


def read_corpus(directory: Path | None = None) -> list[tuple[Path, Json]]:
    """Return the cases of a corpus with their files, in the order of their names.

    Args:
        directory: The corpus; None for this project's, and after it what `--corpus-add` stores
            elsewhere, where the package is installed.

    Raises:
        ValueError: A file that is none of this schema.
    """
    folders = [CORPUS, folder_for(CORPUS)] if directory is None else [directory]
    paths = [path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("*.json"))]
    return [(path, read_json(path)) for path in paths]


def corpus_checks(directory: Path | None = None) -> list[CaseCheck]:
    """Return the checks of a corpus, one for each case, to be run before all others.

    Args:
        directory: The corpus, as `read_corpus` has it.

    Raises:
        ValueError: A file that is none of this schema.
    """
    return [
        case_check(path, case, name=f"corpus/{path.stem}") for path, case in read_corpus(directory)
    ]
