"""The stateful test: Hypothesis schedules requests, both twins execute every step.

Requests arrive, share prefixes, are preempted, resumed and finished: `scheduler` is the one of
`conformance.engine`, which follows a `plan` that `machine` draws for each step. `coverage` has the
goals. `conformance.traffic.twins` executes the step in a runner of each twin and compares the
results. Then `invariants` and `same_reads` check each runner by itself, independently of the
engine: `model_cache` keeps which key is in each slot, and every key that a token reads must be the
key of its own sequence. `check` makes a test of it all.
"""
