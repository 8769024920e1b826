"""Plant a bug in memory: replace a piece of a module's source until the end of a block.

A changed function body replaces the `__code__` of the existing function, so modules that have
imported the function run the bug. Any other changed statement of the module (a signature, a field,
a constant) is executed again, and its new value replaces the old one in all modules of the package.
Loops are compiled again, and kernels and device functions are declared again.
"""

from __future__ import annotations

import ast
import functools
import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import pytest

from fast import numba_cuda
from fast._native import compiler
from fast.kernels import cuda

IS_FUNCTION: Final = 1  # CO_OPTIMIZED: code of classes and modules lacks it
MISSING: Final = object()  # the old value of a name that the module did not have


def edit(source: str, old: str, new: str, within: str) -> str:
    begin, end = _find_definition(source, within) if within else (0, len(source))
    count = source.count(old, begin, end)
    if count != 1:
        raise ValueError(f"{old!r} occurs {count} times in {within or 'the module'}, expected once")
    at = source.index(old, begin, end)
    return source[:at] + new + source[at + len(old) :]


def _find_definition(source: str, name: str) -> tuple[int, int]:
    """Return where the definition of a function or class begins and ends."""
    body: list[Any] = ast.parse(source).body
    found: Any = None
    for part in name.split("."):
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        if found is None:
            raise ValueError(f"there is no {name}")
        body = found.body
    lines = source.splitlines(keepends=True)
    first = min(node.lineno for node in (found, *found.decorator_list))
    return len("".join(lines[: first - 1])), len("".join(lines[: found.end_lineno]))


@contextmanager
def planted(module: ModuleType, source: str) -> Iterator[None]:
    """Run a module with another source until the end of the block."""
    path = f"<{module.__name__} with a bug, {hash(source)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    with pytest.MonkeyPatch.context() as patch:
        try:
            if module.__name__.startswith("fast.kernels."):
                _declare_kernels(patch, module, source, path)
            else:
                if module is numba_cuda:
                    patch.setattr(cuda, "KERNELS", [])  # no machine code is stored on disk
                _replace(patch, module, source, path)
            _clear_caches(module)
            yield
        finally:
            patch.undo()
            _clear_caches(module)
            del linecache.cache[path]


def _declare_kernels(patch: pytest.MonkeyPatch, module: ModuleType, source: str, path: str) -> None:
    patch.setattr(cuda, "KERNELS", [])  # the list that declared kernels are added to
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source, path, "exec"), names)  # noqa: S102  # our own source
    for kernel in cuda.KERNELS:
        patch.setattr(module, kernel.name, names[kernel.name])
    # Kernels of other modules may call its functions.
    others = [one for key, one in sys.modules.items() if key.startswith("fast.kernels.")]
    for name, new in names.items():
        old = vars(module).get(name)
        if isinstance(new, cuda.DeviceFunction) and new is not old:
            for other in others:
                if vars(other).get(name) is old:
                    patch.setattr(other, name, new)


def _replace(patch: pytest.MonkeyPatch, module: ModuleType, source: str, path: str) -> None:
    original = Path(str(module.__file__)).read_text(encoding="utf-8")
    codes = [compile(text, path, "exec", dont_inherit=True) for text in (original, source)]
    changed = list(_find_changed(*codes))
    if not changed:
        raise ValueError("the source says the same")
    if all(old.co_flags & IS_FUNCTION for old, _ in changed):
        for old, new in changed:
            _replace_code(patch, module, old, new)
    else:
        _run_changed_statements(patch, module, original, source, path)


def _find_changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield changed code objects: outermost functions, or a class or module that itself differs."""
    parts = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    if _outside(old) != _outside(new) or len(parts[0]) != len(parts[1]):
        yield old, new
    elif old.co_flags & IS_FUNCTION:
        if any(True for pair in zip(*parts, strict=True) for _ in _find_changed(*pair)):
            yield old, new
    else:
        for pair in zip(*parts, strict=True):
            yield from _find_changed(*pair)


def _outside(code: CodeType) -> object:
    """Return the contents of a code object, without line numbers and nested code objects."""
    constants = [c.co_name if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_name, code.co_code, code.co_exceptiontable, constants, names, counts


def _replace_code(
    patch: pytest.MonkeyPatch, module: ModuleType, old: CodeType, new: CodeType
) -> None:
    """Replace the code of an existing function, and recompile the loops that contain it."""
    functions = _functions_of(module).get((old.co_qualname, old.co_firstlineno), [])
    if not functions:
        raise ValueError(f"{old.co_qualname} is not there")
    for function in functions:
        patch.setattr(function, "__code__", new)
    parts = [value for value in vars(module).values() if isinstance(value, compiler.Inlined)]
    if any(part.py_func in functions for part in parts):
        for part in parts:
            patch.setattr(part, "_for_numba", {})
    for loop in compiler.COMPILED:
        is_inlined = any(part.py_func in functions for part in _parts_of(loop.py_func, parts))
        if loop.py_func in functions or is_inlined:
            patch.setattr(loop, "_machine_code", None)
            patch.setattr(loop, "_bounds_checked", None)
            patch.setattr(loop, "_compile", functools.partial(_compile_uncached, loop))


def _parts_of(function: Any, parts: list[Any]) -> Iterator[Any]:  # noqa: ANN401  # of any signature
    """Yield the inlined functions that a loop calls, recursively."""
    names = function.__globals__
    called = [names.get(name) for name in function.__code__.co_names]
    for part in parts:
        if any(part is value for value in called):
            yield part
            yield from _parts_of(part.py_func, parts)


def _compile_uncached(loop: Any, suffix: str = "", **options: bool) -> Any:  # noqa: ANN401  # numba's
    """Compile a loop without numba's disk cache, which would return the unpatched one."""
    from numba import njit  # noqa: PLC0415  # numba takes 0.3 s to import

    bound = compiler._bind(loop.py_func, suffix)  # as Compiled does
    return njit(loop.signature, error_model="numpy", nogil=loop._nogil, **options)(bound)


_Functions: TypeAlias = dict[tuple[str, int], list[FunctionType]]  # by name and first line

_FUNCTIONS: Final[dict[str, _Functions]] = {}
"""The functions of modules, by file. Cached: scanning all objects of a process takes 0.15 s."""


def _functions_of(module: ModuleType) -> _Functions:
    if str(module.__file__) not in _FUNCTIONS:
        package = sys.modules[module.__name__.partition(".")[0]]
        folder = str(Path(str(package.__file__)).parent)
        found: dict[str, _Functions] = {}
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()  # frozen objects are not listed
        objects = gc.get_objects()
        if is_frozen:
            gc.freeze()
        for value in objects:
            # `type`: isinstance would resolve lazy objects of torch, which warn.
            if type(value) is FunctionType and value.__code__.co_filename.startswith(folder):
                code = value.__code__
                functions = found.setdefault(code.co_filename, {})
                functions.setdefault((code.co_qualname, code.co_firstlineno), []).append(value)
        _FUNCTIONS.update(found)
    return _FUNCTIONS.setdefault(str(module.__file__), {})


def _run_changed_statements(
    patch: pytest.MonkeyPatch, module: ModuleType, original: str, source: str, path: str
) -> None:
    """Run the module's statements that differ; their definitions replace the old ones."""
    before = {ast.dump(node) for node in ast.parse(original).body}
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if ast.dump(node) not in before]
    names = dict(vars(module))
    package = module.__name__.split(".")[0]
    exec(compile(tree, path, "exec"), names)  # noqa: S102  # our own source
    for name, new in names.items():
        old = vars(module).get(name, MISSING)
        if old is new or name == "__builtins__":
            continue
        if isinstance(new, type):
            new.__module__ = module.__name__
        for other in [one for key, one in sys.modules.items() if key.split(".")[0] == package]:
            for known, value in list(vars(other).items()):
                if value is old:
                    patch.setattr(other, known, new)
        patch.setattr(module, name, new, raising=False)


def _clear_caches(module: ModuleType) -> None:
    """Clear the caches of the module's functions, and the kernels' machine code."""
    native = sys.modules.get("conformance.native.launch")
    if native is not None and module.__name__.startswith(("fast.kernels.", "fast.numba_cuda")):
        native.forget_compiled()
    values = [*vars(module).values()]
    values += [v for owner in values if isinstance(owner, type) for v in vars(owner).values()]
    for value in values:
        clear: Callable[[], None] | None = getattr(value, "cache_clear", None)
        if clear is not None and callable(clear):
            clear()
