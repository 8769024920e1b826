"""Failures: stored, minimized, deduplicated and replayed.

`failures` describes one failure, and `records` the findings of a night; `database` stores inputs.
`minimize` and `shrink` look for the smallest input that fails, for inputs that crash in forked
children (`forked_draws`); `replay` runs the inputs of earlier nights, and `growth` measures memory.
"""
