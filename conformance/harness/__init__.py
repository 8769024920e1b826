"""The harness: draws calls and what happens beside them, and compares a target with `reference`.

One example is one *story*: a call, where its memory lies, and up to two conditions that must not
matter. Read the modules in this order:

`contract` and `sizes`; `values`, `memory`, `compare`, `pair`; `conditions`, `process`, `refusals`;
`story`, `long_life`, `checks`; `targets`, `limits`; `show`, `cases`, `results`, `scheduling`,
`plugin`.
"""
