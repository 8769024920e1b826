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
    """For each model the shares add up to one, and less than a block of the memory is unused."""
    found = run_json(f"--model {model} --cache-memory-gib 30 --tensor-parallel 2", capsys)
    assert 1 == pytest.approx(sum(group["share"] for group in found["groups"]))
    [capacity] = found["capacities"]
    for of_request, of_group in (
        ("worst_case_blocks", "blocks_per_request"),
        ("steady_blocks", "steady_blocks"),
    ):
        assert capacity[of_request] == sum(group[of_group] for group in found["groups"])
    assert capacity["worst_case_requests"] <= capacity["steady_requests"]
    assert 0 <= found["memory_bytes"] - found["used_bytes"] < found["block_bytes"]
    assert found["num_blocks"] * found["block_bytes"] == found["used_bytes"]
    assert found["longest_request_tokens"] <= found["max_model_len"]
    assert {field.name for field in dataclasses.fields(Plan)} == set(found)
    for fields in (found, capacity, found["groups"][0], found["engine"], found["backends"][0]):
        for name in fields:
            assert f"`{name}`" in (plan.__doc__ or "")


def test_a_cache_of_known_size(capsys: pytest.CaptureFixture[str]) -> None:
    """16 GiB are 8192 blocks of Llama 3.1 8B, 128 KiB a token; one of them is the null block."""
    found = run_json("--model llama-3.1-8b --cache-memory-gib 16", capsys)
    [capacity] = found["capacities"]
    assert 8192 == found["num_blocks"] == capacity["worst_case_blocks"] == capacity["steady_blocks"]
    assert 131_072 - 16 == found["longest_request_tokens"]
    assert 1 > capacity["worst_case_requests"] == capacity["steady_requests"] > 0.999
    assert 128 * 1024 == found["bytes_per_token"] == found["bytes_per_token_beyond_windows"]
    found = run_json("--model llama-3.1-8b --cache-memory-gib 16 --dtype fp8", capsys)
    assert 16384 == found["num_blocks"]
    assert ["float8_e4m3fn"] == found["formats"]
    assert 16383 / 8192 == found["capacities"][0]["worst_case_requests"]


def test_ranks_divide_the_cache_but_not_a_latent(capsys: pytest.CaptureFixture[str]) -> None:
    """On 8 devices a block of Llama takes an eighth, one of DeepSeek V3 as much as on one."""
    arguments = "--model {} --cache-memory-gib 10 --tensor-parallel {}"
    for model, ratio in (("llama-3.1-70b", 8), ("deepseek-v3", 1)):
        one, eight = (run_json(arguments.format(model, n), capsys) for n in (1, 8))
        assert one["block_bytes"] == ratio * eight["block_bytes"]


def test_a_window_keeps_no_more_than_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """A window of 128 and a step of 1024 take 73 blocks: 1151 tokens from any offset in a block.

    With two steps in flight it takes 2175 tokens. A decode has one or two, in addition to 127.
    """
    options = "--model gpt-oss-20b --cache-memory-gib 10 --max-num-batched-tokens 1024"
    for option, worst in ((" --no-async-scheduling", 73), ("", 137)):
        sliding, full = run_json(options + option, capsys)["groups"]
        assert (worst, 9) == (sliding["blocks_per_request"], sliding["steady_blocks"])
        assert 8192 == full["blocks_per_request"] == full["steady_blocks"]


def test_backends_agree_on_a_block_size(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that one backend cannot take whole is split into the largest that all can."""
    [group] = run_json(
        "--model deepseek-v3 --cache-memory-gib 9 --block-size 128 "
        "--backend FLASHMLA,FLASHINFER_MLA",
        capsys,
    )["groups"]
    assert (128, 64) == (group["block_size"], group["kernel_block_size"])
    found = run_json("--model nemotron-nano-9b-v2 --cache-memory-gib 9", capsys)
    assert [(1312, 32)] == [
        (group["block_size"], group["kernel_block_size"])
        for group in found["groups"]
        if group["kind"] == "full"
    ]
    assert ["bfloat16", "float32"] == found["formats"]
    assert ["FLASHINFER"] == [backend["name"] for backend in found["backends"]]


def test_tables_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` there are tables, in which equal groups share a row."""
    assert plan.main(["--model", "gemma-3n-e4b", "--cache-memory-gib", "1.5"]) == 0
    printed = capsys.readouterr().out
    for row in (
        r"gemma-3n-e4b on 1 device with 1.5 GiB for its KV cache",
        r"blocks, including the null block +│ +12,288 ",
        r"│ 32,768 │ +1.95 │ +6,276 │ +3.75 │ +2,180 │ +4,096 │",
        r"│ 3 │ sliding +│ +4 │ +16 │ +16 │ 32 KiB │ +1,057 │ +33 │ 16.8% │",
        r"│ 1 │ sliding +│ +4 \+12 │",
        r"│ 1 │ full +│ +4 \+3 │",
        r"TRITON_ATTN supports blocks of multiples of 16 tokens",
    ):
        assert re.search(row, printed)
    whisper = ["--model", "whisper-large-v3", "--cache-memory-gib", "0.2", "--tensor-parallel", "2"]
    assert plan.main(whisper) == 0
    printed = capsys.readouterr().out
    assert "on 2 devices, each with 0.2 GiB" in printed
    assert re.search(r"│ 1 │ encoder +│ +32 │ +- │ +- │ +- │ +0 │ +0 │ +0.0% │", printed)


def test_a_request_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """If no request of the full length fits, the length of the longest that fits is printed."""
    assert plan.main(["--model", "llama-3.1-70b", "--cache-memory-gib", "5"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"│ 131,072 │ +0.12 ", printed)
    assert re.search(r"longest request that fits, in tokens +│ +16,368 ", printed)


def test_what_almost_fits_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks but the null block are 0.9999 of a request: 0.99 is printed, and not 1.00."""
    assert plan.main(["--model", "llama-3.1-8b", "--cache-memory-gib", "16"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"│ 131,072 │ +0.99 ", printed)
    assert re.search(r"longest request that fits, in tokens +│ +131,056 ", printed)


def test_the_smallest_memory_that_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """Jamba needs nine blocks of 1.25 MiB: one for each of eight groups, and the null block.

    With prefix caching each of the seven groups of states has two, and with checkpoints three.
    """
    none = "--no-enable-prefix-caching"
    found = run_json(f"--model jamba-v0.1 --cache-memory-gib {9 * 1.25 / 1024} {none}", capsys)
    assert (9, 80) == (found["num_blocks"], found["longest_request_tokens"])
    checkpoint = "--enable-mamba-shared-prefix-checkpoint"
    for options, states in ((none, 1), ("", 2), (checkpoint, 3), ("--num-speculative-tokens 3", 5)):
        found = run_json(f"--model jamba-v0.1 --cache-memory-gib 9 {options}", capsys)
        for group in found["groups"]:
            if group["kind"] == "mamba":
                assert states == group["blocks_per_request"] == group["steady_blocks"]


@pytest.mark.parametrize("model", MODELS)
def test_no_number_is_cut_off(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of 80 columns tables have every digit, and no ellipsis."""
    monkeypatch.setenv("COLUMNS", "80")
    assert plan.main(["--model", model, "--cache-memory-gib", "700"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    shares = re.findall(r"([0-9.]+)% │", printed)
    assert shares
    assert all(re.fullmatch(r"100|\d\d?\.\d", share) for share in shares)


def test_weights_and_a_reserve_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 80 GiB at 0.92 the cache gets what 8.03 billion weights and 2 GiB leave.

    The weights in 8 bits are the matrices of layers; the embeddings of 1.05 billion keep 16.
    """
    for option, weights in (("", 2 * 8_030_261_248), ("--weights-dtype fp8", 9_081_200_640)):
        found = run_json(f"--model llama-3.1-8b --gpu-memory-gib 80 {option}", capsys)
        assert weights == found["device_memory"]["weights_bytes"]
        assert 8_030_261_248 == found["num_parameters"]
        assert int(0.92 * 80 * 2**30) - weights - 2 * 2**30 == found["memory_bytes"]
    for name in found["device_memory"]:
        assert f"`{name}`" in (plan.__doc__ or "")
    found = run_json("--model gemma-3-27b --gpu-memory-gib 80 --reserve-gib 0", capsys)
    assert ["vision_config"] == found["uncounted_weights"]
    assert 0 == found["device_memory"]["reserve_bytes"]


def test_experts_are_shared_by_engines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each engine of data parallelism has its own attention, but a part of the experts."""
    options = "--model gpt-oss-20b --gpu-memory-gib 80 --data-parallel"
    one, two = (run_json(f"{options} {number}", capsys) for number in (1, 2))
    experts = 24 * 32 * 3 * 2880**2 * 4.25 / 8
    saved = one["device_memory"]["weights_bytes"] - two["device_memory"]["weights_bytes"]
    assert experts / 2 == pytest.approx(saved, abs=1)
    assert (1, 2) == (one["num_devices"], two["num_devices"])


def test_context_parallelism_divides_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks with the same latent, or the same KV head, each keep a part of the tokens."""
    options = "--model {} --cache-memory-gib 20 --tensor-parallel {} --decode-context-parallel {}"
    for model, ranks, parts, copies in (("deepseek-v3", 8, 8, 1), ("qwen2.5-7b", 28, 7, 7)):
        whole, part = (run_json(options.format(model, ranks, n), capsys) for n in (1, parts))
        assert copies == part["kv_head_copies"]
        assert whole["bytes_per_token"] // parts == part["bytes_per_token"]
        blocks = [plan["capacities"][0]["steady_blocks"] for plan in (whole, part)]
        assert -(-blocks[0] // parts) == blocks[1]
    prefill = "--model qwen2.5-7b --cache-memory-gib 20 --prefill-context-parallel 2"
    assert 2 == run_json(prefill, capsys)["num_devices"]


def test_a_typical_length_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests of 4000 tokens are shorter than a step, which then has tokens of several."""
    options = "--model gemma-3n-e4b --cache-memory-gib 40 --no-async-scheduling"
    longest, typical = run_json(f"{options} --request-tokens 4000", capsys)["capacities"]
    assert (32_768, 4000) == (longest["request_tokens"], typical["request_tokens"])
    assert (4228, 2180, 4 * 512) == tuple(
        longest[name] for name in ("worst_case_blocks", "steady_blocks", "step_blocks")
    )
    assert (5 * 250 + 4, 250 + 4 * 33, 4 * 512) == tuple(
        typical[name] for name in ("worst_case_blocks", "steady_blocks", "step_blocks")
    )
    assert (77, 149) == (int(longest["worst_case_requests"]), int(longest["steady_requests"]))


def test_the_old_name_of_the_memory_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """`--memory-gib` is a deprecated alias of `--cache-memory-gib`."""
    with pytest.warns(DeprecationWarning, match="--memory-gib is now --cache-memory-gib"):
        found = run_json("--model llama-3.1-8b --memory-gib 16", capsys)
    assert 8192 == found["num_blocks"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cache-memory-gib 1", "the following arguments are required: --model"),
        (
            "--model llama-3.1-8b",
            "one of the arguments --gpu-memory-gib --cache-memory-gib is required",
        ),
        ("--model gpt-5 --cache-memory-gib 1", "unknown model 'gpt-5'; try gpt-oss-20b"),
        ("--model gpt-oss-20b --cache-memory-gib 0", "must be a number of GiB greater than 0"),
        ("--model gpt-oss-20b --cache-memory-gib nan", "must be a number of GiB greater than 0"),
        ("--model gpt-oss-20b --cache-memory-gib 1e300", "must be a number of GiB greater than 0"),
        (
            f"--model jamba-v0.1 --cache-memory-gib {8 * 1.25 / 1024}",
            "its first token needs 15 blocks, and 7 are usable",
        ),
        (
            "--model qwen3-next-80b-a3b --cache-memory-gib 9 --block-size 24",
            "backends FLASH_ATTN have no common kernel block size for blocks of 552",
        ),
        ("--model gpt-oss-20b --cache-memory-gib lots", "must be a number of GiB greater than 0"),
        (
            "--model gpt-oss-20b --cache-memory-gib 1e-4",
            "0.0001 GiB cannot hold a block of gpt-oss-20b",
        ),
        (
            "--model qwen2.5-7b --cache-memory-gib 1 --tensor-parallel 3",
            "tensor_parallel_size is 3, which does not divide the 28 query heads",
        ),
        (
            "--model gpt-oss-20b --cache-memory-gib 1 --tensor-parallel 0",
            "must be an integer >= 1, got '0'",
        ),
        ("--model gpt-oss-20b --cache-memory-gib 1 --dtype fp9", "dtype is 'fp9', but for gpt-oss"),
        (
            "--model deepseek-v3.2-exp --cache-memory-gib 1 --dtype fp8_e5m2",
            "dtype is 'fp8_e5m2', but for deepseek-v3.2-exp must be one of bfloat16, float16",
        ),
        (
            "--model gemma-2-9b --cache-memory-gib 1 --max-model-len 9000",
            "max_model_len is 9000, but gemma-2-9b is published for at most 8192 tokens",
        ),
        (
            "--model gpt-oss-20b --cache-memory-gib 1 --backend FA",
            "no backend 'FA' in the catalogue",
        ),
        (
            "--model gpt-oss-20b --cache-memory-gib 1 --backend FLASHMLA",
            "backend FLASHMLA computes latent, and suits no layer of gpt-oss-20b",
        ),
        (
            "--model deepseek-v3 --cache-memory-gib 9 --backend FLASHMLA,CUTLASS_MLA",
            "backends FLASHMLA, CUTLASS_MLA have no common kernel block size for blocks of 128",
        ),
        (
            "--model deepseek-v3.2-exp --gpu-memory-gib 80 --gpu-memory-utilization 0.9",
            "less 2 GiB in reserve, leave 70.0 GiB: 557.6 GiB too few; they fit with --tensor-p",
        ),
        ("--model nowhere.json --gpu-memory-gib 80", "nowhere.json: No such file or directory"),
        ("--model gpt-oss-20b --gpu-memory-gib 80 --reserve-gib -1", "a number of GiB of at least"),
        ("--model gpt-oss-20b --gpu-memory-gib 8 --gpu-memory-utilization 2", "at most 1, got '2'"),
        (
            "--model gpt-oss-20b --gpu-memory-gib 80 --request-tokens 200000",
            "request_tokens is 200000, but max_model_len is 131072",
        ),
        (
            "--model llama-3.1-8b --gpu-memory-gib 80 --decode-context-parallel 2",
            "is 2, but each KV head of llama-3.1-8b is on 1 of 1 ranks",
        ),
        (
            "--model gpt-oss-20b --gpu-memory-gib 80 --tensor-parallel 16 --decode-context-par 2",
            "a sliding window is not spread over ranks",
        ),
        (
            "--model gpt-oss-20b --cache-memory-gib 9 --block-size 24",
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
