"""A small production runner: real model classes, served with a paged KV cache by `fast` alone.

    python -m tools.runner

serves requests with four architectures of `transformers` (random weights, made on the spot) and
compares every token with what the model's own `generate` gives for the request alone. The exit
status is 0 when all are equal, 1 at the first that is not, 2 when the call was wrong.

It is written to be read. What happens in a step, from top to bottom:

1. `scheduler`: which requests run, with how many tokens and in which blocks.
2. `worker`: executes the step, by way of
   `rows`: who has which row of the block tables, and the blocks in it;
   `batch`: the requests in the batch's order, padded; `buffers`: the same on the device;
   `parts`: the batch or its micro-batches, and what `backends` and their builders tell the layers;
   `forward`: the model's forward pass, in which each layer writes and reads its cache: `attention`.
3. `engine`: compares the next tokens, and gives them back to the scheduler.

What is made once: `requests` to serve, `models`, their `layers`, and their `caches`.
"""
