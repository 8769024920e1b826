"""Compile loops when they are first called, not when `fast` is imported."""

import importlib
import os
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from fast.checked_mode import is_checked

P = ParamSpec("P")
R = TypeVar("R")

Int32s: TypeAlias = Any
"""An int32 array in a compiled loop or a kernel. Its elements are the compiler's ints, not NumPy's
or Python's, so type checkers do not know them."""

Int64s: TypeAlias = Any
"""An int64 array in a compiled loop or a kernel."""


Int: TypeAlias = Any
"""An integer in a compiled loop, whose arithmetic gives the compiler's ints."""


class UncachedWarning(UserWarning):
    """Numba's cache on disk cannot be used: each process compiles the loops of `fast` again."""


def int32s_at(address: int, length: int) -> Int32s:
    """Return the int32 array at an address, in compiled loops; numba compiles its own version.

    A call that passes an address instead of an array takes 0.7 us less, which torch needs to make a
    NumPy array of a tensor. The caller has verified the tensor and keeps it alive. Called from
    Python it raises TypeError.
    """
    raise TypeError(f"{length} entries at {address} are for compiled loops only")


def int64s_at(address: int, length: int) -> Int64s:
    raise TypeError(f"{length} entries at {address} are for compiled loops only")


def bools_at(address: int, length: int) -> Any:
    raise TypeError(f"{length} entries at {address} are for compiled loops only")


def prefetch(array: Any, index: Int) -> None:
    """Prefetch an element of an array, in compiled loops. The index may be out of bounds.

    Called from Python it raises TypeError.
    """
    raise TypeError(f"element {index} of {type(array).__name__} is for compiled loops only")


@cache
def _for_numba_only() -> dict[str, Any]:
    """Return the versions of `int32s_at` and the like that numba compiles."""
    from llvmlite import ir  # noqa: PLC0415
    from numba import carray, types  # type: ignore[attr-defined]  # noqa: PLC0415  # carray is there
    from numba.core import cgutils  # noqa: PLC0415
    from numba.extending import intrinsic, register_jitable  # noqa: PLC0415

    def typed(_context: Any, _address: Any) -> Any:
        def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], cgutils.voidptr_t)

        return types.voidptr(types.int64), lower

    as_pointer: Any = intrinsic(typed)

    @register_jitable
    def int32s(address: int, length: int) -> Int32s:
        return carray(as_pointer(address), length, np.int32)

    @register_jitable
    def int64s(address: int, length: int) -> Int64s:
        return carray(as_pointer(address), length, np.int64)

    @register_jitable
    def bools(address: int, length: int) -> Any:
        return carray(as_pointer(address), length, np.bool_)

    def typed_prefetch(_context: Any, array: Any, index: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            element = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
            number = ir.IntType(32)
            kinds = [cgutils.voidptr_t, number, number, number]
            called = ir.FunctionType(ir.VoidType(), kinds)
            function = builder.module.declare_intrinsic("llvm.prefetch", kinds[:1], called)
            # To read, into every cache, as data.
            builder.call(function, [element, *(number(n) for n in (0, 3, 1))])
            return context.get_dummy_value()

        return types.void(array, index), lower

    return {
        "int32s_at": int32s,
        "int64s_at": int64s,
        "bools_at": bools,
        "prefetch": intrinsic(typed_prefetch),
    }


class Inlined(Generic[P, R]):
    """A part of compiled loops: a function that loops call.

    `py_func` is the function as written.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.py_func = function
        self._for_numba: dict[str, Callable[P, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as Python; loops that call it are compiled."""
        return self.py_func(*args, **kwargs)

    def for_numba(self, suffix: str) -> Callable[P, R]:
        """Return the function for loops whose names have this suffix.

        Numba does not pass a loop's options on to the functions it calls, so `boundscheck` is set
        here. It is always inlined: to call one with several arrays takes 40 ns.
        """
        if suffix not in self._for_numba:
            from numba.extending import register_jitable  # noqa: PLC0415  (numba takes 0.3 s)

            function = _bind(self.py_func, suffix)
            options = {"boundscheck": bool(suffix), "forceinline": True}
            self._for_numba[suffix] = register_jitable(**options)(function)
        return self._for_numba[suffix]


def inlined(function: Callable[P, R]) -> Inlined[P, R]:
    """Declare a part of compiled loops, of any module of this package."""
    return Inlined(function)


class Compiled(Generic[P, R]):
    """A Python function that numba compiles for one signature when it is first called.

    In checked mode a second version of the machine code runs. It raises `IndexError` if the first
    would access an array out of bounds, so a bug in a loop is an exception, not a crash.

    A call goes to the C function behind numba's dispatcher, which saves 0.3 us of 0.6. That
    function does not verify its arguments: an array of another dtype, layout or number of
    dimensions is misread. So only this package calls loops, with arrays that it has made or
    verified, positionally.

    Attributes:
        py_func: The function as written.
        signature: Numba's signature, as text.
        run: Calls the machine code, after compiling it if needed. It is a plain function, since
            calling an object takes 0.1 us longer.
    """

    def __init__(self, function: Callable[P, R], signature: str, *, nogil: bool = True) -> None:
        self.py_func = function
        self.signature = signature
        self._nogil = nogil
        self._machine_code: Callable[..., R] | None = None
        self._bounds_checked: Callable[..., R] | None = None

        def run(*args: object) -> R:
            if is_checked():
                return (self._bounds_checked or self._compile_bounds_checked())(*args)
            return (self._machine_code or self.warm_up())(*args)

        self.run: Callable[P, R] = cast("Callable[P, R]", run)

    def warm_up(self) -> Callable[..., R]:
        """Return the machine code, compiled now if needed; not that of checked mode."""
        code = self._machine_code
        if code is None:
            code = self._machine_code = _entry_point(self._compile())
        return code

    def _compile_bounds_checked(self) -> Callable[..., R]:
        code = self._bounds_checked = self._compile("_bounds_checked", boundscheck=True)
        return code

    def _compile(self, suffix: str = "", **options: bool) -> Callable[P, R]:
        """Compile the function, or load it from numba's cache on disk."""
        from numba import config, njit  # noqa: PLC0415  (numba takes 0.3 s to import)

        if config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets it from the environment
            raise ValueError("NUMBA_DISABLE_JIT is set, but the loops of fast have to be compiled")
        function = _bind(self.py_func, suffix)
        settings: dict[str, Any] = {"error_model": "numpy", "nogil": self._nogil, **options}
        dispatcher: Any = njit(**settings)(function)
        with _warning_of_cache(_cache_folder()):
            dispatcher._cache = _cache_class()(function)  # noqa: SLF001  (as its `enable_caching`)
        # One explicit signature for each function: processes that share the cache agree on it.
        dispatcher.compile(self.signature)
        dispatcher.disable_compile()
        return cast("Callable[P, R]", dispatcher)


_DIGEST_BYTES: Final = sha256().digest_size

_CACHE_WARNINGS: Final[set[str]] = set()
"""The folders of numba's cache with a warning already."""


@cache
def _cache_class() -> Any:
    """Return numba's cache with files that end in a digest; an error of the OS is a warning.

    Damaged files are found without unpickling them, which may raise anything or crash. So no
    exception of a signal handler is taken for one of the cache.
    """
    caching: Any = importlib.import_module("numba.core.caching")

    class Files(caching.IndexDataCacheFile):  # type: ignore[misc]  # numba is untyped
        """The files of a function. One that is damaged does not exist, so it is replaced."""

        def load(self, key: object) -> Any:
            name = self._load_index().get(key)
            is_there = name is not None and _is_whole(self._data_path(name))
            return self._load_data(name) if is_there else None

        def _load_index(self) -> Any:
            return super()._load_index() if _is_whole(self._index_path) else {}

        @contextmanager
        def _open_for_write(self, path: str) -> Iterator[BytesIO]:
            with super()._open_for_write(path) as file:
                contents = BytesIO()
                yield contents
                file.write(contents.getvalue() + sha256(contents.getvalue()).digest())

    class Cache(caching.FunctionCache):  # type: ignore[misc]  # numba is untyped
        def __init__(self, function: Any) -> None:
            super().__init__(function)
            # Numba's own stamp does not notice changes in the files of inlined parts.
            stamp = [(stat.st_mtime, stat.st_size) for stat in map(os.stat, function.files)]
            self._cache_file = Files(self._cache_path, self._impl.filename_base, stamp)

        def _guard_against_spurious_io_errors(self) -> Any:
            return _warning_of_cache(self.cache_path)

    return Cache


def _is_whole(path: str) -> bool:
    """Return whether a file of the cache exists and ends in the digest of what is before it."""
    try:
        written = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    return written[-_DIGEST_BYTES:] == sha256(written[:-_DIGEST_BYTES]).digest()


@contextmanager
def _warning_of_cache(folder: str) -> Iterator[None]:
    """Warn, once for each folder, if numba's cache cannot be read or written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # Of the OS or of numba, not of a signal handler, such as a TimeoutError.
        is_of_cache = getattr(error, "errno", None) or str(error).startswith("cannot cache")
        if not is_of_cache:
            raise
        if folder not in _CACHE_WARNINGS:
            _CACHE_WARNINGS.add(folder)
            warnings.warn(
                f"numba's cache in {folder} cannot be used, so the loops of fast are compiled in"
                f" each process: {type(error).__name__}: {error}",
                UncachedWarning,
                stacklevel=2,
            )


def _cache_folder() -> str:
    """Return the folder of numba's cache, as far as it is known without the cache."""
    return os.environ.get("NUMBA_CACHE_DIR") or f"the folder of {__file__}"


def _entry_point(dispatcher: Any) -> Any:
    """Return the C function that numba's dispatcher calls after it has verified the arguments.

    It is the dispatcher's overload for its only signature. If another version of numba has no such
    attribute, the dispatcher itself is returned.
    """
    try:
        (overload,) = dispatcher.overloads.values()
    except (AttributeError, ValueError):
        return dispatcher
    return getattr(overload, "entry_point", dispatcher)


def _bind(function: Callable[P, R], suffix: str) -> Callable[P, R]:
    """Return a copy whose globals are numba's `int32s_at` and the like, and inlined parts.

    The name's suffix is for numba's cache, which distinguishes functions by name, not by options.
    The copy's `files` are those of its code.
    """
    whole: Any = function
    names = {**whole.__globals__, **_for_numba_only()}
    files = {whole.__code__.co_filename}
    for name in whole.__code__.co_names:
        part = names.get(name)
        if isinstance(part, Inlined):
            names[name] = part.for_numba(suffix)
            files.update(names[name].files)
    copy: Any = types.FunctionType(whole.__code__, names, f"{whole.__name__}{suffix}")
    copy.__qualname__ = copy.__name__
    copy.__module__ = whole.__module__
    copy.files = sorted(files)
    return cast("Callable[P, R]", copy)


COMPILED: Final[list[Compiled[Any, Any]]] = []
"""Every compiled loop of the package."""


def compiled(signature: str, *, nogil: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a loop that is compiled for one signature when it is first called, by position.

    Array arguments that a caller may pass strided are declared `[:]` (any layout), scratch `[::1]`.
    The body may call only NumPy, builtins, `int32s_at` and the like, and functions that are
    `inlined`, so that it can be cached on its own.

    Args:
        signature: Numba's signature, such as `"int64(int32[:], int64)"`.
        nogil: Whether other Python threads run meanwhile. False for a loop that changes the state
            of an object, which threads may share.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        loop = Compiled(function, signature, nogil=nogil)
        COMPILED.append(loop)
        return loop.run

    return declare


def compile_loops() -> None:
    for loop in COMPILED:
        loop.warm_up()
