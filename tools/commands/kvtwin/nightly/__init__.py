"""A night: the conformance run, repeated with other seeds until the time is over."""
