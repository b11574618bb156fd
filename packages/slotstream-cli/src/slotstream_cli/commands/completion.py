"""`slotstream completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print the completion script for a shell.

    For example: slotstream completion bash >> ~/.bashrc; for fish: slotstream completion fish >
    ~/.config/fish/completions/slotstream.fish
    """
    from slotstream_cli.main import main

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click has no completion for {shell}")
    click.echo(kind(main, {}, "slotstream", "_SLOTSTREAM_COMPLETE").source())
