import dataclasses
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import fast

Make = Callable[..., fast.CommonAttentionMetadata]


class Builder(fast.AttentionMetadataBuilder[Any]):
    """A builder that keeps what it was given, and builds what it was told to."""

    result: Any = None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: fast.CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:  # noqa: ANN401  # whatever a test says
        """Return the result."""
        self.given = (common_prefix_len, common_attn_metadata, fast_build)
        return self.result


class Paged(fast.AttentionBackend):
    """A backend of that builder."""

    @staticmethod
    def get_name() -> str:
        """Return a name."""
        return "PAGED"

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """Return the class of its builders."""
        return Builder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return a shape."""
        del cache_dtype_str
        return (num_blocks, block_size, num_kv_heads, head_size)


def make_builder(result: object) -> Any:  # noqa: ANN401  # a class that is made
    """Make a builder of fast prefill whose underlying builder builds this."""
    made = fast.create_fast_prefill_custom_backend("Fast", Paged).get_builder_cls()
    builder = made("spec", ["0"], None, "cpu")
    builder.result = result
    return builder


@pytest.fixture
def batch(make_batch: Make) -> fast.CommonAttentionMetadata:
    """Return a batch of which two tokens are wanted."""
    indices = torch.tensor([2, 4])
    return make_batch([3, 2], [0, 1], logits_indices_padded=indices, num_logits_indices=2)


def test_made_once() -> None:
    """The same arguments give the same class, others another; it is named after both."""
    made = fast.create_fast_prefill_custom_backend("Fast", Paged)
    assert made is fast.create_fast_prefill_custom_backend("Fast", Paged)
    assert made is not fast.create_fast_prefill_custom_backend("Faster", Paged)
    assert ("FastPaged", "FastBuilder") == (made.__name__, made.get_builder_cls().__name__)
    assert issubclass(made, Paged)
    assert issubclass(made.get_builder_cls(), Builder)
    assert made.get_builder_cls() is made().get_builder_cls()
    assert Builder is Paged.get_builder_cls()
    twice = fast.create_fast_prefill_custom_backend("Fast", made)
    assert ("FastFastPaged", "FastFastBuilder") == (
        twice.__name__,
        twice.get_builder_cls().__name__,
    )


def test_classes_lie_where_the_others_do(batch: fast.CommonAttentionMetadata) -> None:
    """What is made says that it is of the module of what it extends."""
    backend = fast.create_fast_prefill_custom_backend("Fast", Paged)
    own = type("Own", (), {"__module__": "an.engine"})()
    made = [backend, backend.get_builder_cls()]
    made += [type(make_builder(result).build(0, batch)) for result in (Lengths(3), own)]
    assert [__name__, __name__, __name__, "an.engine"] == [cls.__module__ for cls in made]


def test_classes_are_let_go() -> None:
    """Nothing keeps the classes of a backend that nobody uses any more."""

    def make() -> Any:  # noqa: ANN401  # weak references
        class Gone(Paged):
            pass

        @dataclasses.dataclass
        class Lengths:
            longest: int

        fields = fast.KV_SHARING_FAST_PREFILL_METADATA_FIELDS
        made = [
            Gone,
            fast.create_fast_prefill_custom_backend("Fast", Gone),
            Lengths,
            fast.subclass_attention_metadata("Fast", Lengths, fields),
        ]
        assert made[3] is fast.subclass_attention_metadata("Fast", Lengths, fields)
        return [weakref.ref(cls) for cls in made]

    references = make()
    gc.collect()
    assert [None] * 4 == [reference() for reference in references]


@dataclasses.dataclass
class Lengths(fast.AttentionMetadata):
    """A metadata without defaults, with a field that no constructor sets."""

    longest: int
    total: int = dataclasses.field(init=False)

    @property
    def twice(self) -> int:
        """A property."""
        return 2 * self.longest


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """A frozen metadata in slots."""

    longest: int
    rest: tuple[int, ...] = ()


class Private:
    """A metadata that is no dataclass, with a private slot, an empty slot and a constructor."""

    __slots__ = ("__hidden", "__weakref__", "empty")

    def __init__(self, hidden: int, /) -> None:
        self.__hidden = hidden

    @property
    def longest(self) -> int:
        """What is hidden."""
        return self.__hidden


class Named(NamedTuple):
    """A metadata that is a tuple."""

    longest: int


@dataclasses.dataclass
class HasThem:
    """A metadata that has the fields already, the first without a default."""

    logits_indices_padded: torch.Tensor | None
    longest: int
    num_logits_indices: int = 8


def results() -> list[Any]:
    """Return a metadata of each kind, all with a `longest` of 5."""
    lengths = Lengths(5)
    lengths.total = 9
    lengths.extra = "x"  # type: ignore[attr-defined]  # an attribute that is no field
    return [
        lengths,
        Slotted(5, (1,)),
        Private(5),
        Named(5),
        SimpleNamespace(longest=5),
        HasThem(None, 5),
    ]


@pytest.mark.parametrize("result", results(), ids=lambda result: type(result).__name__)
def test_what_is_built(result: Any, batch: fast.CommonAttentionMetadata) -> None:  # noqa: ANN401  # any
    """What was built is extended, whatever its class is, and is not touched itself."""
    builder = make_builder(result)
    built = builder.build(3, batch)
    assert isinstance(built, type(result))
    assert isinstance(built, fast.KVSharingFastPrefillMetadata)
    assert "Fast" + type(result).__name__ == type(built).__name__
    assert built.logits_indices_padded is batch.logits_indices_padded
    assert (2, 5) == (built.num_logits_indices, built.longest)
    assert getattr(result, "num_logits_indices", None) in {None, 8}
    prefix, wanted, fast_build = builder.given
    assert (3, False) == (prefix, fast_build)
    assert [0, 1, 2] == wanted.query_start_loc.tolist()
    again = builder.build(common_prefix_len=0, common_attn_metadata=batch)
    assert type(built) is type(again)
    assert built is not again


def test_everything_is_there(batch: fast.CommonAttentionMetadata) -> None:
    """Fields, even without a constructor, other attributes, properties, slots, items."""
    lengths, slotted, private, named, _, _ = (
        make_builder(result).build(0, batch) for result in results()
    )
    assert (9, "x", 10) == (lengths.total, lengths.extra, lengths.twice)
    names = [field.name for field in dataclasses.fields(lengths)]
    assert ["longest", "total", "logits_indices_padded", "num_logits_indices"] == names
    assert (1,) == slotted.rest
    with pytest.raises(dataclasses.FrozenInstanceError):
        slotted.longest = 3
    assert not hasattr(private, "empty")
    assert (5,) == named
    changed = dataclasses.replace(slotted, longest=6)
    assert (6, 2) == (changed.longest, changed.num_logits_indices)


def test_the_whole_batchs_fields(make_batch: Make) -> None:
    """Where the batch itself is built from, its fields are handed on as they are."""
    batch = make_batch([3, 2], [0, 1])
    builder = make_builder(Lengths(5))
    built = builder.build(0, batch)
    assert builder.given[1] is batch
    assert (None, None) == (built.logits_indices_padded, built.num_logits_indices)


def test_other_ways_to_build(batch: fast.CommonAttentionMetadata) -> None:
    """Capturing and drafting build from the wanted tokens too."""
    builder = make_builder(Lengths(5))
    assert 2 == builder.build_for_cudagraph_capture(batch).num_logits_indices
    assert builder.given[1].num_actual_tokens == 2
    assert 2 == builder.build_for_drafting(batch, 1).num_logits_indices
    assert builder.given[2] is True


def test_a_builder_that_changes_the_batch(make_batch: Make) -> None:
    """Where the batch itself is built from, its fields are those from before."""

    class Disarming(Builder):
        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: fast.CommonAttentionMetadata,
            fast_build: bool = False,
        ) -> Any:  # noqa: ANN401  # any
            del common_prefix_len, fast_build
            common_attn_metadata.logits_indices_padded = None
            common_attn_metadata.num_logits_indices = None
            return Lengths(5)

    class Backend(Paged):
        get_builder_cls = staticmethod(lambda: Disarming)

    indices = torch.tensor([0, 1])
    batch = make_batch([1, 1], [0, 1], logits_indices_padded=indices, num_logits_indices=2)
    made = fast.create_fast_prefill_custom_backend("Fast", Backend).get_builder_cls()
    built = made("spec", ["0"], None, "cpu").build(0, batch)
    assert built.logits_indices_padded is indices
    assert 2 == built.num_logits_indices


def test_a_builder_among_others(batch: fast.CommonAttentionMetadata) -> None:
    """What an engine puts between the made builder and the underlying one is called."""

    class Between(Builder):
        def build(self, **arguments: Any) -> Any:  # noqa: ANN401  # any
            return SimpleNamespace(between=super().build(**arguments))

    made: Any = fast.create_fast_prefill_custom_backend("Fast", Paged).get_builder_cls()
    mine: Any = type("Mine", (made, Between), {})
    built = mine("spec", ["0"], None, "cpu").build(0, batch)
    assert (None, 2) == (built.between, built.num_logits_indices)


class AllEqual(type):
    """A metaclass whose classes say that they equal all others."""

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type)

    def __hash__(cls) -> int:
        return 1


def test_equal_classes_are_kept_apart(batch: fast.CommonAttentionMetadata) -> None:
    """What is built is of the class of what was built, not of one that says it equals that."""
    builder = make_builder(None)
    for name in ("First", "Second"):
        cls: type[Any] = AllEqual(name, (), {})
        builder.result = cls()
        assert "Fast" + name == type(builder.build(0, batch)).__name__


def test_refused(batch: fast.CommonAttentionMetadata) -> None:
    """What is no class cannot be extended, nor what holds more than attributes."""
    create = fast.create_fast_prefill_custom_backend
    with pytest.raises(TypeError, match="prefix must be a str, got 1"):
        create(1, Paged)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="underlying_attn_backend must be a class"):
        create("Fast", Paged())  # type: ignore[arg-type]  # that is the test

    class Odd(Paged):
        get_builder_cls = staticmethod(lambda: "no class")

    with pytest.raises(TypeError, match="the builder of underlying_attn_backend must be a class"):
        create("Fast", Odd)
    for result in (None, {"longest": 5}):
        with pytest.raises(TypeError, match=r"Builder built a .*, which cannot be extended"):
            make_builder(result).build(0, batch)
