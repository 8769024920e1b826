"""The scheduler of pytest-xdist that keeps the tests of a function together."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

from conformance.harness.limits import ITEM


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist is untyped here
    """Gives a worker all tests of a function; other tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        found = ITEM.search(nodeid)
        return nodeid[: found.end("function")] if found else nodeid

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A worker runs its last test only when it knows the next one.
        while self.workqueue and not node.shutting_down:
            if self._pending_of(self.assigned_work[node]) >= 2:
                return
            self._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Return the test during which a worker ended; xdist's scheduler would run it again."""
        for unit in self.assigned_work[node].values():
            for test, is_done in unit.items():
                if not is_done:
                    unit[test] = True
                    super().remove_node(node)
                    return str(test)
        found: str | None = super().remove_node(node)
        return found
