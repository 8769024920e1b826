"""The planner's command line, end to end."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from conformance.zoo.models import MODELS
from kvtwin import plan
from kvtwin.sizing import Plan


def run_json(arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the planner with `--json`, and read what it prints."""
    assert plan.main([*arguments.split(), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_planned(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For each model the shares add up to one, and the memory is used but for less than a block."""
    found = run_json(f"--model {model} --memory-gib 30 --tensor-parallel 2", capsys)
    assert 1 == pytest.approx(sum(group["share"] for group in found["groups"]))
    assert found["blocks_per_request"] == sum(g["blocks_per_request"] for g in found["groups"])
    assert 0 <= found["memory_bytes"] - found["used_bytes"] < found["block_bytes"]
    assert found["num_blocks"] * found["block_bytes"] == found["used_bytes"]
    assert found["longest_request_tokens"] <= found["max_model_len"]
    assert {field.name for field in dataclasses.fields(Plan)} == set(found)
    for name in found:
        assert f"`{name}`" in (plan.__doc__ or "")
    for name in found["groups"][0]:
        assert f"`{name}`" in (plan.__doc__ or "")


def test_a_cache_of_known_size(capsys: pytest.CaptureFixture[str]) -> None:
    """16 GiB are 8192 blocks of Llama 3.1 8B, 128 KiB a token; one of them is the null block."""
    found = run_json("--model llama-3.1-8b --memory-gib 16", capsys)
    assert 8192 == found["num_blocks"] == found["blocks_per_request"]
    assert 131_072 - 16 == found["longest_request_tokens"] == found["tokens"]
    assert 1 > found["requests"] > 0.999
    found = run_json("--model llama-3.1-8b --memory-gib 16 --dtype float8_e4m3fn", capsys)
    assert 16384 == found["num_blocks"]
    assert ["float8_e4m3fn"] == found["formats"]
    assert 2 * 131_072 - 16 == found["tokens"]


def test_ranks_divide_the_cache_but_not_a_latent(capsys: pytest.CaptureFixture[str]) -> None:
    """On 8 devices a block of Llama takes an eighth, one of DeepSeek V3 as much as on one."""
    arguments = "--model {} --memory-gib 10 --tensor-parallel {}"
    for model, ratio in (("llama-3.1-70b", 8), ("deepseek-v3", 1)):
        one, eight = (run_json(arguments.format(model, n), capsys) for n in (1, 8))
        assert one["block_bytes"] == ratio * eight["block_bytes"]


def test_a_window_keeps_no_more_than_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """A window of 128 and a step of 1024 take 73 blocks: 1151 tokens, and where they begin."""
    options = "--model gpt-oss-20b --memory-gib 10 --max-num-batched-tokens 1024"
    sliding, full = run_json(options, capsys)["groups"]
    assert 73 == sliding["blocks_per_request"]
    assert 8192 == full["blocks_per_request"]


def test_backends_agree_on_a_block_size(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that one backend cannot take whole is split into the largest that all can."""
    [group] = run_json(
        "--model deepseek-v3 --memory-gib 9 --block-size 128 --backend FLASHMLA,FLASHINFER_MLA",
        capsys,
    )["groups"]
    assert (128, 64) == (group["block_size"], group["kernel_block_size"])
    found = run_json("--model nemotron-nano-9b-v2 --memory-gib 9", capsys)
    assert [(1312, 32)] == [
        (group["block_size"], group["kernel_block_size"])
        for group in found["groups"]
        if group["kind"] == "full"
    ]
    assert ["bfloat16", "float32"] == found["formats"]
    assert ["FLASHINFER"] == [backend["name"] for backend in found["backends"]]


def test_tables_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` there are tables, in which groups that are alike are one row."""
    assert plan.main(["--model", "gemma-3n-e4b", "--memory-gib", "1.5"]) == 0
    printed = capsys.readouterr().out
    for row in (
        r"gemma-3n-e4b on 1 device with 1.5 GiB for its KV cache",
        r"blocks, including the null block +│ +12,288 ",
        r"such requests that fit +│ +2.90 ",
        r"│ 3 │ sliding +│ +4 │ +16 │ +16 │ 32 KiB │ +545 │ 12.9% │",
        r"│ 1 │ sliding +│ +4 \+12 │",
        r"│ 1 │ full +│ +4 \+3 │",
        r"TRITON_ATTN supports blocks of multiples of 16 tokens",
    ):
        assert re.search(row, printed)
    whisper = ["--model", "whisper-large-v3", "--memory-gib", "0.2", "--tensor-parallel", "2"]
    assert plan.main(whisper) == 0
    printed = capsys.readouterr().out
    assert "on 2 devices, each with 0.2 GiB" in printed
    assert re.search(r"│ 1 │ encoder +│ +32 │ +- │ +- │ +- │ +0 │ +0.0% │", printed)


def test_a_request_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Where not one request of the full length fits, the longest that does is named."""
    assert plan.main(["--model", "llama-3.1-70b", "--memory-gib", "5"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"such requests that fit +│ +0.12 ", printed)
    assert re.search(r"longest request that fits, in tokens +│ +16,368 ", printed)


def test_what_almost_fits_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks but the null block are 0.9999 of a request: 0.99 is printed, and not 1.00."""
    assert plan.main(["--model", "llama-3.1-8b", "--memory-gib", "16"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"such requests that fit +│ +0.99 ", printed)
    assert re.search(r"longest request that fits, in tokens +│ +131,056 ", printed)


def test_the_smallest_memory_that_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """Jamba needs nine blocks of 1.25 MiB: one for each of eight groups, and the null block."""
    found = run_json(f"--model jamba-v0.1 --memory-gib {9 * 1.25 / 1024}", capsys)
    assert (9, 80) == (found["num_blocks"], found["longest_request_tokens"])


@pytest.mark.parametrize("model", MODELS)
def test_no_number_is_cut_off(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of 80 columns tables have every digit, and no ellipsis."""
    monkeypatch.setenv("COLUMNS", "80")
    assert plan.main(["--model", model, "--memory-gib", "700"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    shares = re.findall(r"([0-9.]+)% │", printed)
    assert shares
    assert all(re.fullmatch(r"100|\d\d?\.\d", share) for share in shares)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--memory-gib 1", "the following arguments are required: --model"),
        ("--model llama-3.1-8b", "the following arguments are required: --memory-gib"),
        ("--model gpt-5 --memory-gib 1", "unknown model 'gpt-5'; try gpt-oss-20b"),
        ("--model gpt-oss-20b --memory-gib 0", "must be a number of GiB greater than 0"),
        ("--model gpt-oss-20b --memory-gib nan", "must be a number of GiB greater than 0"),
        ("--model gpt-oss-20b --memory-gib 1e300", "must be a number of GiB greater than 0"),
        (
            f"--model jamba-v0.1 --memory-gib {8 * 1.25 / 1024}",
            "its first token needs 8 blocks, and 7 are usable",
        ),
        (
            "--model qwen3-next-80b-a3b --memory-gib 9 --block-size 24",
            "backends FLASH_ATTN have no common kernel block size for blocks of 552",
        ),
        ("--model gpt-oss-20b --memory-gib lots", "must be a number of GiB greater than 0"),
        ("--model gpt-oss-20b --memory-gib 1e-4", "0.0001 GiB cannot hold a block of gpt-oss-20b"),
        (
            "--model qwen2.5-7b --memory-gib 1 --tensor-parallel 3",
            "tensor_parallel_size is 3, which does not divide the 28 query heads",
        ),
        (
            "--model gpt-oss-20b --memory-gib 1 --tensor-parallel 0",
            "must be an integer >= 1, got '0'",
        ),
        ("--model gpt-oss-20b --memory-gib 1 --dtype fp8", "dtype is 'fp8', but must be one of"),
        (
            "--model deepseek-v3.2-exp --memory-gib 1 --dtype float16",
            "the caches of deepseek-v3.2-exp have a format of their own",
        ),
        (
            "--model gemma-2-9b --memory-gib 1 --max-model-len 9000",
            "max_model_len is 9000, but gemma-2-9b is published for at most 8192 tokens",
        ),
        ("--model gpt-oss-20b --memory-gib 1 --backend FA", "no backend 'FA' in the catalogue"),
        (
            "--model gpt-oss-20b --memory-gib 1 --backend FLASHMLA",
            "backend FLASHMLA computes latent, and suits no layer of gpt-oss-20b",
        ),
        (
            "--model deepseek-v3 --memory-gib 9 --backend FLASHMLA,CUTLASS_MLA",
            "backends FLASHMLA, CUTLASS_MLA have no common kernel block size for blocks of 128",
        ),
        (
            "--model gpt-oss-20b --memory-gib 9 --block-size 24",
            "backends TRITON_ATTN have no common kernel block size for blocks of 24",
        ),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: str, message: str, refusal: Callable[..., str]
) -> None:
    """What cannot be used ends with status 2 and one line that says why."""
    line = refusal(plan.main, arguments.split())
    assert line.startswith("kvtwin plan: ")
    assert message in line
