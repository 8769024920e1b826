"""A small engine's host side: it schedules requests and keeps track of their batch and blocks.

The stateful test (`conformance.functions.life`), traces and the runner of real models
(`tools.runner`) run on it.
It imports neither `reference` nor `fast`, so each can use it with the implementation that it runs.

- `request`, `block_pool`, `cache_group`: requests, and the blocks that they get;
- `prefix_cache`: blocks that requests with a common prefix share;
- `scheduler`: schedules each step within the `settings` of the engine and the step's policy;
- `scheduler_output`: a step, as the scheduler passes it to a worker;
- `arrivals`: requests that arrive over simulated time;
- `trace`: requests of a real engine, and the batches that they are served in;
- `input_batch`, `table_rows`: the worker's order of requests, and their rows of the block tables;
- `padded_batch`: a step's batch in the worker's buffers.

The names are those of vLLM's scheduler and model runner, if these have one.
"""
