"""Real traffic: traces of requests, a scheduler that makes steps of them, a runner of the steps.

`trace` reads requests, `scheduler` makes the steps of an engine that serves them with a model of
the zoo, `runner` does in one implementation what an engine's worker does with a step,
`twins` runs two implementations side by side and finds the first difference, and `batches` cuts
the batches out of a run for the harness's strategies.
"""
