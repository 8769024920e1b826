"""Both launchers on the GPU: the same results, streams, graphs; torch's private names."""

from __future__ import annotations

import pytest
import torch
from on_gpu import call_behind_a_wait, captured, no_waiting

import fast
from fast import current_stream, launch
from fast.kernels.cuda import KERNELS
from kvtwin.bench.launches import make_launch
from kvtwin.bench.measure import host_cost_us

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.fixture(params=launch.LAUNCHERS)
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Launch by one launcher, then by the other, all kernels loaded."""
    name: str = request.param
    chosen = launch.LAUNCHERS[name]
    monkeypatch.setattr(launch, "launcher", lambda: chosen)
    for kernel in KERNELS:
        chosen.load(kernel, torch.cuda.current_device())
    return name


@pytest.fixture
def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a block table, starts of two requests, and their positions."""
    table = torch.tensor([[5, 9, 0], [7, 1, 3]], dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, 3, 5], dtype=torch.int32, device="cuda")
    return table, starts, torch.tensor([1, 2, 3, 4, 5], device="cuda")


Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SLOTS = [11, 18, 19, 6, 7]
NEW_SLOTS = [10, 11, 18, 3, 6]


def test_slots(launcher: str, arguments: Arguments) -> None:
    del launcher
    assert SLOTS == fast.compute_slot_mapping(*arguments, 2).tolist()
    table, starts, positions = arguments
    before = positions.clone()
    torch.cuda.synchronize()

    def move_and_compute() -> torch.Tensor:
        torch.sub(before, 1, out=positions)
        slots = fast.compute_slot_mapping(table, starts, positions, 2)
        positions.fill_(77)
        return slots

    slots, is_queued = call_behind_a_wait(torch.cuda.Stream(), move_and_compute)
    assert is_queued
    assert NEW_SLOTS == slots.tolist()


def test_no_launch_waits(launcher: str, arguments: Arguments) -> None:
    del launcher
    fast.compute_slot_mapping(*arguments, 2)
    with no_waiting():
        fast.compute_slot_mapping(*arguments, 2)


def test_a_captured_launch(launcher: str, arguments: Arguments) -> None:
    del launcher
    graph, slots = captured(lambda: fast.compute_slot_mapping(*arguments, 2))
    arguments[2].sub_(1)
    graph.replay()
    assert NEW_SLOTS == slots.tolist()


def test_rows_of_bytes(launcher: str) -> None:
    del launcher
    mask = torch.tensor([True, False, True], device="cuda")
    rows = torch.rand(3, 24, device="cuda").bfloat16()
    taken = fast.gather_mm_placeholders(rows, mask, num_embeds=2)
    assert torch.equal(rows[mask], taken)
    assert torch.equal(rows[mask], fast.scatter_mm_placeholders(taken, mask)[mask])


def test_torchs_private_names() -> None:
    assert torch.cuda.current_device() == current_stream.current_device()
    stream = torch.cuda.Stream()
    for one in (torch.cuda.current_stream(), stream):
        with torch.cuda.stream(one):
            assert one.cuda_stream == current_stream.current_stream(torch.cuda.current_device())


def test_what_a_launch_costs_the_host(launcher: str) -> None:
    cost_us = host_cost_us(make_launch("cuda"))
    print(f"host cost of a launch, {launcher}: {cost_us:.1f} us")  # noqa: T201  # gpu_check.sh shows it
    if launcher == "direct":
        assert cost_us <= 15
