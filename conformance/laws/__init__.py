"""What is true of every function of a batch: the laws, each stated once.

- `access`: the relation of tokens and slots that a batch means, as a value;
- `changes`: changes of a batch (padded, in another order, on another rank);
- `meaning`: how a function's calls and answers speak of a batch;
- `trial`: one call, of which a law is to be true;
- `law`: what a law is; `statements`: the laws, which are in `LAWS`;
- `obedience`: the tests of the laws that a contract names.

A function obeys the laws in `Contract.laws`; `conformance.meanings` has the meanings, a module for
each `test_x.py`. A new law is a function in `statements`, and some contracts that name it.
"""
