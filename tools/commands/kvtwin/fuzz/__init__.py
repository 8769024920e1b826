"""Nightly fuzzing: `kvtwin fuzz --minutes 30` checks properties until the time is over.

| module | contents |
|---|---|
| `command_line` | the options |
| `night` | the main loop: run jobs until the time is over, and collect their results |
| `properties` | the properties: each check on each target |
| `cases`, `coverage`, `branches` | draw and run one case; record the coverage that it adds |
| `schedule` | chooses the next job |
| `chooser` | chooses the property that gets the next slice of time |
| `jobs`, `slices`, `minimize`, `replay`, `growth` | the jobs that are sent to workers |
| `shrink`, `child` | find the smallest failing input; forked children, which may crash |
| `worker`, `worker_process`, `local_pool` | worker processes on this machine |
| `ray_pool`, `ray_cluster`, `ray_driver`, `ray_worker`, `shipping` | workers on a Ray cluster |
| `failures`, `findings`, `database` | failures, and where they and inputs are stored |
| `exhaustive`, `exhaustive_night` | bounded exhaustive testing: all inputs of small scopes |
| `report` | the morning report |
| `bisect`, `repository`, `commit_check` | find the commit that introduced a failure |
"""
