"""Laws: statements about batches that hold for every function whose contract names them.

- `access`: which slots the tokens of a batch read and write, as a value;
- `changes`: changes of a batch (padded, in another order, on another rank);
- `interpretation`: how a function's arguments and results are read as a batch;
- `law`: what a law is, and one call for which it must hold; `statements`: the laws;
- `law_checks`: the tests of the laws that a contract names.

`Contract.laws` names the laws of a function; `Contract.interpretation` says how its arguments and
results are read as a batch. A new law is a function in `statements` that contracts name.
"""
