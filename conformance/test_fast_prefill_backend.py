"""Fast prefill backends: other backends, extended to compute only the tokens with logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from conformance.checks.contract_checks import along_axes
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal
from conformance.coverage.size_axes import Axis, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.fast_prefill_backend import CREATE_BACKEND_INVALID_INPUTS
from conformance.messages.mismatch import Mismatch
from conformance.strategies.fast_prefill import FIELD_NAMES
from conformance.strategies.fast_prefill_backend import (
    ADDED,
    ATTRIBUTES,
    METADATA,
    PREFIX,
    UNEXTENDABLE,
    build_calls,
    create_backend_calls,
    large_build_calls,
)
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict, raised


def _kind(call: Call) -> str:
    builder = call["underlying_attn_backend"].builder
    return str(builder.kind)


def _kinds(kinds: Iterable[str]) -> dict[str, Any]:
    """Return a coverage goal for each kind of metadata that builders build."""

    def is_built(kind: str) -> Any:
        return lambda call: _kind(call) == kind

    return {f"builders build {kind}": is_built(kind) for kind in kinds}


test_create_fast_prefill_custom_backend = Contract(
    "create_fast_prefill_custom_backend",
    create_backend_calls,
    {
        "no prefix": lambda call: call["prefix"] == "",
        "an engine's own backend": lambda call: call["underlying_attn_backend"].is_own,
        "a backend with a metaclass": lambda call: call["underlying_attn_backend"].is_alike,
        "an engine's own builders": lambda call: call["underlying_attn_backend"].builder.is_own,
    },
    invalid_inputs=CREATE_BACKEND_INVALID_INPUTS,
)


class _Built:
    """A backend's builder, its arguments and its result."""

    def __init__(self, invocation: Invocation) -> None:
        step = invocation.call.source
        self.invocation, self.step = invocation, step
        self.metadata = invocation.converter.convert(step.metadata, "common_attn_metadata")
        with invocation.target.running(checked=True):
            self.backend = invocation.run()
            self.builder = self.make_builder()
            self.given = self.build_with(self.builder)
        self.arguments, self.underlying = self.builder.builds[-1]

    def make_builder(self) -> Any:
        """Return a new builder of the backend."""
        return self.backend.get_builder_cls()(None, ["layers.0"], None, None)

    def build_with(self, builder: Any) -> Any:
        """Return the metadata that a builder builds for the step."""
        step = self.step
        extra = {} if step.fast_build is None else {"fast_build": step.fast_build}
        if step.is_positional:
            return builder.build(step.common_prefix_len, self.metadata, *extra.values())
        return builder.build(
            common_attn_metadata=self.metadata, common_prefix_len=step.common_prefix_len, **extra
        )

    def describe(self) -> dict[str, Any]:
        """Return the values that must be equal in both twins."""
        classes = self.backend, type(self.builder), type(self.given)
        attributes = {name: getattr(self.given, name, "absent") for name in ATTRIBUTES}
        logits = {name: getattr(self.given, name) for name in FIELD_NAMES}
        defaults = {f"{name}'s default": getattr(classes[-1], name, "none") for name in FIELD_NAMES}
        names = [cls.__name__ for cls in classes]
        return {"arguments": self.arguments, "names": names, **attributes, **logits, **defaults}


@property_check(
    "create_fast_prefill_custom_backend",
    build_calls,
    goals={
        **_kinds(METADATA),
        "fast prefill is not armed": lambda call: (
            call.source.metadata.logits_indices_padded is None
        ),
        "fast prefill is armed": lambda call: (
            call.source.metadata.logits_indices_padded is not None
            and call.source.metadata.max_query_len > 1
        ),
        "builders that cannot build fast": lambda call: (
            not call["underlying_attn_backend"].builder.knows_fast_build
        ),
        "to be built fast": lambda call: call.source.fast_build is True,
        "called by position": lambda call: call.source.is_positional,
    },
)
def test_its_builders_build_for_the_logits_tokens(target: Target, call: Call) -> None:
    """The result is what the underlying builder builds for the tokens with logits, plus fields."""
    both = [_Built(Invocation(twin, call)) for twin in (REFERENCE, target)]
    expected, got = (built.describe() for built in both)
    check_equal(target, call, expected, got, "built")
    for built in both:
        given, underlying, metadata = built.given, built.underlying, built.metadata
        protocol: Any = built.invocation.target.lookup("KVSharingFastPrefillMetadata")
        assert isinstance(given, type(underlying))
        assert isinstance(given, protocol)
        assert given is not underlying
        assert not (isinstance(given, tuple) and given != underlying)
        for name in ATTRIBUTES:
            is_there = hasattr(underlying, name)
            assert is_there == hasattr(given, name)
            assert (
                not is_there
                or name == "doubled"
                or (getattr(given, name) is getattr(underlying, name))
            )
        for name in FIELD_NAMES:
            assert getattr(given, name) is getattr(metadata, name)
        number = getattr(underlying, "num_logits_indices", None)
        assert (-5 if _kind(call) == "with the fields already" else None) == number
        assert _defaults(underlying).items() <= _defaults(given).items()
        is_dataclass = dataclasses.is_dataclass(underlying)
        assert is_dataclass == ("num_logits_indices" in _own_fields(given))
        built.invocation.check_unchanged(frozenset())


def _defaults(built: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields; nothing for other objects."""
    is_one = dataclasses.is_dataclass(built)
    return {field.name: field.default for field in dataclasses.fields(built)} if is_one else {}


def _own_fields(built: Any) -> list[str]:
    """Return the names of a dataclass's fields; none for other objects."""
    is_one = dataclasses.is_dataclass(built)
    return [field.name for field in dataclasses.fields(built)] if is_one else []


@property_check("create_fast_prefill_custom_backend", build_calls, goals=_kinds(METADATA))
def test_its_classes_are_made_once(target: Target, call: Call) -> None:
    """The same prefix and backend give the same classes of backend, builder and metadata."""
    built = _Built(Invocation(target, call))
    base = built.invocation.arguments["underlying_attn_backend"]
    create, prefix = target.lookup(call.function), call["prefix"]
    assert create(prefix, base) is built.backend
    assert create(f"Other{prefix}", base) is not built.backend
    cls = built.backend.get_builder_cls()
    assert built.backend().get_builder_cls() is cls
    assert issubclass(cls, base.get_builder_cls())
    assert issubclass(built.backend, base)
    assert base.get_builder_cls() not in {cls, built.backend}
    with target.running():
        others = [built.build_with(built.builder), built.build_with(built.make_builder())]
    assert all(type(other) is type(built.given) for other in others)
    assert all(other is not built.given for other in others)
    if _kind(call) not in {"a namespace", "a tuple"}:
        assert type(built.underlying) is METADATA[_kind(call)]


@property_check("create_fast_prefill_custom_backend", build_calls, goals=_kinds(METADATA))
def test_graphs_and_drafts_are_built_likewise(target: Target, call: Call) -> None:
    """`build_for_cudagraph_capture` and `build_for_drafting` go through `build`."""
    if call["underlying_attn_backend"].builder.is_own:
        return
    built = _Built(Invocation(target, call))
    is_fast = call["underlying_attn_backend"].builder.knows_fast_build
    with target.running():
        found = [built.builder.build_for_cudagraph_capture(built.metadata)]
        if is_fast:
            found.append(built.builder.build_for_drafting(built.metadata, draft_index=1))
    for given, (arguments, _), flag in zip(
        found, built.builder.builds[1:], (False, True), strict=False
    ):
        assert type(given) is type(built.given)
        assert given.logits_indices_padded is built.metadata.logits_indices_padded
        assert (0, flag) == (arguments[0], arguments[2])


@property_check(
    "create_fast_prefill_custom_backend",
    lambda preset: build_calls(preset, kinds=tuple(UNEXTENDABLE)),
    goals=_kinds(UNEXTENDABLE),
)
def test_what_cannot_be_extended_is_refused(target: Target, call: Call) -> None:
    """A builder whose result cannot be extended is refused by name, with a `TypeError`."""
    for twin in (REFERENCE, target):
        error: Any = None
        try:
            _Built(Invocation(twin, call))
        except TypeError as refusal:
            error = refusal
        if error is None or "Queries" not in str(error):
            got = "returned a result" if error is None else raised(error)
            expected = "raise TypeError naming Queries"
            difference = Difference(Verdict.OUTCOME, "build", None, got, expected)
            raise Mismatch(call, twin.name, difference)


@property_check("create_fast_prefill_custom_backend", large_build_calls)
def test_all_attributes_are_kept(target: Target, call: Call) -> None:
    """The result keeps all attributes of the built metadata; the backend's name has the prefix."""
    both = [_Built(Invocation(twin, call)) for twin in (REFERENCE, target)]
    expected, got = (built.backend.__name__ for built in both)
    check_equal(target, call, expected, got, "the name")
    for built in both:
        assert vars(built.underlying).items() <= vars(built.given).items()


test_all_attributes_are_kept_of_all_sizes = along_axes(
    test_all_attributes_are_kept,
    {
        PREFIX: Axis(lambda call: len(call["prefix"])),
        ADDED: of_objects(lambda call: call["underlying_attn_backend"].builder.num_added),
    },
    lambda call: call,
)
