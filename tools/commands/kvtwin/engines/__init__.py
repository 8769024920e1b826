"""Releases of an engine, each in an environment of its own: what the conformance run says of each.

`kvtwin engines` makes the environments, runs the tests, and writes a table.
"""
