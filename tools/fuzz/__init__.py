"""Nightly fuzzing: `python -m tools.fuzz --minutes 30` checks properties until the time is over.

| modules | what they do |
|---|---|
| `command_line` | the options |
| `night` | the loop: replay earlier findings, run slices, minimize, report |
| `properties`, `sizes` | what is checked, and with inputs of which sizes |
| `cases`, `coverage` | draw and run one case; record the new behaviour that it covered |
| `schedule` | which job is next |
| `chooser` | which property gets the next slice of time |
| `jobs`, `slices`, `minimize` | the work that is sent to a worker |
| `worker`, `local_pool` | worker processes on this machine |
| `ray_pool`, `ray_driver`, `ray_worker`, `shipping` | the same on a Ray cluster: docs/cluster.md |
| `failures`, `findings`, `database` | failures, and where they are stored |
| `exhaustive` | enumerate small scopes |
| `report` | the report of a night |
| `bisect`, `repository`, `case_process`, `commit_check` | find the commit of a failure |
"""
