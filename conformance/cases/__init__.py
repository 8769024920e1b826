"""Stored cases: inputs as JSON, which are replayed on any target.

| kind | contents of the file | replayed by |
|---|---|---|
| `call` | a call that failed | `compared`: it is compared with `reference` again |
| `example` | an example for which a check failed | `compared`: the check runs again |
| `answer`, `refusal`, `session` | a test vector: the calls and their results | `recorded` |

`python -m conformance --replay FILE` replays a file of any kind. `docs/vectors.md` describes the
format.
"""
