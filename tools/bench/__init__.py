"""What the hot functions cost, against `reference` and a peer: `python -m tools.bench`."""
