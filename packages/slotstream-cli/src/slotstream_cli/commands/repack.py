"""`slotstream repack`: a model's experts as records of their own, one read each."""

from pathlib import Path

import click


@click.command("repack")
@click.argument("model", metavar="[NAME|DIR]", required=False)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write here, on another disk perhaps; the checkpoint links to it.  [default: inside the checkpoint]",
)
@click.option("--move", is_flag=True, help="Let the records take the stacked tensors' place, for a small disk.")
@click.option(
    "--undo", is_flag=True, help="Bring the shards back that --move wrote anew, bit for bit, or remove `repacked`."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def command(*, model: str | None, output: Path | None, move: bool, undo: bool, as_json: bool) -> None:
    """Write each expert of a model as one page-aligned record beside the checkpoint's stacked tensors.

    A missing expert then takes one read instead of nine. `run`, `chat` and `serve` use the records by themselves, and
    replies stay the same. The records take as much disk space again as the experts. An interrupted run continues when
    the command is run again; a finished one is checked against its digests. --undo removes `repacked`.

    With --move nothing is kept twice: shard by shard, records take the place of the stacked tensors, and the checkpoint
    can be used at every moment. It needs room for one shard. Other programs cannot read it then; --undo makes every
    file what it was. Either can be interrupted and continued, or turned back.
    """
    if move + undo + (output is not None) > 1:
        raise click.UsageError("--output, --move and --undo exclude each other")
    from slotstream_cli.models import choose_model
    from slotstream_cli.repacking import move as move_or_restore
    from slotstream_cli.repacking import repack

    choice = choose_model(model)
    if choice.note:
        click.echo(f"-- {choice.note}", err=True)
    if move or undo:
        move_or_restore(choice.directory, back=undo, as_json=as_json)
        return
    repack(choice.directory, output, as_json=as_json)
