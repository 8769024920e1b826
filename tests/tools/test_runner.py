"""The runner: its models give what `generate` gives, and a wrong slot is found."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fast

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers: pip install -e '.[runner]'", allow_module_level=True)
runner = importlib.import_module("tools.runner")


@pytest.fixture(autouse=True)
def same_settings_of_torch() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("model", runner.MODELS)
def test_every_token_is_that_of_generate(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fast.checks(True):
        assert 0 == runner.main(["--model", model, "--requests", "10"])
    counts = (
        r"(\d+) tokens in (\d+) steps, (\d+) preemptions, "
        r"(\d+) drafts accepted and (\d+) rejected, all equal\n"
    )
    expected = "".join(f"{model}, {step}: {counts}" for step in ("one by one", "prepare_step"))
    found = re.fullmatch(expected, capsys.readouterr().out)
    assert found is not None
    assert min(map(int, found.groups())) > 0


def shifted_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = fast.BlockTables.compute_slot_mappings

    def shift(tables: fast.BlockTables, *args: Any, **batch: Any) -> torch.Tensor:
        slots = compute(tables, *args, **batch)
        slots[:, 0] -= 1
        return slots

    monkeypatch.setattr(fast.BlockTables, "compute_slot_mappings", shift)


def stale_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = fast.BlockTables.gather_block_tables

    def show_all(tables: fast.BlockTables, *args: Any, **batch: Any) -> tuple[torch.Tensor, ...]:
        return gather(tables, *args, **{**batch, "num_computed_tokens": None})

    monkeypatch.setattr(fast.BlockTables, "gather_block_tables", show_all)


@pytest.mark.parametrize(("bug", "model"), [(shifted_slots, "llama"), (stale_blocks, "gemma")])
def test_a_bug_changes_tokens(
    bug: Callable[[pytest.MonkeyPatch], None],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bug(monkeypatch)
    assert 1 == runner.main(["--model", model, "--requests", "10"])
    assert re.search(r"one by one: .*, request-\d+.*: generate differs\n", capsys.readouterr().out)
