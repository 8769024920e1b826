"""Fixtures of the fuzzer's tests; adds the folders of their helper modules to `sys.path`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "conformance"):
    sys.path.insert(0, str(folder))


@pytest.fixture(autouse=True)
def _own_fork_server(forked_workers: None) -> None:  # noqa: ARG001  # what starts another
    """Stop a fork server that other tests started: it has not preloaded the workers' modules."""
    from kvtwin.fuzz.workers.worker import PRELOAD  # noqa: PLC0415  # after the folders are in the path

    server = forkserver._forkserver  # type: ignore[attr-defined]  # one for a process
    if server._preload_modules != list(PRELOAD):
        server._stop()


@pytest.fixture
def fuzz_profile() -> Iterator[None]:
    """Load the workers' Hypothesis profile in this process for one test."""
    from kvtwin.fuzz.cases import profile  # noqa: PLC0415  # only those tests import it

    before, size = settings.get_current_profile_name(), engine.BUFFER_SIZE
    profile.load()
    yield
    settings.load_profile(before)
    engine.BUFFER_SIZE = size


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Return a function that imports code as a module of this name, from the temporary folder."""

    def load_module(name: str, code: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(code, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_module
