"""What is under test: an implementation, on a device, with its adapter.

`implementations` loads a module and its adapter, `conversion` converts arguments for it,
`factories` make objects with behaviour, and `target` calls its functions.
"""
