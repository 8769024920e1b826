"""Runs the rounds of a night as tasks of a Ray cluster, which may lose nodes and get others."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import conformance
import fast
import kvtwin
import reference
from conformance.entry_point import how_to_install
from kvtwin.nightly.night import Night, end_at_signals
from kvtwin.nightly.rounds import END_SECONDS, Record, Round, run_round

GIVEN: Final = re.compile(r"\S*/given_(\d+)/\S+")  # a file that was copied to a node
REACH_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 10.0  # after a round was lost


def run_on_cluster(night: Night, address: str, workers: int | None) -> None:
    """Run as many rounds at a time as the cluster has room for, each on `workers` CPUs."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with tempfile.TemporaryDirectory(prefix="kvtwin-ship-") as folder:
        arguments = _copy_code(night, Path(folder))
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            import ray  # noqa: PLC0415  # an extra

            if address != "auto":
                host, _, port = address.rpartition(":")
                with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS):
                    pass  # Ray would try for minutes
            ray.init(address, runtime_env={"working_dir": folder}, **quiet)
        except ImportError as error:
            raise ValueError(f"--ray needs Ray: {how_to_install('ray')}") from error
        except Exception as error:  # Ray has dozens
            said = " ".join(str(error).split())[:500]
            raise ValueError(f"the Ray cluster {address} cannot be used: {said}") from error
        end_at_signals(night)  # Ray has handlers of its own
        try:
            _Tasks(ray, night, arguments, workers).run()
        finally:
            ray.shutdown()


class _Tasks:
    """The rounds that run on a cluster."""

    def __init__(
        self, ray: Any, night: Night, arguments: Sequence[str], workers: int | None
    ) -> None:
        self.ray, self.night, self.arguments, self.workers = ray, night, arguments, workers
        self.running: dict[Any, Round] = {}
        self.pause_until = 0.0

    def run(self) -> None:
        while not self.night.is_over:
            self._start()
            self._receive()
        until = time.monotonic() + 2 * END_SECONDS
        while self.running and time.monotonic() < until and not self.night.ended:
            self._receive()  # what was cut off at the end of the night
        for task in self.running:
            self.ray.cancel(task)

    def _start(self) -> None:
        """Start as many rounds as there is room for."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        cpus = sorted(int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1)
        size = self.workers or (cpus[0] if cpus else 1)
        room = sum(number // size for number in cpus) - len(self.running)
        has_gpu = any("cuda" in word for word in self.arguments)
        remote = self.ray.remote(num_cpus=size, num_gpus=int(has_gpu), max_retries=0)(run_round)
        for _ in range(room if time.monotonic() > self.pause_until else 0):
            one = self.night.next_round()
            one = dataclasses.replace(one, workers=size, arguments=self.arguments)
            self.running[remote.remote(one, self.night.until - time.monotonic())] = one

    def _receive(self) -> None:
        """Take over what rounds have recorded."""
        if not self.running:
            time.sleep(1)
            return
        for task in self.ray.wait([*self.running], timeout=1, fetch_local=False)[0]:
            one = self.running[task]
            try:
                record: Record = self.ray.get(next(task))
            except StopIteration:
                del self.running[task]
            except self.ray.exceptions.RayError as error:
                del self.running[task]
                self.pause_until = time.monotonic() + PAUSE_SECONDS
                said = " ".join(str(error).split())[:300]
                self.night.attention.append(f"round {one.number} was lost: {said}")
            else:
                for found in record.get("failures", ()):
                    found["replay"] = GIVEN.sub(self._given, found["replay"])
                self.night.note(one, record)

    def _given(self, match: re.Match[str]) -> str:
        """Return the path of an implementation on this machine."""
        return self.night.arguments[int(match[1])]


def _copy_code(night: Night, folder: Path) -> list[str]:
    """Copy the packages into a folder, and an implementation's file with those beside it.

    Returns:
        The arguments of the conformance run in this folder.
    """
    for package in (reference, fast, conformance, kvtwin):
        ignored = shutil.ignore_patterns("__pycache__", "failures", ".*")
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, folder / package.__name__, ignore=ignored)
    arguments = list(night.arguments)
    for place, word in enumerate(arguments):
        if word.endswith(".py") and arguments[place - 1] in {"--impl", "--adapter"}:
            given = folder / f"given_{place}"
            given.mkdir()
            for path in Path(word).parent.glob("*.py"):
                shutil.copy(path, given)
            arguments[place] = f"{given.name}/{Path(word).name}"
    return arguments
