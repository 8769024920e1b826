"""A vLLM plugin that replaces vLLM's batch plumbing by kvtwin's `fast`.

vLLM calls `register` in each of its processes, before a worker exists. Nothing is replaced, and no
loop of `fast` is compiled, until the worker has registered its kernels: to register them, vLLM
inspects all imported modules, and fails at those of llvmlite, which numba imports.
"""

from __future__ import annotations

import logging
from typing import Final

from kvtwin_vllm.registry import VllmObject

KNOWN_RELEASES: Final = ("0.32",)
"""The releases of vLLM whose functions were compared with the replacements, one by one."""


def register() -> None:
    """Install `fast` as soon as a worker of this process is initialized; vLLM calls this.

    Raises:
        ValueError: The environment variable KVTWIN_VLLM has an unknown name.
    """
    import vllm  # noqa: PLC0415  # tests import this module without vLLM
    from vllm.logger import init_logger  # noqa: PLC0415

    from kvtwin_vllm.installation import REPLACEMENTS  # noqa: PLC0415  # imports torch
    from kvtwin_vllm.options import VARIABLE, read_selection  # noqa: PLC0415

    logger = init_logger("vllm.kvtwin")  # vLLM shows what is logged below its own name
    selection = read_selection(REPLACEMENTS)
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


def _install_with_worker(selection: frozenset[str], logger: logging.Logger) -> None:
    """Install the replacements when a worker is given its KV cache configuration.

    By then its kernels are registered; caches and metadata builders are not yet made.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415

    initialize = WorkerWrapperBase.initialize_from_config
    if hasattr(initialize, "installs_kvtwin"):
        return

    def initialize_from_config(self: VllmObject, kv_cache_configs: list[VllmObject]) -> None:
        from kvtwin_vllm.installation import install  # noqa: PLC0415

        install(selection, self.vllm_config, logger)
        initialize(self, kv_cache_configs)

    initialize_from_config.installs_kvtwin = True  # type: ignore[attr-defined]
    WorkerWrapperBase.initialize_from_config = initialize_from_config
