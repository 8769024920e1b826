"""Small scopes, enumerated: every input below stated bounds, compared with `reference`.

A `Scope` is a numbered list of calls that is never built: any range of it can be enumerated by
itself (`spaces`), so that a run can be stopped, resumed and spread over workers. `comparing`
compares the outcomes of one case, `jobs` enumerates a range in a worker, `progress` remembers what
is done, and `summary` says what has been shown.
"""
