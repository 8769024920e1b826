"""The documentation site: its pictures, the pages of functions, and links between pages."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest

import reference
from tools.site import build, pictures
from tools.site.function_pages import PICTURES, describe, write_function_pages


def test_pictures_are_what_reference_returns() -> None:
    """The stored pictures are current; `python -m tools.site --pictures` draws them again."""
    drawn = pictures.draw_all()
    stored = {file.stem: file.read_text(encoding="utf-8") for file in pictures.FOLDER.iterdir()}
    assert drawn == stored
    assert {*PICTURES.values()} <= drawn.keys()


def test_slots_are_drawn_in_their_blocks() -> None:
    """Each new token of the batch is one dark cell of the cache, with its slot."""
    batch = pictures.make_batch()
    rows = pictures.cache_of(batch)["rows"]
    new = {
        (row["label"], cell["position"])
        for row in rows
        for cell in row["cells"]
        if cell["kind"] == "new"
    }
    slots = batch.slot_mapping.tolist()
    assert {(f"block {slot // pictures.BLOCK_SIZE}", slot) for slot in slots} == new


def test_each_public_name_has_a_page(tmp_path: Path) -> None:
    """A page has the definition, the invalid inputs, and the cost of a call if it was measured."""
    folder = tmp_path / "functions"
    write_function_pages(folder)
    assert {*reference.__all__, "index"} == {page.stem for page in folder.iterdir()}
    text = (folder / "split_decodes_and_prefills.md").read_text(encoding="utf-8")
    assert ".. autofunction:: reference.split_decodes_and_prefills\n" in text
    assert "| `split_partitions` | The parts together read and write" in text
    assert "| decode\\_threshold is a bool | `TypeError` | decode\\_threshold |" in text
    assert "| split\\_decodes\\_and\\_prefills | 1,024 |" in text
    assert "compute_slot_mapping.md" in (folder / "index.md").read_text(encoding="utf-8")


def test_a_page_says_what_differs_in_fast() -> None:
    """A page has the docstring of `fast`, without its summary, sections and pointer."""
    in_fast = describe("compute_slot_mapping")["in_fast"]
    assert in_fast.startswith("On a GPU the call does not synchronise")
    assert in_fast.endswith("enough\npositions.")
    assert "" == describe("PAD_SLOT_ID")["in_fast"] == describe("UBatchSlice")["in_fast"]


def test_a_class_has_the_checks_of_its_methods() -> None:
    """The page of a class has the checks of its methods."""
    assert "block_sizes" in str(describe("BlockTables")["refused"].keys())
    assert describe("PAD_SLOT_ID")["value"] == "-1"


def test_links_lead_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked files are copied to the target of the link; a missing file is an error."""
    build.copy_pages(tmp_path / "source")
    assert (tmp_path / "source" / "docs" / "pictures" / "slots.svg").is_file()
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[there](nothing.md) and [web](https://example.org)\n")
    with pytest.raises(build.BrokenLinkError, match=r"README\.md links to nothing\.md, which"):
        build.copy_pages(tmp_path / "other")


@pytest.mark.skipif(find_spec("sphinx") is None, reason="the extra `site` is not installed")
@pytest.mark.parametrize(("path", "status"), [("/there", 0), ("/gone", 1)])
def test_urls_are_requested(
    path: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--check-urls`, a page that a server does not have is an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  # its name in `http.server`

        def log_message(self, *_: object) -> None:
            pass

    requested: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}{path}"

        def copy_pages(source: Path) -> None:
            source.mkdir(parents=True)
            (source / "index.md").write_text(f"# A page\n\n[link]({url})\n", encoding="utf-8")

        monkeypatch.setattr(build, "copy_pages", copy_pages)
        monkeypatch.setattr(build, "write_function_pages", Path.mkdir)
        found = build.build(tmp_path / "site", checks_urls=True)
        server.shutdown()
    assert (status, {path}) == (found, set(requested))
