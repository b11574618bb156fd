"""The command line that every maker of goldens has."""

import argparse
from collections.abc import Callable
from pathlib import Path


def run(
    description: str | None, write_checkpoints: Callable[[Path], None], write_goldens: Callable[[Path, Path], None]
) -> None:
    """Write checkpoints into a directory, or the goldens of those in it into another one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("checkpoints").add_argument("directory", type=Path)
    goldens = commands.add_parser("goldens")
    goldens.add_argument("directory", type=Path)
    goldens.add_argument("goldens", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "checkpoints":
        write_checkpoints(arguments.directory)
    else:
        write_goldens(arguments.directory, arguments.goldens)
