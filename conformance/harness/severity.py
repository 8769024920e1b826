"""How much a wrong answer matters to the maintainer of an engine.

| severity | the smallest call that shows it |
|---|---|
| wrong value | is an ordinary valid call, and something is wrong afterwards |
| crash | is an ordinary valid call that raises, does not return, ends the process, or leaves out a
value (None), so that its reader raises |
| borderline | has no requests or no tokens, an idle request before another one, or another memory
layout, mode of torch or class of objects |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from conformance.harness.story import Difference, Failure, Verdict
from reference import CommonAttentionMetadata

SEVERITIES: Final = ("wrong value", "crash", "borderline", "")
"""The gravest first; what is no wrong answer has none."""


def severity_of(failure: Failure) -> str:
    difference = failure.difference
    if difference.verdict is not Verdict.WRONG_ANSWER or failure.story.changed is not None:
        return ""
    if failure.needs_circumstances or is_edge(failure.arguments):
        return "borderline"
    got = difference.got
    is_crash = isinstance(got, BaseException) or got is None or difference.where == "the call"
    return "crash" if is_crash else "wrong value"


def is_edge(arguments: Mapping[str, Any]) -> bool:
    """Return whether a batch has no tokens, or a request without tokens before one that has some.

    Idle requests at the end are ordinary: they pad a batch.
    """
    for name, value in arguments.items():
        starts = getattr(value, "query_start_loc", value if name.startswith("query_start") else None)
        if isinstance(value, np.ndarray) and not value.size:
            return True
        if isinstance(starts, np.ndarray) and starts.ndim == 1:
            busy = np.flatnonzero(np.diff(starts))
            if not len(busy) or busy[-1] >= len(busy):
                return True
    return False


def cause_of(failure: Failure) -> tuple[str, str, str]:
    """Return what the failures of one cause have in common: the field, or the exception."""
    return (failure.story.function, *place_of(failure.difference))


def place_of(difference: Difference) -> tuple[str, str]:
    got = difference.got
    raised = f" {type(got).__name__}" if isinstance(got, BaseException) else ""
    return difference.kind + raised, re.sub(r"\[[^]]*\]", "", difference.where)


def gravity_of(failure: Failure) -> tuple[int, ...]:
    """Return a key that sorts failures: the gravest first, then those without a condition."""
    verdict, severity = failure.difference.verdict, severity_of(failure)
    is_last, rank = severity == "borderline", SEVERITIES.index(severity)
    return [*Verdict].index(verdict), is_last, bool(failure.condition), rank
