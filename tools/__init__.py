"""Command lines of those who work on kvtwin: `python -m tools.NAME`, in the root of a checkout."""
