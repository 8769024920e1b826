"""Random calls of the public functions of `fast`, checked against what it promises.

    python -m tools.probe --functions compute_slot_mapping --cases 10000
    python -m tools.probe --replay compute_slot_mapping:0:29

A case starts from a valid call, drawn by the strategies of `conformance`, and changes it at random:
values in arrays, their shapes, dtypes and layouts, numbers, lists, objects with hostile methods,
kinds of tensors. The cases run in worker processes, which may crash or hang. Each violation is
printed with the number of its case, which `--replay` runs again.

| promise | how a violation shows |
|---|---|
| memory outside the arguments is neither read nor written | each array ends at, or begins behind, an
inaccessible page: SIGSEGV |
| arguments that a function does not write do not change | they lie on read-only pages, or are
compared with a copy |
| no result shows uninitialised memory | a second call, with other bytes in fresh memory, differs |
| time and memory are bounded | 2 s of processor time, 1 GiB of address space, 256 MiB of growth,
unless an argument states a size of 2**24 or more |
| a bad call gets an exception of spec 00 that names an argument, and changes nothing | any other
exception |
| in checked mode `fast` refuses what `reference` refuses, and returns what it returns | compared |
| other kinds of tensors, transforms and modes of torch are refused, or answered rightly | compared |
| after an interrupt the next call is right; block tables are as before or as after the call |
compared |
| threads, forked processes, copies and pickles get the same results | compared |

Not covered: the device path, and sequences of calls other than those of `BlockTables`.
"""
