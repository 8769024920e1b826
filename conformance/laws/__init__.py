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

from conformance.laws import statements
from conformance.laws.access import About, Access
from conformance.laws.changes import Change
from conformance.laws.law import LAWS, Law
from conformance.laws.meaning import (
    Meaning,
    Reader,
    about,
    as_reference,
    changing,
    positions_of,
    requests_of,
)
from conformance.laws.obedience import Broken, obeys
from conformance.laws.trial import Trial

__all__ = [
    "LAWS",
    "About",
    "Access",
    "Broken",
    "Change",
    "Law",
    "Meaning",
    "Reader",
    "Trial",
    "about",
    "as_reference",
    "changing",
    "obeys",
    "positions_of",
    "requests_of",
    "statements",
]
