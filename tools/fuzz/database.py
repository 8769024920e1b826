"""The example database of a night: inputs worth varying, and failing ones, by property.

It is Hypothesis' own: a folder, or a Redis server that several machines share.
"""
