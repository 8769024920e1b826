"""Real traffic: traces of requests, an engine that serves them, and a runner of its steps.

`trace` reads requests, and `engine` serves them with a model of the zoo, step by step, on the
scheduler of `conformance.engine`. `runner` does in one implementation what an engine's worker does
with a step, `twins` runs two implementations side by side and finds the first difference, and
`batches` takes the batches out of a run for the harness's strategies.
"""
