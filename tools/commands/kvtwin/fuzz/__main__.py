"""`kvtwin fuzz`."""

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("fuzz")
