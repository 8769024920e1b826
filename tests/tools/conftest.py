"""What the tests of the command lines share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what runs a wrong command line, which must end with status 2 and one line: that."""

    def run(main: Callable[[list[str]], int], arguments: Sequence[str]) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    return run
