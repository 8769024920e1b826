"""One case: a property of a function with one drawn input, and the new behaviour that it covers.

`properties` lists what is checked, and with inputs of which sizes; `profile` has Hypothesis'
settings; `case` draws and runs a case; `coverage` and `branches` observe it, on Python 3.11 by
`instrumentation`.
"""
