"""`slotstream stop`: end the server on a port, whoever started it."""

from __future__ import annotations

import os

import click

from slotstream_serve.defaults import DEFAULT_PORT


@click.command("stop")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=DEFAULT_PORT, show_default=True, help="Where the server listens."
)
def command(*, port: int) -> None:
    """Stop the server on a port, also one that is still starting; its requests end at once.

    When no server answers, this says so and succeeds.
    """
    from slotpack.catalog import root_directory
    from slotstream_cli.launching.asking import ServerPort
    from slotstream_cli.launching.records import LaunchState
    from slotstream_cli.launching.stopping import stop_server

    where = ServerPort(port=port, api_key=os.environ.get("SLOTSTREAM_API_KEY") or None)
    state = LaunchState(root=root_directory().absolute(), port=port)
    click.echo(stop_server(where, state))
