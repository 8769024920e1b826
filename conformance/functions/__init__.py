"""One file for each idea: the strategies, contracts, specials, properties and laws of its functions.

`CONTRACTS` of a module lists the contracts from which `conformance.harness` makes tests.
"""
