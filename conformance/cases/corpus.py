"""The corpus: stored inputs for which an implementation once failed; every run replays them first.

Each file of `corpus/` has only an input: a replay computes the expected result with `reference`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from conformance import FOLDER
from conformance.cases.check import CaseCheck, case_check
from conformance.encoding import Json, folder_for, read_json, write_case

CORPUS = FOLDER / "corpus"
"""The corpus of this project."""


def add_to_corpus(case: dict[str, Json], directory: Path | None = None) -> Path:
    """Store an input for which an implementation failed.

    Args:
        case: A case from `conformance.cases.compared`: `case_of_call(call, reason)`,
            `case_of_example(...)` or `case_of_failure(...)`.
        directory: The corpus. None for `conformance/corpus` in a checkout, and for
            `conformance-corpus` in the working directory if the package is installed.

    Returns:
        The file, named after the input; an existing file is not changed.
    """
    directory = folder_for(CORPUS) if directory is None else directory
    notes = {"reason", "date", "variant", "seed", "refusal"}  # it is the same input without them
    content = json.dumps({name: value for name, value in case.items() if name not in notes})
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    path = directory / f"{case['contract']}-{digest}.json"
    if not path.exists():
        write_case(case, path)
    return path


def read_corpus(directory: Path | None = None) -> list[tuple[Path, Json]]:
    """Return the cases of a corpus with their files, in the order of their names.

    Args:
        directory: The corpus; None for this project's, followed by the folder in which
            `--corpus-add` stores cases if the package is installed.

    Raises:
        ValueError: A file is not a stored case of this schema.
    """
    folders = [CORPUS, folder_for(CORPUS)] if directory is None else [directory]
    paths = [path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("*.json"))]
    return [(path, read_json(path)) for path in paths]


def corpus_checks(directory: Path | None = None) -> list[CaseCheck]:
    """Return the checks of a corpus, from `read_corpus`; they run before all others.

    Raises:
        ValueError: A file is not a stored case of this schema.
    """
    return [
        case_check(path, case, name=f"corpus/{path.stem}") for path, case in read_corpus(directory)
    ]
