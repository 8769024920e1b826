"""Traces of requests, and the batches that they are served in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from conformance.engine.scheduler import SchedulerOutput
from conformance.engine.trace import (
    DEFAULT_TRACE,
    SETTINGS,
    TraceRequest,
    read_trace,
    serve_trace,
    trace_steps,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_TRACE = Path(__file__).parents[3] / "shared" / "data" / "azure_llm_2023_code.csv"
REQUESTS = read_trace(DEFAULT_TRACE)[:40]
TIGHT = dataclasses.replace(SETTINGS, token_budget=96, max_num_seqs=6)


@pytest.fixture(scope="module", params=[SETTINGS, TIGHT], ids=["default", "tight"])
def steps(request: pytest.FixtureRequest) -> list[SchedulerOutput]:
    return list(serve_trace(REQUESTS, request.param))


def test_no_block_is_owned_twice(steps: list[SchedulerOutput]) -> None:
    owned: dict[str, list[int]] = {}
    for step in steps:
        for req_id in step.removed_req_ids:
            del owned[req_id]
        for req_id, [new] in step.new_block_ids.items():
            assert (req_id in step.admitted_req_ids) == (req_id not in owned)
            blocks = owned.setdefault(req_id, [])
            blocks += new
            end = step.num_computed_tokens[req_id] + step.num_scheduled_tokens[req_id]
            assert -(-end // 16) == len(blocks)
        all_ids = [*chain(*owned.values())]
        assert len(all_ids) == len(set(all_ids))
        assert all(0 < block_id < SETTINGS.num_blocks for block_id in all_ids)


def test_every_request_is_served_in_order(steps: list[SchedulerOutput]) -> None:
    ends: dict[str, int] = {}
    ended: Counter[str] = Counter()
    for step in steps:
        ends |= dict.fromkeys(step.preempted_req_ids, 0)
        ended.update(step.finished_req_ids)
        for req_id, num_tokens in step.num_scheduled_tokens.items():
            assert ends.get(req_id, 0) == step.num_computed_tokens[req_id]
            ends[req_id] = step.num_computed_tokens[req_id] + num_tokens
    lengths = [one.context_tokens + one.generated_tokens for one in REQUESTS]
    assert {f"request-{i}": length - 1 for i, length in enumerate(lengths)} == ends
    assert {1} == set(ended.values())


def test_the_bounds_hold() -> None:
    for step in serve_trace(REQUESTS, TIGHT):
        lengths = step.num_scheduled_tokens.values()
        assert 1 <= min(lengths) <= sum(lengths) <= TIGHT.token_budget
        assert len(lengths) <= TIGHT.max_num_seqs
    longest = max(max(batch.query_lens) for batch in trace_steps())
    assert SETTINGS.long_prefill_token_threshold == longest


def test_the_default_trace_has_what_is_hard() -> None:
    batches, served = trace_steps(), list(serve_trace(read_trace(DEFAULT_TRACE), SETTINGS))
    resumed = Counter(req_id for step in served for req_id in step.admitted_req_ids)
    assert max(resumed.values()) > 1
    kinds = set()
    for batch in batches:
        pairs = zip(batch.query_lens, batch.num_computed_tokens, strict=True)
        order = [0 if new == 1 else 1 if computed else 2 for new, computed in pairs]
        assert sorted(order) == order
        kinds.add(frozenset(order))
    assert {frozenset({0}), frozenset({0, 1, 2})} <= kinds
    assert max(max(batch.num_computed_tokens) for batch in batches) > 8192


def test_arrivals_follow_the_clock() -> None:
    first, second = serve_trace([TraceRequest(0.0, 4, 1), TraceRequest(100.0, 4, 1)], SETTINGS)
    assert list(first.num_scheduled_tokens) == ["request-0"]
    assert list(second.num_scheduled_tokens) == ["request-1"]


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_reads_the_azure_format(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens,Model\n"
        "2023-11-16 18:17:04.2500000,9,2,x\n"
        "2023-11-16 18:17:03.0000000,5,1,y\n",
    )
    assert [TraceRequest(0.0, 5, 1), TraceRequest(1.25, 9, 2)] == read_trace(path)


@pytest.mark.skipif(not AZURE_TRACE.exists(), reason="the Azure trace is not here")
def test_reads_the_azure_trace() -> None:
    requests = read_trace(AZURE_TRACE)
    assert len(requests) == 8819
    assert TraceRequest(0.0, 4808, 10) == requests[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,Tokens\n", r"trace.csv, line 1: no column ContextTokens, GeneratedTokens"),
        (HEADER, "has no requests"),
        (b"\xff\xfe\x00", "is not a CSV file in UTF-8"),
        (f'{HEADER}"2023', "is not a CSV file in UTF-8: unexpected end of data"),
        (f"{HEADER}2023-11-16,x,2", r"line 2, column ContextTokens: must be an integer >= 1, got"),
        (f"{HEADER}2023-11-16,9,0", "column GeneratedTokens: must be an integer >= 1, got '0'"),
        (f"{HEADER}2023-11-16,9", "column GeneratedTokens: must be an integer >= 1, got ''"),
        (f"{HEADER}yesterday,9,2", "line 2, column TIMESTAMP: must be a date and time such as"),
        (f"{HEADER}2023-11-16,9,2\n2023-11-16 18:17:04+00:00,9,2", "have a time zone"),
        (f"{HEADER}2023-11-16,99999,2", "no request of at most 16384 tokens"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace_steps(write(tmp_path, content))
