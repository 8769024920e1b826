"""The targets of a run, and the message about one that cannot run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.targets import target as target_module
from conformance.targets.target import choose_targets, default_targets


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a package look uninstalled."""

    def hide(package: str) -> None:
        def find(name: str) -> Any:  # noqa: ANN401  (a module's spec)
            return None if name == package else "installed"

        monkeypatch.setattr(target_module, "find_spec", find)

    return hide


def test_sim_needs_greenlet(hide: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's target is refused without its package, requested by name or by default."""
    hide("greenlet")
    assert ["host"] == [target.name for target in choose_targets("host")]
    message = r"target 'sim' needs greenlet, which is not installed: pip install -e '\.\[test\]'"
    with pytest.raises(ValueError, match=message):
        choose_targets("host,sim")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        target_module,
        "find_spec",
        lambda name: None if name in {"greenlet", "numba_cuda"} else "there",
    )
    with pytest.raises(ValueError, match=message):
        choose_targets(None)


def test_kernels_run_as_machine_code_where_numba_cuda_is(
    hide: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU `native` is the default, and `sim` where numba-cuda is not installed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    hide("")
    assert ["host", "native"] == default_targets()
    hide("numba_cuda")
    assert ["host", "sim"] == default_targets()
    message = r"target 'native' needs numba_cuda, which is not .*: pip install -e '\.\[cuda\]'"
    with pytest.raises(ValueError, match=message):
        choose_targets("native")


def test_cuda_needs_numba_cuda(
    hide: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a GPU its target is refused without numba-cuda."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    hide("numba_cuda")
    message = r"target 'cuda' needs numba_cuda, which is not installed: pip install -e '\.\[cuda\]'"
    with pytest.raises(ValueError, match=message):
        choose_targets("cuda")
    assert ["sim"] == [target.name for target in choose_targets("sim")]
    hide("greenlet")
    assert ["cuda"] == [target.name for target in choose_targets("cuda")]


def test_skips_are_printed_with_their_reasons(pytestconfig: pytest.Config) -> None:
    """The project's pytest options print the reasons of skips, by whatever command it is run."""
    assert {"a", "s", "A"} & set(pytestconfig.getoption("reportchars"))
