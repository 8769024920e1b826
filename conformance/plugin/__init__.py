"""The pytest plugin: its options, and how tests are collected, run, explained and reported.

`conftest.py` has its hooks.
"""
