import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fast import direct_launch, launchers
from fast.kernels.cuda import Kernel
from fast.launchers import SlowLaunchWarning, launch_on_gpu, launched_by, load
from fast.numba_cuda import UnfitError


def double(x: torch.Tensor) -> None:
    """Stand in for a kernel."""


KERNEL = Kernel(double, "void(int64)", 64)


class Launches(list[tuple[Any, ...]]):
    """The loads and launches of each launcher, and whether the direct one is fit."""

    is_fit = True


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Replace both launchers by fakes, neither of them chosen."""
    launches = Launches()

    def stand_in(name: str) -> SimpleNamespace:
        def note(verb: str, *args: object) -> None:
            if name == "direct" and not launches.is_fit:
                raise UnfitError("double takes 1 words")
            launches.append((name, verb, *args))

        return SimpleNamespace(
            load=lambda *args: note("loads", *args), launch=lambda *args: note("launches", *args)
        )

    found = {name: stand_in(name) for name in launchers.LAUNCHERS}
    monkeypatch.setattr(launchers, "LAUNCHERS", found)
    monkeypatch.setattr(launchers, "numba_cuda", found["numba"])
    monkeypatch.setattr(launchers, "_CHOSEN", [])
    monkeypatch.delenv(launchers.VARIABLE, raising=False)
    monkeypatch.setattr(direct_launch, "check_installed", lambda: None)
    return launches


ARGS = KERNEL, 1, (2, 3), 64, (7,)


def test_past_numba_where_it_will_do(launches: Launches) -> None:
    load(KERNEL, 1)
    launch_on_gpu(*ARGS)
    assert [("direct", "loads", KERNEL, 1), ("direct", "launches", *ARGS)] == launches


def test_what_is_installed_is_checked_once(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def check() -> None:
        checked.append(True)
        raise UnfitError("numba-cuda is 9.9")

    monkeypatch.setattr(direct_launch, "check_installed", check)
    message = "kernels are launched by numba, which takes the host far longer: numba-cuda is 9.9"
    with pytest.warns(SlowLaunchWarning, match=re.escape(message)):
        load(KERNEL, 1)
    launch_on_gpu(*ARGS)
    launch_on_gpu(*ARGS)
    assert [True] == checked
    assert [("numba", "loads"), *[("numba", "launches")] * 2] == [one[:2] for one in launches]


@pytest.mark.parametrize("name", ["", "direct"])
def test_a_kernel_of_other_words(
    name: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launchers.VARIABLE, name)
    launches.is_fit = False
    with pytest.warns(SlowLaunchWarning, match="far longer: double takes 1 words"):
        launch_on_gpu(*ARGS)
    launches.is_fit = True
    load(KERNEL, 1)
    assert [("numba", "launches"), ("numba", "loads")] == [one[:2] for one in launches]


def test_a_kernel_of_other_words_is_loaded_by_numba(launches: Launches) -> None:
    launches.is_fit = False
    with pytest.warns(SlowLaunchWarning, match="double takes 1 words"):
        load(KERNEL, 1)
    assert [("numba", "loads", KERNEL, 1)] == launches


@pytest.mark.parametrize("name", ["direct", "numba"])
def test_the_environment_names_a_launcher(
    name: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAST_LAUNCHER", name)
    monkeypatch.setattr(direct_launch, "check_installed", lambda: pytest.fail("was called"))
    launch_on_gpu(*ARGS)
    assert [(name, "launches", *ARGS)] == launches


def test_the_environment_names_no_launcher(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAST_LAUNCHER", "magic")
    for _ in range(2):
        with pytest.raises(ValueError, match="FAST_LAUNCHER is 'magic', expected direct or numba"):
            launch_on_gpu(*ARGS)
    assert [] == launches


def test_launched_by_another_for_a_while(launches: Launches) -> None:
    with launched_by("numba"):
        launch_on_gpu(*ARGS)
        with pytest.raises(KeyError), launched_by("magic"):
            pass
        with pytest.raises(TypeError), launched_by("direct"):
            launch_on_gpu(*ARGS[:3])  # type: ignore[call-arg]  # that is the error
        with launched_by("direct"):
            launch_on_gpu(*ARGS)
        launch_on_gpu(*ARGS)
    launch_on_gpu(*ARGS)
    assert ["numba", "direct", "numba", "direct"] == [one[0] for one in launches]
