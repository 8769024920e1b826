"""A night on a Ray cluster that loses a node, with a Redis server that restarts.

Its workers compile the loops of `fast` in a new folder. Beside other tests that takes minutes, so
`.ci/run` runs this file alone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.tools import nights

WRONG = """
def extract_layer_index(*args, **kwargs):
    return fast.extract_layer_index(*args, **kwargs) + 1
"""
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_night_on_a_cluster_that_loses_a_node(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    redis = pytest.importorskip("redis", reason="the extra `redis` is not installed")
    from ray.cluster_utils import Cluster  # noqa: PLC0415  # of the extra `ray`

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    server, cluster = nights.RedisServer(), Cluster(initialize_head=True, head_node_args=NODE)
    second = cluster.add_node(**NODE)
    where = (
        "--ray",
        cluster.address,
        "--database",
        server.url,
        "--functions",
        "extract_layer_index",
    )
    night = nights.Night(tmp_path, WRONG, *where)
    try:
        night.wait(lambda line: line["failures"] and line["rounds"] > 1)
        cluster.remove_node(second, allow_graceful=False)
        server.kill()
        server.start()
        night.wait(lambda line: "was lost" in " ".join(line["attention"]))
        client = redis.Redis.from_url(server.url)
        line = night.end(lambda line: line["rounds"] > 2 and client.keys("hypothesis-example:*"))
        assert {"extract_layer_index"} == nights.functions(line)
        replay = line["failures"][0]["replay"]
        assert f"--impl {tmp_path / 'mine.py'} " in replay
        assert (tmp_path / "night" / line["failures"][0]["case"]).exists()
    finally:
        night.process.kill()
        server.kill()
        cluster.shutdown()
