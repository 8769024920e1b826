"""What reproduces a failed test: a stored case, and a Python script."""
