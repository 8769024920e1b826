"""The outcomes of a run, and what the terminal shows of them.

`failure_text` writes the text of one failure, `failure_summary` chooses the failures that are shown
in full, and `run` has the table of the run and its last lines.
"""
