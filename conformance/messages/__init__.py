"""The message of a difference: the call, both values around it, and where in the batch it lies."""
