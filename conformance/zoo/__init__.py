"""The model zoo: shapes of published models, as inputs.

`models` reads them from `models.toml`. The other modules call an implementation's functions as an
engine does when it starts: `groups` makes KV cache specs, groups and the `KVCacheConfig`,
`backends` attention backends with metadata builders, and `deployment` allocates and binds caches,
and builds a step's metadata.
"""
