"""How functions speak of a batch: the meanings that `conformance.laws` are about.

`meanings/x.py` belongs to `test_x.py`. For each function it says, in a `Meaning`, how an answer is
read as an access relation, how a call changes with its batch, and on which calls laws are tried.
"""
