"""Reads and writes files of cases: JSON with each value on one line if it fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

from conformance.encoding.arrays import MAX_BYTES, Json

SCHEMA_VERSION = "1.1"
"""The version of the format: the first number changes if old readers would misread it."""

WIDTH = 100
"""The maximum length of a line, if its value can be split."""


def to_text(value: Json) -> str:
    """Return a value as JSON text with a newline at its end.

    >>> print(to_text({"shape": [2, 2], "values": [[1, 2], [3, 4]]}), end="")
    {"shape": [2, 2], "values": [[1, 2], [3, 4]]}
    """
    return _text(value, "", 0) + "\n"


def _text(value: Json, indent: str, used: int) -> str:
    """Return a value as text; `used` characters are before it on its line."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + used + len(line) < WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        entries = [
            key + _text(entry, inner, len(key))
            for key, entry in zip(keys, value.values(), strict=True)
        ]
        return _block("{", [f"{inner}{entry}" for entry in entries], "}", indent)
    if not any(isinstance(entry, dict | list) for entry in value):
        return _block("[", _filled([json.dumps(entry) for entry in value], inner), "]", indent)
    return _block("[", [inner + _text(entry, inner, 0) for entry in value], "]", indent)


def _block(opened: str, lines: list[str], closed: str, indent: str) -> str:
    return opened + "\n" + ",\n".join(lines) + f"\n{indent}{closed}"


def _filled(words: list[str], indent: str) -> list[str]:
    """Return words on as few lines as they fit on."""
    lines = [indent + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines.append(indent + word)
        else:
            lines[-1] += f", {word}"
    return lines


def read_json(path: Path) -> Json:
    """Return the content of a file of this version of the schema.

    Raises:
        ValueError: The file is missing, too large, nested too deeply, not JSON, or of another
            version.
    """
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        said = getattr(error, "strerror", None) or error  # without the number and the name again
        raise ValueError(f"{path} cannot be read: {said}") from error
    version = read.get("schema_version") if isinstance(read, dict) else None
    if (
        not isinstance(version, str)
        or version.split(".")[0] != SCHEMA_VERSION.split(".", maxsplit=1)[0]
    ):
        raise ValueError(f"{path} has schema {version}, but this version reads {SCHEMA_VERSION}")
    return read


def write_case(case: Json, path: Path) -> None:
    """Write a stored case to a file, which is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text({"schema_version": SCHEMA_VERSION, **case}), encoding="utf-8")


def folder_for(ours: Path) -> Path:
    """Return a folder next to the harness, or `conformance-NAME` in the working directory.

    The latter is used if the former cannot be written, or the package is installed.

    >>> folder_for(Path("/lib/python3.11/site-packages/conformance/corpus")).name
    'conformance-corpus'
    """
    is_writable = os.access(ours if ours.exists() else ours.parent, os.W_OK)
    is_ours = is_writable and "site-packages" not in ours.parts
    return ours if is_ours else Path(f"conformance-{ours.name}")
