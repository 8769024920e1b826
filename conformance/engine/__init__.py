"""A small engine's host side: it schedules requests and keeps track of their batch and blocks.

The stateful test (`conformance.functions.life`), traces and the runner of real models
(`tools.runner`) run on it. It imports neither `reference` nor `fast`: it is given the functions
that it calls. Its modules, in the order in which to read them:

- `request`: a request, from its arrival to its last token;
- `block_pool`: the blocks of all KV cache groups, and those that requests with one prefix share;
- `scheduler`: which requests run in a step, with how many tokens and in which blocks;
- `batch`: a worker's order of requests, their request slots, and the rows of a step;
- `runner`: a worker's part of a step, by the functions under test: its inputs and its results;
- `trace`: requests of a real engine, and the batches that they are served in.

The names are those of vLLM's scheduler and model runner, if these have one.
"""
