"""Reads an HTML page as a browser does, for tests of reports."""

from __future__ import annotations

import html.parser


class Reader(html.parser.HTMLParser):
    """Records the elements of a page, and checks that each is closed."""

    VOID = frozenset({"meta", "link", "br", "wbr", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element without content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that the end tag closes the innermost element."""
        assert self.open.pop() == tag


def check_page(page: str) -> Reader:
    """Return the elements of a report's page, which must be whole and accessible.

    Elements are closed, names are unique, links lead somewhere and nothing is fetched. Scrollable
    elements can be reached by keyboard; the style sheet supports dark mode and phones.
    """
    reader = Reader()
    reader.feed(page)
    assert [] == reader.open
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    labels = {attrs["aria-labelledby"] for _, attrs in reader.tags if "aria-labelledby" in attrs}
    assert labels <= set(ids)
    links = [str(attrs["href"]) for _, attrs in reader.tags if "href" in attrs]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {"data:,", "report.json", "report.md"} == {link for link in links if link[0] != "#"}
    assert not [tag for tag, attrs in reader.tags if "src" in attrs or tag in {"img", "iframe"}]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style.replace("url(#hatch)", "")
    for said in (":focus-visible", "prefers-color-scheme: dark", "max-width: 40rem"):
        assert said in style
    assert "viewport" in page
    classes = [(attrs, (attrs.get("class") or "").split()) for _, attrs in reader.tags]
    scrolling = [attrs for attrs, names in classes if "scroll" in names]
    assert scrolling
    assert all("tabindex" in attrs and "aria-label" in attrs for attrs in scrolling)
    assert all(attrs["role"] == "img" for attrs, names in classes if {"chart", "batch"} & {*names})
    assert 1 == page.count("<script>")
    return reader
