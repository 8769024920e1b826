"""The stateful test: Hypothesis schedules requests, both twins execute every step.

Requests arrive, share prefixes, are preempted, resumed and finished: `scheduler` extends that of
`conformance.engine` to follow a `plan`, which `machine` draws for each step. `coverage` has the
goals. `conformance.model_runner.twins` executes the step in a runner of each twin and compares the
results. Then `invariants` and `same_reads` check each runner by itself, independently of the
engine: `model_cache` records the key in each slot, and every key that a token reads must be the key
of its own sequence. `check` makes a conformance check of the state machine.
"""
