"""Calls of `create_fast_prefill_custom_backend`: backends that build all kinds of metadata."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.fast_prefill import fast_prefill_calls
from conformance.strategies.stub_factories import BackendClass, BuilderClass
from conformance.targets.factories import FactoryContext
from conformance.values.call import Call

PREFIX = "letters of the prefix"
ADDED = "attributes of what is built"


class Pair(NamedTuple):
    """Metadata that is a tuple."""

    starts: Any
    longest: int


class Slotted:
    """Metadata with attributes in slots, one of which is empty."""

    __slots__ = ("empty", "longest", "starts")

    def __init__(self, starts: Any, longest: int) -> None:
        self.starts, self.longest = starts, longest


class More(Slotted):
    """Metadata with slots and a dict."""

    def __init__(self, starts: Any, longest: int) -> None:
        super().__init__(starts, longest)
        self.note = "kept"


class Closed:
    """Metadata with a property, and with attributes that cannot be set."""

    def __init__(self, starts: Any, longest: int) -> None:
        vars(self).update(starts=starts, longest=longest, note="kept")

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse."""
        raise AttributeError(f"{name} cannot be set to {value}")

    @property
    def doubled(self) -> int:
        """Twice the longest."""
        return 2 * int(vars(self)["longest"])


@dataclasses.dataclass
class Plain:
    """Metadata that is a dataclass, with one field that is not a parameter."""

    starts: Any
    longest: int
    note: str = dataclasses.field(init=False, default="made")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Metadata that is immutable and has no dict."""

    starts: Any
    longest: int


@dataclasses.dataclass(eq=False, kw_only=True)
class WithLogitsFields:
    """Metadata that already has the logits fields, with other values."""

    starts: Any
    longest: int
    logits_indices_padded: Any = None
    num_logits_indices: int = -5


METADATA: dict[str, Any] = {
    "a dataclass": Plain,
    "frozen, with slots": Frozen,
    "with the fields already": WithLogitsFields,
    "slots": Slotted,
    "slots and a dict": More,
    "closed": Closed,
    "a tuple": Pair,
    "a namespace": SimpleNamespace,
}
"""The classes of metadata that builders build, by description."""

METADATA_KINDS = tuple(METADATA)

ATTRIBUTES = ("starts", "longest", "note", "extra", "doubled", "empty")
"""The attributes that these classes may have."""

UNEXTENDABLE: dict[str, Any] = {
    "None": lambda **_: None,
    "a dict": dict,
    "a list": lambda **_: [],
    "an int": lambda **_: 3,
}
"""Results of builders to which attributes cannot be added, by description."""


@dataclasses.dataclass(frozen=True, eq=False)
class QueriesBuilder(BuilderClass):
    """A factory of a builder class whose `build` returns one kind of result.

    Attributes:
        kind: A key of `METADATA` or `UNEXTENDABLE`.
        knows_fast_build: Whether their `build` has the parameter `fast_build`.
        num_added: The number of further attributes of the result: `added_0`, `added_1`, ...
    """

    kind: str = "a dataclass"
    knows_fast_build: bool = True
    num_added: int = 0

    def make(self, converter: FactoryContext) -> type:
        """Return the class; its objects record their arguments and results."""
        cls = (METADATA | UNEXTENDABLE)[self.kind]

        def answer(builder: Any, *arguments: Any) -> Any:
            built = cls(starts=arguments[1].query_start_loc, longest=arguments[1].max_query_len)
            if self.kind == "a dataclass":
                built.extra = "no field"
            for number in range(self.num_added):
                setattr(built, f"added_{number}", [number])
            builder.builds.append((arguments, built))
            return built

        def build(
            self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            return answer(self, common_prefix_len, common_attn_metadata, fast_build)

        def build_slowly(self: Any, common_prefix_len: int, common_attn_metadata: Any) -> Any:
            return answer(self, common_prefix_len, common_attn_metadata, False)

        members = {"build": build if self.knows_fast_build else build_slowly}
        return type("Queries", (super().make(converter),), members)


@dataclasses.dataclass(frozen=True)
class Step:
    """The arguments of a `build` call on a builder of a fast-prefill backend.

    Attributes:
        metadata: The batch's metadata.
        common_prefix_len: The tokens of a prefix that all requests share.
        fast_build: The argument `fast_build`; None leaves it out.
        is_positional: Whether the arguments are positional.
    """

    metadata: reference.CommonAttentionMetadata
    common_prefix_len: int
    fast_build: bool | None
    is_positional: bool


@st.composite
def create_backend_calls(draw: st.DrawFn, _: Preset) -> Call:
    """Draw calls of `create_fast_prefill_custom_backend`."""
    return backend_call(np.random.default_rng(draw(st.integers(0, 2**20))), METADATA_KINDS)


def backend_call(rng: np.random.Generator, kinds: Sequence[str]) -> Call:
    """Return a call of `create_fast_prefill_custom_backend`, of any backend."""
    is_own, knows_fast_build, has_own_backend = (bool(n) for n in rng.integers(2, size=3))
    kind = kinds[int(rng.integers(len(kinds)))]
    builder = QueriesBuilder(is_own, kind=kind, knows_fast_build=knows_fast_build)
    backend = BackendClass("QUERIES", builder, has_own_backend, bool(rng.random() < 1 / 3))
    arguments = {
        "prefix": ("FastPrefill", "Custom_", "")[rng.integers(3)],
        "underlying_attn_backend": backend,
    }
    return Call("create_fast_prefill_custom_backend", arguments)


@st.composite
def build_calls(draw: st.DrawFn, preset: Preset, *, kinds: Sequence[str] = METADATA_KINDS) -> Call:
    """Draw calls of `create_fast_prefill_custom_backend` with a `Step` as their source.

    `kinds` are the kinds of metadata that the builders may build.
    """
    metadata_call = draw(fast_prefill_calls(preset))
    # The seed depends on everything that was drawn, so that all kinds are reached: Hypothesis
    # tends to repeat single draws.
    rng = np.random.default_rng(
        zlib.crc32(repr((metadata_call, draw(st.integers(0, 2**20)))).encode())
    )
    call = backend_call(rng, kinds)
    builder = call.arguments["underlying_attn_backend"].builder
    flags = (None, False, True) if builder.knows_fast_build else (None, False)
    step = Step(
        metadata_call.arguments["common_attn_metadata"],
        common_prefix_len=(0, 3)[rng.integers(2)],
        fast_build=flags[rng.integers(len(flags))],
        is_positional=bool(rng.integers(2)),
    )
    return dataclasses.replace(call, source=step)


@st.composite
def large_build_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw `build_calls` with a long prefix, or of builders whose results have many attributes."""
    call = draw(build_calls(preset, kinds=("a dataclass", "a namespace", "slots and a dict")))
    backend = call.arguments["underlying_attn_backend"]
    number = draw(preset.sizes(ADDED, st.just(2)))
    return call.replacing(
        prefix="P" * draw(preset.sizes(PREFIX, st.just(2))),
        underlying_attn_backend=dataclasses.replace(
            backend, builder=dataclasses.replace(backend.builder, num_added=number)
        ),
    )
