"""The coverage of each function's last run, stored in pytest's cache for `--explain`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

KEY = "kvtwin/last_run"
"""The key in the cache."""


def remember(
    config: pytest.Config, record: Mapping[str, Any], partial: Collection[str] = ()
) -> None:
    """Store the coverage of the functions of a run, in place of that of earlier runs.

    Args:
        config: The configuration of pytest. Without the cache plugin nothing is stored.
        record: The record of the run, from `record.record_of`.
        partial: Functions some of whose tests did not run; their unreached goals are not stored.
    """
    if getattr(config, "cache", None) is None:
        return
    stored = {**recall(config)}
    for function in record["functions"]:
        ran = [cell for cell in function["cells"] if sum(cell["tests"].values())]
        if ran:
            stored[function["name"]] = {
                "date": record["run"]["started"],
                "profile": record["run"]["profile"]["name"],
                "states": {cell["target"]: cell["state"] for cell in ran},
                "implementations": [one["name"] for one in record["implementations"]],
                "examples": sum(cell["examples"] for cell in ran),
                "goals": {
                    one["name"]: one["count"]
                    for one in function["goals"]
                    if one["count"] or function["name"] not in partial
                },
            }
    config.cache.set(KEY, stored)


def recall(config: pytest.Config) -> dict[str, Any]:
    """Return the stored coverage, by function."""
    cache = getattr(config, "cache", None)
    found = None if cache is None else cache.get(KEY, None)
    return found if isinstance(found, dict) else {}
