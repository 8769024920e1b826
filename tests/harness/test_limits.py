"""What exceeds a limit is a failure of the story in progress; the journal outlives a process."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.harness import limits
from conformance.harness.limits import Limits, read_journal
from conformance.harness.story import Failure, Story, Verdict
from conformance.harness.targets import Target

HOST = Target("host")
STORY = Story("get_dcp_local_seq_lens", {"seq_lens": np.arange(3, dtype=np.int32), "dcp_size": 2})
REFUSAL = Story("f", {}, changed=("dcp_size",))


def run(story: Story, body: Callable[[], object], **options: float | str | Path) -> None:
    with Limits(0.2, 0.5, **options).running("x"), limits.call(HOST, story):
        body()


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: np.empty(2**31),
        lambda: torch.empty(2**31, dtype=torch.float64),
        lambda: bytearray(2**34),
    ],
)
def test_memory(allocate: Callable[[], object]) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(Failure, match=r"needs more than 0\.5 GiB") as found:
        run(STORY, allocate)
    assert Verdict.WRONG_ANSWER is found.value.difference.verdict
    assert before == resource.getrlimit(resource.RLIMIT_DATA)
    run(STORY, lambda: np.ones(2**20))  # a smaller one is none


class Sleepy:
    """Its destructor ignores the first exception of the clock."""

    def __del__(self) -> None:
        time.sleep(0.4)


def loop() -> None:
    Sleepy()
    while True:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_time() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(Failure, match=r"needs more than 0\.2 s") as found:
        run(REFUSAL, lambda: time.sleep(5))
    assert Verdict.ROBUSTNESS is found.value.difference.verdict
    with pytest.raises(Failure):
        run(STORY, loop)
    assert handler is signal.getsignal(signal.SIGALRM)


def test_other_exceptions_pass() -> None:
    def fail() -> None:
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        run(STORY, fail)


def end_in(folder: Path, story: Story) -> None:
    if (pid := os.fork()) == 0:
        run(story, lambda: os._exit(1), folder=folder, worker="gw0")
    os.waitpid(pid, 0)


def test_the_journal_has_the_story_of_a_process_that_ended(tmp_path: Path) -> None:
    end_in(tmp_path, STORY)
    test, story = read_journal(tmp_path / "gw0.journal")
    assert ("x", [0, 1, 2]) == (test, story.arguments["seq_lens"].tolist())
    end_in(tmp_path, Story("f", {"x": lambda: 0, "size": 3}))
    _, story = read_journal(tmp_path / "gw0.journal")
    assert re.fullmatch(r"f\(x=<function .*>, size=3\)", story)  # it cannot be pickled
    run(STORY, lambda: None, folder=tmp_path, worker="gw0")
    assert read_journal(tmp_path / "gw0.journal") is None
