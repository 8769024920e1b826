"""A runner's life: a state machine over both twins, and what must be true after each of its steps.

`engine` is what decides: requests arrive, share prefixes, get blocks, are preempted, end. `machine`
lets Hypothesis make its decisions, and hands each step to `conformance.traffic.twins`, where both
twins carry it out with state of their own. Then `invariants` looks at what each twin has made of
it, by itself: with `shadow`, which remembers what stands in each slot, every key that a token reads
must be the key of its own sequence. `check` makes a test of it all.
"""
