"""Compares the class and the text of an expected exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refuses(message: str) -> Iterator[None]:
    """Expect an exception.

    Args:
        message: Its class and its text, as the last line of a traceback has them.
    """
    with pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
        yield
    assert message == f"{caught.type.__name__}: {caught.value.args[0]}"
    assert 1 == len(caught.value.args)
