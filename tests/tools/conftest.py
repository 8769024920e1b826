"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that checks that a command line ends with status 2; it returns the line."""

    def run(main: Callable[[list[str]], int], arguments: Sequence[str]) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    return run
