"""The runner: its models give what `generate` gives, and a wrong slot is found."""

import ast
import doctest
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fast
from tools.runner import command_line
from tools.runner.settings import MODEL_NAMES

FOLDER = Path(command_line.__file__).parent

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers: pip install -e '.[runner]'",
)


@pytest.fixture(autouse=True)
def same_settings_of_torch() -> Iterator[None]:
    """Restore torch's number of threads and precision."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def read_table(printed: str) -> dict[str, list[str]]:
    """Read the cells of a printed table by their row's heading."""
    rows = [line.strip("│ ").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {heading.strip(): [cell.strip() for cell in cells] for heading, *cells in rows}


@needs_transformers
@pytest.mark.parametrize("model", MODEL_NAMES)
def test_every_token_is_that_of_generate(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each model serves whole batches and micro-batches in checked mode, and preempts."""
    with fast.checks(True):
        assert 0 == command_line.main(["--model", model, "--requests", "10", "--seed", "1"])
    printed = capsys.readouterr().out
    [num_tokens] = re.findall(rf"{model}: 10 requests, (\d+) new tokens", printed)
    table = read_table(printed)
    assert ["10", "10"] == table["requests finished"]
    assert [num_tokens] * 2 == table["new tokens equal to generate's"]
    assert ["yes", "yes"] == table["all equal"]
    for row in ("steps", "preemptions"):
        assert min(map(int, table[row])) > 0
    for row in ("steps in micro-batches", "requests cut by micro-batches"):
        whole, in_two = table[row]
        assert "0" == whole
        assert int(in_two) > 10


@needs_transformers
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_blocks_lie_as_the_layout_says(layout: fast.KVCacheLayoutType) -> None:
    """The runner works with five micro-batches, and with both orders of tokens and heads."""
    fast.set_kv_cache_layout(layout)
    try:
        arguments = ["--model", "gemma, llama-chunked", "--requests", "4", "--micro-batches", "5"]
        assert 0 == command_line.main(arguments)
    finally:
        fast.set_kv_cache_layout(None)


@needs_transformers
@pytest.mark.parametrize("model", MODEL_NAMES)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_wrong_slot_is_found(
    model: str, micro_batches: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token in the slot after its own ends the run with an error that has request and token."""
    arguments = f"--model {model} --requests 8 --wrong-slot 8 --micro-batches {micro_batches}"
    assert 1 == command_line.main(arguments.split())
    *_, put, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"shifted in .*: step 8: the slot of request-\d+'s token \d+ is one too far", put
    )
    name = model if micro_batches == 1 else f"{model}, {micro_batches} micro-batches"
    assert re.fullmatch(rf"{name}: request-\d+: token \d+ is \d+, but generate gives \d+", line)


@needs_transformers
def test_layers_that_share_a_cache_compute_only_tokens_with_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a prefill the last layers compute one token of each request, padded; the others all."""
    attention = importlib.import_module("tools.runner.attention")
    query_lens: list[int] = []
    attend = attention.PagedAttentionImpl.forward

    def record(impl: Any, query: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401  # the method's place
        query_lens.append(len(query))
        return attend(impl, query, *rest)

    monkeypatch.setattr(attention.PagedAttentionImpl, "forward", record)
    arguments = "--model gemma-shared --requests 2 --micro-batches 1"
    assert 0 == command_line.main(arguments.split())
    by_step = [query_lens[at : at + 6] for at in range(0, len(query_lens), 6)]
    assert [64, 64, 64, 64, 4, 4] in by_step
    assert [4] * 6 in by_step  # a decode


@needs_transformers
def test_a_slot_that_stays_right_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """After the last step no slot can be shifted, and the run reports that."""
    arguments = "--model llama --requests 1 --micro-batches 1 --wrong-slot 99999"
    assert 0 == command_line.main(arguments.split())
    assert "no slot was shifted: no step from 99999 on has a suitable token" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model gpt-5", "argument --model: unknown model 'gpt-5'; the models are llama, gemma"),
        ("--model llama,", "argument --model: unknown model ''; the models are llama, gemma"),
        ("--requests 0", "argument --requests: must be an integer >= 1, got '0'"),
        ("--seed -1", "argument --seed: must be an integer >= 0, got '-1'"),
        ("--seed 18446744073709551616", "must be less than 2**64, got '18446744073709551616'"),
        ("--wrong-slot x", "argument --wrong-slot: must be an integer >= 0, got 'x'"),
        ("--device tpu", "argument --device: invalid choice: 'tpu'"),
        ("--micro-batches 65", "argument --micro-batches: 65 is more than the 64 tokens of a step"),
        ("--steps 1", "unrecognized arguments: --steps 1"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: str, message: str, refusal: Callable[..., str]
) -> None:
    """What cannot be used ends with status 2 and one line that says why."""
    line = refusal(command_line.main, arguments.split())
    assert line.startswith("python -m tools.runner: ")
    assert message in line


def test_a_device_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    """`--device cuda` is refused on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = "python -m tools.runner: argument --device: there is no CUDA device"
    assert line == refusal(command_line.main, ["--device", "cuda"])


def test_without_transformers_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    """The error has the extra that installs transformers."""
    for name in list(sys.modules):
        if name.split(".")[0] == "transformers" or name == "tools.runner.models":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = refusal(command_line.main, [])
    assert "transformers" in line
    assert line.endswith("pip install -e '.[runner]'")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_it_knows_fast_and_the_engine_alone(path: Path) -> None:
    """The runner imports only `fast` and the harness' engine: not `reference`, and no other tool.

    The engine itself imports neither twin: `lint-imports` checks that. Only the parser of the
    command line and its entry point are shared with the other tools.
    """
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert 0 == node.level
            imported.add(node.module or "")
    imported -= {"__main__": {"conformance.entry_point"}, "command_line": {"kvtwin.parser"}}.get(
        path.stem, set()
    )
    assert not {name.split(".")[0] for name in imported} & {"reference", "hypothesis"}
    ours = {
        name
        for name in imported
        if name.split(".")[0] in ("tools", "kvtwin", "fast", "conformance")
    }
    assert all(
        name == "fast" or name.startswith(("tools.runner.", "conformance.engine.")) for name in ours
    )


@needs_transformers
@pytest.mark.parametrize("path", sorted(FOLDER.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_its_examples_hold(path: Path) -> None:
    """Every doctest of the runner passes."""
    module = importlib.import_module(f"tools.runner.{path.stem}")
    assert 0 == doctest.testmod(module).failed
