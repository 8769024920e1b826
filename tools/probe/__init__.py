"""Random calls at the public functions of `fast`, held to what they promise.

    python -m tools.probe --functions compute_slot_mapping --cases 10000
    python -m tools.probe --replay compute_slot_mapping:0:29

A case starts from a valid call, drawn by the strategies of `conformance`, and changes it at random:
values in arrays, their shapes, dtypes and layouts, numbers, lists, objects with hostile methods, kinds
of tensors. The cases run in workers that may die or hang; what one finds is printed with its number.

| promise | how a broken one shows |
|---|---|
| no memory is read or written outside the arguments | each array ends at, or begins behind, an
inaccessible page: SIGSEGV |
| what is not to be changed is not | it lies on read-only pages, or is compared |
| no result shows memory that was never written | a second call with other bytes in fresh memory |
| time and memory are bounded | 2 s of processor time, 1 GiB of address space, 256 MiB of growth |
| bad input gets an exception of spec 00 that names an argument, and changes nothing | any other |
| in checked mode `fast` rejects what `reference` rejects, and its results are equal | compared |
| other kinds of tensors, transforms and modes of torch are refused, or answered rightly | compared |
| an exception out of a signal handler breaks nothing | the next call; block tables: before or after |
| threads, forked processes, copies and pickles get the same answers | compared |

Not seen: a promise of the device path, and what only a sequence of calls of several functions breaks.
"""
