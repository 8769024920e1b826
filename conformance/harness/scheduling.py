"""The scheduler of pytest-xdist that keeps the tests of a function together."""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist is untyped here
    """Gives a worker all tests of a function; other tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what the tests that stay together have in common."""
        found = re.search(r"(.*::[\w.]+)(-\w+)?\[(stored|answers|refusals|laws)-[\w:]+\]$", nodeid)
        return found[1] if found else nodeid

    def _reschedule(self, node: Any) -> None:
        """Give a worker more work; it runs its last test only when it knows the next one."""
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down:
            if self._pending_of(self.assigned_work[node]) >= 2:
                return
            self._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Take the tests of a worker back, and return the one during which it ended, if any.

        xdist's own scheduler would run that one again.
        """
        units = self.assigned_work.pop(node)
        pending = [(u, test) for u in units.values() for test, is_done in u.items() if not is_done]
        if not pending:
            return None
        unit, crashed = pending[0]
        unit[crashed] = True
        self.workqueue.update(
            {scope: unit for scope, unit in units.items() if not all(unit.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return str(crashed)
