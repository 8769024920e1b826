"""Fast prefill backends: other backends, which build from the tokens that have logits alone."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from conformance.functions import fast_prefill
from conformance.functions.backend import backends, prefixes
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Twin
from conformance.harness.sizes import sizes
from conformance.laws.batches import choices, deferred
from conformance.laws.builders import BuilderClass, builder_classes

CREATE: Final = "create_fast_prefill_custom_backend"


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
        raise AttributeError(f"{name} cannot be set to {value}")

    @property
    def doubled(self) -> int:
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


KINDS: Final[dict[str, Any]] = {
    cls.__name__: cls
    for cls in (Plain, Frozen, WithLogitsFields, Slotted, More, Closed, Pair, SimpleNamespace)
}
"""The classes of metadata that builders build."""

UNEXTENDABLE: Final[dict[str, Any]] = {
    "None": lambda **_: None,
    "dict": dict,
    "list": lambda **_: [],
    "int": lambda **_: 3,
}
"""What builders may return, but cannot have attributes added."""

ATTRIBUTES: Final = ("starts", "longest", "note", "extra", "doubled", "empty")


@dataclasses.dataclass
class QueriesClass(Factory):
    """A builder class, whose objects record their arguments and results."""

    cls: BuilderClass  # the class that it extends
    kind: str  # a key of `KINDS` or `UNEXTENDABLE`
    knows_fast_build: bool  # whether `build` has the parameter `fast_build`
    num_added: int  # the number of further attributes of the result

    def make(self, _: Twin) -> type:
        def record(builder: Any, *arguments: Any) -> Any:
            built = (KINDS | UNEXTENDABLE)[self.kind](
                starts=arguments[1].query_start_loc, longest=arguments[1].max_query_len
            )
            if self.kind == "Plain":
                built.extra = "no field"
                vars(built).update({f"added_{i}": [i] for i in range(self.num_added)})
            vars(builder).setdefault("recorded", []).append((arguments, built))
            return built

        def build(
            self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            return record(self, common_prefix_len, common_attn_metadata, fast_build)

        def build_slowly(self: Any, common_prefix_len: int, common_attn_metadata: Any) -> Any:
            return record(self, common_prefix_len, common_attn_metadata, False)

        base: Any = self.cls
        methods = {"build": build if self.knows_fast_build else build_slowly}
        return type("Queries", (base,), methods)


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw backends whose builders build any kind of metadata, and the arguments of a build."""
    metadata_of_sizes, prefix, backend = (
        draw(fast_prefill.calls()),
        draw(prefixes()),
        draw(backends()),
    )
    kind, knows_fast_build, fast_build, is_positional, prefix_len, number = choices(
        *(draw, tuple(KINDS), (True, False), (None, False, True), (False, True), (0, 3)),
        (0, 0, 1, None),
    )
    number = draw(sizes()) if number is None else number
    builder = QueriesClass(draw(builder_classes()), kind, knows_fast_build, number)
    build: Arguments = {"common_prefix_len": prefix_len}
    if fast_build is not None:
        build["fast_build"] = fast_build and knows_fast_build
    made = {
        "prefix": prefix,
        "underlying_attn_backend": dataclasses.replace(backend, builder=builder),
        "is_positional": is_positional,
    }

    def contents(draw: st.DrawFn) -> Arguments:
        metadata = draw(metadata_of_sizes)["common_attn_metadata"]
        return {**made, "common_attn_metadata": metadata, **build}

    return deferred(contents)


def create_and_build(
    twin: Twin, prefix: str, underlying_attn_backend: Any, is_positional: bool, **step: Any
) -> dict[str, Any]:
    """Return what a builder of the backend builds, what the underlying one got, and the classes."""
    create, base = twin.function(CREATE), underlying_attn_backend
    backend: Any = create(prefix, base)
    cls = backend.get_builder_cls()
    metadata = step["common_attn_metadata"]

    def built(builder: Any) -> Any:
        if not is_positional:
            return builder.build(**step)
        more = [step["fast_build"]] if "fast_build" in step else []
        return builder.build(step["common_prefix_len"], metadata, *more)

    builder, other = (cls(None, ["layers.0"], None, None) for _ in range(2))
    given = built(builder)
    (_, got, _), underlying = builder.recorded[0]
    again = [built(builder), built(other)]
    if hasattr(builder, "build_for_cudagraph_capture"):
        again.append(builder.build_for_cudagraph_capture(metadata))
        if step.get("fast_build"):
            again.append(builder.build_for_drafting(metadata, draft_index=1))
    kept = [n for n in ATTRIBUTES if getattr(given, n, 0) is getattr(underlying, n, 0)]
    logits = ("logits_indices_padded", "num_logits_indices")
    return {
        "got": got,
        "given": [(prefix_len, bool(is_fast)) for (prefix_len, _, is_fast), _ in builder.recorded],
        "names": [one.__name__ for one in (backend, cls, type(given))],
        "attributes": {n: getattr(given, n) for n in ATTRIBUTES[1:] if hasattr(given, n)},
        "kept": kept,
        "dict": {*getattr(underlying, "__dict__", {})} <= {*getattr(given, "__dict__", {})},
        "logits": [getattr(given, n) is getattr(metadata, n) for n in logits],
        "defaults": [(getattr(type(given), n, "none")) for n in logits],
        "fields": [field.name for field in _fields(given)],
        "of fields": [f.default for f in _fields(given) if f.default is not dataclasses.MISSING],
        "the other's": getattr(underlying, "num_logits_indices", None),
        "is": [
            given is not underlying,
            isinstance(given, type(underlying)),
            isinstance(given, twin.find("KVSharingFastPrefillMetadata")),
            isinstance(given, tuple) and given == underlying,
        ],
        "once": [type(one) is type(given) for one in again],
        "again": [create(prefix, base) is backend, create(f"Other{prefix}", base) is backend],
        "on an object": backend().get_builder_cls() is cls,
        "extends": [issubclass(backend, base), issubclass(cls, base.get_builder_cls())],
        "unchanged": base.get_builder_cls().__name__,
    }


def _fields(made: Any) -> tuple[Any, ...]:
    return dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()


def not_extendable(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let builders build what attributes cannot be added to."""
    backend = arguments["underlying_attn_backend"]
    builder = dataclasses.replace(backend.builder, kind=rng.choice(tuple(UNEXTENDABLE)))
    changed = dataclasses.replace(backend, builder=builder)
    return {**arguments, "underlying_attn_backend": changed}


CONTRACTS = [
    Contract(
        function=CREATE,
        calls=calls(),
        run=create_and_build,
        has_objects=True,
        specials=(not_extendable,),
        checked_only=fast_prefill.CONTRACTS[0].checked_only,
        unread=fast_prefill.CONTRACTS[0].unread,
        examples=0.3,
    )
]
