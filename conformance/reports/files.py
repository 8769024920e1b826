"""Writes the files of a report over those of an earlier run; `kvtwin nightly` uses it too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CONTROLS = dict.fromkeys({*range(32)} - set(map(ord, "\t\n\r")), "\ufffd")
"""Replacements of control characters, which pages and Markdown must not contain."""


def prepare_folder(folder: Path) -> None:
    """Make the folder of the reports; raise `OSError` if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def write_files(texts: Mapping[str, str], folder: Path) -> None:
    """Write files, by name, into a folder; control characters become U+FFFD."""
    for name, text in texts.items():
        replace_file(folder / name, text.translate(CONTROLS))


def replace_file(path: Path, text: str) -> None:
    """Write a file, whole or not at all; lone surrogates become question marks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
