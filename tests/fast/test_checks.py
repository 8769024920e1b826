"""Checked mode in threads and tasks, and what is refused of devices and memory."""

import asyncio
import contextlib
import importlib.util
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fast
from fast import checked_mode
from fast._native.memory import locate, share_memory
from tests.fast.actors import actors
from tests.fast.interrupts import Interrupter


def load_checks_anew() -> ModuleType:
    """Run `fast/checked_mode.py` again, as at the first import."""
    spec = importlib.util.spec_from_file_location("checks_anew", Path(checked_mode.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("value", [None, "1", "0", ""])
def test_environment_variable(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAST_CHECKS", raising=False)
    if value is not None:
        monkeypatch.setenv("FAST_CHECKS", value)
    assert (value == "1") is load_checks_anew().is_checked()


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1", "on"])
def test_unknown_values_of_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_CHECKS", value)
    with pytest.raises(ValueError, match=f"FAST_CHECKS is '{value}', expected '0' or '1'"):
        load_checks_anew()


def test_checks_act_at_once_and_restore() -> None:
    def run() -> None:
        before = checked_mode.is_checked()
        switch = fast.checks(not before)
        assert checked_mode.is_checked() is not before
        with contextlib.suppress(KeyError), switch, fast.checks(enabled=before):
            assert checked_mode.is_checked() is before
            raise KeyError
        assert checked_mode.is_checked() is before

    Context().run(run)  # outside of any block


def test_checks_takes_a_bool() -> None:
    with pytest.raises(TypeError, match="enabled must be a bool, got 1 of int"):
        fast.checks(1)  # type: ignore[arg-type]  # that is the test


def test_later_switches_outlive_a_dropped_one() -> None:
    mode = checked_mode.ProcessMode(enabled=False)
    first, second, third = (fast.checks.__new__(fast.checks) for _ in range(3))
    for by, enabled in ((first, True), (second, False), (third, True)):
        mode.switch(by, enabled)
    del first, by
    mode.take_back(third)
    assert not mode.enabled


def refuses() -> bool:
    """Return whether a call refuses a bad value, which it only does in checked mode."""
    try:
        fast.get_dcp_local_seq_lens(torch.tensor([-1], dtype=torch.int32))
    except ValueError:
        return True
    return False


def test_an_interrupted_block_keeps_no_other_thread_waiting() -> None:
    def check() -> None:
        with fast.checks(enabled=True):
            refuses()

    at = 1
    while Interrupter(fast.checked_mode, at).run(lambda: copy_context().run(check)):
        other = threading.Thread(target=lambda: fast.checks(enabled=False), daemon=True)
        other.start()
        other.join(timeout=10)
        assert not other.is_alive(), at
        fast.checks(enabled=False)  # a block that was never entered has switched the process
        at += 1
    assert at > 100
    assert not refuses()


def test_threads_without_an_order() -> None:
    barrier = threading.Barrier(8)

    def run(seed: int) -> list[tuple[bool, bool]]:
        chance = random.Random(seed)  # noqa: S311  (no secret)
        seen = []
        barrier.wait(timeout=60)
        for number in range(200):
            enabled = chance.random() < 0.5
            with fast.checks(enabled):
                seen.append((enabled, refuses()))
                with fast.checks(not enabled):
                    seen.append((not enabled, refuses()))
                seen.append((enabled, refuses()))
            if number % 20 == 19:
                barrier.wait(timeout=60)
                seen.append((False, refuses()))
                barrier.wait(timeout=60)
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = [pair for each in pool.map(run, range(8)) for pair in each]
    wrong = [pair for pair in seen if pair[0] != pair[1]]
    assert not wrong, f"{len(wrong)} of {len(seen)} calls"
    assert not refuses()


def test_tasks_have_blocks_of_their_own() -> None:
    async def run(enabled: bool, turns: list[asyncio.Event], seen: list[bool]) -> None:
        with fast.checks(enabled):
            for mine, other in (turns, turns[::-1], turns):
                other.set()
                await asyncio.sleep(0)
                seen.append(refuses())
                mine.set()
                await asyncio.sleep(0)
        seen.append(refuses())

    async def run_both() -> tuple[list[bool], list[bool]]:
        turns = [asyncio.Event(), asyncio.Event()]
        on: list[bool] = []
        off: list[bool] = []
        await asyncio.gather(run(True, turns, on), run(False, turns[::-1], off))
        return on, off

    assert ([True, True, True, False], [False] * 4) == asyncio.run(run_both())
    assert not refuses()


def test_a_plain_call_inside_a_block() -> None:
    with actors(2) as (one, other):
        try:
            block = one.do(lambda: fast.checks(enabled=True).__enter__())
            one.do(lambda: fast.checks(enabled=True))
            assert (True, True) == (one.do(refuses), other.do(refuses))
            one.do(lambda: fast.checks(enabled=False))
            assert (True, False) == (one.do(refuses), other.do(refuses))
            one.do(lambda: fast.checks(enabled=True))
            one.do(lambda: block.__exit__(None, None, None))
            assert (True, True) == (one.do(refuses), other.do(refuses))
        finally:
            fast.checks(enabled=False)
        assert (False, False) == (one.do(refuses), other.do(refuses))


def test_one_object_is_entered_twice() -> None:
    block = fast.checks(enabled=True)
    with block:
        with block:
            assert refuses()
        assert refuses()
    assert not refuses()


MAKERS: dict[str, Callable[[Any], object]] = {
    "BlockTables": lambda device: fast.BlockTables([1], 2, 2, [2], device),
    "CpuGpuBuffer": lambda device: fast.CpuGpuBuffer(
        2, dtype=torch.int8, device=device, pin_memory=False
    ),
    "MemorySnapshot.measure": fast.MemorySnapshot.measure,
    "_allocate_kv_cache": lambda device: fast._allocate_kv_cache(
        fast.KVCacheConfig(1, [], []), device
    ),
    "init_kv_cache": lambda device: fast.init_kv_cache(
        [], {}, fast.KVCacheConfig(1, [], []), {}, device
    ),
}


@pytest.mark.parametrize("device", ["nonsense", "cpu:x", "cuda:99", "hpu", "vulkan", "xla", "ve"])
@pytest.mark.parametrize("name", MAKERS)
def test_devices_that_torch_lacks(name: str, device: str) -> None:
    for given in (device, *([] if device in {"nonsense", "cpu:x"} else [torch.device(device)])):
        with pytest.raises(ValueError, match=r"^device is .*, expected a device that torch has"):
            MAKERS[name](given)


def test_host_copies_are_on_the_host() -> None:
    elsewhere = torch.zeros(2, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="seq_lens_cpu is on meta, expected cpu"):
        locate("seq_lens_cpu", elsewhere, torch.int32, 2)


META = torch.zeros(9, dtype=torch.int32, device="meta")
STARTS = torch.tensor([0, 2, 3, 3], dtype=torch.int32)


def resized(tensor: torch.Tensor, num_bytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "seq_lens",
            SimpleNamespace(cpu=STARTS, gpu=META),
            r"seq_lens\.gpu is on meta, expected cpu",
        ),
        (
            "seq_lens",
            SimpleNamespace(cpu=META, gpu=STARTS),
            r"seq_lens\.cpu is on meta, expected cpu",
        ),
        ("num_computed_tokens_cpu", META, "num_computed_tokens_cpu is on meta"),
        (
            "block_tables",
            [torch.zeros(3, 1).int(), torch.zeros(3, 1).int().to("meta")],
            r"block_tables\[1\] is on meta",
        ),
        ("slot_mappings", resized(torch.zeros(2, 4).long(), 0), "slot_mappings has no memory"),
        (
            "slot_mappings",
            resized(torch.zeros(2, 4).long(), 16),
            "slot_mappings reaches past the 16 bytes of its storage",
        ),
        (
            "num_computed_tokens_cpu",
            resized(STARTS.repeat(3), 4),
            "num_computed_tokens_cpu reaches past the 4 bytes of its storage",
        ),
    ],
)
def test_devices_and_memory_of_a_step(
    name: str, value: Any, message: str, step: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        fast.build_attn_metadata(**{**step, name: value})
    assert [[], []] == [builder.given for builder in step["attn_metadata_builders"]]


def test_layer_names_that_cannot_be_keys(step: dict[str, Any]) -> None:
    groups = [SimpleNamespace(layer_names=["a"]), SimpleNamespace(layer_names=["b", ["c"]])]
    config = SimpleNamespace(kv_cache_groups=groups)
    message = r"^kv_cache_groups\[1\]\.layer_names\[1\] must be a str, got list$"
    with pytest.raises(TypeError, match=message):
        fast.build_attn_metadata(**{**step, "kv_cache_config": config})


def test_sharing_is_detected_by_elements() -> None:
    x = torch.zeros(2, 4, dtype=torch.int64)
    assert share_memory(x, x.view(torch.int32)[:, 7:])
    assert not share_memory(x[:, ::2], x[:, 1::2])
    assert not share_memory(x[:0], x)
    pair = torch.zeros(2, dtype=torch.complex128)
    assert share_memory(pair, pair[1:])


def test_an_out_of_one_column_is_contiguous() -> None:
    mask, column = torch.tensor([True, False, True]), torch.tensor([[1.0], [2.0]])
    out = torch.empty(1, 3).t()
    fast.scatter_mm_placeholders(column, mask, out=out)
    assert [1, 2] == out[mask, 0].tolist()
    back = torch.empty(1, 2).t()
    fast.gather_mm_placeholders(out, mask, out=back)
    assert torch.equal(column, back)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (torch.zeros(1).bool(), ValueError),
        (torch.zeros(2, 2).bool(), ValueError),
        (META[:2].bool(), ValueError),
        (resized(torch.zeros(2).bool(), 1), ValueError),
        (torch.zeros(2).int(), TypeError),
        (torch.zeros(2).bool().numpy(), TypeError),
    ],
)
def test_flags_of_two_requests(flags: Any, error: type[Exception], make_batch: Any) -> None:
    batch = make_batch([1, 1], [3, 3])
    batch.is_prefilling = flags
    for count in (fast.split_decodes_and_prefills, fast.split_decodes_prefills_and_extends):
        with pytest.raises(error, match=r"^is_prefilling "):
            count(batch, treat_short_extends_as_decodes=False)


@pytest.mark.parametrize("num_positions", [0, 3])
def test_wrong_indices_are_not_followed(num_positions: int, make_batch: Any) -> None:
    batch = make_batch([2, 1] if num_positions else [0, 0], [3, 3])
    batch.max_query_len = 2
    batch.positions = torch.arange(num_positions) + 7
    batch.logits_indices_padded = torch.tensor([-5, 1, 10**12])
    batch.num_logits_indices = 3
    made = fast.make_kv_sharing_fast_prefill_common_attn_metadata(batch)
    assert made.positions.tolist() in ([7, 8, 9], [0, 0, 0])
