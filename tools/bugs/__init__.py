"""A catalogue of bugs, each of which the conformance run or a replay must catch.

    python -m tools.bugs [--functions compute_slot_mapping,BlockTables] [--workers N]

plants the bugs of `tests/conformance/bugs` one at a time, runs the checks of the function as the
default conformance run does, one after another and without shrinking, and says which fails first,
and at which of its examples. Those of the function `replay` must be caught by a replay of the
default trace, which says at which step. The exit status is 0; 1 if a bug is not caught or its patch
does not apply, or if the median bug takes more than 20 examples (of a whole run); 2 for a wrong
command line.
"""
