"""Nightly fuzzing: `kvtwin fuzz --minutes 30` checks properties until the time is over.

| module or package | contents |
|---|---|
| `command_line`, `actions` | the command line, and what its options run |
| `options`, `display` | the options of a night, and its live display |
| `night` | the main loop: run jobs until the time is over, and collect their results |
| `schedule`, `chooser` | choose the next job, and the property that gets the next slice of time |
| `slices` | the job that most of the time goes to: cases of one property |
| `cases` | draw and run one case, and record the coverage that it adds |
| `workers` | the processes that run jobs, here or on a Ray cluster |
| `findings` | failures: stored, minimized, deduplicated and replayed |
| `exhaustive` | bounded exhaustive testing: all inputs of small scopes |
| `report`, `summary` | the morning report, and its lines on the terminal |
| `bisection` | find the commit that introduced a failure |
| `issue_tracker` | GitHub issues for findings |
| `default_run` | counts what the default conformance run covers |
"""
