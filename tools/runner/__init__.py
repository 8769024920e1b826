"""A small production runner: real model classes, served with a paged KV cache by `fast` alone.

    python -m tools.runner

serves requests with four architectures of `transformers` (random weights, made on the spot) and
compares every token with what the model's own `generate` gives for the request alone. The exit
status is 0 when all are equal, 1 at the first that is not, 2 when the call was wrong.

It is written to be read. What happens in a step, from top to bottom:

1. `scheduler`: which requests run, with how many tokens and in which blocks.
2. `worker`: rows, block tables, the batch's order and padding; slots; micro-batches.
3. `backends`: their builders tell the layers of the batch.
4. `forward`: the model's forward pass, in which each layer writes and reads its cache: `attention`.
5. `worker` again: the next tokens, which `engine` gives back to the scheduler.

What is made once: `requests` to serve, `models`, their `layers`, and their `caches`.
"""
