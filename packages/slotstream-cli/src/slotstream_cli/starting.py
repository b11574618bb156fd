"""The console script: imports the command inside a function, so that Ctrl-C during start-up leaves no traceback."""

import sys

__all__ = ["run_command_line"]

_INTERRUPTED = 130


def run_command_line() -> None:
    """Run `slotstream` with the process's arguments and end the process with its exit code."""
    try:
        from slotstream_cli.main import main

        main(prog_name="slotstream")
    except KeyboardInterrupt:
        sys.stderr.write("-- interrupted\n")
        sys.exit(_INTERRUPTED)
