"""`slotstream pull`: a model by name, compressed, verified and resumable."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

import click

from slotpack.catalog import DEFAULT_MODEL, CatalogModel, default_directory, find_model
from slotpack.tuning import MAX_CONNECTIONS

if TYPE_CHECKING:
    from slotpack.pulling import TransportName

_TRANSPORTS = ("automatic", "compressed", "raw")


@click.command("pull")
@click.argument("model", default=DEFAULT_MODEL, metavar="[MODEL]")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=pathlib.Path),
    help="Destination.  [default: the model's place below ~/.slotstream/models]",
)
@click.option(
    "--connections",
    type=click.IntRange(1, MAX_CONNECTIONS),
    help="Fixed number of connections.  [default: start at 8 and add while that is faster]",
)
@click.option(
    "--transport",
    type=click.Choice(_TRANSPORTS),
    help="compressed objects or raw files; automatic resumes what was begun.  [default: automatic]",
)
@click.option("--verify", is_flag=True, help="Check the files that are there against their SHA-256; downloads nothing.")
def command(
    *,
    model: str,
    directory: pathlib.Path | None,
    connections: int | None,
    transport: TransportName | None,
    verify: bool,
) -> None:
    """Download MODEL, by default qwen3.8-flash-next:4bit; demo is unpacked from the installation.

    Every byte is verified. Stop with Ctrl-C and run the same command again to continue.
    """
    chosen = find_model(model)
    target = directory.expanduser() if directory is not None else default_directory(chosen)
    if verify:
        _verify(chosen, target)
        return
    from slotstream_cli.downloading import download, options_from

    download(chosen, target, options_from(os.environ, transport=transport, connections=connections))


def _verify(model: CatalogModel, directory: pathlib.Path) -> None:
    from slotpack.cancellation import Cancellation
    from slotpack.errors import PullCancelled
    from slotpack.pulling import verify_directory
    from slotpack.sidecars import has_sidecar
    from slotstream_cli.downloading import display
    from slotstream_cli.failures import INTERRUPTED

    try:
        with display() as show:
            found = verify_directory(model, directory, cancel=Cancellation(), progress=show)
    except (KeyboardInterrupt, PullCancelled):
        raise click.exceptions.Exit(INTERRUPTED) from None
    for path in found.damaged:
        click.echo(f"damaged: {path}")
    for path in found.missing:
        click.echo(f"missing: {path}")
    for path in found.absent_optional:
        click.echo(f"absent, optional: {path}")
    for sidecar in model.sidecars:
        if not has_sidecar(sidecar, directory):
            click.echo(f"absent or damaged, optional: {sidecar.path}")
    if not found.is_complete:
        raise click.ClickException(f"{directory} is not complete; run `slotstream pull` to repair it")
    click.echo(f"{directory}: every required file has its SHA-256")
