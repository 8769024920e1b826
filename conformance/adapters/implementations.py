"""Loads implementations for `--impl`: a module or a file, and the adapter of its objects."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import keyword
import operator
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import fast
import reference
from conformance.adapters.base import Adapter, Deviation, FastAdapter, Unsupported

BUILT_IN = {"vllm": "conformance.adapters.vllm"}
"""The adapters of engines that come with kvtwin, by the engine's module."""

NAMES = tuple(name for name in reference.__all__ if hasattr(fast, name))
"""The names that both twins have: what an implementation may offer."""

PUBLIC = frozenset({*reference.__all__, "checks"})
"""The names that are looked up."""


class Absent(Unsupported):
    """Raised if an implementation lacks a name that an example needs."""


@dataclasses.dataclass(frozen=True)
class Lacking:
    """How the signature of a function differs from ours.

    Attributes:
        parameters: Ours that it lacks.
        is_reordered: Whether the others are not in our order, or some are taken by name only.
    """

    parameters: frozenset[str] = frozenset()
    is_reordered: bool = False


class Implementation:
    """A module under test, whose functions are looked up by name when they are called.

    Args:
        name: Its name in tables: the last part of the module's name.
        module: The module.
        adapter: Converts its objects; None if they are like `fast`'s.

    >>> Implementation("fast", fast).find("UBatchSlice") is fast.UBatchSlice
    True
    """

    def __init__(self, name: str, module: ModuleType, adapter: Adapter | None = None) -> None:
        self.name = name
        self.module = module
        self.adapter = FastAdapter(module) if adapter is None else adapter
        self._lacking: dict[str, Lacking] = {}
        self.deviations: Sequence[Deviation] = tuple(self.adapter.deviations)
        """The deviations from `reference` that it declares."""
        self.output: list[str] = []
        """The lines that were printed while it was imported."""
        self.is_strict = module is fast
        """Whether missing refusals and other differences fail a run, as wrong answers do."""

    def find(self, name: str) -> Any:
        """Return the implementation's own object for one of our names, or for a `Class.method`.

        Raises:
            Absent: It has no such thing.
        """
        return self._found(self.adapter.find, name)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function, method or class that takes and returns our objects.

        It raises `Unsupported` if the implementation does not support an argument.

        Raises:
            Absent: It has no such thing, or the name is none of `reference` or of its classes:
                stored cases name functions, and must not call anything else.
        """
        owner, *members = name.split(".")
        if owner not in PUBLIC or members[1:] or name.endswith("__"):
            raise Absent(f"needs {name}, which {self.module.__name__} lacks")
        function: Callable[..., Any] = self._found(self.adapter.function, name)
        lacking = self.lacking(name).parameters
        if name not in self.adapter.unsupported and not lacking:
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **self.adapter.supported(name, args, kwargs, lacking))

        return call

    def new(self, class_name: str, fields: Mapping[str, Any]) -> Any:
        """Return the object for an argument: its own, or a stub if it has no such class.

        Raises:
            Unsupported: Its class lacks one of the fields.
        """
        if self.adapter.is_data(class_name) or not self.offers(class_name):
            return self.adapter.stub(class_name, fields)
        given = {name: value for name, value in fields.items() if name not in self.adapter.lacks}
        lacking = self.lacking(class_name).parameters - self.adapter.lacks
        return self.adapter.new(
            class_name, **self.adapter.supported(class_name, (), given, lacking)
        )

    def lacking(self, name: str) -> Lacking:
        if name not in self._lacking:
            self._lacking[name] = Lacking() if self.module is fast else self._compared(name)
        return self._lacking[name]

    def _compared(self, name: str) -> Lacking:
        if self.adapter.is_data(name):
            return Lacking()
        try:
            ours = _parameters(operator.attrgetter(name)(reference))
            found = _parameters(self.adapter.find(name))
        except (AttributeError, TypeError, ValueError):  # a property, or compiled code
            return Lacking()
        renamed = self.adapter.parameters.get(name, {})
        known = {theirs: mine for mine, theirs in renamed.items()}
        theirs = {known.get(key, key): kind for key, kind in found.items()}
        by_position = [key for key, kind in ours.items() if kind in POSITIONAL]
        others = [key for key, kind in theirs.items() if kind in POSITIONAL]
        lacks_none = KEYWORDS in theirs.values()
        lacking = {key for key, kind in ours.items() if kind in NAMED and key not in theirs}
        in_order = [key for key in by_position if key in theirs]
        has_order = renamed or ENTRIES in theirs.values() or in_order == others[: len(in_order)]
        return Lacking(frozenset() if lacks_none else frozenset(lacking), not has_order)

    def is_converted(self, name: str) -> bool:
        """Return whether a name is that of a class with other fields, not made by our names."""
        if not self.adapter.is_data(name):
            return False
        try:
            ours, found = inspect.signature(getattr(reference, name)), _parameters(self.find(name))
        except (Absent, TypeError, ValueError):
            return False
        needed = {key for key, one in ours.parameters.items() if one.default is one.empty}
        return KEYWORDS not in found.values() and not needed - self.adapter.lacks <= {*found}

    def method(self, cls: str, made: Any, name: str) -> Callable[..., Any]:
        """Return a method of an object of its own, by our names of the class and the method."""
        ours = f"{cls}.{name}"
        is_plain = type(self.adapter) is FastAdapter and not self.lacking(ours).parameters
        if is_plain or not self.offers(ours):
            return getattr(made, name)  # type: ignore[no-any-return]
        return functools.partial(self.function(ours), made)

    def supported(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call without options that it does not support."""
        lacking, values = self.lacking(name).parameters, self.adapter.unsupported.get(name, {})
        out = {key for key in arguments if key in lacking}
        out |= {key for key in values.keys() & arguments if values[key](arguments[key])}
        if not out:
            return dict(arguments)
        ours = inspect.signature(operator.attrgetter(name)(reference)).parameters
        options = {key for key in out & ours.keys() if ours[key].default is not ours[key].empty}
        return {key: value for key, value in arguments.items() if key not in options}

    def check_preconditions(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise `Unsupported` if the engine never makes such a call of a function."""
        for words, holds in self.adapter.preconditions.get(name, {}).items():
            if not holds(arguments):
                raise Unsupported(f"violates the declared precondition: {words}")

    def takes(self, cls: str, method: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a class has a method, if it has the class, and supports its arguments."""
        if self.module is fast or not self.offers(cls):
            return True
        name = f"{cls}.{method}"
        if not self.offers(name):
            return False
        lacking = self.lacking(name).parameters
        try:
            if lacking or name in self.adapter.unsupported:
                self.adapter.supported(name, (), arguments, lacking)
        except Unsupported:
            return False
        return True

    def _found(self, find: Callable[[str], Any], name: str) -> Any:
        try:
            return find(name)
        except AttributeError as error:
            raise Absent(f"needs {name}, which {self.module.__name__} lacks") from error

    @property
    def file(self) -> str:
        return getattr(self.module, "__file__", None) or "no file"

    @property
    def version(self) -> str:
        said = getattr(self.module, "__version__", None)
        if said is not None:
            return str(said)
        top = self.module.__name__.partition(".")[0]
        if top in {"fast", "reference"}:  # missing from the mapping if the installation is editable
            found: Sequence[str] = ["kvtwin"]
        else:
            found = importlib.metadata.packages_distributions().get(top, ())
        try:
            return importlib.metadata.version(found[0]) if found else "(no version)"
        except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
            return "(no version)"

    @property
    def is_fast(self) -> bool:
        """Whether it is `fast` or re-exports some of it, so that its kernels can be simulated."""
        return any(is_of_fast(getattr(self.module, name, None)) for name in NAMES)

    def offered(self) -> list[str]:
        return [name for name in NAMES if self.offers(name)]

    def offers(self, name: str) -> bool:
        try:
            self.adapter.find(name)
        except AttributeError:
            return False
        return True

    def lacks_of(self, function: str) -> list[str]:
        """Return the parameters of a function, and the methods of a class, that it lacks."""
        if self.module is fast:
            return []
        lacks = sorted(self.lacking(function).parameters - self.adapter.lacks)
        ours = getattr(reference, function, None)
        if isinstance(ours, type) and not dataclasses.is_dataclass(ours):
            methods = (name for name, member in vars(ours).items() if callable(member))
            public = (one for one in methods if one[0] != "_")
            for one in public:
                parameters = ", ".join(sorted(self.lacking(f"{function}.{one}").parameters))
                if parameters or not self.offers(f"{function}.{one}"):
                    lacks.append(f"{one}({parameters})" if parameters else one)
        return lacks

    def lacking_lines(self, functions: Iterable[str] = ()) -> Iterator[str]:
        """Yield what it lacks: names, parameters of functions, methods of classes."""
        lacking = [name for name in NAMES if not self.offers(name)]
        if lacking:
            which = textwrap.shorten(", ".join(lacking), 60, placeholder=" ...")
            yield f"{self.name} lacks {len(lacking)} of {len(NAMES)} names: {which}"
        for function in filter(self.offers, functions):
            if self.lacks_of(function):
                which = ", ".join(self.lacks_of(function))
                yield f"{self.name}.{function} lacks {which}: calls that need them are not made"
            if function in self.adapter.unsupported:
                values = ", ".join(self.adapter.unsupported[function])
                yield f"{self.name}.{function} has unsupported values (declared): {values}"
            if self.is_converted(function):
                yield f"{self.name}.{function} has other fields: it is converted, but not tested"
            if self.lacking(function).is_reordered:
                yield f"{self.name}.{function} has another order: arguments are passed by name"

    @property
    def has_checked_mode(self) -> bool:
        return self.offers("checks")

    def describe(self) -> str:
        """Return what is under test in a line: module, version, file, names, adapter."""
        cls = type(self.adapter)
        offered = f"offers {len(self.offered())} of {len(NAMES)} names"
        adapter = f"adapter {cls.__module__}.{cls.__name__}"
        release = f"{self.module.__name__} {self.version}{self._unknown_release()}"
        return f"{release}, {self.file}; {offered}; {adapter}"

    def _unknown_release(self) -> str:
        releases = self.adapter.releases
        version, *known = (
            tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (self.version, *releases)
        )
        if not known or version in known:
            return ""
        than = "newer than" if version > max(known) else "none that"
        return f" ({than} the adapter knows: {', '.join(releases)})"


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.KEYWORD_ONLY, *POSITIONAL)
ENTRIES, KEYWORDS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def _parameters(function: Any) -> dict[str, Any]:
    return {key: one.kind for key, one in inspect.signature(function).parameters.items()}


def is_of_fast(function: object) -> bool:
    """Return whether a function or class is defined in `fast`.

    >>> is_of_fast(fast.compute_slot_mapping), is_of_fast(reference.compute_slot_mapping)
    (True, False)
    """
    return str(getattr(function, "__module__", "")).partition(".")[0] == "fast"


# Names in an adapter's tables: a mistyped name would silently convert nothing.


def mistyped(adapter: Adapter) -> Iterator[str]:  # noqa: C901  # one table after the other
    """Yield a message for each name in an adapter's tables that does not exist."""
    for table in ("names", "parameters", "unsupported", "preconditions"):
        for name in getattr(adapter, table):
            if not _is_ours(name):
                yield f"has {name!r} in {table}, which is not a name in reference"
    for ours, theirs in adapter.names.items():
        try:
            adapter.find(ours)
        except AttributeError:
            yield f"maps {ours} to {theirs!r} in names, which {adapter.module.__name__} lacks"
    for table in ("parameters", "unsupported"):
        for function, named in getattr(adapter, table).items():
            known = {*_parameters_of(reference, function), *_parameters_of(fast, function)}
            for name in named.keys() - known:
                yield f"has {name!r} in {table}, which is not a parameter of {function}"
    for deviation in adapter.deviations:
        if not _is_ours(deviation.function):
            name = repr(deviation.function)
            yield f"declares a deviation of {name}, which is not a name in reference"
    fields = {field for name in reference.__all__ for field in _fields(getattr(reference, name))}
    for name in sorted(adapter.lacks - fields):
        yield f"has {name!r} in lacks, which is not a field or parameter in reference"


def _is_ours(name: str) -> bool:
    """Return whether a function, class or method of `reference` has this name."""
    try:
        operator.attrgetter(name)(reference)
    except AttributeError:
        return False
    return name.partition(".")[0] in reference.__all__


def _parameters_of(module: ModuleType, function: str) -> Iterable[str]:
    """Return the parameters of a function of one of the twins; none if it has no signature."""
    try:
        return inspect.signature(operator.attrgetter(function)(module)).parameters
    except (AttributeError, TypeError, ValueError):
        return ()


def _fields(found: Any) -> set[str]:
    """Return the attributes of a class's objects, or the parameters of a function."""
    if not isinstance(found, type):
        return set(inspect.signature(found).parameters) if inspect.isfunction(found) else set()
    names = set(dir(found))
    for base in found.__mro__:
        names |= vars(base).get("__annotations__", {}).keys()
        made: Any = vars(base).get("__init__")
        if inspect.isfunction(made):
            names |= {*made.__code__.co_names, *made.__code__.co_varnames}
    return names


# Loading.


def load_implementation(text: str, adapter: str | None = None) -> Implementation:
    """Load an implementation from a module or a file.

    Args:
        text: A dotted name, or the path of a `.py` file. A file is imported under its own name; its
            folder is in `sys.path` only during the import.
        adapter: Likewise, a module with an `ADAPTER`. None for the first of: the one in `BUILT_IN`,
            the implementation's `CONFORMANCE_ADAPTER` (a class, or the name of a module), and
            `FastAdapter`.

    Raises:
        ValueError: The module or the adapter cannot be imported or made; the module has none of
            the names; or the adapter's tables contain an unknown name.

    >>> load_implementation("fast").name
    'fast'
    >>> load_implementation("math")
    Traceback (most recent call last):
        ...
    ValueError: --impl 'math' offers none of the 94 names of reference and fast, such as ...
    """
    if adapter is None and text in BUILT_IN:
        adapter = BUILT_IN[text]
        _imported(adapter, "--impl")  # first, since it prepares the import of the engine
    module = _imported(text, "--impl")
    name = module.__name__.rpartition(".")[2]
    cls = _adapter_class(module, adapter)
    try:
        found = Implementation(name, module, cls(module))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the adapter {cls.__name__} cannot be made: {_on_a_line(error)}"
        ) from error
    for wrong in mistyped(found.adapter):
        raise ValueError(f"the adapter {cls.__name__} of {name} {wrong}")
    if not found.offered():
        raise ValueError(
            f"--impl {text!r} offers none of the {len(NAMES)} names of reference and fast"
            f"{_near(module)}"
        )
    return found


def _on_a_line(error: BaseException) -> str:
    """Return the class of an exception, and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _near(module: ModuleType) -> str:
    """Return a suggestion: a module's name that resembles one of ours, or some of ours."""
    for theirs in vars(module):
        close = difflib.get_close_matches(theirs, NAMES, 1, 0.8)
        if close and not theirs.startswith("_"):
            return f"; is its {theirs} meant to be {close[0]}?"
    return f", such as {', '.join(NAMES[-3:])}"


def load_implementations(
    texts: Sequence[str], adapters: Sequence[str] = ()
) -> list[Implementation]:
    """Load the implementations that the options name, by default `fast`.

    There is no adapter, one for all of them, or one for each.

    Raises:
        ValueError: As `load_implementation`; one named twice; a wrong number of adapters.
    """
    texts = list(texts) or ["fast"]
    if len(adapters) not in {0, 1, len(texts)}:
        raise ValueError(
            f"--adapter is given {len(adapters)} times; give it once, or once for each of the "
            f"{len(texts)} implementations"
        )
    each = [None] * len(texts) if not adapters else list(adapters) * (len(texts) // len(adapters))
    found = []
    for text, one in zip(texts, each, strict=True):
        with captured_output() as lines:
            found.append(load_implementation(text, one))
        found[-1].output = lines
    names = [implementation.name for implementation in found]
    if len(set(names)) == len(names):
        return found
    whole = [implementation.module.__name__ for implementation in found]
    twice = [name for name in whole if whole.count(name) > 1]
    if twice:
        raise ValueError(f"--impl {twice[0]!r} is given twice")
    return [Implementation(one.module.__name__, one.module, one.adapter) for one in found]


@contextlib.contextmanager
def captured_output() -> Iterator[list[str]]:
    """Yield a list for the lines that are printed inside, by compiled code too.

    If an exception is raised they are printed after all.
    """
    lines: list[str] = []
    _flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield lines
        finally:
            _flush()
            for number, descriptor in enumerate(saved, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            text = file.read().decode(errors="replace")
            if sys.exception() is not None:
                sys.stderr.write(text)
    lines += text.splitlines()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _adapter_class(module: ModuleType, named: str | None) -> type[Adapter]:
    found: Any = named or getattr(module, "CONFORMANCE_ADAPTER", FastAdapter)
    if isinstance(found, str):
        adapter_module = _imported(found, "--adapter")
        found = getattr(adapter_module, "ADAPTER", None)
        if found is None:
            raise ValueError(f"--adapter {adapter_module.__name__!r} has no ADAPTER")
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise ValueError(  # noqa: TRY004  # a usage error
            f"the adapter of {module.__name__} is {found!r}, which is not an Adapter class"
        )
    return found


def _imported(text: str, option: str) -> ModuleType:
    load: Callable[[str], ModuleType] = (
        _from_file if text.endswith(".py") else importlib.import_module
    )
    try:
        with warnings.catch_warnings():  # pytest turns them into errors
            warnings.simplefilter("ignore")
            return load(text)
    except ValueError as error:
        raise ValueError(f"{option} {text!r} {error}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{option} {text!r} cannot be imported: {_on_a_line(error)}{_hint(error)}"
        ) from error


def _hint(error: BaseException) -> str:
    """Return what to do if packages beside torch are of another build than torch."""
    if re.search("torchvision|torchaudio|torchcodec", str(error)) is None:
        return ""
    return "; it is built for another torch: pip uninstall torchvision torchaudio torchcodec"


def _from_file(text: str) -> ModuleType:
    path = Path(text).resolve()
    if not path.is_file():
        raise ValueError("is not a file")
    name = _module_name(path.stem)
    known = sys.modules.get(name)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path:
            return known
        raise ValueError(f"has the same name as another module, {name}; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _module_name(stem: str) -> str:
    """Return the name of a file's module, a valid identifier made from the file's name.

    >>> _module_name("plumbing"), _module_name("my-plumbing.v2"), _module_name("2nd")
    ('plumbing', 'my_plumbing_v2', '_2nd')
    """
    name = re.sub(r"\W", "_", stem)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"_{name}"


FAST = load_implementation("fast")
"""The implementation under test by default."""
