"""A model runner: does for each step what an engine's worker does, in one implementation.

`runner` runs a step, on `batch` and `buffers`; `layers` makes the KV caches, `derived` and
`model_inputs` call the functions that rewrite a batch. `twins` runs two implementations side by
side and finds the first difference; `locate` finds the requests that it concerns.
"""
