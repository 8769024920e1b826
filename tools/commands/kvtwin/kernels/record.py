"""The figures of kernels recorded in `tools/results`, and the comparison with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from kvtwin.checkout import ROOT
from kvtwin.kernels.usage import Usage

RECORD: Final = ROOT / "tools" / "results" / "kernels.json"
"""The record. It is not installed."""

COMMAND: Final = "kvtwin kernels --record"
"""The command that writes it."""

ALLOWED: Final = 1.1
"""The factor by which a figure may exceed that of the record."""

FIGURES: Final = [field.name for field in dataclasses.fields(Usage)][2:]


def write(usages: Sequence[Usage], path: Path) -> None:
    """Write the record."""
    kernels: dict[str, dict[str, Any]] = {}
    for usage in usages:
        figures = {name: getattr(usage, name) for name in FIGURES}
        kernels.setdefault(usage.kernel, {})[usage.arch] = figures
    record = {"compiled_by": _compilers(), "kernels": kernels}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def compare(usages: Sequence[Usage], path: Path) -> Iterator[str]:
    """Yield a line for each figure that is more than a tenth above that of the record.

    A figure that is no longer known yields a line too, as does a kernel that is new or missing.

    Args:
        usages: Of all kernels, for some architectures.
        path: The record.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    archs = {usage.arch for usage in usages}
    recorded = {
        (kernel, arch): figures
        for kernel, by_arch in record["kernels"].items()
        for arch, figures in by_arch.items()
        if arch in archs
    }
    found = False
    for usage in usages:
        where = f"{usage.kernel} for {usage.arch}"
        figures = recorded.pop((usage.kernel, usage.arch), None)
        if figures is None:
            yield f"{where} is not in {path.name}"
            continue
        for name in FIGURES:
            before, now = figures[name], getattr(usage, name)
            if now is None:
                if before is not None:
                    yield f"{where}: {name} is not known, was {before}"
            elif before is None or now > ALLOWED * before:
                found = True
                yield f"{where}: {name} is {now:g}, was {before}"
    for kernel, arch in recorded:
        yield f"{kernel} for {arch} is in {path.name}, but there is no such kernel"
    if found and record["compiled_by"] != _compilers():
        yield f"compiled by {_compilers()}, the record by {record['compiled_by']}"


def _compilers() -> dict[str, str]:
    """Return the versions of the packages that compile kernels."""
    found = {}
    for name in ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
