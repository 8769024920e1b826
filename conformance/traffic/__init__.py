"""Real traffic: traces of requests, an engine that serves them, and a runner of its steps.

`trace` reads requests, and `engine` serves them with a model of the zoo, step by step, on the
scheduler of `conformance.engine`; strategies take their batches from it. `runner` executes a step
as an engine's worker does, with one implementation. `twins` runs two implementations side by side
and finds the first difference, and `locate` the requests that it concerns.
"""
