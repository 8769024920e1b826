"""JSON that a person can read: what fits on a line is on one."""

from __future__ import annotations

import json

from conformance.encoding.elements import Json

WIDTH = 100
"""The longest line, where it can be helped."""


def to_text(value: Json) -> str:
    """Return a value as JSON text with a newline at its end.

    >>> print(to_text({"shape": [2, 2], "values": [[1, 2], [3, 4]]}), end="")
    {"shape": [2, 2], "values": [[1, 2], [3, 4]]}
    """
    return _text(value, "", 0) + "\n"


def _text(value: Json, indent: str, used: int) -> str:
    """Return a value as text; `used` signs are before it on its line."""
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
