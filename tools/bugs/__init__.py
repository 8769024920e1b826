"""Plant known bugs one at a time, and check that the conformance run catches each.

    python -m tools.bugs [--functions compute_slot_mapping,BlockTables] [--workers N]

plants each bug of the catalogue, `tests/conformance/bugs`. It runs the checks of the function as
the default conformance run does, one after another and without shrinking, and reports which check
fails first, and at which example. The exit status is 0; 1 if a bug is not caught, a patch
does not apply, or the median bug of a whole run takes more than 20 examples; 2 for a wrong command
line.
"""
