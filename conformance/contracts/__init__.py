"""What is stated about functions, without the tests that are made from it.

`contract` describes one function, `properties` a check with drawn examples; `evaluation` compares
one call with `reference`, and `sessions` a sequence of operations on an object.
"""
