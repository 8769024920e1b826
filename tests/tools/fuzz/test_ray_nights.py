"""A night on a real Ray cluster that loses a node, with a real Redis server that is restarted.

Its workers compile the loops of `fast` in a new folder. Beside other tests that takes minutes, so
`.ci/run` runs this file alone.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from kvtwin.fuzz.findings.database import open_database
from tests.tools.fuzz import nights
from tests.tools.fuzz.ray_nodes import Cluster, needs_ray
from tests.tools.fuzz.redis_server import Server

WRONG = """
import fast

def map_to_kernel_blocks(block_ids, blocks_per_kv_block):
    return fast.map_to_kernel_blocks(block_ids, blocks_per_kv_block) + 1
"""


@needs_ray
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_night_on_a_cluster_keeps_what_it_finds(tmp_path: Path) -> None:
    """The failure is in the report and in Redis, although a node is lost and Redis restarted."""
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    implementation = tmp_path / "wrong.py"
    implementation.write_text(WRONG, encoding="utf-8")
    (tmp_path / "redis").mkdir()
    server = Server(tmp_path / "redis", is_persistent=False)
    cluster = Cluster()
    second = cluster.add_node("second")
    out = tmp_path / "out"
    options = ("--impl", implementation, "--target", "host", "--minutes", "10", "--out", out)
    where = ("--ray", cluster.address, "--database", server.url)
    night = nights.start(*options, *where)
    try:
        nights.until(lambda: nights.findings(out), nights.SECONDS)
        cluster.kill_node(second)
        server.kill()
        server.start()
        found = nights.findings(out)
        nights.until(lambda: is_minimal(nights.findings(out)), nights.SECONDS)
        night.send_signal(signal.SIGTERM)
        status, printed = nights.ended(night)
        assert 143 == status, printed
        report = nights.report(out)
        assert {one["failure"]["function"] for one in found} == {"map_to_kernel_blocks"}
        assert {"map_to_kernel_blocks"} == {one["function"] for one in report["findings"]}
        assert [] == report["errors"]
        assert report["workers"] >= 1
        assert "nodes of the Ray cluster" in {one["name"] for one in report["machines"]}
        with contextlib.closing(open_database(server.url, tmp_path / "elsewhere")) as database:
            assert any(database.failing(one["property"]) for one in report["findings"])
    finally:
        night.kill()
        server.kill()
        cluster.close()


def is_minimal(findings: list[dict[str, Any]]) -> bool:
    """Return whether one of some findings was minimized."""
    return any(one["failure"]["is_minimal"] for one in findings)
