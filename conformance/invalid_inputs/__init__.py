"""Invalid inputs: for each function, an otherwise valid call with one violated precondition.

A function's module states the kinds of its parameters (`kinds`, `arrays`), from which wrong types,
dtypes, dimensions and ranges follow, and each other precondition, as a table of changes of a call
(`changes`) by the exception and by the name that its message must have.
"""
