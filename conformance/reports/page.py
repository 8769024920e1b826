"""Templates, the style sheet and filters that the pages of all reports share.

`page.html.j2` is the layout, which a report's own template extends, and `parts.html.j2` has macros.
A page is one file that needs nothing else: no network, and no scripts to be read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.reports.svg import svg_of
from conformance.reports.words import duration

HERE = Path(__file__).parent


def render_page(
    folder: Path,
    template: str,
    values: Mapping[str, Any],
    *,
    filters: Mapping[str, Callable[..., Any]],
    style_sheets: tuple[str, ...] = (),
) -> str:
    """Return a report as an HTML page.

    Args:
        folder: The folder of the report's own template and style sheets.
        template: The name of the template, which extends `page.html.j2`.
        values: The values of the template. The layout needs `headline`, `tiles` (triples of a
            number, what it counts, and a class), `tone` (`good`, `warn` or `bad`) and
            `schema_version`.
        filters: The template's own filters.
        style_sheets: The names of style sheets in addition to `report.css`.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count(1)
    environment.filters |= {
        "anchor": anchor,
        "difference": difference_parts,
        "duration": duration,
        "svg": lambda picture: svg_of(picture, next(numbers)),
        **filters,
    }
    sheets = [HERE / "report.css", *(folder / name for name in style_sheets)]
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    page = environment.get_template(template).render(
        **values,
        style=Markup(style),  # noqa: S704  # our own
    )
    return page.rstrip() + "\n"


def anchor(text: str) -> str:
    """Return a text as the name of an element.

    >>> anchor("goals of CpuGpuBuffer.copy_to_gpu")
    'goals-of-CpuGpuBuffer.copy_to_gpu'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")


def difference_parts(line: str) -> tuple[str, str, str]:
    """Return the field of a difference, what was got, and what should be; the last two may be ''.

    >>> difference_parts("result[1] = 3, but should be 2")
    ('result[1]', '3', '2')
    >>> difference_parts("ValueError: no")
    ('ValueError: no', '', '')
    """
    found = re.fullmatch(r"(.*?) = (.*), but should be (.*)", line, re.DOTALL)
    return (found[1], found[2], found[3]) if found else (line, "", "")
