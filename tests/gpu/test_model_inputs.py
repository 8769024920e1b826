"""Fast prefill, convolutions, drafts and placeholders on the GPU.

No synchronisation with given host halves, side streams, graphs, and the cost of rows and launches.
`pytest conformance --target cuda` compares the values.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from on_gpu import call_behind_a_wait, captured, no_waiting

import fast
from kvtwin.bench.measure import device_seconds, host_cost_us

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

Tensors: TypeAlias = list[torch.Tensor]
Function: TypeAlias = Callable[[Tensors, Tensors], Tensors]
"""A call that takes inputs and their CPU copies (the host halves), and returns results."""

NUM_REQS, NUM_PLACEHOLDERS, NUM_EMBEDS = 64, 500, 321


def fast_prefill_metadata(seed: int) -> Tensors:
    """Make starts, lengths, blocks and slots of a batch, and one or two logits indices of each."""
    draw = torch.Generator().manual_seed(seed)
    query_lens = torch.randint(2, 40, (NUM_REQS,), generator=draw)
    starts = torch.cat([torch.zeros(1), query_lens.cumsum(0)]).int()
    seq_lens = (query_lens + torch.randint(0, 99, (NUM_REQS,), generator=draw)).int()
    indices = torch.cat([starts[1:] - 1, starts[1 : NUM_REQS // 2] - 2]).sort().values
    table = torch.arange(NUM_REQS * 9, dtype=torch.int32).view(NUM_REQS, 9)
    return [starts, seq_lens, table, torch.arange(NUM_REQS * 40), indices.long()]


def cut_to_logits_tokens(inputs: Tensors, host: Tensors) -> Tensors:
    starts, seq_lens, table, slots, indices = inputs
    query_lens = host[0].diff()
    metadata = fast.CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=host[0],
        seq_lens=seq_lens,
        seq_lens_cpu=host[1],
        num_computed_tokens_cpu=host[1] - query_lens,
        num_reqs=NUM_REQS,
        num_actual_tokens=len(slots),
        max_query_len=int(query_lens.max()),
        max_seq_len=int(host[1].max()),
        block_table_tensor=table,
        slot_mapping=slots,
        logits_indices_padded=indices,
        num_logits_indices=len(indices),
        positions=slots,
    )
    made = fast.make_kv_sharing_fast_prefill_common_attn_metadata(
        metadata, logits_indices_cpu=host[4]
    )
    assert made.positions is not None
    return [made.query_start_loc, made.query_start_loc_cpu, made.positions]


def make_starts(seed: int) -> Tensors:
    """Make starts of sequences, some of them empty."""
    lengths = torch.randint(0, 90, (NUM_REQS,), generator=torch.Generator().manual_seed(seed))
    return [torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()]


def list_programs(inputs: Tensors, host: Tensors) -> Tensors:
    _, *lists = fast.compute_causal_conv1d_metadata(inputs[0], query_start_loc_p_cpu=host[0])
    return lists


def make_rows(seed: int, dtype: torch.dtype = torch.bfloat16, embed_dim: int = 24) -> Tensors:
    """Make embeddings of any bits, a mask with as many True entries, and placeholders."""
    draw = torch.Generator().manual_seed(seed)
    size = (NUM_EMBEDS + NUM_PLACEHOLDERS, embed_dim * dtype.itemsize)
    rows = torch.randint(0, 256, size, dtype=torch.uint8, generator=draw).view(dtype)
    mask = torch.arange(NUM_PLACEHOLDERS) < NUM_EMBEDS
    mask = mask[torch.randperm(NUM_PLACEHOLDERS, generator=draw)]
    return [rows[:NUM_EMBEDS], mask, rows[NUM_EMBEDS:]]


def scatter(inputs: Tensors, _host: Tensors) -> Tensors:
    return [fast.scatter_mm_placeholders(inputs[0], inputs[1])]


def gather(inputs: Tensors, host: Tensors) -> Tensors:
    num_embeds = int(host[1].sum())
    return [fast.gather_mm_placeholders(inputs[2], inputs[1], num_embeds=num_embeds)]


def make_queries(seed: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(NUM_REQS * 3, 4, 8, generator=draw)]


def reshape(inputs: Tensors, _host: Tensors) -> Tensors:
    """View queries request by request, and back."""
    by_request = fast.reshape_query_for_spec_decode(inputs[0], NUM_REQS)
    return [by_request, fast.reshape_attn_output_for_spec_decode(by_request)]


FUNCTIONS: dict[str, tuple[Callable[[int], Tensors], Function]] = {
    "make_kv_sharing_fast_prefill_common_attn_metadata": (
        fast_prefill_metadata,
        cut_to_logits_tokens,
    ),
    "compute_causal_conv1d_metadata": (make_starts, list_programs),
    "scatter_mm_placeholders": (make_rows, scatter),
    "gather_mm_placeholders": (make_rows, gather),
    "reshape_query_for_spec_decode and back": (make_queries, reshape),
}
LAUNCHING = list(FUNCTIONS)[:4]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    if torch.cuda.is_available():
        fast.warmup()


def to_gpu(tensors: Tensors) -> Tensors:
    return [tensor.to("cuda") for tensor in tensors]


def assert_same_bits(expected: Tensors, got: Tensors) -> None:
    """Compare tensors, wherever they are, bit by bit."""
    assert len(expected) == len(got)
    for reference_tensor, tensor in zip(expected, got, strict=True):
        assert (reference_tensor.dtype, reference_tensor.shape) == (tensor.dtype, tensor.shape)
        there = tensor.cpu().contiguous()
        assert torch.equal(reference_tensor.contiguous().view(torch.uint8), there.view(torch.uint8))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_call_waits_for_the_device(name: str) -> None:
    make, function = FUNCTIONS[name]
    host = make(0)
    inputs = to_gpu(host)
    function(inputs, host)
    with no_waiting():
        function(inputs, host)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_run_on_a_side_stream(name: str) -> None:
    make, function = FUNCTIONS[name]
    host, new_host = make(0), make(1)
    inputs, old_inputs, new_inputs = to_gpu(host), to_gpu(host), to_gpu(new_host)
    function(inputs, host)
    torch.cuda.synchronize()

    def write_and_call() -> Tensors:
        for tensor, values in zip(inputs, new_inputs, strict=True):
            tensor.copy_(values)
        results = [tensor.clone() for tensor in function(inputs, new_host)]
        for tensor, values in zip(inputs, old_inputs, strict=True):
            tensor.copy_(values)
        return results

    got, is_queued = call_behind_a_wait(torch.cuda.Stream(), write_and_call)
    assert is_queued
    assert_same_bits(function(new_host, new_host), got)


@pytest.mark.parametrize("name", LAUNCHING)
def test_a_replay_reads_the_new_values(name: str) -> None:
    make, function = FUNCTIONS[name]
    host = make(0)
    inputs = to_gpu(host)
    graph, results = captured(lambda: function(inputs, host))
    on_device = [number for number, result in enumerate(results) if result.is_cuda]
    assert on_device
    for seed in (1, 2, 1):
        values = make(seed)
        for tensor, new in zip(inputs, values, strict=True):
            tensor.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        expected = function(values, values)
        assert_same_bits([expected[n] for n in on_device], [results[n] for n in on_device])


def test_a_replayed_gather_of_fewer_rows_leaves_zeros() -> None:
    host = make_rows(0, torch.float32)
    inputs = to_gpu(host)
    graph, [taken] = captured(lambda: gather(inputs, host))
    inputs[1][NUM_PLACEHOLDERS // 2 :] = False
    graph.replay()
    torch.cuda.synchronize()
    expected = host[2][: NUM_PLACEHOLDERS // 2][host[1][: NUM_PLACEHOLDERS // 2]]
    assert_same_bits([expected], [taken[: len(expected)]])
    assert not taken[len(expected) :].view(torch.uint8).any()


@pytest.mark.parametrize("mebibytes", [64, 512])
def test_rows_move_at_the_bandwidth_of_a_copy(mebibytes: int) -> None:
    size = mebibytes * 2**20
    placeholders = torch.zeros(size // 8192, 4096, dtype=torch.bfloat16, device="cuda")
    mask = torch.arange(len(placeholders), device="cuda") % 17 != 16  # an image ends its lines
    num_embeds = int(mask.sum())
    embeds = placeholders[:num_embeds].clone()
    copied = torch.empty_like(placeholders)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "scatter_mm_placeholders": (
            embeds.nbytes + placeholders.nbytes,
            lambda: fast.scatter_mm_placeholders(embeds, mask),
        ),
        "gather_mm_placeholders": (
            2 * embeds.nbytes,
            lambda: fast.gather_mm_placeholders(placeholders, mask, num_embeds=num_embeds),
        ),
    }
    shares = {}
    for name, (num_bytes, call) in calls.items():
        found, bandwidths, times = [], [], []
        for _ in range(7):  # by turns, so that both find the same GPU
            bandwidths.append(2 * size / device_seconds(lambda: copied.copy_(placeholders)))
            times.append(device_seconds(call))
            found.append(num_bytes / times[-1] / bandwidths[-1])
        shares[name] = statistics.median(found)
        copy_gbs = statistics.median(bandwidths) / 1e9
        print(  # noqa: T201  # gpu_check.sh shows it
            f"device time of {name}, {mebibytes} MiB: {statistics.median(times) * 1e6:.0f} us"
        )
        print(  # noqa: T201  # likewise
            f"share of copy bandwidth of {name}, {mebibytes} MiB: {shares[name]:.0%}"
            f" of {copy_gbs:.0f} GB/s"
        )
    assert mebibytes < 512 or min(shares.values()) >= 0.8


@pytest.mark.parametrize(("name", "num_launches"), list(zip(LAUNCHING, (1, 1, 3, 3), strict=True)))
def test_what_a_launch_costs_the_host(name: str, num_launches: int) -> None:
    make, function = FUNCTIONS[name]
    host = make(0)
    inputs = to_gpu(host)
    cost_us = host_cost_us(lambda: function(inputs, host))
    print(f"host cost of {name}: {cost_us:.1f} us")  # noqa: T201  # gpu_check.sh shows it
    assert cost_us < 100 * num_launches
