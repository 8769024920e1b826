"""Laws: statements about batches that hold for every function whose contract names them.

- `access`: the access relation of a batch, which has the slots that its tokens read and write;
- `changes`: changes of a batch (padded, in another order, on another rank);
- `interpretation`: how a function's arguments and results are read as a batch;
- `law`: the classes of a law and of one call for which it must hold; `statements`: the laws.

`Contract.laws` lists the laws of a function; `Contract.interpretation` describes how its arguments
and results are read as a batch. `conformance.checks.law_checks` makes their checks. A new law is a
function in `statements` that contracts list.
"""
