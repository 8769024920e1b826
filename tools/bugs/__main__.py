"""`python -m tools.bugs`."""

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.bugs.command_line")
