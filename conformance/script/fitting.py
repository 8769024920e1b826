"""Fits the lines of a script into as many as it may have."""

from __future__ import annotations

import dataclasses

from conformance.script.header import imports
from conformance.targets import Target

MOST_LINES = 40
"""A script has no more lines."""


class TooLongError(ValueError):
    """A script of more lines than one may have."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Some lines of a script.

    Attributes:
        lines: They.
        glue: What two of them that share a line have between them, None where none may.
        first: How many lines at the beginning are kept as they are.
        last: How many at the end.
    """

    lines: list[str]
    glue: str | None = None
    first: int = 0
    last: int = 0

    def pressed(self, number: int) -> list[str]:
        """Return the lines, of which so many fewer are left as can be; the shortest are joined."""
        lines = list(self.lines)
        while number > 0 and self.glue is not None:
            pairs = range(self.first, len(lines) - self.last - 1)
            if not pairs:
                break
            i = min(pairs, key=lambda i: len(lines[i]) + len(lines[i + 1]))
            lines[i : i + 2] = [f"{lines[i]}{self.glue}{lines[i + 1].lstrip()}"]
            number -= 1
        return lines


def fitted(about: str, target: Target, own: list[str], blocks: list[Block]) -> str:
    """Return a script; lines of arguments are joined where it would have too many.

    Args:
        about: What it shows, its docstring.
        target: What is under test.
        own: What it imports of the harness.
        blocks: The rest of it.

    Raises:
        TooLongError: It has more than 40 lines all the same.
    """
    body = "\n".join(line for block in blocks for line in block.lines)
    said, used = [_docstring(about)], imports(body, target, own)
    if "\n" in about:
        said = [f'"""{about}', '"""']
        said = "\n".join(said).splitlines()
    surplus = len(said) + len(used) + sum(len(block.lines) for block in blocks) - MOST_LINES
    if surplus > 0:
        said = [_docstring(" ".join(about.split()))]
        surplus = len(said) + len(used) + sum(len(block.lines) for block in blocks) - MOST_LINES
    head = [*said, *used]
    lines = list(head)
    for block in blocks:
        pressed = block.pressed(surplus)
        surplus -= len(block.lines) - len(pressed)
        lines += pressed
    if len(lines) > MOST_LINES:
        raise TooLongError(f"the script would have {len(lines)} lines")
    return "\n".join(lines) + "\n"


def _docstring(about: str) -> str:
    """Return a docstring of one line, which may itself end with a quote."""
    return f'"""{about}{" " if about.endswith(chr(34)) else ""}"""'
