import dataclasses
import inspect
from typing import Any

import pytest

import fast
from fast import backend as module
from fast.block_size import MultipleOf


class Builder(fast.AttentionMetadataBuilder[dict[str, Any]]):
    """A builder that builds what it was given."""

    def build(self, **given: Any) -> dict[str, Any]:  # type: ignore[override]  # noqa: ANN401  # records
        """Return the arguments."""
        return given


class Paged(fast.AttentionBackend):
    """A backend with the least that one must say."""

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


def test_every_name_of_the_module() -> None:
    """All that the module promises is importable from it and from the package."""
    for name in module.__all__:
        assert getattr(module, name) is getattr(fast, name)


def test_attention_types() -> None:
    """The types of attention are plain strings."""
    types = fast.AttentionType
    assert ("decoder", "encoder") == (types.DECODER, types.ENCODER)
    assert ("encoder_only", "encoder_decoder") == (types.ENCODER_ONLY, types.ENCODER_DECODER)


def test_what_a_backend_must_say() -> None:
    """Three methods are abstract; all are static, and the others have defaults."""
    abstract = {"get_name", "get_builder_cls", "get_kv_cache_shape"}
    assert abstract == fast.AttentionBackend.__abstractmethods__
    with pytest.raises(TypeError, match="abstract"):
        fast.AttentionBackend()  # type: ignore[abstract]  # that is the test
    for name in (*abstract, "get_supported_kernel_block_sizes", "get_kv_cache_stride_order"):
        assert isinstance(inspect.getattr_static(fast.AttentionBackend, name), staticmethod), name
    assert [MultipleOf(1)] == Paged.get_supported_kernel_block_sizes()
    with pytest.raises(NotImplementedError, match="as in the shape"):
        Paged.get_kv_cache_stride_order()


def test_subclass_attention_backend() -> None:
    """The subclass answers with the other builders, on the class and on an instance."""

    class Own(Builder):
        pass

    made = fast.subclass_attention_backend("ChunkedLocal", Paged, Own)
    assert "ChunkedLocalPaged" == made.__name__
    assert Paged.__module__ == made.__module__
    assert issubclass(made, Paged)
    assert Own is made.get_builder_cls()
    assert Own is made().get_builder_cls()
    assert Builder is Paged.get_builder_cls()
    assert "PAGED" == made.get_name()
    again = fast.subclass_attention_backend("Twice", made, Builder)
    assert ("TwiceChunkedLocalPaged", Builder) == (again.__name__, again.get_builder_cls())


def test_classes_are_made_once() -> None:
    """The same arguments give the same class, in a list or a tuple; equal ones do not suffice."""
    subclass = fast.subclass_attention_backend
    made = subclass("Own", Paged, Builder)
    assert made is subclass("Own", Paged, Builder)
    assert made is not subclass("Mine", Paged, Builder)
    assert made is not subclass("Own", made, Builder)
    assert made is not subclass("Own", Paged, dict)
    extend = fast.subclass_attention_metadata
    extended = extend("My", Lengths, [("n", int | None, 0)])
    assert extended is extend("My", Lengths, (["n", int | None, 0],))  # type: ignore[arg-type]  # lists will do
    for kind, default in ((int | None, False), (int | None, 0.0), (int, 0), ("int | None", 0)):
        assert extended is not extend("My", Lengths, [("n", kind, default)])
    for default in (dataclasses.field(default_factory=list), ([],)):
        assert hasattr(extend("My", Lengths, [("n", list, default)])(1), "n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, Paged, Builder), "name_prefix must be a str, got None"),
        (("Own", Paged(), Builder), "attention_backend_cls must be a class"),
        (("Own", Paged, Builder("spec", ["0"], None, "cpu")), "builder_cls must be a class"),
    ],
)
def test_subclass_attention_backend_refuses(arguments: tuple[Any, ...], message: str) -> None:
    """What is no class cannot be subclassed or returned as one."""
    with pytest.raises(TypeError, match=message):
        fast.subclass_attention_backend(*arguments)


@dataclasses.dataclass
class Lengths(fast.AttentionMetadata):
    """A backend's metadata."""

    longest: int
    total: int = 5


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("eq", [False, True])
def test_subclass_attention_metadata(*, frozen: bool, eq: bool) -> None:
    """The subclass has the fields behind the others, and is frozen and compared as its base."""

    @dataclasses.dataclass(frozen=frozen, eq=eq)
    class Base(fast.AttentionMetadata):
        longest: int

    made = fast.subclass_attention_metadata(
        "Padded", Base, [("padding", int, 0), ("rest", str, "")]
    )
    assert "PaddedBase" == made.__name__
    assert Base.__module__ == made.__module__
    assert issubclass(made, Base)
    assert ["longest", "padding", "rest"] == [field.name for field in dataclasses.fields(made)]
    one = made(8, rest="x")
    assert (8, 0, "x") == (one.longest, one.padding, one.rest)
    assert (one == made(8, rest="x")) is eq
    assert one != made(8, rest="y")
    assert ["longest"] == [field.name for field in dataclasses.fields(Base)]
    if frozen:
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.padding = 2
    else:
        one.padding = 2


def test_subclass_attention_metadata_of_other_classes() -> None:
    """The base may be no dataclass, or a plain subclass of one; a field may get another default."""
    plain = fast.subclass_attention_metadata("My", fast.AttentionMetadata, (("n", int, 3),))
    assert ("MyAttentionMetadata", 3) == (plain.__name__, plain().n)
    assert plain() == plain()

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        longest: int = 1

    class Plain(Frozen):
        pass

    made = fast.subclass_attention_metadata("My", Plain, [["longest", int, 2]])  # type: ignore[list-item]  # lists will do
    assert 2 == made().longest
    with pytest.raises(dataclasses.FrozenInstanceError):
        made().longest = 3
    batch = fast.subclass_attention_metadata("My", fast.CommonAttentionMetadata, [])
    assert issubclass(batch, fast.CommonAttentionMetadata)
    assert batch.__eq__ is object.__eq__


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, Lengths, []), TypeError, "name_prefix must be a str, got 1"),
        (("My", Lengths(1), []), TypeError, "metadata_cls must be a class"),
        (("My", Lengths, {"n": 3}), TypeError, "^fields must be a list or tuple, got dict"),
        (("My", Lengths, ["n:i"]), TypeError, r"fields\[0\] must be a tuple \(name, type, default"),
        (("My", Lengths, [("n", int)]), ValueError, r"fields\[0\] has 2 parts, expected 3"),
        (
            ("My", Lengths, [("n", int, 0), (2, int, 0)]),
            TypeError,
            r"^fields\[1\]\[0\] must be a str, got 2 of int",
        ),
        (("My", Lengths, [("n m", int, 0)]), ValueError, r"^fields\[0\]\[0\] is 'n m', expected "),
        (("My", Lengths, [("if", int, 0)]), ValueError, r"^fields\[0\]\[0\] is 'if', expected an"),
        (
            ("My", Lengths, [("n", int, 0), ("n", str, "")]),
            ValueError,
            r"^fields\[1\]\[0\] is 'n', the same as fields\[0\]\[0\]",
        ),
        (("My", Lengths, [("n", list, [])]), ValueError, "mutable default"),
    ],
)
def test_subclass_attention_metadata_refuses(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Fields that a dataclass cannot have are told apart from wrong types."""
    with pytest.raises(error, match=message):
        fast.subclass_attention_metadata(*arguments)
