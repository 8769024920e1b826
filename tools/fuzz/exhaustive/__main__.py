"""`python -m tools.fuzz.exhaustive`."""

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.fuzz.exhaustive.command_line")
