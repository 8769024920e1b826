"""`python -m tools.site`: the command line."""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("tools.site.__main__", "site")

from collections.abc import Sequence
from pathlib import Path

from kvtwin.parser import Parser
from tools.site.build import ROOT, build
from tools.site.pictures import write_pictures


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site, or draw the pictures; return the exit status."""
    parser = Parser(
        "python -m tools.site",
        "Build the documentation site.",
        examples=["", "--check-urls", "--pictures"],
        statuses={0: "the site is built", 1: "a page has a warning, such as a broken link"},
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "site", help="output folder, which is replaced"
    )
    parser.add_argument("--check-urls", action="store_true", help="also check external URLs")
    parser.add_argument("--pictures", action="store_true", help="only draw docs/pictures")
    options = parser.parse_args(arguments)
    if options.pictures:
        write_pictures()
        return 0
    status = build(options.out, checks_urls=options.check_urls)
    if status == 0:
        print(options.out / "html" / "index.html")
    return status
