"""Contracts and checks: what each function is tested for.

`contract` describes one function, and `properties` a check with drawn examples. `evaluation`
compares one call with `reference`, and `sessions` a sequence of operations on an object.
"""
