"""`slotstream pull`: a model by name, compressed, verified and resumable."""

import os
import pathlib

import click

from slotpack.cancellation import Cancellation
from slotpack.catalog import DEFAULT_MODEL, CatalogModel, default_directory, find_model
from slotpack.errors import PullCancelled, SlotpackError
from slotpack.pulling import TRANSPORTS, TransportName, verify_directory
from slotpack.sidecars import has_sidecar
from slotpack.tuning import MAX_CONNECTIONS
from slotstream_cli.downloading import INTERRUPTED, display, download, options_from


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
    type=click.Choice(TRANSPORTS),
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
    try:
        chosen = find_model(model)
    except SlotpackError as error:
        raise click.ClickException(str(error)) from error
    target = directory.expanduser() if directory is not None else default_directory(chosen)
    if verify:
        _verify(chosen, target)
        return
    download(chosen, target, options_from(os.environ, transport=transport, connections=connections))


def _verify(model: CatalogModel, directory: pathlib.Path) -> None:
    cancel = Cancellation()
    try:
        with display() as show:
            found = verify_directory(model, directory, cancel=cancel, progress=show)
    except (KeyboardInterrupt, PullCancelled):
        raise click.exceptions.Exit(INTERRUPTED) from None
    except SlotpackError as error:
        raise click.ClickException(str(error)) from error
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
