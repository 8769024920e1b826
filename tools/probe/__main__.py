"""`python -m tools.probe`."""

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.probe.command_line")
