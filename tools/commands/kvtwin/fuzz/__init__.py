"""Nightly fuzzing: `kvtwin fuzz --minutes 30` checks properties until the time is over.

| module | what it has |
|---|---|
| `command_line` | the options |
| `night` | the loop: replay what was found before, run slices, minimize, report |
| `properties`, `sizes` | what is checked, and with inputs of which sizes |
| `cases`, `coverage` | one case: drawn, run, and the new behaviour that it covered |
| `schedule` | which job is next |
| `chooser` | which property gets the next slice of time |
| `jobs`, `slices`, `minimize` | the work that is sent to a worker |
| `shrink`, `child` | the smallest input that fails; forked children, which may crash |
| `worker`, `worker_process`, `local_pool` | processes that do it here |
| `ray_pool`, `ray_cluster`, `ray_driver`, `ray_worker`, `shipping` | the same on a Ray cluster |
| `failures`, `findings`, `database` | what was found, and where it is stored |
| `exhaustive` | small scopes, enumerated |
| `report` | the morning report |
| `bisect`, `repository`, `commit_check` | which commit introduced a failure |
"""
