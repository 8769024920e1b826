"""`python -m tools.bugs`."""

if __name__ == "__main__":
    from conformance.entry_point import run

    run("tools.bugs.command_line")
