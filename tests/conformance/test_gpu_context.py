"""A lost GPU context ends a run: every later failure would be its consequence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import strategies as st

from conformance.contracts.check import FAILURES, property_check
from conformance.execution.gpu_context import (
    ContextLostError,
    UsedGpuError,
    check_can_fork,
    noticing_lost_context,
)
from conformance.generation.profiles import PROFILES
from conformance.targets.target import TARGETS

pytest_plugins = ["pytester"]

RUN = """
from conformance.contracts.check import property_check
from conformance.execution.gpu_context import ContextLostError
from hypothesis import strategies as st

@property_check("toy", lambda preset: st.integers(0, 9))
def test_lost(target, n):
    "Fails."
    raise ContextLostError("planted")

@property_check("toy", lambda preset: st.integers(0, 9))
def test_next(target, n):
    "Would fail too."
    raise ZeroDivisionError("a consequence")
"""


def _fail() -> None:
    raise RuntimeError("CUDA error: device-side assert triggered\nand more lines")


def _fail_somehow() -> None:
    raise ZeroDivisionError("planted")


def test_only_a_gpu_can_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error quotes CUDA in one line; a device that responds has not lost its context."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(ZeroDivisionError), noticing_lost_context("cuda"):
        _fail_somehow()
    monkeypatch.setattr(torch.cuda, "synchronize", _fail)
    for device in ("cpu", None):
        with pytest.raises(ZeroDivisionError), noticing_lost_context(device):
            _fail_somehow()
    with noticing_lost_context("cuda"):
        pass  # it waits after a failure only
    with (
        pytest.raises(ContextLostError, match=r"it: CUDA error: device-side assert triggered$"),
        noticing_lost_context("cuda"),
    ):
        _fail_somehow()


def test_a_process_that_has_used_a_gpu_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has used a GPU is not forked, since its children could not use the GPU."""
    check_can_fork()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsedGpuError):
        check_can_fork()


def test_a_check_is_not_shrunk_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example that lost the context is not shrunk: any other would now fail too."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", _fail)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    tried = []

    @property_check("toy", lambda _: st.integers(5, 9))
    def check(_: object, number: int) -> None:
        """Shows nothing."""
        tried.append(number)
        raise ZeroDivisionError("planted")

    with pytest.raises(ContextLostError, match="device-side assert") as caught:
        check.bind(TARGETS["cuda"], PROFILES["dev"], "minimal")()
    assert 1 == len(tried)
    assert (check, tried[0], caught.value) == FAILURES[-1]


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_the_run_ends(options: tuple[str, ...], pytester: pytest.Pytester) -> None:
    """The test fails with a script of its input, later tests do not run, and the end says why."""
    pytester.makepyfile(RUN)
    pytester.makeconftest("from conformance.conftest import *  # noqa: F403")
    result = pytester.runpytest_subprocess(
        "--target=host", "--profile=dev", "--failures=scripts", *options
    )
    text = result.stdout.str()
    assert 1 <= text.count("ContextLostError: the GPU context was lost by this call")
    assert "FAILED" in text
    assert "test_next" not in text
    assert 0 != result.ret
