"""The files of a report, written in place of those of an earlier run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CONTROLS = dict.fromkeys({*range(32)} - set(map(ord, "\t\n\r")), "\ufffd")
"""Replacements of control characters, which pages and Markdown must not contain."""


def prepare_folder(folder: Path) -> None:
    """Make the folder of the reports, and verify that it can be written.

    Raises:
        OSError: It cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_files(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write files into a folder, each whole or not at all.

    Args:
        texts: The contents of each file, by its name. A lone surrogate, which a message may contain
            and UTF-8 cannot encode, becomes a question mark; a control character becomes U+FFFD.
        folder: The folder, which is made if it is missing.

    Returns:
        The files.
    """
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        replace_file(path, text.translate(CONTROLS))
    return paths


def replace_file(path: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Args:
        path: The file, whose folder is made if it is missing.
        text: The contents; lone surrogates are replaced by question marks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
