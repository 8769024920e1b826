"""The parts of the pytest plugin, whose first module is `conftest.py`.

| module | hooks |
|---|---|
| `conftest.py` | options, header, collection, the table at the end, pytest-xdist |
| `plugin/supervision` | `pytest_runtest_protocol`: runs each test in a forked child |
| `plugin/failure_hooks` | around a test, to store and describe its failure |
| `results/failure_summary` | `pytest_terminal_summary`: which failures are shown in full |
| `reports/plugin` | writes `--report` |

`options` has the options, `case_items` makes tests of stored cases, `explain` is `--explain`.
"""
