"""The stateful test: requests share prefixes, are preempted and finish, in both twins."""

from __future__ import annotations

from conformance.stateful.check import stateful_check

test_stateful = stateful_check()
