"""The laws about attention: what each detects, and its report by request, token and position."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from conformance.checks.poisoned_cache import PoisonedCache
from conformance.contracts.check import Check
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.dense_layer import NO_REQUEST, Layer
from tests.bugs.catalogue import read_catalogue

LAWS = {
    check.body.__name__: check
    for name in ("", "_slots", "_ubatch", "_tables", "_groups")
    for check in vars(importlib.import_module(f"conformance.test_attention{name}")).values()
    if isinstance(check, Check)
}

LAYER = Layer(
    Batch((2, 1), (3, 0), Layout(2), ((4, 2, 5), (1,)), num_padding_tokens=1), 6, (2, 1, 3)
)


def test_each_law_sees_something() -> None:
    """Each law about attention must catch a bug of the catalogue."""
    assert LAWS.keys() <= {bug.caught_by for bug in read_catalogue()}


def attended(layer: Layer = LAYER, **changes: object) -> None:
    """Run a layer's step, its metadata changed, and compare."""
    metadata = layer.batch.metadata()
    for name, value in changes.items():
        setattr(metadata, name, value)
    cache = PoisonedCache(layer)
    cache.remember()
    cache.write(layer.batch, layer.batch.slot_mapping())
    layer.assert_close_to_dense(cache.attend(metadata))


def test_a_right_step_agrees() -> None:
    """Paged attention over a correct step equals dense attention."""
    attended()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        # A block of its own at another place is a difference, described by request and position.
        ([[4, 1, 5], [1, 0, 0]], r"token 0 \(request 0, position 3\) is .* should be"),
        # A block that no request wrote to comes out as NaN, and NaN never agrees.
        ([[4, 2, 5], [3, 0, 0]], r"token 2 \(request 1, position 0\) is \[\[nan"),
        # So does a block that another request wrote to.
        ([[4, 2, 5], [4, 0, 0]], r"token 2 \(request 1, position 0\) is \[\[nan"),
    ],
)
def test_a_wrong_block_is_reported(table: list[list[int]], message: str) -> None:
    """The message names token, request and position, what came out and what should have."""
    with pytest.raises(AssertionError, match=message):
        attended(block_table_tensor=np.array(table, np.int32))


def test_a_shared_prefix_is_read_by_those_that_share_it() -> None:
    """Slots that only another request wrote read as NaN, except those of a shared prefix."""
    batch = Batch((1, 1, 1), (4, 3, 0), Layout(2), ((3, 1, 2), (3, 4), (5,)))
    layer = Layer(batch, 6, (2, 1, 3))
    cache = PoisonedCache(layer)
    cache.remember()
    cache.write(batch, batch.slot_mapping())
    seen = [np.flatnonzero(~np.isnan(cache.as_read_by(i)[0, ..., 0, 0].ravel())) for i in range(3)]
    assert [[2, 3, 4, 6, 7], [6, 7, 8, 9], [10]] == [found.tolist() for found in seen]
    assert np.isnan(cache.as_read_by(NO_REQUEST)).all()


def test_padding_that_attends_is_seen() -> None:
    """Padding that is taken for a request's token has an output, and must have none."""
    starts, lens = np.array([0, 2, 4], np.int32), np.array([5, 2], np.int32)
    changes = {"query_start_loc": starts, "query_start_loc_cpu": starts}
    with pytest.raises(AssertionError, match="token 3, padding is"):
        attended(**changes, seq_lens=lens, seq_lens_cpu=lens)


def test_a_context_comes_through_slots() -> None:
    """An earlier step writes the context to its slots, and a shared prefix only once."""
    batch = Batch((1, 1), (4, 3), Layout(2), ((3, 1, 2), (3, 4)))
    layer = Layer(batch, 6, (2, 1, 3))
    assert (0, 2) == layer.shared
    assert ((4, 1), (0, 2)) == (layer.earlier.query_lens, layer.earlier.num_computed_tokens)
    cache = PoisonedCache(layer)
    cache.remember()
    written = ~np.isnan(cache.array[0, ..., 0, 0])
    assert {2, 3, 6, 7, 8} == {*np.flatnonzero(written.ravel()).tolist()}
    attended(layer)
