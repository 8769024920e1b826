"""KV-sharing fast prefill: a backend that builds metadata for the tokens with logits."""

from __future__ import annotations

import abc
import dataclasses
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.functions.fast_prefill_backend import ATTRIBUTES, KINDS, Frozen
from tests.twins.arrays import int32

INDICES = int32(2, 3, 4, 0)


def make_backend(twin: Any, make_metadata: Any) -> type[Any]:
    """Make a backend whose builder calls `make_metadata`, and stores its arguments."""

    class Builder(twin.AttentionMetadataBuilder[Any]):
        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> object:
            self.arguments = common_prefix_len, common_attn_metadata, fast_build
            self.built = make_metadata(common_attn_metadata)
            return self.built

    class Backend(twin.AttentionBackend):
        get_name = staticmethod(lambda: "LEAST")
        get_builder_cls = staticmethod(lambda: Builder)
        get_kv_cache_shape = staticmethod(lambda *sizes: sizes)

    return Backend


def make_builder(backend: Any) -> Any:  # a class or an instance
    return backend.get_builder_cls()(None, ["layers.0"], None, None)


@pytest.fixture
def batch(make_batch: Any) -> Any:
    """Return a batch of two requests, three tokens of which have logits."""
    return make_batch([3, 2], [0, 4], logits_indices_padded=INDICES, num_logits_indices=3)


def test_the_classes(twin: Any, batch: Any) -> None:
    underlying = make_backend(twin, lambda _: twin.AttentionMetadata())
    backend = twin.create_fast_prefill_custom_backend("Fast", underlying)
    builder_cls = backend.get_builder_cls()
    assert builder_cls is backend().get_builder_cls()
    assert issubclass(backend, underlying)
    assert issubclass(builder_cls, underlying.get_builder_cls())
    metadata = make_builder(backend).build(0, batch)
    assert ["FastBackend", "FastBuilder", "FastAttentionMetadata"] == [
        cls.__name__ for cls in (backend, builder_cls, type(metadata))
    ]
    assert "LEAST" == backend.get_name() == backend().get_name()
    assert ["Backend", "Builder"] == [
        cls.__name__ for cls in (underlying, underlying.get_builder_cls())
    ]


def extend(twin: Any, build: Any) -> Any:
    """Make a fast prefill builder over a backend whose builder calls `build` for metadata."""
    return make_builder(twin.create_fast_prefill_custom_backend("Fast", make_backend(twin, build)))


def check_extended(twin: Any, build: Any, batch: Any) -> Any:
    """Check a fast prefill builder's metadata against the underlying one, and return it."""
    builder = extend(twin, build)
    metadata = builder.build(0, batch)
    assert isinstance(metadata, type(builder.built))
    assert isinstance(metadata, twin.KVSharingFastPrefillMetadata)
    assert metadata is not builder.built
    assert batch.logits_indices_padded is metadata.logits_indices_padded
    assert batch.num_logits_indices is metadata.num_logits_indices
    assert type(metadata) is type(builder.build(0, batch))
    return metadata


def test_what_the_other_builder_is_given(twin: Any, batch: Any) -> None:
    builder = extend(twin, lambda _: twin.AttentionMetadata())
    for build, expected in (
        (lambda: builder.build(7, batch), (7, False)),
        (lambda: builder.build(7, batch, True), (7, True)),
        (lambda: builder.build(common_prefix_len=7, common_attn_metadata=batch), (7, False)),
        (lambda: builder.build_for_cudagraph_capture(batch), (0, False)),
        (lambda: builder.build_for_drafting(batch, 1), (0, True)),
    ):
        metadata = build()
        prefix, given, fast_build = builder.arguments
        assert expected == (prefix, fast_build)
        assert [0, 1, 3] == given.query_start_loc.tolist()
        assert batch.logits_indices_padded is metadata.logits_indices_padded


@pytest.mark.parametrize(
    "changes",
    [
        {"max_query_len": 1, "logits_indices_padded": INDICES, "num_logits_indices": 3},
        {},
    ],
)
def test_where_fast_prefill_is_not_armed(
    twin: Any, make_batch: Any, changes: dict[str, Any]
) -> None:
    batch = make_batch([3, 2], [0, 4], **changes)
    extended = check_extended(twin, lambda given: SimpleNamespace(given=given), batch)
    assert batch is extended.given


def test_a_builder_of_the_batch_itself(twin: Any, batch: Any) -> None:
    metadata = check_extended(twin, lambda given: given, batch)
    assert isinstance(metadata, twin.CommonAttentionMetadata)
    assert [0, 1, 3] == metadata.query_start_loc.tolist()
    batch.max_query_len = 1
    made = check_extended(twin, lambda given: given, batch)
    assert batch.seq_lens is made.seq_lens
    assert twin.CommonAttentionMetadata is type(batch)


class Slots:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden: int, shown: int) -> None:
        self.__hidden = hidden
        self.shown = shown

    @property
    def hidden(self) -> int:
        return self.__hidden


class MoreSlots(Slots):
    __slots__ = ("__dict__", "__weakref__", "shown")

    def __init__(self) -> None:
        super().__init__(3, 4)
        Slots.shown.__set__(self, 40)  # type: ignore[attr-defined]  # a slot
        self.more = 5

    @property
    def shown_by_base(self) -> Any:
        return Slots.shown.__get__(self)  # type: ignore[attr-defined]  # a slot


class ReadOnly:
    @property
    def logits_indices_padded(self) -> str:
        return "its own"

    num_logits_indices = "its own"


@dataclasses.dataclass
class OneField:
    num_logits_indices: Any
    last: int


class Abstract(abc.ABC):  # noqa: B024  # for its metaclass
    def __new__(cls, n: int) -> Any:  # an instance
        made = super().__new__(cls)
        made.n = n
        return made


MORE_METADATA: tuple[Any, ...] = (MoreSlots(), ReadOnly(), OneField(7, 8), Abstract(3), (3, 4))


@pytest.mark.parametrize(
    "built",
    [*(cls(starts=int32(0), longest=7) for cls in KINDS.values()), *MORE_METADATA],
    ids=lambda built: type(built).__name__,
)
def test_metadata_that_is_extended(twin: Any, batch: Any, built: Any) -> None:
    names = (*ATTRIBUTES, "hidden", "shown", "shown_by_base", "more", "n", "num_logits_indices")
    before = {name: getattr(built, name) for name in names if hasattr(built, name)}
    metadata = check_extended(twin, lambda _: built, batch)
    found = {name: getattr(metadata, name) for name in names if hasattr(metadata, name)}
    assert before | {"num_logits_indices": 3} == found
    assert before == {name: getattr(built, name) for name in before}
    assert built == metadata or not isinstance(built, tuple)


def test_what_stays_as_it_is(twin: Any, batch: Any) -> None:
    metadata = check_extended(twin, lambda _: Frozen(1, 5), batch)
    assert ["starts", "longest", "logits_indices_padded", "num_logits_indices"] == [
        field.name for field in dataclasses.fields(metadata)
    ]
    for name in ("longest", "num_logits_indices"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(metadata, name, 1)
    changed = dataclasses.replace(metadata, longest=6)
    assert (6, 3) == (changed.longest, changed.num_logits_indices)
    made = {check_extended(twin, lambda _: ReadOnly(), batch) for _ in range(2)}
    assert [False, False] == [dataclasses.is_dataclass(each) for each in made]


def test_errors_of_the_other_builder_are_its_own(twin: Any, batch: Any) -> None:
    def fail(_: object) -> object:
        raise TypeError("mine")

    with twin.refuses("TypeError: mine"):
        extend(twin, fail).build(0, batch)


def test_an_engines_own_builder(twin: Any, batch: Any) -> None:
    class Builder:
        def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
            return SimpleNamespace(prefix=common_prefix_len, given=common_attn_metadata)

    own = type("Own", (), {"get_builder_cls": classmethod(lambda _: Builder)})
    builder = twin.create_fast_prefill_custom_backend("", own)().get_builder_cls()()
    metadata = builder.build(5, batch)
    assert (5, 3) == (metadata.prefix, metadata.given.num_actual_tokens)
    assert "Builder" == type(builder).__name__


def test_a_prefix_on_a_prefix(twin: Any, batch: Any) -> None:
    inner = twin.create_fast_prefill_custom_backend(
        "In", make_backend(twin, lambda given: Frozen(1, given.num_actual_tokens))
    )
    backend = twin.create_fast_prefill_custom_backend("Fast", inner)
    metadata = make_builder(backend).build(0, batch)
    assert ("FastInFrozen", 3) == (type(metadata).__name__, metadata.longest)


def test_classes_are_made_once(twin: Any, batch: Any) -> None:
    underlying = make_backend(twin, lambda _: Frozen(1, 3))
    backend = twin.create_fast_prefill_custom_backend("Fast", underlying)
    again = twin.create_fast_prefill_custom_backend("Fast", underlying)
    assert backend is again
    others = [
        twin.create_fast_prefill_custom_backend("Slow", underlying),
        twin.create_fast_prefill_custom_backend("Fast", make_backend(twin, lambda _: Frozen(1, 3))),
        twin.subclass_attention_backend("Fast", underlying, underlying.get_builder_cls()),
    ]
    assert 4 == len({id(cls) for cls in (backend, *others)})
    made = [type(make_builder(found).build(0, batch)) for found in (backend, again)]
    assert made[0] is made[1]
    derived = twin.create_fast_prefill_custom_backend("Fast", type("Derived", (underlying,), {}))
    assert backend.get_builder_cls() is derived.get_builder_cls()


def test_classes_are_garbage_collected(twin: Any, batch: Any) -> None:
    def use() -> list[weakref.ref[Any]]:
        underlying = make_backend(twin, lambda _: type("Once", (), {})())
        backend = twin.create_fast_prefill_custom_backend("Fast", underlying)
        metadata = make_builder(backend).build(0, batch)
        return [weakref.ref(cls) for cls in (underlying, backend, type(metadata))]

    references = use()
    gc.collect()
    assert [None] * 3 == [reference() for reference in references]


def test_a_builder_that_changes_the_batch(twin: Any, make_batch: Any) -> None:
    def disarm(batch: Any) -> Frozen:
        batch.logits_indices_padded = batch.num_logits_indices = None
        return Frozen(1, 5)

    batch = make_batch([1, 1], [0, 1], logits_indices_padded=INDICES, num_logits_indices=2)
    indices = batch.logits_indices_padded
    built = extend(twin, disarm).build(0, batch)
    assert built.logits_indices_padded is indices
    assert 2 == built.num_logits_indices


def test_a_builder_among_others(twin: Any, batch: Any) -> None:
    underlying = make_backend(twin, lambda _: Frozen(1, 5))

    class Between(underlying.get_builder_cls()):  # type: ignore[misc]  # a class that is made
        def build(self, *args: Any, **kwargs: Any) -> Any:
            """Return the underlying builder's result, inside another metadata."""
            return SimpleNamespace(between=super().build(*args, **kwargs))

    made = twin.create_fast_prefill_custom_backend("Fast", underlying).get_builder_cls()
    mine = type("Mine", (made, Between), {})
    built = mine(None, ["layers.0"], None, None).build(0, batch)
    assert (Frozen(1, 5), 3) == (built.between, built.num_logits_indices)


class AllEqual(type):
    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type)

    def __hash__(cls) -> int:
        return 1


def test_equal_classes_are_distinguished(twin: Any, batch: Any) -> None:
    built = [AllEqual(name, (), {})() for name in ("First", "Second")]
    builder = extend(twin, lambda _: built.pop(0))
    names = [type(builder.build(0, batch)).__name__ for _ in range(2)]
    assert ["FastFirst", "FastSecond"] == names
