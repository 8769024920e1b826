"""Bounded exhaustive testing: compare every input below stated bounds with `reference`.

A `Scope` is a numbered list of calls that is never built. Any range of it can be enumerated
separately (`spaces`), so a run can be stopped, resumed and distributed to workers. `comparing`
compares the results of one case, `jobs` enumerates a range in a worker, and `progress` stores the
finished ranges.
"""
