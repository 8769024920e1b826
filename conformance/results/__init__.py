"""The outcomes of a run, and what the terminal shows of them."""
