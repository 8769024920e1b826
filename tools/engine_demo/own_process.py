"""Run engines in processes of their own, in which vLLM loads the plugin by its entry point.

Each run is `vllm.LLM` in a new process, whose engine core is one more process. The plugin is the
installed distribution `kvtwin-vllm`; nothing here imports it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.engine_demo.engine import (
    ENVIRONMENT,
    generate,
    make_engine,
    make_requests,
    put_decodes_first,
)
from tools.engine_demo.models import write_model
from tools.engine_demo.weights import use_random_weights

GROUP: Final = "vllm.general_plugins"
PLUGIN: Final = "kvtwin"
DEMO: Final = "engine_demo"
"""The names of the plugin's entry point, and of one that prepares the demo's engines."""

RELEASE: Final = "ENGINE_DEMO_RELEASE"
"""The environment variable with the release that vLLM pretends to be."""

DESELECTED: Final = "make_local_attention_virtual_batches"
INEXACT: Final = "with speculative decoding the host has no exact lengths"


@dataclass(frozen=True)
class Case:
    """An engine with the plugin.

    Attributes:
        name: What is special about it.
        logged: Patterns of the plugin's messages, all of which the engine's process must log, in
            order, and no others.
        environment: Environment variables.
        speculates: Whether it uses n-gram speculative decoding.
    """

    name: str
    logged: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    speculates: bool = False


CASES: Final = (
    Case("plugin", (r"fast replaces \d+ functions: .*",)),
    Case("KVTWIN_VLLM=off", ("nothing is replaced, as KVTWIN_VLLM says",), {"KVTWIN_VLLM": "off"}),
    Case(
        f"KVTWIN_VLLM=-{DESELECTED}",
        (r"fast replaces \d+ functions: .*", f"vLLM's own {DESELECTED} is kept: deselected"),
        {"KVTWIN_VLLM": f"-{DESELECTED}"},
    ),
    Case(
        "vLLM 0.33.0",
        ("nothing is replaced, as this is vLLM 0.33.0, and it knows only 0.32",),
        {RELEASE: "0.33.0"},
    ),
    Case(
        "speculative decoding",
        (
            r"fast replaces \d+ functions: .*",
            f"vLLM's own split_attn_metadata is kept: {INEXACT}",
        ),
        speculates=True,
    ),
)


def check_own_process(model: str, num_requests: int) -> Iterator[tuple[str, bool]]:
    """Run all cases with a model; yield a line for each, and whether it passed.

    Raises:
        ModuleNotFoundError: The plugin is not installed.
        RuntimeError: An engine failed.
    """
    if not importlib.metadata.entry_points(group=GROUP, name=PLUGIN):
        raise ModuleNotFoundError(
            "the plugin is not installed: pip install --no-deps tools/vllm_plugin",
            name="kvtwin_vllm",
        )
    plain = {
        speculates: _run(model, num_requests, DEMO, {}, speculates=speculates)[0]
        for speculates in (False, True)
    }
    for case in CASES:
        tokens, logged = _run(
            model,
            num_requests,
            f"{DEMO},{PLUGIN}",
            case.environment,
            speculates=case.speculates,
        )
        is_equal = tokens == plain[case.speculates]
        verdict = "each token equal" if is_equal else "TOKENS DIFFER"
        yield f"{case.name}: {verdict}; {' | '.join(logged)}", is_equal and is_logged(case, logged)


def is_logged(case: Case, messages: list[str]) -> bool:
    """Return whether the messages of an engine's process are those of a case."""
    return len(messages) == len(case.logged) and all(
        re.fullmatch(pattern, message)
        for pattern, message in zip(case.logged, messages, strict=True)
    )


def messages_of(output: str) -> list[str]:
    r"""Return the plugin's messages in the lines of the engine's processes, each once.

    On a CPU the engine's core has a worker in one more process; both load the plugin.

    >>> core, worker = "(EngineCore pid=7) INFO [a.py:1] ", "(Worker pid=8) INFO [a.py:1] "
    >>> messages_of(f"{core}kvtwin-vllm: a\n{worker}kvtwin-vllm: a\n{worker}kvtwin-vllm: b\nb")
    ['a', 'b']
    """
    line = r"^\((?:EngineCore|Worker)[^)]* pid=\d+\).*?kvtwin-vllm: (.*)$"
    return list(dict.fromkeys(re.findall(line, output, re.MULTILINE)))


def _run(
    model: str, num_requests: int, plugins: str, environment: Mapping[str, str], *, speculates: bool
) -> tuple[list[list[int]], list[str]]:
    """Return what an engine generates, and the plugin's messages in its process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(model, folder)
        _write_entry_point(folder)
        result = folder / "tokens.json"
        path = os.pathsep.join([name, *sys.path])  # what is installed in this process too
        ended = subprocess.run(  # noqa: S603  # no shell
            [sys.executable, "-m", __name__, name, str(num_requests), str(int(speculates))],
            env=os.environ
            | ENVIRONMENT
            | {
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "VLLM_LOGGING_LEVEL": "INFO",
                "VLLM_PLUGINS": plugins,
                "NO_COLOR": "1",
                "PYTHONPATH": path,
            }
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"an engine of {model} failed:\n{ended.stdout[-4000:]}")
        return json.loads(result.read_text()), messages_of(ended.stdout)


def _write_entry_point(folder: Path) -> None:
    """Write a distribution whose entry point is `prepare_engine`."""
    named = folder / "engine_demo-1.dist-info"
    named.mkdir()
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-demo\nVersion: 1\n")
    (named / "entry_points.txt").write_text(f"[{GROUP}]\n{DEMO} = {__name__}:prepare_engine\n")


def prepare_engine() -> None:
    """Give vLLM random weights, and the release in `RELEASE`, if it is set; vLLM calls this."""
    use_random_weights()
    put_decodes_first()
    if RELEASE in os.environ:
        import vllm  # noqa: PLC0415

        vllm.__version__ = os.environ[RELEASE]


def _main(folder: str, num_requests: str, speculates: str) -> None:
    options = {}
    if int(speculates):
        options["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        }
    requests = make_requests(int(num_requests))
    engine = make_engine(folder, len(requests), **options)
    tokens = generate(engine, requests)
    (Path(folder) / "tokens.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    _main(*sys.argv[1:])
