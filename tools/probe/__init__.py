"""Fuzz the public functions of `fast` with random calls, and check what it promises.

    python -m tools.probe --functions compute_slot_mapping --cases 10000
    python -m tools.probe --replay compute_slot_mapping:0:29

A case starts from a valid call, drawn by the strategies of `conformance`, and changes it at random:
values in arrays, their shapes, dtypes and layouts, numbers, lists, objects with hostile methods.
The cases run in worker processes, which may crash or hang. Each violation is
printed with the number of its case, which `--replay` runs again.

The promises, and how a violation is detected:

- Memory outside the arguments is neither read nor written: each array lies between guard pages, so
  an access raises SIGSEGV.
- Arguments that a function does not write do not change: they are on read-only pages, or are
  compared with a copy.
- No result contains uninitialised memory: a second call, with fresh memory filled with other bytes,
  returns the same result.
- Time and memory are bounded: 2 s of processor time, 1 GiB of address space, 256 MiB of growth,
  unless an argument states a size of 2**24 or more.
- An invalid call raises an exception of an allowed class that names an argument, and changes
  nothing.
- In checked mode `fast` rejects what `reference` rejects, and returns what it returns.
- Tensors of torch's transforms are rejected or handled correctly. Other kinds of tensors are tested
  by the conformance run.
- After an interrupt the next call is correct; block tables have the state before or after the
  interrupted call.
- Threads, forked processes, copies and pickles get the same results.

Not covered: the device path, and sequences of calls other than those of `BlockTables`.
"""
