"""Render `docs/cli.md` from the click commands."""

from pathlib import Path

import click

from slotstream_cli.main import COMMANDS, main

TABLES = Path(__file__).with_name("cli_tables.md")
"""Files, variables and differences, written by hand."""


def cli_reference() -> str:
    """Return the complete command reference as Markdown, from the help texts themselves."""
    parts = ["# Command reference\n", "Generated from the commands' own help by `make docs`.\n"]
    parts.append(_block("slotstream", main))
    group = click.Context(main, info_name="slotstream")
    for name in COMMANDS:
        command = main.get_command(group, name)
        if command is not None:
            parts.append(f"## `slotstream {name}`\n")
            parts.append(_block(f"slotstream {name}", command))
    return "\n".join([*parts, TABLES.read_text(encoding="utf-8")])


def _block(title: str, command: click.Command) -> str:
    context = click.Context(command, info_name=title, max_content_width=110, terminal_width=110)
    return f"```text\n{command.get_help(context)}\n```\n"
