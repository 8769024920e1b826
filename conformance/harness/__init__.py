"""The harness: draws calls and what happens beside them, and compares a target with `reference`.

One example is one *story*: a call, where its memory lies, and up to two conditions that must not
matter. Read the modules in this order:

- `contract`: what is stated about a function; `sizes`: how sizes and contents are drawn;
- `values`: the one walker through the parts of a value; `memory`: arrays become tensors;
- `compare`: the first difference of two values; `pair`: a call of both twins, and its comparison;
- `conditions`: what must not matter; `process`: settings that a call leaves as they are;
- `refusals`: one place of a valid call is changed;
- `targets`, `limits`: what is under test, and how much time and memory it may take;
- `story`, `checks`: examples as data, and the tests of a contract;
- `show`, `cases`, `plugin`, `results`: failures as text and as files; the tests in pytest.
"""
