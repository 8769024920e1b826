"""Reads an HTML page as a browser does, for tests of reports."""

from __future__ import annotations

import html.parser


class Reader(html.parser.HTMLParser):
    """Notes the elements of a page, and sees that each is closed."""

    VOID = frozenset({"meta", "link", "br", "wbr", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """See that the innermost element is the one that is closed."""
        assert self.open.pop() == tag
