"""The files of a report, written in place of those of an earlier run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CONTROLS = dict.fromkeys({*range(32)} - set(map(ord, "\t\n\r")), "\ufffd")
"""Control characters, which no page and no Markdown may contain, and what stands for them."""


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
        texts: What each file contains, by its name. Half of a surrogate pair, which a message may
            contain and UTF-8 cannot express, becomes a question mark; a control character becomes
            U+FFFD.
        folder: The folder, which is made if it is missing.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        paths.append(folder / name)
        unfinished = folder / f".{name}.{os.getpid()}"
        try:
            unfinished.write_text(text.translate(CONTROLS), encoding="utf-8", errors="replace")
            unfinished.replace(paths[-1])
        finally:
            unfinished.unlink(missing_ok=True)
    return paths
