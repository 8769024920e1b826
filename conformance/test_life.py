"""A runner's life: requests come, share, are preempted and go, in both twins alike."""

from __future__ import annotations

from conformance.life.check import life_check

test_life = life_check()
