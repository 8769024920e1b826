"""A page for each public name: its definition, laws, sizes, refusals and cost."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import fast
import reference
from conformance.plugin.explain import Entry, entries
from conformance.reports.rendering import make_environment

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE.parent / "results"

PICTURES: Final[Mapping[str, str]] = {
    "compute_slot_mapping": "slots",
    "create_ubatch_slices": "micro-batches",
    "split_attn_metadata": "micro-batches",
    "get_dcp_local_seq_lens": "ranks",
    "make_local_attention_virtual_batches": "virtual-batches",
    "BlockTables": "block-table",
    "CommonAttentionMetadata": "batch",
}
"""The picture in `docs/pictures` that shows what a function does."""


def write_function_pages(folder: Path) -> None:
    """Write a Markdown page for each name in `reference`, and one that lists them by module."""
    folder.mkdir(parents=True)
    environment = make_environment(HERE)
    template, listing = (
        environment.get_template(f"{name}.md.j2") for name in ("page", "functions")
    )
    described = [describe(name) for name in reference.__all__]
    for page in described:
        (folder / f"{page['name']}.md").write_text(template.render(page), encoding="utf-8")
    by_module: dict[str, list[dict[str, Any]]] = {}
    for page in described:
        by_module.setdefault(page["module"], []).append(page)
    text = listing.render(modules=dict(sorted(by_module.items())))
    (folder / "index.md").write_text(text, encoding="utf-8")


def describe(name: str) -> dict[str, Any]:
    """Return the contents of the page of a public name."""
    found = getattr(reference, name)
    is_class, is_data = inspect.isclass(found), not callable(found)
    known = [*_entries_of(name)]
    checks = [check for entry in known for _, check in entry.checks]
    contracts = [contract for entry in known for contract in entry.contracts]
    return {
        "name": name,
        "directive": "autodata" if is_data else "autoclass" if is_class else "autofunction",
        "module": "constants" if is_data else found.__module__.removeprefix("reference."),
        "summary": "" if is_data else (inspect.getdoc(found) or "").split("\n")[0],
        "value": repr(found) if is_data else "",
        "picture": PICTURES.get(name, ""),
        "in_fast": _in_fast(name),
        "laws": {
            check.law: check.description.partition(" obeys: ")[2] or check.description
            for check in checks
            if check.law
        },
        "axes": {name: axis for contract in contracts for name, axis in contract.axes.items()},
        "refused": {
            invalid.name: invalid for contract in contracts for invalid in contract.invalid_inputs
        },
        "num_checks": len(checks),
        "cost": [*_cost(name)],
    }


def _entries_of(name: str) -> Iterator[Entry]:
    """Yield the entries of a function, or of a class and its methods."""
    for known, entry in entries().items():
        if known == name or known.startswith(f"{name}."):
            yield entry


def _in_fast(name: str) -> str:
    """Return what the docstring of `fast` says between its summary and its sections."""
    found = getattr(fast, name, None)
    if found is None:
        return "`fast` does not have it."
    text = (inspect.getdoc(found) or "") if callable(found) else ""
    _, _, rest = text.partition("\n\n")
    return re.split(r"(?:^|\n\n)(?:Args|Attributes|Returns|Raises|Example|Definition):", rest)[0]


def _cost(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the last benchmark for a function, of mixed batches."""
    results, rows = _last_benchmark()
    for row in rows:
        job = row["job"]
        is_of_name = job == name or job.startswith((f"{name}.", f"{name},", f"{name} ("))
        if is_of_name and row["kind"] == "mixed" and row["num_reqs"] in {8, 256, 1024}:
            times = {who: f"{time['median_us']:,.1f}" for who, time in row["timings"].items()}
            yield {"job": job, "requests": f"{row['num_reqs']:,}", "results": results, **times}


@cache
def _last_benchmark() -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the last benchmark on a CPU, and its rows."""
    last = max(RESULTS.glob("bench-2*.json"))
    return last.stem, json.loads(last.read_text(encoding="utf-8"))["rows"]
