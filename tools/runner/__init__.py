"""A small model runner: real model classes, served with a paged KV cache through `fast`.

    python -m tools.runner

serves requests with four architectures of `transformers` (random weights, created at startup) and
compares every token with what the model's own `generate` returns for the request alone. The exit
status is 0 if all are equal, 1 at the first difference, 2 for a wrong command line.

It is written to be read. From this project it imports only `fast`, `conformance.engine` (which
imports neither `fast` nor `reference`), and `kvtwin.parser` for its command line. A step goes
through these modules:

1. `conformance.engine.scheduler`: which requests run, with how many tokens and in which blocks.
2. `worker`: executes the step, using
   `conformance.engine`: which request has which row of the block tables;
   `batch`: the requests in the order of the batch, padded; `buffers`: the same on the device;
   `parts`: the batch or its micro-batches, and the metadata that `backends` build for the layers;
   `forward`: the forward pass of the model, in which each layer writes and reads its cache, with
   `attention`.
3. `engine`: compares the next tokens, and returns them to the scheduler.

Before the first step these are created: `requests` to serve, `models`, their `layers` and `caches`.
"""
