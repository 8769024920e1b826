"""The table of size axes by bands: how many examples of each function lie in each band."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conformance.coverage.goals import Coverage
from conformance.coverage.size_axes import BANDS, NO_AXES, goal_of_band


def axes_of(coverage: Coverage, function: str) -> list[dict[str, Any]]:
    """Return the size axes of a function with the number of examples in each band, as plain values.

    Args:
        coverage: The coverage of the run.
        function: The name of the function.
    """
    return [
        {
            "name": name,
            "examples": {
                band: coverage.reached[function, goal_of_band(name, band)] for band in axis["bands"]
            },
            "last": axis["last"],
            "why": axis["why"],
        }
        for name, axis in coverage.axes.get(function, {}).items()
    ]


def size_lines(functions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table.

    Args:
        functions: The functions of a record.

    >>> examples = {"0": 1, "1": 1, "2 to 16": 2, "17 to 255": 0}
    >>> axis = {"name": "ranks", "examples": examples, "last": 255, "why": "no engine has more"}
    >>> for line in size_lines([{"name": "f", "axes": [axis]}]):
    ...     print(line)
    size axis  0  1  2 to 16  17 to 255  256 to 65,535  more  last size
    f
      ranks    1  1        2          0              -     -        255  no engine has more
    """
    rows = [(function["name"], axis) for function in functions for axis in function["axes"]]
    if not rows:
        return
    width = max(len("size axis"), *(len(axis["name"]) + 2 for _, axis in rows))
    yield "  ".join(["size axis".ljust(width), *BANDS.values(), "last size"])
    shown = ""
    for function, axis in rows:
        if function != shown:
            yield function
            shown = function
        cells = [str(axis["examples"].get(band, "-")).rjust(len(band)) for band in BANDS.values()]
        last = f"{axis['last']:,}".rjust(len("last size"))
        yield "  ".join([f"  {axis['name']}".ljust(width), *cells, last, axis["why"]]).rstrip()


def lines_without_axes(functions: Iterable[str]) -> Iterator[str]:
    """Yield a line for each function that has no size axis, which says why.

    >>> for line in lines_without_axes(["compute_slot_mapping", "checks", "AttentionType"]):
    ...     print(line)
    no axis: AttentionType: a constant
    no axis: checks: a law enters a thousand blocks, in sequence and nested
    """
    for function in sorted(NO_AXES.keys() & set(functions)):
        yield f"no axis: {function}: {NO_AXES[function]}"
