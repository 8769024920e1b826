"""KV-sharing fast prefill: a backend that builds its metadata of the wanted tokens."""

from __future__ import annotations

import abc
import dataclasses
import enum
import gc
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from reference import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    KVSharingFastPrefillMetadata,
    create_fast_prefill_custom_backend,
    subclass_attention_backend,
)

BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]

INDICES = np.array([2, 3, 4, 0], np.int32)


def make_backend(make_metadata: Callable[[CommonAttentionMetadata], object]) -> type[Any]:
    """Make a backend whose builder makes such metadata, and keeps what it was called with."""

    class Builder(AttentionMetadataBuilder[Any]):
        """Builds, and remembers it."""

        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: CommonAttentionMetadata,
            fast_build: bool = False,
        ) -> object:
            """Return a metadata."""
            self.arguments = common_prefix_len, common_attn_metadata, fast_build
            self.built = make_metadata(common_attn_metadata)
            return self.built

    class Backend(AttentionBackend):
        """Says the least that a backend must."""

        get_name = staticmethod(lambda: "LEAST")
        get_builder_cls = staticmethod(lambda: Builder)
        get_kv_cache_shape = staticmethod(lambda *sizes: sizes)

    return Backend


def make_builder(backend: Any) -> Any:  # noqa: ANN401  # a class or an instance
    """Make a builder of a backend."""
    return backend.get_builder_cls()(None, ["layers.0"], None, None)


@pytest.fixture
def batch(make_batch: BatchMaker) -> CommonAttentionMetadata:
    """Return a batch of two requests, of which three tokens are wanted."""
    return make_batch([3, 2], [0, 4], logits_indices_padded=INDICES, num_logits_indices=3)


def test_the_classes(batch: CommonAttentionMetadata) -> None:
    """Backend, builder and metadata extend the other's, and are named with the prefix."""
    underlying = make_backend(lambda _: AttentionMetadata())
    backend = create_fast_prefill_custom_backend("Fast", underlying)
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


def check_extended(backend: type[Any], batch: CommonAttentionMetadata) -> Any:  # noqa: ANN401  # a metadata
    """Check what a backend's builder built against what the other's did, and return it."""
    builder = make_builder(create_fast_prefill_custom_backend("Fast", backend))
    metadata = builder.build(0, batch)
    assert isinstance(metadata, type(builder.built))
    assert isinstance(metadata, KVSharingFastPrefillMetadata)
    assert metadata is not builder.built
    assert batch.logits_indices_padded is metadata.logits_indices_padded
    assert batch.num_logits_indices is metadata.num_logits_indices
    assert type(metadata) is type(builder.build(0, batch))
    return metadata


def test_what_the_other_builder_is_given(batch: CommonAttentionMetadata) -> None:
    """It builds of the wanted tokens, with the same prefix, in whichever way it is asked."""
    builder = make_builder(
        create_fast_prefill_custom_backend("Fast", make_backend(lambda _: AttentionMetadata()))
    )
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
        assert INDICES is metadata.logits_indices_padded


@pytest.mark.parametrize(
    "changes",
    [
        {"max_query_len": 1, "logits_indices_padded": INDICES, "num_logits_indices": 3},
        {},
    ],
)
def test_where_fast_prefill_is_not_armed(make_batch: BatchMaker, changes: dict[str, Any]) -> None:
    """The other builds of the batch itself; the fields are the batch's, None too."""
    batch = make_batch([3, 2], [0, 4], **changes)
    backend = make_backend(lambda given: SimpleNamespace(given=given))
    assert batch is check_extended(backend, batch).given


def test_a_builder_of_the_batch_itself(batch: CommonAttentionMetadata) -> None:
    """A metadata that has the fields gets the batch's; the batch is not changed, nor handed out."""
    metadata = check_extended(make_backend(lambda given: given), batch)
    assert isinstance(metadata, CommonAttentionMetadata)
    assert [0, 1, 3] == metadata.query_start_loc.tolist()
    batch.max_query_len = 1
    made = check_extended(make_backend(lambda given: given), batch)
    assert batch.seq_lens is made.seq_lens
    assert CommonAttentionMetadata is type(batch)


@dataclasses.dataclass
class Plain:
    """A metadata that asks for all it has, and computes some of it."""

    num_tokens: int
    half: float = dataclasses.field(init=False)
    seed: dataclasses.InitVar[int]

    def __post_init__(self, seed: int) -> None:
        self.half = self.num_tokens / 2
        self.extra = [seed]

    @property
    def twice(self) -> int:
        """Twice the tokens."""
        return 2 * self.num_tokens


def test_a_dataclass(batch: CommonAttentionMetadata) -> None:
    """It has the fields, those not of `__init__` too, the properties, and what is no field."""
    built = Plain(5, seed=7)
    metadata = check_extended(make_backend(lambda _: built), batch)
    assert (5, 2.5, 10) == (metadata.num_tokens, metadata.half, metadata.twice)
    assert built.extra is metadata.extra
    assert ["num_tokens", "half", "logits_indices_padded", "num_logits_indices"] == [
        field.name for field in dataclasses.fields(metadata)
    ]
    assert {"num_tokens": 5, "half": 2.5, "extra": [7]} == vars(built)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A metadata that cannot be changed."""

    num_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    """One that has no `__dict__` either."""

    num_tokens: int


@pytest.mark.parametrize("cls", [Frozen, FrozenSlots])
def test_frozen(cls: type[Any], batch: CommonAttentionMetadata) -> None:
    """It stays frozen."""
    metadata = check_extended(make_backend(lambda _: cls(5)), batch)
    assert 5 == metadata.num_tokens
    for name in ("num_tokens", "num_logits_indices"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(metadata, name, 1)


class Slots:
    """A metadata of slots, private and empty ones, and of a class that asks for arguments."""

    __slots__ = ("__hidden", "empty", "shown")

    def __init__(self, hidden: int, shown: int) -> None:
        self.__hidden = hidden
        self.shown = shown

    @property
    def hidden(self) -> int:
        """What is in the private slot."""
        return self.__hidden


class SlotsAndMore(Slots):
    """One whose own slot is called as its base's, and which has a `__dict__` besides."""

    __slots__ = ("__dict__", "__weakref__", "shown")


def test_slots(batch: CommonAttentionMetadata) -> None:
    """Slots are copied, private ones too; an empty one stays empty."""
    for cls in (Slots, SlotsAndMore):
        built = cls(3, 4)
        if cls is SlotsAndMore:
            Slots.shown.__set__(built, 40)
            built.more = 5
        metadata = check_extended(make_backend(lambda _, built=built: built), batch)
        assert (3, 4) == (metadata.hidden, metadata.shown)
        assert not hasattr(metadata, "empty")
        if cls is SlotsAndMore:
            assert (40, 5) == (Slots.shown.__get__(metadata), metadata.more)


class ReadOnly:
    """A metadata that says itself what is wanted, and compares by identity."""

    @property
    def logits_indices_padded(self) -> str:
        """Something else."""
        return "its own"

    num_logits_indices = "its own"


@dataclasses.dataclass
class HasFields:
    """A metadata that has the fields already, without defaults."""

    logits_indices_padded: Any
    num_logits_indices: Any
    last: int


@dataclasses.dataclass(slots=True)
class HasFieldsInSlots:
    """Likewise, in slots."""

    num_logits_indices: Any
    last: int


@pytest.mark.parametrize(
    "built", [ReadOnly(), HasFields("its own", "its own", 3), HasFieldsInSlots("its own", 3)]
)
def test_fields_that_are_there(built: Any, batch: CommonAttentionMetadata) -> None:  # noqa: ANN401  # of any class
    """What the metadata has of these names gives way, and stays in the metadata itself."""
    metadata = check_extended(make_backend(lambda _: built), batch)
    assert "its own" == built.num_logits_indices
    assert getattr(built, "last", None) == getattr(metadata, "last", None)


def test_what_is_no_dataclass_compares_as_before(batch: CommonAttentionMetadata) -> None:
    """A plain class's metadata still has a hash, and equals itself alone."""
    backend = make_backend(lambda _: ReadOnly())
    made = [check_extended(backend, batch) for _ in range(2)]
    assert 2 == len(set(made))
    assert not dataclasses.is_dataclass(made[0])


class Abstract(abc.ABC):  # noqa: B024  # for its metaclass
    """A metadata with a metaclass, which makes instances in a way of its own."""

    def __new__(cls, wanted: str) -> Any:  # noqa: ANN401  # an instance
        """Ask for an argument."""
        made = super().__new__(cls)
        made.wanted = wanted
        return made


def test_other_classes(batch: CommonAttentionMetadata) -> None:
    """A namespace, a class with a metaclass and a `__new__`: all are extended."""
    assert 3 == check_extended(make_backend(lambda _: SimpleNamespace(n=3)), batch).n
    metadata = check_extended(make_backend(lambda _: Abstract("yes")), batch)
    assert ("yes", abc.ABCMeta) == (metadata.wanted, type(type(metadata)))


class Row(NamedTuple):
    """A metadata that is a tuple."""

    n: int
    m: int = 4


@pytest.mark.parametrize("built", [Row(3), (3, 4), ()])
def test_tuples(built: Any, batch: CommonAttentionMetadata) -> None:  # noqa: ANN401  # of several classes
    """A metadata that is a tuple holds the same, by name too."""
    metadata = check_extended(make_backend(lambda _: built), batch)
    assert built == metadata
    assert getattr(built, "n", None) == getattr(metadata, "n", None)


class Kind(enum.Enum):
    """A metadata that is one of a few."""

    ONLY = 1


@pytest.mark.parametrize(
    "built",
    [
        *(None, True, 3, "text", Kind.ONLY),
        *({3}, {"n": 3}, OrderedDict(n=3), [3], deque([3]), np.zeros(3)),
    ],
)
def test_metadata_that_cannot_be_extended(
    built: Any,  # noqa: ANN401  # of any class
    batch: CommonAttentionMetadata,
) -> None:
    """What is made in a way of its own, or of a final class, is refused by name."""
    builder = make_builder(
        create_fast_prefill_custom_backend("Fast", make_backend(lambda _: built))
    )
    name = type(built).__name__
    with pytest.raises(TypeError, match=rf"^Builder built a {name}, which cannot be extended by "):
        builder.build(0, batch)


def test_errors_of_the_other_builder_are_its_own(batch: CommonAttentionMetadata) -> None:
    """An exception from its `build` comes through as it is; a bad batch never gets there."""

    def fail(_: object) -> object:
        raise TypeError("mine")

    builder = make_builder(create_fast_prefill_custom_backend("Fast", make_backend(fail)))
    with pytest.raises(TypeError, match=r"^mine$"):
        builder.build(0, batch)
    batch.num_logits_indices = None
    with pytest.raises(ValueError, match=r"^num_logits_indices is None"):
        builder.build(0, batch)


def test_an_engines_own_builder(batch: CommonAttentionMetadata) -> None:
    """Classes that extend nothing of ours serve, and a build that knows no `fast_build`."""

    class Builder:
        """Builds a namespace."""

        def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:  # noqa: ANN401  # likewise
            """Return what was given."""
            return SimpleNamespace(prefix=common_prefix_len, given=common_attn_metadata)

    own = type("Own", (), {"get_builder_cls": classmethod(lambda _: Builder)})
    builder = create_fast_prefill_custom_backend("", own)().get_builder_cls()()
    metadata = builder.build(5, batch)
    assert (5, 3) == (metadata.prefix, metadata.given.num_actual_tokens)
    assert "Builder" == type(builder).__name__


def test_a_prefix_on_a_prefix(batch: CommonAttentionMetadata) -> None:
    """Such a backend of such a backend works too: the outer has the last word."""
    inner = create_fast_prefill_custom_backend(
        "In", make_backend(lambda given: Frozen(given.num_actual_tokens))
    )
    metadata = check_extended(inner, batch)
    assert ("FastInFrozen", 3) == (type(metadata).__name__, metadata.num_tokens)


def test_classes_are_made_once(batch: CommonAttentionMetadata) -> None:
    """The same prefix and backend give the same classes; another of either gives others."""
    underlying = make_backend(lambda _: Frozen(3))
    backend = create_fast_prefill_custom_backend("Fast", underlying)
    again = create_fast_prefill_custom_backend("Fast", underlying)
    assert backend is again
    others = [
        create_fast_prefill_custom_backend("Slow", underlying),
        create_fast_prefill_custom_backend("Fast", make_backend(lambda _: Frozen(3))),
        subclass_attention_backend("Fast", underlying, underlying.get_builder_cls()),
    ]
    assert 4 == len({id(cls) for cls in (backend, *others)})
    made = [type(make_builder(found).build(0, batch)) for found in (backend, again)]
    assert made[0] is made[1]
    derived = create_fast_prefill_custom_backend("Fast", type("Derived", (underlying,), {}))
    assert backend.get_builder_cls() is derived.get_builder_cls()


def test_classes_of_metadata_are_kept_apart(batch: CommonAttentionMetadata) -> None:
    """A builder of several classes of metadata has a class for each, made once."""
    built = [Frozen(1), FrozenSlots(2), Frozen(3)]
    builder = make_builder(
        create_fast_prefill_custom_backend("Fast", make_backend(lambda _: built[0]))
    )
    classes = []
    while built:
        classes.append(type(builder.build(0, batch)))
        built.pop(0)
        gc.collect()
    assert classes[0] is classes[2]
    assert classes[0] is not classes[1]
    assert (Frozen, FrozenSlots) == (classes[0].__bases__[0], classes[1].__bases__[0])


def test_classes_are_not_kept_alive(batch: CommonAttentionMetadata) -> None:
    """When nobody uses the backend any more, nothing of it remains."""

    def use() -> list[weakref.ref[Any]]:
        underlying = make_backend(lambda _: type("Once", (), {})())
        backend = create_fast_prefill_custom_backend("Fast", underlying)
        metadata = make_builder(backend).build(0, batch)
        return [weakref.ref(cls) for cls in (underlying, backend, type(metadata))]

    references = use()
    gc.collect()
    assert [None] * 3 == [reference() for reference in references]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, AttentionBackend), "prefix must be a str, got 7 of int"),
        (("Fast", "B"), "underlying_attn_backend must be a class, got 'B' of str"),
        (
            ("Fast", type("Own", (), {"get_builder_cls": staticmethod(lambda: None)})),
            "the builder of underlying_attn_backend must be a class, got None of NoneType",
        ),
    ],
)
def test_refusals(arguments: tuple[Any, ...], message: str) -> None:
    """A prefix that is no str and classes that are none are refused, in these words."""
    with pytest.raises(TypeError) as caught:
        create_fast_prefill_custom_backend(*arguments)
    assert message == str(caught.value)


def test_a_backend_without_builders() -> None:
    """What does not say its builders is refused; a backend's instance is no backend."""
    with pytest.raises(AttributeError, match="get_builder_cls"):
        create_fast_prefill_custom_backend("Fast", int)
    instance: Any = make_backend(lambda _: None)()
    with pytest.raises(TypeError, match=r"^underlying_attn_backend must be a class, got object"):
        create_fast_prefill_custom_backend("Fast", instance)
