"""What a check needs and an implementation does not have."""

from __future__ import annotations

from typing import Any


class Absent(BaseException):  # no error: pytest's own skips are none either
    """A name that an implementation lacks, without which an example cannot be tried.

    It is no `Exception`, for it is no answer of the implementation's: no check may catch it.
    """


def find(implementation: Any, name: str) -> Any:
    """Return what an implementation has by a name, `Class.method` included.

    Raises:
        Absent: It has no such thing.

    >>> import math
    >>> find(math, "gcd") is math.gcd
    True
    """
    found = implementation
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise Absent(f"needs {name}, which {implementation.__name__} lacks") from error
    return found
