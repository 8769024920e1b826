"""Run the conformance tests against releases of vLLM, each in its own virtual environment.

`kvtwin engines` makes the environments, runs the tests, and writes a table.
"""
