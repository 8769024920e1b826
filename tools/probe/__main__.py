"""`python -m tools.probe`."""

if __name__ == "__main__":
    from conformance.entry_point import run

    run("tools.probe.command_line")
