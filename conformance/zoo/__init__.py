"""The model zoo: published models with their real numbers, served by an implementation.

`models` has the models, each a list of `layer`s; `serving` says how one is served, `catalogue`
which backends there are. The rest is done with the functions of an implementation: `specs` and
`groups` say what the layers keep, `cache_config` how much of a device's memory that takes,
`backends`, `builders` and `context` make what an engine adds, and `deployment` puts it all
together: caches, views, bindings, builders, and a step's metadata.
"""
