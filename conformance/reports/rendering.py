"""The jinja2 environment of all reports, with filters for text.

`page.html.j2` is the layout of a page and `parts.html.j2` has macros. A page is one file, without
network access, that can be read without scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from conformance.reports.picture_layout import arrange_picture
from conformance.reports.words import date_words, duration

HERE = Path(__file__).parent


def make_environment(*folders: Path, **filters: Callable[..., Any]) -> Environment:
    """Return an environment that renders `*.html.j2` with HTML's escapes, and `*.md.j2` without.

    Args:
        *folders: The folders of the report's own templates.
        **filters: The report's own filters.
    """
    environment = Environment(
        loader=FileSystemLoader([*folders, HERE]),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "anchor": anchor,
        "arranged": arrange_picture,
        "code": code,
        "date": date_words,
        "difference": difference_parts,
        "duration": duration,
        "fenced": fenced,
        "md": escaped,
        "number": "{:,}".format,
        **filters,
    }
    return environment


def anchor(text: str) -> str:
    """Return a text as the name of an element.

    >>> anchor("goals of CpuGpuBuffer.copy_to_gpu")
    'goals-of-CpuGpuBuffer.copy_to_gpu'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")


def difference_parts(line: str) -> tuple[str, str, str]:
    """Split a difference into field, actual and expected value; the last two may be ''.

    >>> difference_parts("result[1] = 3, but should be 2")
    ('result[1]', '3', '2')
    >>> difference_parts("ValueError: no")
    ('ValueError: no', '', '')
    """
    found = re.fullmatch(r"(.*?) = (.*), but should be (.*)", line, re.DOTALL)
    return (found[1], found[2], found[3]) if found else (line, "", "")


def escaped(text: str) -> str:
    r"""Escape a text for one line of Markdown.

    >>> print(escaped("a|b <c> *d*"))
    a\|b &lt;c> \*d\*
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def code(text: str) -> str:
    """Format a text, which may contain backticks, as inline code of Markdown."""
    text = " ".join(text.split())
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "text") -> str:
    """Return a block of code of Markdown, fenced by more backticks than it has.

    >>> print(fenced("x = 1", "python"))
    ```python
    x = 1
    ```
    """
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return "\n".join([f"{ticks}{language}", text.rstrip("\n"), ticks])
