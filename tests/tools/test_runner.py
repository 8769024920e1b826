"""The runner: its models give what `generate` gives, and a wrong slot is found."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator

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
    line = rf"{model}: (\d+) tokens in (\d+) steps, (\d+) preemptions, all equal\n"
    found = re.fullmatch(line, capsys.readouterr().out)
    assert found is not None
    assert min(map(int, found.groups())) > 0


def test_a_shifted_slot_changes_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = fast.BlockTables.compute_slot_mappings

    def shift(tables: fast.BlockTables, *batch: torch.Tensor) -> torch.Tensor:
        slots = compute(tables, *batch)
        slots[:, 0] -= 1
        return slots

    monkeypatch.setattr(fast.BlockTables, "compute_slot_mappings", shift)
    assert 1 == runner.main(["--model", "llama", "--requests", "10"])
    assert re.search(r", request-\d+.*: generate differs\n", capsys.readouterr().out)
