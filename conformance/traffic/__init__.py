"""Real traffic: traces of requests, and an engine that serves them.

`trace` reads requests, and `engine` serves them with a model of the zoo, step by step, on the
scheduler of `conformance.engine`; strategies take their batches from it.
"""
