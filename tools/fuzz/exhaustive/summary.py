"""What an exhaustive run has shown, by scope, for a terminal and for a report."""

from __future__ import annotations

import dataclasses
from typing import Any

from tools.fuzz.exhaustive.progress import Progress


@dataclasses.dataclass(frozen=True)
class Row:
    """What was shown of a scope.

    Attributes:
        target: The target's name.
        scope: The scope's name.
        functions: The functions that its cases call.
        bounds: What its cases are, to stand after "every".
        cases: The number of cases that were compared.
        count: The number of cases that there are.
        failed: How many failed.
        declared: How many others are not equal, as an adapter declares.
        seconds: How long they took, over all workers.
        failures: The first failing case of each function and field: index, function and line.
    """

    target: str
    scope: str
    functions: tuple[str, ...]
    bounds: str
    cases: int
    count: int
    failed: int
    declared: int
    seconds: float
    failures: tuple[tuple[int, str, str], ...] = ()

    @property
    def verdict(self) -> str:
        """How the scope's cases came out."""
        if self.failed:
            return f"{self.failed:,} of {self.cases:,} cases are not equal"
        if not self.cases:
            return f"{self.count:,} cases, not compared"
        if self.cases < self.count:
            return f"{self.cases:,} of {self.count:,} cases compared, {self._equal}"
        return f"{self.count:,} cases, {self._equal}"

    @property
    def _equal(self) -> str:
        return f"all equal but for {self.declared:,} as declared" if self.declared else "all equal"

    @property
    def line(self) -> str:
        """The bounds and the verdict, in a sentence."""
        return f"every {self.bounds}: {self.verdict}"


def rows(progress: Progress) -> list[Row]:
    """Return what was shown of each scope."""
    found = []
    for (target, name), scope in progress.scopes.items():
        done = progress.done[target, name]
        found.append(
            Row(
                target,
                name,
                scope.functions,
                scope.bounds,
                done.cases,
                scope.count(),
                done.failed,
                done.declared,
                done.seconds,
                tuple((one["index"], one["function"], one["line"]) for one in done.failures),
            )
        )
    return found


def verdict(progress: Progress) -> str:
    """Return what an exhaustive run has shown, in a sentence."""
    found = rows(progress)
    cases, count = sum(row.cases for row in found), sum(row.count for row in found)
    failed = sum(row.failed for row in found)
    of = f"on {', '.join(progress.targets)}, in {len(progress.scopes)} scopes"
    if failed:
        scopes = ", ".join(dict.fromkeys(row.scope for row in found if row.failed))
        return f"{failed:,} of {cases:,} cases {of}, are not equal: {scopes}"
    declared = sum(row.declared for row in found)
    rest = f", but for {declared:,} as declared" if declared else ""
    if cases < count:
        return f"{cases:,} of {count:,} cases {of}, were compared, all equal{rest}"
    return f"all {count:,} cases {of}, are equal{rest}"


def text(progress: Progress) -> str:
    """Return a table of the scopes, the bounds of each, and the verdict, as plain text."""
    found = rows(progress)
    width = max(len(row.scope) for row in found)
    targets = max(6, *(len(row.target) for row in found)) + 2
    head = f"{'scope':{width}}  {'target':{targets}}{'cases':>11}  {'seconds':>8}  {'us/case':>7}"
    lines = [f"{head}  outcome"]
    for row in found:
        each = f"{row.seconds / row.cases * 1e6:7.0f}" if row.cases else f"{'-':>7}"
        outcome = "not equal" if row.failed else "equal" if row.cases == row.count else "not done"
        lines.append(
            f"{row.scope:{width}}  {row.target:{targets}}{row.count:>11,}  {row.seconds:>8.0f}"
            f"  {each}  {outcome}"
        )
    lines += ["", *(row.line for row in found), ""]
    for row in found:
        lines += [
            f"FAILS: {function} on {row.target}, {row.scope}:{index}: {line}"
            for index, function, line in row.failures
        ]
    return "\n".join([*lines, verdict(progress)])


def as_json(progress: Progress) -> dict[str, Any]:
    """Return the same as plain values."""
    found = [dataclasses.asdict(row) | {"line": row.line} for row in rows(progress)]
    return {
        "targets": list(progress.targets),
        "scale": progress.scale,
        "is_complete": progress.is_complete,
        "verdict": verdict(progress),
        "scopes": found,
    }
