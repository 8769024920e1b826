"""README, CONTRIBUTING and docs: links lead somewhere, output is real, figures are measured ones.

Their Python examples are doctests, which .ci/run runs. What a page has to write:

- A ```console block is a sample: after `$ command` comes what the command prints to stdout, with
  `...` for what differs between runs or says nothing. A command without output is not run.
- `<!-- not run: reason -->` above a sample with output keeps it from being run.
- A ```python block whose first line is `# name.py` is a file that the samples of its page find.
- `<!-- rows of FILE.json -->` above a table says which record of kvtwin.bench its rows are from.
- `[number](tools/results/FILE)` is a figure that is in that file.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvtwin.bench.command_line import Record, by_function, format_us, read_record, summary

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "[!.]*/README.md", "docs/*.md", "tools/results/*.md")
    for path in ROOT.glob(pattern)
)
RESULTS = ROOT / "tools" / "results"
ELLIPSIS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def parse(page: Path) -> list[Token]:
    text = page.read_text(encoding="utf-8")
    return MarkdownIt("commonmark").enable("table").parse(text)


def targets_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the target and the text of each link and picture of a page."""
    for token in parse(page):
        children = token.children or []
        for i, child in enumerate(children):
            if child.type == "link_open":
                yield str(child.attrs["href"]), children[i + 1].content
            elif child.type == "image":
                yield str(child.attrs["src"]), child.content


def anchors_of(page: Path) -> set[str]:
    tokens = parse(page)
    headings = [
        tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in targets_of(page):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found), target


def test_each_page_can_be_reached() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = [target.partition("#")[0] for target, _ in targets_of(page)]
        found = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        new |= found & set(PAGES) - reached
    assert {page for page in PAGES if page.parent.name != "results"} <= reached


@pytest.mark.parametrize("package", ["conformance", "fast", "reference", "tests"])
def test_maps_name_what_is_there(package: str) -> None:
    page = (ROOT / package / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## Map")[2], re.MULTILINE)
    assert rows
    for name in re.findall(r"`([\w./]+)`", " ".join(rows)):
        if not re.fullmatch(r"(test_)?x\.py", name):
            path = ROOT / package / name
            assert path.exists() or path.with_suffix(".py").exists(), name


def test_nothing_installs_kvtwin_from_pypi() -> None:
    pattern = r"(^|[^/])kvtwin\[[a-z]|pip install ['\"]?kvtwin"
    command = ["git", "grep", "-nE", pattern, "--", ":!pyproject.toml", ":!tools/results"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert (1, "") == (found.returncode, found.stdout)


# Samples of command lines.


@dataclass(frozen=True)
class Sample:
    """A command of a page, and what it prints."""

    page: Path
    command: str
    output: str
    reason: str | None
    """Why it is not run."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.command}"


def samples_of(page: Path) -> Iterator[Sample]:
    reason: str | None = None
    for token in parse(page):
        if token.type == "html_block":
            found = re.match(r"<!-- not run: (.+) -->", token.content)
            reason = found and found[1]
        elif token.type == "fence" and token.info == "console":
            content = token.content.replace("\\\n", "")
            nothing, *parts = re.split(r"^\w*\$ ", content, flags=re.MULTILINE)
            assert not nothing, f"{page}: a console block begins with $"
            for part in parts:
                command, _, output = part.partition("\n")
                yield Sample(page, command.partition("  #")[0], output, reason)
            reason = None


SAMPLES = [sample for page in PAGES for sample in samples_of(page)]


def test_ci_runs_what_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = [sample.command for sample in SAMPLES if sample.page == ROOT / "README.md"]
    commands = [re.split(" && +", command) for command in readme if "-n auto" in command]
    versions = "-c constraints.txt -e '.[test]'"
    set_up = ["python3 -m venv .venv", ". .venv/bin/activate", f"pip install {versions}"]
    runs = ["pytest conformance -n auto", "pytest tests -n auto"]
    assert [[*set_up, run] for run in runs] == commands
    for part in ("python3 -m venv ", f"{versions}\n", *(f"\n{run}" for run in runs)):
        assert part in script


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows into a folder."""
    for token in parse(page):
        if token.type == "fence" and (named := re.match(r"# (\w+\.py)\n", token.content)):
            (folder / named[1]).write_text(token.content, encoding="utf-8")


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.output and not sample.reason], ids=str
)
def test_output_is_what_the_command_prints(sample: Sample, tmp_path: Path) -> None:
    write_files(sample.page, tmp_path)
    folders = [str(Path(sys.executable).parent), str(Path(sys.prefix, "bin")), os.environ["PATH"]]
    ran = subprocess.run(  # noqa: S603  # a command of our own pages
        ["bash", "-c", f'kvtwin() {{ python -m kvtwin "$@"; }}; {sample.command}'],  # noqa: S607
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": os.pathsep.join(folders),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
            "PYTEST_ADDOPTS": f"--failures={tmp_path}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    # tools.runner is an example, without our commands' message.
    missing = re.search(r"needs? (\w+).*: pip install|No module named '(transformers)'", ran.stderr)
    if missing and importlib.util.find_spec(missing[1] or missing[2]) is None:
        pytest.skip(ran.stderr.strip().splitlines()[-1])
    assert doctest.OutputChecker().check_output(sample.output, ran.stdout, ELLIPSIS), (
        ran.stdout + ran.stderr
    )


# Figures.


def rows_of(record: Record) -> dict[str, list[str]]:
    """Return the cells of each function in the tables: times and ratios, or host and device."""
    table: dict[str, list[str]] = {}
    for function, rows in by_function(record.rows).items():
        mixed = {row.num_reqs: row for row in rows if row.kind == "mixed"}
        if record.device == "cuda":
            table[function] = [format_us(mixed[1024].fast_us), format_us(mixed[1024].device_us)]
        else:
            times = [format_us(mixed[size].fast_us) for size in (8, 256, 1024)]
            table[function] = [*times, *summary(rows)]
    return table


def tables_of(page: Path) -> Iterator[tuple[Path, list[list[str]]]]:
    """Yield the record that a table of a page is from, and its cells."""
    record, table = None, None
    for token in parse(page):
        if token.type == "html_block" and (
            found := re.match(r"<!-- rows of (\S+) -->", token.content)
        ):
            record = ROOT / found[1]
        elif token.type == "tbody_open":
            table = []
        elif token.type == "tr_open" and table is not None:
            table.append([])
        elif token.type == "inline" and table:
            table[-1].append(token.content)
        elif token.type == "tbody_close" and record is not None:
            yield record, table or []
            record = table = None


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"])
def test_times_are_measured_ones(page: Path) -> None:
    tables = list(tables_of(page))
    assert tables
    for path, table in tables:
        measured = rows_of(read_record(path))
        assert table
        for name, *cells in table:
            expected = measured[name.strip("`")]
            assert expected[: len(cells)] == cells, name


def test_figures_are_in_the_files_they_link_to() -> None:
    found = 0
    for page in PAGES:
        for target, text in targets_of(page):
            path = (page.parent / target).resolve()
            if path.parent == RESULTS and (number := re.match(r"\d[\d,.]*%?", text)):
                assert number[0] in path.read_text(encoding="utf-8"), (page.name, text)
                found += 1
    assert found
