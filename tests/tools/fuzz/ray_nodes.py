"""A Ray cluster of nodes on this machine, for tests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
"""What each node has. Ray needs 75 MB of shared memory at least."""

IS_INSTALLED = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not IS_INSTALLED, reason="the extra `ray` is not installed")


class Cluster:
    """A Ray cluster on this machine, which can lose nodes.

    Attributes:
        address: The address of the head node.
    """

    def __init__(self, **head: int) -> None:
        from ray.cluster_utils import Cluster as Nodes  # noqa: PLC0415  # of the extra `ray`

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        head_node = {**NODE, **head, "env_vars": {"KVTWIN_NODE": "head"}}
        self._nodes = Nodes(initialize_head=True, head_node_args=head_node)
        self.address: str = self._nodes.address

    def add_node(self, name: str, **options: int) -> Any:  # noqa: ANN401  # Ray is untyped
        """Add a node; its jobs can read its name in `KVTWIN_NODE`."""
        return self._nodes.add_node(**{**NODE, **options, "env_vars": {"KVTWIN_NODE": name}})

    def kill_node(self, node: Any) -> None:  # noqa: ANN401  # Ray is untyped
        """Kill the processes of a node with SIGKILL, workers first so that they report nothing."""
        raylet = node.all_processes["raylet"][0].process.pid
        for child in children_of(raylet):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._nodes.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the processes of the head."""
        self.kill_node(self._nodes.head_node)

    def close(self) -> None:
        """End all nodes."""
        self._nodes.shutdown()


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(path.parent.name))
    return found
