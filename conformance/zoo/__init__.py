"""The model zoo: published models with their real numbers, served by an implementation.

`models` has the models, each a list of `layer`s; `serving` says how one is served, `catalogue`
which backends there are. The rest is done with the functions of an implementation, which `calls`
looks up by name: `specs` and `groups` say what the layers keep, `cache_config` what that takes of a
device's memory, `backends`, `builders` and `context` make what an engine brings along, and
`deployment` puts it all together: caches, views, bindings, builders, and a step's metadata.
"""
