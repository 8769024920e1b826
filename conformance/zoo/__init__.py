"""The model zoo: published models with their real sizes, deployed with an implementation.

`models` has the models, each a list of `layer`s; `serving` the settings that one is served with;
`catalogue` the attention backends. The other modules call an implementation's functions: `specs`
and `groups` make KV cache specs and groups, `cache_config` the `KVCacheConfig` for a device's
memory, `backends`, `builders` and `context` the backends, metadata builders and forward context.
`deployment` combines them: it allocates and binds caches, and builds a step's metadata.
"""
