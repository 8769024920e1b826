"""Reports of a run: `--report DIR` writes `report.json`, `report.md` and `report.html`.

All three have the contents of one record: the table at the end of the run, and its failures.
"""
