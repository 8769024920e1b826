"""The driver process that starts Ray tasks, a worker for each CPU and GPU, for `ray_pool.RayPool`.

It is a separate process because Ray ends its driver when the head node is lost, and because Ray
prints. It sends the cluster's resources to the coordinator through a pipe; jobs and events go
directly between the coordinator and the workers.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from kvtwin.fuzz.workers.ray_cluster import Config, Resources
from kvtwin.fuzz.workers.ray_worker import run_worker

WATCH_SECONDS: Final = 2.0
"""How often the nodes of the cluster are polled."""

PAUSE_SECONDS: Final = 10.0
"""How long to wait after a worker failed to start."""


class Driver:
    """Starts a worker for each CPU and GPU of the cluster.

    Args:
        config: The configuration.

    Raises:
        Exception: Of any class, if Ray cannot be used.
    """

    def __init__(self, config: Config) -> None:
        import ray  # noqa: PLC0415  # of the extra `ray`

        ray.init(
            config.address,
            runtime_env={"working_dir": config.code},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        self._ray: Any = ray
        self._config = config
        self._node = ray.get_runtime_context().get_node_id()
        node_address: Any = ray.util.get_node_ip_address
        self._address = (node_address(), config.port)
        self._workers: dict[Any, bool] = {}
        self._number = 0
        self._pause_until = 0.0
        self._failure = ""

    def look(self) -> Resources:
        """Replace ended workers, start workers for new CPUs and GPUs, and return the resources."""
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        if self._node not in nodes:
            # Ray ends the workers of a driver whose node is gone: exit, to be started again.
            raise RuntimeError("the node of this machine is gone")
        cpus, gpus = (
            sum(int(node["Resources"].get(kind, 0)) for node in nodes.values())
            for kind in ("CPU", "GPU")
        )
        self._remove_ended()
        limit = cpus if self._config.workers is None else min(cpus, self._config.workers)
        for has_gpu, most in ((False, limit), (True, gpus * self._config.use_gpus)):
            running = sum(each is has_gpu for each in self._workers.values())
            for _ in range(most - running if time.monotonic() > self._pause_until else 0):
                self._start(has_gpu)
        free = int(self._ray.available_resources().get("CPU", 0))
        return Resources(cpus, free, gpus, self._failure)

    def _remove_ended(self) -> None:
        if not self._workers:
            return
        ended, _ = self._ray.wait(list(self._workers), num_returns=len(self._workers), timeout=0)
        for reference in ended:
            del self._workers[reference]
            errors = self._ray.exceptions
            try:
                self._ray.get(reference)
            except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
                self._pause_until = time.monotonic() + PAUSE_SECONDS
                self._failure = str(error)
                print(error, file=sys.stderr)
            except errors.RayError:
                pass  # it was killed, or its node was lost: another one is started at once

    def _start(self, has_gpu: bool) -> None:
        task = self._ray.remote(
            num_cpus=0 if has_gpu else 1,
            num_gpus=1 if has_gpu else 0,
            max_retries=0,
            max_calls=1,  # a new process each: a fork server keeps the GPUs it started with
        )(run_worker)
        worker = task.remote(self._number, self._address, self._config.worker, has_gpu)
        self._workers[worker] = has_gpu
        self._number += 1


def main() -> None:
    """Serve the coordinator until it is gone; the argument is the file descriptor of the pipe."""
    pipe = Connection(int(sys.argv[1]))
    config: Config = pipe.recv()
    try:
        driver = Driver(config)
    except Exception as error:  # noqa: BLE001  # Ray raises all kinds
        pipe.send(" ".join(str(error).split()) or type(error).__name__)
        return
    with contextlib.suppress(OSError):  # the coordinator is gone
        while True:
            pipe.send(driver.look())
            time.sleep(WATCH_SECONDS)


if __name__ == "__main__":
    main()
