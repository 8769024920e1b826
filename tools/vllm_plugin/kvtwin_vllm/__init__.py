"""A vLLM plugin that replaces vLLM's batch plumbing by kvtwin's `fast`.

vLLM calls `register` in each of its processes, before a worker exists. Nothing is replaced, and no
loop of `fast` is compiled, until the worker has registered its kernels: to register them, vLLM
inspects all imported modules, and fails at those of llvmlite, which numba imports.

`functions` has the replacements.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

KNOWN_RELEASES: Final = ("0.32", "0.33")
"""The releases of vLLM whose functions were compared with the replacements, one by one."""

VARIABLE: Final = "KVTWIN_VLLM"
"""The environment variable that selects the functions to replace."""

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Replacement:
    """A function that replaces one of vLLM's, of the same name and with the same parameters."""

    function: Function
    module: str  # of vLLM, which defines the function
    in_class: str | None = None  # there, of which it is a method
    # Whether it computes with the host's sequence lengths, which are only upper bounds with
    # speculative decoding.
    needs_exact_lengths: bool = False


REPLACEMENTS: Final[dict[str, Replacement]] = {}
"""All replacements, by name: `function` or `Class.method`."""

ORIGINALS: Final[dict[str, Function]] = {}
"""The functions of vLLM by name, once they are replaced."""


def replaces(module: str, in_class: str | None = None, **options: bool) -> Callable[[F], F]:
    """Add a function to the replacements; the parameters are the fields of `Replacement`."""

    def add(function: F) -> F:
        name = function.__name__ if in_class is None else f"{in_class}.{function.__name__}"
        REPLACEMENTS[name] = Replacement(function, module, in_class, **options)
        return function

    return add


def register() -> None:
    """Install `fast` as soon as a worker of this process is initialized; vLLM calls this.

    Raises:
        ValueError: The environment variable KVTWIN_VLLM has an unknown name.
    """
    import vllm  # noqa: PLC0415  # tests import this module without vLLM
    from vllm.logger import init_logger  # noqa: PLC0415

    from kvtwin_vllm import functions  # noqa: F401, PLC0415  # it fills REPLACEMENTS

    logger = init_logger("vllm.kvtwin")  # vLLM shows what is logged below its own name
    selection = read_selection(REPLACEMENTS, os.environ.get(VARIABLE, ""))
    release = ".".join(vllm.__version__.split(".")[:2])
    if not selection:
        logger.info("kvtwin-vllm: nothing is replaced, as %s says", VARIABLE)
    elif release not in KNOWN_RELEASES:
        logger.warning(
            "kvtwin-vllm: nothing is replaced, as this is vLLM %s, and it knows only %s",
            vllm.__version__,
            ", ".join(KNOWN_RELEASES),
        )
    else:
        _install_with_worker(selection, logger)


def read_selection(names: Collection[str], value: str) -> frozenset[str]:
    """Return the names of the functions to replace, by the value of the environment variable.

    | value | replaced |
    |---|---|
    | empty, or `on` | all |
    | `off` | none |
    | `split_attn_metadata,compute_slot_mapping` | only these |
    | `-split_attn_metadata,-compute_slot_mapping` | all others |

    Raises:
        ValueError: A name is unknown, or only some names have a minus.
    """
    if value in {"", "on"}:
        return frozenset(names)
    if value == "off":
        return frozenset()
    given = [name.strip() for name in value.split(",") if name.strip()]
    excluded = [name[1:] for name in given if name.startswith("-")]
    if excluded and len(excluded) < len(given):
        raise ValueError(
            f"{VARIABLE} is {value!r}, expected a minus before every name or before none"
        )
    for name in excluded or given:
        if name not in names:
            raise ValueError(
                f"{VARIABLE} has {name!r}, expected on, off, or names of {', '.join(names)}"
            )
    return frozenset(names).difference(excluded) if excluded else frozenset(given)


def _install_with_worker(selection: frozenset[str], logger: logging.Logger) -> None:
    """Install the replacements when a worker is given its KV cache configuration.

    By then its kernels are registered; caches and metadata builders are not yet made.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415

    initialize = WorkerWrapperBase.initialize_from_config
    if hasattr(initialize, "installs_kvtwin"):  # vLLM loads plugins twice in some processes
        return

    def initialize_from_config(self: Any, kv_cache_configs: list[Any]) -> None:
        if not ORIGINALS:
            install(selection, self.vllm_config, logger)
        initialize(self, kv_cache_configs)

    initialize_from_config.installs_kvtwin = True  # type: ignore[attr-defined]
    WorkerWrapperBase.initialize_from_config = initialize_from_config


def install(selection: frozenset[str], vllm_config: Any, logger: logging.Logger) -> None:
    """Install the selected replacements in this process, and log what is replaced.

    If that fails, nothing is replaced: the engine runs as without the plugin.
    """
    is_gpu = vllm_config.device_config.device_type != "cpu"
    if is_gpu and not importlib.util.find_spec("numba_cuda"):
        logger.warning(
            "kvtwin-vllm: nothing is replaced, a GPU needs numba-cuda:"
            " pip install -e '.[cuda]' in a checkout of kvtwin"
        )
        return
    import fast  # noqa: PLC0415

    kept: dict[str, str] = {}
    references: list[tuple[Any, str, Function]] = []
    try:
        for name in sorted(selection):
            replacement = REPLACEMENTS[name]
            try:
                owner, original = _find(replacement)
            except (ImportError, AttributeError) as error:
                kept[name] = str(error)
                continue
            parameters = list(inspect.signature(original).parameters)
            if parameters != list(inspect.signature(replacement.function).parameters):
                kept[name] = f"it has other parameters: {', '.join(parameters)}"
            elif replacement.needs_exact_lengths and vllm_config.speculative_config is not None:
                kept[name] = "with speculative decoding the host has no exact lengths"
            else:
                ORIGINALS[name] = original
                references += [
                    (place, attribute, replacement.function)
                    for place, attribute in _find_references(owner, original)
                ]
        if is_gpu:
            fast.launch.launcher()  # raises if it does not fit the installed versions
        fast.warmup()
    except Exception:
        ORIGINALS.clear()
        logger.exception("kvtwin-vllm: nothing is replaced, as the installation failed")
        return
    for place, attribute, function in references:
        setattr(place, attribute, function)
    logger.info("kvtwin-vllm: fast replaces %d functions: %s", len(ORIGINALS), ", ".join(ORIGINALS))
    kept |= dict.fromkeys(sorted(REPLACEMENTS.keys() - selection), "deselected")
    for name, reason in kept.items():
        logger.info("kvtwin-vllm: vLLM's own %s is kept: %s", name, reason)


def _find(replacement: Replacement) -> tuple[Any, Function]:
    """Return the module or class of vLLM that has a function, and the function."""
    owner: Any = importlib.import_module(replacement.module)
    if replacement.in_class is not None:
        owner = getattr(owner, replacement.in_class)
    return owner, getattr(owner, replacement.function.__name__)


def _find_references(owner: Any, original: Function) -> Iterator[tuple[Any, str]]:
    """Yield all attributes that refer to a function: modules of vLLM import functions by name."""
    if isinstance(owner, type):
        yield owner, original.__name__
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "vllm":
            for attribute, value in list(vars(module).items()):
                if value is original:
                    yield module, attribute
