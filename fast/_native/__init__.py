"""Private: how the host path of `fast` gets its speed.

Loops compiled by numba, called through their C entry points; tensors handed over by address; lists
of ints packed by `marshal`. Nothing of this is visible outside the package: its functions take
tensors, arrays and ints, verify them, and only then call a loop. Which functions there are for a
module of `fast`, the module of the same name here says.

Outside this package nothing calls a compiled loop or takes a tensor's address.
"""
