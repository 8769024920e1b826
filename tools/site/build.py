"""Copy the pages of the site into a folder, and build HTML from them with Sphinx."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.site.function_pages import write_function_pages

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent

PAGES: Final = (
    "*.md",
    "docs/*.md",
    "[!.]*/README.md",
    "tools/*/README.md",
    "tools/results/*.md",
    "tools/commands/*/README.md",
)
"""The Markdown files that are pages."""

LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class BrokenLinkError(ValueError):
    """A page links to a file that is not in the repository."""


def build(out: Path, *, checks_urls: bool = False) -> int:
    """Build the site; return Sphinx' exit status. A warning, such as a broken link, is an error.

    Args:
        out: The folder for `html` and for Sphinx' own files; it is replaced.
        checks_urls: Whether to request each URL too.
    """
    shutil.rmtree(out, ignore_errors=True)
    source = out / "source"
    copy_pages(source)
    write_function_pages(source / "functions")
    builders = ["html", "linkcheck"] if checks_urls else ["html"]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(HERE)]
    statuses = [
        subprocess.run(  # noqa: S603
            [*command, "-d", str(out / "doctrees"), "-b", builder, str(source), str(out / builder)],
            cwd=ROOT,
            check=False,
        ).returncode
        for builder in builders
    ]
    return max(statuses)


def copy_pages(source: Path) -> None:
    """Copy all pages, and the files that they link to, to the same places in another folder.

    Raises:
        BrokenLinkError: A linked file does not exist.
    """
    for page in pages():
        _copy(page, source)
        for linked in _links(page):
            if linked.is_file() and linked.suffix != ".md":
                _copy(linked, source)
    shutil.copy(HERE / "index.md", source)


def pages() -> list[Path]:
    """Return the Markdown files that are pages."""
    return sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})


def _links(page: Path) -> Iterator[Path]:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        linked = (page.parent / target).resolve()
        if not linked.exists():
            raise BrokenLinkError(f"{page.relative_to(ROOT)} links to {target}, which is not there")
        yield linked


def _copy(file: Path, source: Path) -> None:
    place = source / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, place)
