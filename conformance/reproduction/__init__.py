"""The files that reproduce a failed test: a stored case, and a Python script."""
