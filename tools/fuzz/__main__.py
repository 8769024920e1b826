"""`python -m tools.fuzz`."""

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.fuzz.command_line")
