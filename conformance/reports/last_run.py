"""What the last run met of each function, kept in pytest's cache for `--explain`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

KEY = "kvtwin/last_run"
"""What the cache calls it."""


def remember(
    config: pytest.Config, record: Mapping[str, Any], partial: Collection[str] = ()
) -> None:
    """Keep what a run met of the functions that it looked at, in place of what an earlier one met.

    Args:
        config: Pytest's; without its cache (`-p no:cacheprovider`) nothing is kept.
        record: The run's, as `record.record_of` gives it.
        partial: Functions some of whose tests did not run: what these did not meet, others may.
    """
    if getattr(config, "cache", None) is None:
        return
    kept = {**recall(config)}
    for function in record["functions"]:
        ran = [cell for cell in function["cells"] if sum(cell["tests"].values())]
        if ran:
            kept[function["name"]] = {
                "date": record["run"]["started"],
                "profile": record["run"]["profile"]["name"],
                "states": {cell["target"]: cell["state"] for cell in ran},
                "implementations": [one["name"] for one in record["implementations"]],
                "examples": sum(cell["examples"] for cell in ran),
                "situations": {
                    one["name"]: one["count"]
                    for one in function["situations"]
                    if one["count"] or function["name"] not in partial
                },
            }
    config.cache.set(KEY, kept)


def recall(config: pytest.Config) -> dict[str, Any]:
    """Return what the last run of each function met, by function."""
    cache = getattr(config, "cache", None)
    found = None if cache is None else cache.get(KEY, None)
    return found if isinstance(found, dict) else {}
