"""The harness: draws calls and what happens beside them, and compares a target with `reference`.

One example is one *story*: a call, where its memory lies, and up to two conditions that must not
matter. Read the modules in this order:

`contract` and `sizes`; `values`, `memory`, `compare`, `pair`; `conditions`, `process`, `refusals`;
`story`, `long_life`, `checks`; `targets`, `launches`, `limits`; `show`, `cases`, `results`,
`scheduling`, `plugin`. The rest belongs to one option or condition each: `database`, `explain`,
`report` and `picture`, `objects` (arguments that are no data), `fresh_memory`, `tensor_kinds`.
"""
