"""KV-sharing fast prefill: the batch of the tokens with logits, and backends that build for it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.examples.twins import Twin, shown

ARMED = {"logits_indices_padded": [2, 3, 4, 0], "num_logits_indices": 3}
SAME_OBJECTS = (
    *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu", "block_table_tensor"),
    *("slot_mapping", "is_prefilling", "seq_lens_cpu_upper_bound", "req_idx"),
    "dcp_local_seq_lens_cpu_upper_bound",
)


def test_fields_of_fast_prefill(twin: Twin) -> None:
    indices, number = twin.KV_SHARING_FAST_PREFILL_METADATA_FIELDS
    assert ("logits_indices_padded", None) == (indices[0], indices[2])
    assert ("num_logits_indices", int, 0) == number
    cls = twin.subclass_attention_metadata("Fast", object, [indices, number])
    assert {"logits_indices_padded": None, "num_logits_indices": 0} == vars(cls())
    assert isinstance(cls(), twin.KVSharingFastPrefillMetadata)
    for name in vars(cls()):
        assert not isinstance(SimpleNamespace(**{name: 1}), twin.KVSharingFastPrefillMetadata)


@pytest.mark.parametrize(
    ("query_lens", "indices", "starts", "max_query_len"),
    [
        # logits for the last token of the first request, two of the second, one of the third
        pytest.param([15, 5, 8], [14, 18, 19, 27], [0, 1, 3, 4], 2, id="three requests"),
        pytest.param([3, 2], [], [0, 0, 0], 0, id="no logits"),
        pytest.param([3, 2], [2], [0, 1, 1], 1, id="none of the last"),
        pytest.param([3, 2], [4], [0, 0, 1], 1, id="none of the first"),
        pytest.param([3, 2], [0, 1, 2, 3, 4], [0, 3, 5], 3, id="all logits"),
        pytest.param([3, 0, 2], [2, 3, 4], [0, 1, 1, 3], 2, id="an empty request between"),
        pytest.param([3, 0, 0], [1, 2], [0, 2, 2, 2], 2, id="padded requests"),
        pytest.param([0, 0], [], [0, 0, 0], 0, id="no tokens"),
        pytest.param([], [], [0], 0, id="no requests"),
    ],
)
def test_the_batch_of_the_tokens_with_logits(
    twin: Twin, query_lens, indices, starts, max_query_len
) -> None:
    batch = twin.batch(
        query_lens,
        [3] * len(query_lens),
        padding_tokens=2,
        causal=False,
        max_seq_len=100,
        encoder_seq_lens=[1] * len(query_lens),
        dcp_local_seq_lens=[1] * len(query_lens),
        logits_indices_padded=[*indices, 10**6],  # padding is not read
        num_logits_indices=len(indices),
        is_prefilling=[True] * len(query_lens),
        positions=[9 - token for token in range(sum(query_lens) + 2)],
        seq_lens_cpu_upper_bound=[3 + query_len for query_len in query_lens],
        dcp_local_seq_lens_cpu_upper_bound=[2] * len(query_lens),
        max_logits_per_req=3,
        req_idx=list(range(len(query_lens))),
    )
    made = twin.make_kv_sharing_fast_prefill_common_attn_metadata(batch)
    made.validate(block_size=2)
    expected = {
        "query_start_loc": starts,
        "num_reqs": len(query_lens),
        "num_actual_tokens": len(indices),
        "max_query_len": max_query_len,
        "max_seq_len": 100,
        "causal": True,
        "logits_indices_padded": None,
        "num_logits_indices": None,
        "encoder_seq_lens": None,
        "dcp_local_seq_lens": None,
        "positions": [9 - token for token in indices],
        "max_logits_per_req": 3,
    }
    assert expected == shown(made, expected)
    assert all(getattr(batch, name) is getattr(made, name) for name in SAME_OBJECTS)


@pytest.mark.parametrize("changes", [{}, {"max_query_len": 1}, {"max_query_len": 1, **ARMED}])
def test_not_armed(twin: Twin, changes) -> None:
    batch = twin.batch([3, 2], [0, 0], **changes)
    assert batch is twin.make_kv_sharing_fast_prefill_common_attn_metadata(batch)


def test_the_class_of_a_batch(twin: Twin) -> None:
    batch = twin.batch([3, 2], [0, 0], **ARMED)
    base = (twin.CommonAttentionMetadata,)
    extended = dataclasses.make_dataclass("Extended", [("note", str, "none")], bases=base, eq=False)
    convert = twin.make_kv_sharing_fast_prefill_common_attn_metadata
    made = convert(extended(**vars(batch), note="mine"))
    assert (extended, "mine") == (type(made), made.note)
    # an engine's own class need not have such a constructor
    assert twin.CommonAttentionMetadata is type(convert(SimpleNamespace(**vars(batch))))


class Backend:
    """A backend whose builder builds what `make` returns for a batch."""

    def __init__(self, twin: Twin, make: Any) -> None:
        class Builder(twin.AttentionMetadataBuilder):  # type: ignore[misc,name-defined]  # a twin's
            def build(
                self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
            ) -> Any:
                self.arguments = common_prefix_len, common_attn_metadata, fast_build
                self.built = make(common_attn_metadata)
                return self.built

        members = {
            "get_name": staticmethod(lambda: "LEAST"),
            "get_builder_cls": staticmethod(lambda: Builder),
            "get_kv_cache_shape": staticmethod(lambda *sizes: sizes),
        }
        self.cls = type("Backend", (twin.AttentionBackend,), members)


def make_builder(twin: Twin, make: Any, prefix: str = "Fast") -> Any:
    """Make a builder of the fast prefill backend over a backend."""
    backend = twin.create_fast_prefill_custom_backend(prefix, Backend(twin, make).cls)
    return backend.get_builder_cls()(None, ["layers.0"], None, None)


def test_classes_of_a_backend(twin: Twin) -> None:
    underlying = Backend(twin, lambda _: twin.AttentionMetadata()).cls
    backend: Any = twin.create_fast_prefill_custom_backend("Fast", underlying)
    builder_cls = backend.get_builder_cls()
    assert issubclass(backend, underlying)
    assert issubclass(builder_cls, underlying.get_builder_cls())
    built = builder_cls(None, [], None, None).build(0, twin.batch([3, 2], [0, 4], **ARMED))
    names = [cls.__name__ for cls in (backend, builder_cls, type(built))]
    assert ["FastBackend", "FastBuilder", "FastAttentionMetadata"] == names
    assert "LEAST" == backend.get_name()
    assert backend is twin.create_fast_prefill_custom_backend("Fast", underlying)
    assert backend is not twin.create_fast_prefill_custom_backend("Slow", underlying)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Metadata that is immutable."""

    longest: int


class Slots:
    """Metadata with attributes in slots alone, one of which has a name of the class's own."""

    __slots__ = ("__hidden", "longest")

    def __init__(self, longest: int) -> None:
        self.__hidden = 3
        self.longest = longest

    @property
    def hidden(self) -> int:
        """Return what is hidden."""
        return self.__hidden


class ReadOnly:
    """Metadata of which the fields exist, and cannot be set."""

    num_logits_indices = "its own"

    def __init__(self, longest: int) -> None:
        self.longest = longest

    @property
    def logits_indices_padded(self) -> str:
        """Return its own."""
        return "its own"


@pytest.mark.parametrize("cls", [Frozen, Slots, ReadOnly, lambda n: SimpleNamespace(longest=n)])
def test_metadata_that_is_extended(twin: Twin, cls) -> None:
    batch = twin.batch([3, 2], [0, 4], **ARMED)
    builder = make_builder(twin, lambda given: cls(given.max_query_len))
    built = builder.build(0, batch)
    assert isinstance(built, type(builder.built))
    assert isinstance(built, twin.KVSharingFastPrefillMetadata)
    assert (2, 3) == (built.longest, built.num_logits_indices)
    assert batch.logits_indices_padded is built.logits_indices_padded
    assert 3 == getattr(built, "hidden", 3)
    assert type(built) is type(builder.build(0, batch))


def test_a_builder_that_changes_the_batch(twin: Twin) -> None:
    def disarm(batch: Any) -> Frozen:
        batch.logits_indices_padded = batch.num_logits_indices = None
        return Frozen(1)

    batch = twin.batch([1, 1], [0, 1], **ARMED)
    indices = batch.logits_indices_padded
    built = make_builder(twin, disarm).build(0, batch)
    assert indices is built.logits_indices_padded
    assert 3 == built.num_logits_indices


def test_a_prefix_on_a_prefix(twin: Twin) -> None:
    inner = twin.create_fast_prefill_custom_backend("In", Backend(twin, lambda _: Frozen(1)).cls)
    backend: Any = twin.create_fast_prefill_custom_backend("Fast", inner)
    builder = backend.get_builder_cls()(None, [], None, None)
    built = builder.build(0, twin.batch([3, 2], [0, 4], **ARMED))
    assert ("FastInFrozen", 1) == (type(built).__name__, built.longest)


def test_a_builder_among_others(twin: Twin) -> None:
    underlying = Backend(twin, lambda _: Frozen(5)).cls

    class Between(underlying.get_builder_cls()):  # type: ignore[misc]  # a class that is made
        def build(self, *args: Any, **keywords: Any) -> Any:
            """Return the underlying builder's result, inside another metadata."""
            return SimpleNamespace(between=super().build(*args, **keywords))

    made: Any = twin.create_fast_prefill_custom_backend("Fast", underlying)
    mine = type("Mine", (made.get_builder_cls(), Between), {})
    built = mine(None, ["layers.0"], None, None).build(0, twin.batch([3, 2], [0, 4], **ARMED))
    assert (Frozen(5), 3) == (built.between, built.num_logits_indices)
