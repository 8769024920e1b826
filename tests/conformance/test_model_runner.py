"""The runner of steps, both twins side by side, and the request of a difference."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import cast

import numpy as np
import pytest

import fast
import reference
from conformance.engine.input_batch import InputBatch
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.model_runner.locate import RequestIndex, describe, locate
from conformance.model_runner.runner import Runner
from conformance.model_runner.twins import Twins
from conformance.stateful.plan import Plan
from conformance.stateful.scheduler import PlannedScheduler
from conformance.stateful.setup import Setup
from conformance.targets.implementations import Implementation
from conformance.targets.target import REFERENCE, Target
from conformance.values.parts import children, walk

SETUP = Setup(
    block_sizes=(2, 4), kinds=("full", "chunked_local"), padding=8, num_speculative_tokens=2
)


def make_steps() -> Iterator[SchedulerOutput]:
    """Serve two requests in a few steps with drafts."""
    scheduler, plan = PlannedScheduler(SETUP), Plan(num_drafts=2, accepted=(1,))
    scheduler.arrive([101, 102, 103, 104, 105], 9)
    scheduler.arrive([201, 202], 9)
    while len(scheduler.finished) < 2:
        snapshot = scheduler.start_step(plan)
        assert snapshot is not None
        yield snapshot.step
        scheduler.finish_step(plan)


def test_every_result_leads_to_requests() -> None:
    """Every place in a result belongs to some request of the step, or to padding."""
    runner = Runner(REFERENCE, settings=SETUP.settings, groups=SETUP.groups, deploy=SETUP.deploy)
    for step in make_steps():
        results = runner.execute(step)
        coordinates = runner.coordinates(results)
        known = {"padding", *coordinates[""].rows, *coordinates["rows"].rows}
        for name, result in results.items():
            for path, index in places(name, result):
                assert set(locate(path, index, coordinates)) <= known


def places(path: str, value: object) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield the path and the last index of each array in a tree, and the paths of the rest."""
    for where, inner in walk(value, path):
        if isinstance(inner, np.ndarray):
            yield f"{where}.shape", None
            if inner.size:
                yield where, tuple(length - 1 for length in inner.shape)
        elif not children(inner):
            yield where, None


def refuse(*_: object, **__: object) -> None:
    raise ValueError("refused")


@pytest.mark.parametrize(
    ("function", "refusing", "line"),
    [
        (
            "map_to_kernel_blocks",
            {"fast"},
            "map_to_kernel_blocks raised ValueError: refused, but should return a result",
        ),
        (  # what a scheduler makes is valid
            "slice_query_start_locs",
            {"reference", "fast"},
            (
                "slice_query_start_locs raised ValueError: refused in both twins, "
                "but should return a result"
            ),
        ),
        (
            "get_dcp_local_seq_lens",
            {"reference"},
            "get_dcp_local_seq_lens returned a result, but should raise ValueError('refused')",
        ),
    ],
)
def test_a_refusal_is_a_mismatch(
    function: str, refusing: set[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one twin raises, or both, the mismatch names the function and the exception."""
    if "reference" in refusing:
        monkeypatch.setattr(reference, function, refuse)
    known = {name: getattr(fast, name) for name in fast.__all__}
    broken = SimpleNamespace(**known | ({function: refuse} if "fast" in refusing else {}))
    target = Target("toy", Implementation("toy", cast("ModuleType", broken)))
    twins = Twins(target, settings=SETUP.settings, groups=SETUP.groups, deploy=SETUP.deploy)
    mismatch = twins.execute(next(make_steps()))
    assert mismatch is not None
    assert line == mismatch.difference.line
    assert mismatch.line.startswith(f"step 0: {line} (of ")


def test_newcomers_take_the_places_of_those_who_left() -> None:
    """The order of the batch is the old one, with holes filled and then closed from the end."""
    batch = InputBatch(8)
    batch.place(["a", "b", "c", "d", "e"])
    batch.place(["x", "b", "d", "e"])
    assert ["x", "b", "e", "d"] == batch.req_ids
    batch.place(["d"])
    assert ["d"] == batch.req_ids


def test_a_swap_takes_everything_along() -> None:
    """Everything stored by position is swapped, and callbacks get the swap first."""
    batch = InputBatch(3)
    batch.place(["a", "b"])
    batch.num_computed_tokens_cpu[:2] = [4, 0]
    batch.num_prompt_tokens[:2] = [9, 7]
    twin, swaps = batch.copy(), []
    batch.on_swap = lambda i, j: swaps.append((i, j, batch.req_ids[i]))
    batch.swap_states(0, 1)
    assert [(0, 1, "a")] == swaps
    assert ["b", "a"] == batch.req_ids
    assert [0, 4, 0] == batch.num_computed_tokens_cpu.tolist()
    assert [7, 9, 0] == batch.num_prompt_tokens.tolist()
    assert ["a", "b"] == twin.req_ids
    assert [4, 0, 0] == twin.num_computed_tokens_cpu.tolist()


def test_a_difference_leads_to_its_request() -> None:
    """Rows, boundaries and tokens lead to one request; any other place to all of the part."""
    coordinates = {
        "": RequestIndex(["a", "b", None], ["a", "b", "b", None]),
        "slots": RequestIndex(["a", "b", None], ["a", "b", "b", None], "tokens"),
        "parts[1]": RequestIndex(["b"], ["b"]),
        "starts[1]": RequestIndex(["b", "c"], (), "boundaries"),
    }

    def found(path: str, *index: int) -> list[str]:
        return locate(path, index or None, coordinates)

    assert ["a"] == found("metadata[0].query_start_loc", 0)
    assert ["b"] == found("metadata[0].query_start_loc", 2)
    assert ["b"] == found("metadata[0].block_table_tensor", 1, 77)
    assert ["padding"] == found("metadata[0].seq_lens_cpu", 2)
    assert ["a", "b"] == found("metadata[0].max_query_len")
    assert ["a", "b"] == found("metadata[0].seq_lens.shape")
    assert ["b"] == found("slots", 0, 2)
    assert ["padding"] == found("slots[4]", 9)
    assert ["b"] == found("len(parts[1])")
    assert ["a"] == found("parts[10].slot_mapping", 0)
    assert ["c"] == found("starts[1]", 2)
    assert ["b"] == found("slots_of_another_name", 1)
    assert "a, a, a and 2 more" == describe(["a"] * 5)
