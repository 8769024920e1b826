"""A Hypothesis backend that draws each example from scratch.

By default, Hypothesis follows each new example by up to five mutations, which copy a part of it to
another place. That finds two values that must be equal. Our calls consist of dozens of small draws,
hardly any two of which must be equal: with Hypothesis' mutations, 71 of 200 examples of
`compute_slot_mapping` were duplicates. Without them none was, and the 61 bugs that had taken 40 to
159 examples took 2 to 50 (2026-11-21).
"""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND_NAME = "kvtwin-again"
"""The backend's name, for `hypothesis.settings`."""


class FreshProvider(HypothesisProvider):
    """Draws like the default provider, but as another backend, so Hypothesis makes no mutations.

    In return, Hypothesis does not remember which examples were tried, so it does not notice when
    all examples of a small space have been drawn.
    """


AVAILABLE_PROVIDERS[BACKEND_NAME] = FreshProvider
