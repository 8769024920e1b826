"""Bounded exhaustive testing: compare every input below stated bounds with `reference`.

A `Scope` is a numbered list of calls that is never built. Any range of it can be enumerated
separately (`spaces`), so a run can be stopped, resumed and distributed to workers. `comparing`
compares the results of one case, `jobs` enumerates a range in a worker, and `progress` stores the
finished ranges.
"""

from __future__ import annotations

from typing import Final

SCALES: Final = range(3)
"""How large the bounds are: 0 for a test, 1 for an hour on two cores, 2 for one on 64 cores."""
