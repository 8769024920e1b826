"""Invalid inputs: for each function, an otherwise valid call with one violated precondition.

A module declares the kinds of a function's parameters (`kinds`, `arrays`), from which wrong types,
dtypes, dimensions and ranges are derived. Other preconditions are tables of changes of a call
(`changes`), by the exception and by the name that its message must contain.
"""
