"""Private: the compiled loops of the host path.

Loops are compiled by numba and called through their C entry points; tensors are passed by address.
None of this is visible outside the package: its functions take tensors, arrays and ints, verify
them, and then call a loop. `fast._native.x` has the functions for `fast.x`.

Nothing outside this package calls a compiled loop or takes a tensor's address.
"""
