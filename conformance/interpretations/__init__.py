"""How the arguments and results of functions are interpreted as a batch, which laws are about.

`interpretations/x.py` belongs to `test_x.py`. For each function, an `Interpretation` says how a
result is read as an access relation, how a call changes with its batch, and for which calls the
laws are tested.
"""
