"""Install the replacements in vLLM's modules, and report which."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import fast
from kvtwin_vllm import (  # noqa: F401  # these fill REPLACEMENTS
    block_tables,
    replacements,
    step_inputs,
    step_metadata,
    virtual_batches,
)
from kvtwin_vllm.registry import ORIGINALS, REPLACEMENTS, Function, VllmObject


class _Reference(NamedTuple):
    """An attribute of a module or class that refers to a function of vLLM."""

    name: str
    owner: VllmObject
    attribute: str
    original: Function
    replacement: Function


Wrap: TypeAlias = Callable[[str, Function], Function]
"""Wraps the function of a name, such as to time it."""


def _as_it_is(name: str, function: Function) -> Function:
    del name
    return function


@dataclass
class Installation:
    """The replacements of this process.

    Attributes:
        replaced: The names of the functions that are replaced.
        kept: Why the other functions are not replaced, by name.
    """

    replaced: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    _references: list[_Reference] = field(default_factory=list)

    def add(self, name: str, *, exact_lengths: bool) -> None:
        """Find all references to a function of vLLM, or a reason to keep it."""
        replacement = REPLACEMENTS[name]
        try:
            owner = importlib.import_module(replacement.module)
            if replacement.in_class is not None:
                owner = getattr(owner, replacement.in_class)
            original = getattr(owner, replacement.function.__name__)
        except (ImportError, AttributeError) as error:
            self.kept[name] = str(error)
            return
        parameters = list(inspect.signature(original).parameters)
        if parameters != list(inspect.signature(replacement.function).parameters):
            self.kept[name] = f"it has other parameters: {', '.join(parameters)}"
        elif replacement.needs_exact_lengths and not exact_lengths:
            self.kept[name] = "with speculative decoding the host has no exact lengths"
        else:
            ORIGINALS[name] = original
            self.replaced.append(name)
            self._references += [
                _Reference(name, where, attribute, original, replacement.function)
                for where, attribute in _find_references(owner, original)
            ]

    def activate(self, wrap: Wrap = _as_it_is) -> None:
        """Point all references to the replacements, each wrapped by `wrap`."""
        for name, owner, attribute, _, replacement in self._references:
            setattr(owner, attribute, wrap(name, replacement))

    def deactivate(self, wrap: Wrap = _as_it_is) -> None:
        """Point all references to vLLM's functions again, each wrapped by `wrap`."""
        for name, owner, attribute, original, _ in self._references:
            setattr(owner, attribute, wrap(name, original))


def _find_references(owner: VllmObject, original: Function) -> Iterator[tuple[VllmObject, str]]:
    """Yield all attributes that refer to a function: modules of vLLM import functions by name."""
    if isinstance(owner, type):
        yield owner, original.__name__
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "vllm":
            for attribute, value in list(vars(module).items()):
                if value is original:
                    yield module, attribute


INSTALLED: Installation | None = None
"""The installation of this process; None: there is none yet."""


def install(selection: frozenset[str], vllm_config: VllmObject, logger: logging.Logger) -> None:
    """Install the selected replacements once in this process, and log what is replaced.

    If that fails, nothing is replaced: the engine runs as without the plugin.
    """
    global INSTALLED  # noqa: PLW0603  # vLLM's modules are global too
    if INSTALLED is not None:
        return
    INSTALLED = Installation()
    if vllm_config.device_config.device_type != "cpu" and not importlib.util.find_spec(
        "numba_cuda"
    ):
        logger.warning(
            "kvtwin-vllm: nothing is replaced, a GPU needs numba-cuda:"
            " pip install -e '.[cuda]' in a checkout of kvtwin"
        )
        return
    try:
        for name in sorted(selection):
            INSTALLED.add(name, exact_lengths=vllm_config.speculative_config is None)
        fast.warmup()
        INSTALLED.activate()
    except Exception:
        INSTALLED.deactivate()
        logger.exception("kvtwin-vllm: nothing is replaced, as the installation failed")
        return
    replaced, kept = INSTALLED.replaced, INSTALLED.kept
    logger.info("kvtwin-vllm: fast replaces %d functions: %s", len(replaced), ", ".join(replaced))
    kept |= dict.fromkeys(sorted(REPLACEMENTS.keys() - selection), "deselected")
    for name, reason in kept.items():
        logger.info("kvtwin-vllm: vLLM's own %s is kept: %s", name, reason)
