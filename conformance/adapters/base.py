"""The base class of adapters: one method for each kind of object, to and from an implementation."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any, ClassVar

import torch

import reference

KINDS = {
    "CommonAttentionMetadata": "metadata",
    "AttentionMetadata": "metadata",
    "KVCacheSpec": "spec",
    **dict.fromkeys(("KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig"), "cache_config"),
    "VllmConfig": "config",
    "ModelConfig": "config",
    "CacheConfig": "config",
    "ParallelConfig": "config",
    "SchedulerConfig": "config",
    "CompilationConfig": "config",
    "PassConfig": "config",
    "SpeculativeConfig": "config",
    "UBatchSlice": "ubatch_slice",
    "CpuGpuBuffer": "buffer",
    "BlockTables": "block_tables",
    "AttentionBackend": "backend",
    "AttentionMetadataBuilder": "builder",
    "AttentionGroup": "attention_group",
}
"""The kind of an object, by the name of its class or of a base class.

Two more kinds have no class name: an `input_batch` has `swap_states`, and a `layer` is any other
object with attributes. They occur in arguments only.
"""


OURS = frozenset(reference.__all__)


class Unsupported(BaseException):  # checks that catch Exception must not catch it
    """Raised for a call that the implementation does not support, as its adapter declares.

    The run counts the call as not made, with the message as the reason.
    """


def is_given(value: object) -> bool:
    """Return whether a parameter is given, for `Adapter.unsupported`."""
    return value is not None


def is_default(value: object, parameter: inspect.Parameter) -> bool:
    """Return whether a value is the default of a parameter."""
    default = parameter.default
    if default is parameter.empty:  # where memory lies is no matter of values
        return parameter.name in {"device", "pin_memory"}
    is_plain = default is None or isinstance(default, bool | int | float | str)
    return is_plain and type(value) is type(default) and value == default


_MARK = "kvtwin_is_supplied"


def supplied(tensor: torch.Tensor, *, is_known: bool = True) -> torch.Tensor:
    """Return a CPU copy of a tensor, as a placeholder for a field that an implementation lacks.

    Its values are compared, unless they are a guess. Its memory is not compared.

    Args:
        tensor: The values.
        is_known: Whether they are derived from fields of the implementation, and are no guess.
    """
    copied = tensor.detach().to("cpu", copy=True)
    setattr(copied, _MARK, is_known)
    return copied


def is_guessed(value: object) -> bool:
    """Return whether a value is a placeholder whose values are a guess.

    >>> is_guessed(supplied(torch.arange(3), is_known=False)), is_guessed(torch.arange(3))
    (True, False)
    """
    return isinstance(value, torch.Tensor) and not getattr(value, _MARK, True)


@functools.cache
def stub_class(cls: type) -> type:
    """Return a class of the same name and defaults as one of `reference`, with alike bases.

    >>> [base.__name__ for base in stub_class(reference.UBatchSlice).__mro__]
    ['UBatchSlice', 'object']
    """
    if cls is object:
        return object
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    missing = dataclasses.MISSING
    members: dict[str, Any] = {
        one.name: one.default for one in fields if one.default is not missing
    }
    members |= {"__eq__": _has_same_fields, "__hash__": None}
    members["compared"] = tuple(field.name for field in fields)  # by the harness
    return type(cls.__name__, tuple(map(stub_class, cls.__bases__)), members)


def _has_same_fields(self: object, other: object) -> bool:
    return type(self) is type(other) and vars(self) == vars(other)


@dataclasses.dataclass(frozen=True)
class Deviation:
    r"""An intended difference between an implementation and `reference`.

    Examples that fail as declared do not fail the run, and the search for other failures goes on.
    If the witness no longer fails as declared, the run fails until the declaration is removed.

    Attributes:
        function: The function that deviates.
        reason: Why it does, as the run prints it.
        witness: The arguments of a call that shows it, as `reference` takes them: NumPy arrays and
            its own objects. The call may be invalid.
        fails: A regular expression that is found in the line of each failure that this explains:
            `result.dtype = torch.int64`. The narrower it is, the less it hides.
        names: If the witness is invalid: its error message must contain one of these names.

    >>> wide = Deviation("f", "kernels want int64", {}, r"dtype = torch\.int64")
    >>> wide.explains("f on host: result.dtype = torch.int64, but should be torch.int32")
    True
    >>> wide.explains("f on host: result[0] = 1, but should be 0")
    False
    """

    function: str
    reason: str
    witness: Mapping[str, Any]
    fails: str
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.reason or not self.fails:
            raise ValueError(f"the deviation of {self.function} needs a `reason` and a `fails`")
        re.compile(self.fails)

    def explains(self, line: str) -> bool:
        """Return whether the line of a failure is about this deviation."""
        return re.search(self.fails, line) is not None


class Adapter:
    """Converts between our objects and an implementation's.

    Our objects have the class names and attributes of `reference`'s, with tensors in place of
    arrays. For each kind in `KINDS`, a subclass may define a method `KIND(ours)` that returns the
    implementation's object for one of ours, and `our_KIND(theirs)` that returns ours. The latter
    calls `made` to make the object, and `supplied` for tensors that the implementation does not
    have. Objects of other kinds are passed unchanged. Arguments are converted before a call, and
    the result after it. Tensors are never copied, so that checks can observe writes and aliasing.

    If a function differs in more than names, a method of the adapter with our name of it makes the
    call: it takes our parameters, with converted values, and its result is converted. A class that
    differs is a class within the adapter, with our name and our methods. What such a method or
    class lacks (a parameter, a method) the implementation lacks.

    If the module has a context manager `checks(enabled)`, it only has to reject bad tensor values
    inside `checks(True)`. A module without it must always reject them.

    Attributes:
        module: The implementation.
        names: Its names of functions, classes and methods, by ours, if they differ:
            `{"CommonAttentionMetadata": "StepMetadata"}`.
        parameters: Its names of parameters, by our names of the function and the parameter, if they
            differ. A function listed here is called with keyword arguments only, and gets our
            default for each parameter that has no default of its own.
        lacks: Fields of ours that its objects do not have, such as copies on the CPU. It need not
            reject calls in which only these are invalid; in results the adapter supplies them.
        deviations: Its intended differences from `reference`.
        validates: Whether it rejects invalid calls. If not, calls that must be rejected are not
            made, and the run reports that.
        exceptions: Its exception classes, each with the class that `reference` raises instead:
            `{AssertionError: ValueError}`.
        unsupported: Predicates for argument values that it does not support, by our names of the
            function and the parameter: `{"get_dcp_local_seq_lens": {"out": is_given}}`. Such calls
            are not made, and the run counts them. If more than one value decides, a method of the
            adapter raises `Unsupported`.
        preconditions: What the engine promises never to do, by our name of the function and in
            words, as predicates of the arguments, by name, of the calls that it may make:
            `{"split_attn_metadata": {"at least one request": has_requests}}`. Other calls are not
            made, and the run counts them.
        unsupported_modes: Modes of torch (`conformance.harness.pair.MODES`) in which the engine is
            never called.
        takes_numpy_scalars: Whether it accepts NumPy scalars in place of Python numbers.
        takes_own_objects: Whether it accepts objects of a caller's own classes that have the
            attributes of its classes.
        releases: The releases of the implementation for which the adapter was written, such as
            "0.33". The header of a run says if the one under test is another.

    Args:
        module: The implementation.
    """

    names: ClassVar[Mapping[str, str]] = {}
    parameters: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    lacks: ClassVar[frozenset[str]] = frozenset()
    deviations: ClassVar[Sequence[Deviation]] = ()
    validates: ClassVar[bool] = True
    exceptions: ClassVar[Mapping[type[Exception], type[Exception]]] = {}
    unsupported: ClassVar[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {}
    preconditions: ClassVar[Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], bool]]]] = {}
    unsupported_modes: ClassVar[frozenset[str]] = frozenset()
    takes_numpy_scalars: ClassVar[bool] = False
    takes_own_objects: ClassVar[bool] = False
    releases: ClassVar[Sequence[str]] = ()

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def find(self, name: str) -> Any:
        """Return the implementation's current object for our name, which may be `Class.method`.

        Raises:
            AttributeError: It has none.
        """
        first, _, rest = self.names.get(name, name).partition(".")
        if first in OURS and hasattr(self, first):
            found = getattr(self, first)  # a method or class of the subclass
        else:
            found = operator.attrgetter(self.names.get(first, first))(self.module)
        return operator.attrgetter(rest)(found) if rest else found

    def dtype(self, ours: torch.dtype) -> Any:
        """Return the implementation's dtype for one of ours."""
        return ours

    def tensor(self, ours: torch.Tensor) -> Any:
        """Return the implementation's tensor for one of ours, in the same memory."""
        return ours

    def result(self, function: str, theirs: Any, arguments: Mapping[str, Any]) -> Any:
        """Convert the result of a function to what `reference` would return, with tensors.

        Args:
            function: Our name of the function.
            theirs: The implementation's result.
            arguments: Our keyword arguments.
        """
        del function, arguments
        return self.ours(theirs)

    def refusal(self, function: str, error: Exception) -> Exception:
        """Return the exception of a rejected call with our class and our parameter names.

        Its class must be the one that `reference` raises, and its message must name our argument:
        the classes in `exceptions` and the names in `parameters` are replaced by ours here.
        """
        renamed = self.parameters.get(function, {})
        message = str(error)
        for ours, theirs in renamed.items():
            message = re.sub(rf"\b{re.escape(theirs)}\b", ours, message)
        cls = self.exceptions.get(type(error), type(error))
        return error if (message, cls) == (str(error), type(error)) else cls(message)

    def supported(
        self,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        lacking: AbstractSet[str] = frozenset(),
    ) -> dict[str, Any]:
        """Return a call's keyword arguments, except for `unsupported` ones that are the default.

        Args:
            function: Our name of the function.
            args: Our arguments by position.
            kwargs: Our arguments by name.
            lacking: Parameters of which only the default is supported.

        Raises:
            Unsupported: An argument has a value that is not supported.
        """
        parameters = inspect.signature(operator.attrgetter(function)(reference)).parameters
        given = {**_by_name(function, args), **kwargs}
        values = self.unsupported.get(function, {})
        for name, is_unsupported in values.items():
            if is_unsupported(given.get(name, parameters[name].default)):
                raise Unsupported(f"{name} of {function}")
        for name in lacking & given.keys():
            if not is_default(given[name], parameters[name]):
                raise Unsupported(f"{name} of {function}")
        return {
            name: value
            for name, value in kwargs.items()
            if name not in {*values, *lacking} or not is_default(value, parameters[name])
        }

    def new(self, class_name: str, **fields: Any) -> Any:
        """Return an object for an argument: ours if its class is converted, else the module's.

        Raises:
            AttributeError: The implementation has no such class.
        """
        found = self.find(class_name)
        return self.made(class_name, **fields) if self.is_data(class_name) else found(**fields)

    def made(self, class_name: str, **fields: Any) -> Any:
        """Return a stub of one of `reference`'s classes with these fields.

        The other fields have their default in `reference`.
        """
        given = inspect.signature(getattr(reference, class_name)).bind_partial(**fields)
        given.apply_defaults()
        return self.stub(class_name, given.arguments)

    def stub(self, class_name: str, fields: Mapping[str, Any]) -> Any:
        """Return a stub of one of `reference`'s classes with only these fields."""
        made: Any = object.__new__(stub_class(getattr(reference, class_name)))
        vars(made).update(fields)
        return made

    def theirs(self, ours: Any, done: dict[int, Any] | None = None) -> Any:
        """Convert a value of ours to the implementation's, including entries of lists and dicts.

        Args:
            ours: The value. A list or dict in which nothing is converted is returned itself.
            done: The converted values by the id of ours: each object is converted once.
        """
        done = {} if done is None else done
        if id(ours) not in done:
            done[id(ours)] = self._translated(ours, "", lambda value: self.theirs(value, done))
        return done[id(ours)]

    def ours(self, theirs: Any) -> Any:
        """Convert a value of the implementation's to ours, including entries of lists and dicts."""
        return self._translated(theirs, "our_", self.ours)

    def _translated(  # noqa: PLR0911  # one kind after the other
        self, value: Any, prefix: str, inner: Callable[[Any], Any]
    ) -> Any:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, torch.Tensor):
            return value if prefix else self.tensor(value)
        if isinstance(value, torch.dtype):
            return value if prefix else self.dtype(value)
        if isinstance(value, dict | list) or type(value) in {tuple, set}:
            entries = list(value.values() if isinstance(value, dict) else value)
            translated = [inner(entry) for entry in entries]
            if all(map(operator.is_, translated, entries)):
                return value
            if isinstance(value, dict):
                return dict(zip(value, translated, strict=True))
            return translated if isinstance(value, list) else type(value)(translated)
        kind = self.kind_of(value)
        convert = getattr(self, f"{prefix}{kind}", None)
        return value if convert is None else convert(value)

    def kind_of(self, value: Any) -> str | None:
        """Return the kind of an object of ours or of the implementation's, or None."""
        cls = value if isinstance(value, type) else type(value)
        own = {theirs: ours for ours, theirs in self.names.items()}
        for base in cls.__mro__:
            kind = KINDS.get(own.get(base.__name__, base.__name__))
            if kind is not None:
                return kind
        if isinstance(value, type):
            return None
        if hasattr(value, "swap_states"):
            return "input_batch"
        return "layer" if hasattr(value, "__dict__") else None

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function, method or class by our name, which takes and returns our objects.

        Raises:
            AttributeError: The implementation has none.
        """
        found = getter(self.find(name))
        if isinstance(found, type) and self.is_data(name):
            return lambda *args, **fields: self.ours(self.theirs(_bound(self, name, args, fields)))
        if not callable(found):
            constant: Any = found
            return constant  # type: ignore[no-any-return]

        renamed = self.parameters.get(name, {})
        defaults = _defaults(name, found, renamed) if renamed else {}

        def call(*args: Any, **kwargs: Any) -> Any:
            if renamed:
                args, kwargs = (), {**defaults, **_by_name(name, args), **kwargs}
            done: dict[int, Any] = {}
            given = [self.theirs(value, done) for value in args]
            named = {
                renamed.get(key, key): self.theirs(value, done) for key, value in kwargs.items()
            }
            try:
                returned = found(*given, **named)
            except Exception as error:
                refusal = self.refusal(name, error)
                if refusal is error:
                    raise
                raise refusal from error
            for ours in (*args, *kwargs.values()):
                self._write_back(ours, done)
            return self.result(name, returned, kwargs)

        call.__wrapped__ = found  # type: ignore[attr-defined]  # its signature is this one's
        return call

    def _write_back(self, ours: Any, done: Mapping[int, Any]) -> None:
        """Copy a function's changes to a converted list or dict back into ours."""
        theirs = done.get(id(ours), ours)  # an override of `theirs` may not record it
        if theirs is ours or not isinstance(ours, list | dict):
            return
        known = {id(theirs): ours for ours, theirs in _pairs(ours, done)}
        if isinstance(ours, list):
            ours[:] = [known.get(id(value), self.ours(value)) for value in theirs]
        else:
            for key in [key for key in ours if key not in theirs]:
                del ours[key]
            for key, value in theirs.items():
                ours[key] = known[id(value)] if id(value) in known else self.ours(value)

    def is_data(self, name: str) -> bool:
        """Return whether a name is that of a dataclass whose objects are converted."""
        return name in KINDS and dataclasses.is_dataclass(getattr(reference, name, None))


def _pairs(ours: Any, done: Mapping[int, Any]) -> list[tuple[Any, Any]]:
    """Return the converted entries of a list or dict of ours, as pairs (ours, theirs)."""
    entries = ours.values() if isinstance(ours, dict) else ours
    return [(entry, done[id(entry)]) for entry in entries if id(entry) in done]


def _bound(adapter: Adapter, name: str, args: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """Return a stub from the arguments of its class, by position or by name."""
    given = inspect.signature(getattr(reference, name)).bind(*args, **fields)
    return adapter.made(name, **given.arguments)


def _by_name(function: str, args: Sequence[Any]) -> dict[str, Any]:
    """Return positional arguments by `reference`'s names for them."""
    found = operator.attrgetter(function)(reference)
    return dict(zip(inspect.signature(found).parameters, args, strict=False))


def _defaults(
    function: str, found: Callable[..., Any], renamed: Mapping[str, str]
) -> dict[str, Any]:
    """Return our defaults of the parameters that have none in the implementation's function."""
    try:
        theirs = inspect.signature(found).parameters
    except (TypeError, ValueError):  # of compiled code
        return {}
    required = {name for name, parameter in theirs.items() if parameter.default is parameter.empty}
    ours = inspect.signature(operator.attrgetter(function)(reference)).parameters
    return {
        name: parameter.default
        for name, parameter in ours.items()
        if parameter.default is not parameter.empty and renamed.get(name, name) in required
    }


def getter(found: Any) -> Any:
    """Return the function of a property, which takes the object; or what was found."""
    if isinstance(found, functools.cached_property):
        name = str(found.attrname)
        return lambda self: getattr(self, name)
    return found.fget if isinstance(found, property) else found


class FastAdapter(Adapter):
    """The adapter of `fast`, and of implementations without one: it passes everything unchanged.

    `fast` has the classes of `reference` under the same names and with the same fields, with
    tensors in place of arrays, and takes a caller's own objects with these attributes.

    >>> import fast
    >>> FastAdapter(fast).function("compute_slot_mapping") is fast.compute_slot_mapping
    True
    """

    takes_numpy_scalars = True
    takes_own_objects = True

    def function(self, name: str) -> Callable[..., Any]:
        """Return the implementation's own function; for a property, its getter."""
        return getter(self.find(name))  # type: ignore[no-any-return]  # a module's attribute

    def new(self, class_name: str, **fields: Any) -> Any:
        """Return an object of the implementation's class of this name."""
        return self.find(class_name)(**fields)


__all__ = ["KINDS", "Adapter", "Deviation", "FastAdapter", "Unsupported", "is_given", "supplied"]
