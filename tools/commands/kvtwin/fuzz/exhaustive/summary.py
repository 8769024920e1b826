"""What an exhaustive run has shown, by scope, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from kvtwin.fuzz.exhaustive.jobs import CaseFailure
from kvtwin.fuzz.exhaustive.progress import Done, Progress


def verdict(progress: Progress) -> str:
    """Return what an exhaustive run has shown, in a sentence."""
    cases = sum(done.cases for done in progress.done.values())
    failed = sum(done.failed for done in progress.done.values())
    declared = sum(done.declared for done in progress.done.values())
    of = f"on {', '.join(progress.targets)}, in {len(progress.scopes)} scopes"
    if failed:
        names = dict.fromkeys(name for (_, name), done in progress.done.items() if done.failed)
        return f"{failed:,} of {cases:,} cases {of}, are not equal: {', '.join(names)}"
    rest = f", but for {declared:,} as declared" if declared else ""
    count = sum(scope.cases.count for scope in progress.scopes.values())
    if cases < count:
        return f"{cases:,} of {count:,} cases {of}, were compared, all equal{rest}"
    return f"all {count:,} cases {of}, are equal{rest}"


def text(progress: Progress) -> str:
    """Return a table of the scopes, the bounds of each, and the verdict, as plain text."""
    lines = [
        *_table(progress),
        "",
        *(
            f"every {scope.bounds}: {_outcome(progress.done[key], scope.cases.count)}"
            for key, scope in progress.scopes.items()
        ),
        "",
        *map(failure_line, progress.failures.values()),
        verdict(progress),
    ]
    return "\n".join(lines)


def _table(progress: Progress) -> Iterator[str]:
    width = max(len(name) for _, name in progress.scopes)
    targets = max(6, *(len(target) for target, _ in progress.scopes)) + 2
    head = f"{'scope':{width}}  {'target':{targets}}{'cases':>11}  {'seconds':>8}  {'us/case':>7}"
    yield f"{head}  outcome"
    for (target, name), scope in progress.scopes.items():
        done, count = progress.done[target, name], scope.cases.count
        each = f"{done.seconds / done.cases * 1e6:7.0f}" if done.cases else f"{'-':>7}"
        outcome = "not equal" if done.failed else "equal" if done.cases == count else "not done"
        numbers = f"{count:>11,}  {done.seconds:>8.0f}  {each}"
        yield f"{name:{width}}  {target:{targets}}{numbers}  {outcome}"


def _outcome(done: Done, count: int) -> str:
    """Return what was shown of a scope of so many cases."""
    if done.failed:
        return f"{done.failed:,} of {done.cases:,} cases are not equal"
    if not done.cases:
        return f"{count:,} cases, not compared"
    rest = f" but for {done.declared:,} as declared" if done.declared else ""
    if done.cases < count:
        return f"{done.cases:,} of {count:,} cases compared, all equal{rest}"
    return f"{count:,} cases, all equal{rest}"


def failure_line(failure: CaseFailure) -> str:
    """Return a failure in a line."""
    return (
        f"FAILS: {failure.function} on {failure.target}, {failure.scope}:{failure.index}:"
        f" {failure.line}"
    )
