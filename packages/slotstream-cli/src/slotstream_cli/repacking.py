"""What `slotstream repack` does, apart from its command line: the repacking with its progress on stderr."""

import json
from contextlib import suppress
from pathlib import Path

import click

from slotstream_cli.converting import shown_progress
from slotstream_cli.failures import INTERRUPTED
from slotstream_core.checkpoint.records import RECORDS_NAME
from slotstream_core.errors import CheckpointError, DirectoryClaimed
from slotstream_core.experts.moving import MoveReport, move_experts, move_report_document, undo_repacking
from slotstream_core.experts.repacking import repack_checkpoint, report_document


def repack(model: Path, output: Path | None, *, as_json: bool) -> None:
    """Repack a checkpoint's experts, showing how far it is.

    Raises:
        click.exceptions.Exit: 130 after Ctrl-C; what was written is continued by the next run.
        SlotstreamError: The experts cannot be repacked.
    """
    try:
        with shown_progress("repack") as progress:
            report = repack_checkpoint(model, output, progress=progress)
    except KeyboardInterrupt:
        click.echo("-- interrupted; the same command continues", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    kept = f", {len(report.kept_files)} found complete and right" if report.kept_files else ""
    click.echo(
        f"-- {report.directory}: {report.records:,} records of {report.total_bytes / 1e6:,.1f} MB together, "
        f"{len(report.written_files)} files written and read back{kept}",
        err=True,
    )
    if report.link is not None:
        click.echo(f"-- {report.link} leads there", err=True)
    if as_json:
        click.echo(json.dumps(report_document(report), indent=2))


def write_records(model: Path) -> None:
    """Write a small checkpoint's experts as records, saying nothing unless that fails; it can be used all the same.

    Where another process is at it, this one leaves it to that.
    """
    try:
        repack_checkpoint(model)
    except DirectoryClaimed:
        return
    except CheckpointError as error:
        click.echo(f"-- its experts are read from its stacked tensors: {error}", err=True)
        with suppress(OSError):  # what was begun is continued by the next use or pull
            (model / RECORDS_NAME).rmdir()


def move(model: Path, *, back: bool, as_json: bool) -> None:
    """Move a checkpoint's experts into records in place of its stacked tensors, or back, showing how far it is.

    Args:
        model: The checkpoint.
        back: Whether the shards become what they were, and records beside them go.
        as_json: Whether what was done is printed as JSON.

    Raises:
        click.exceptions.Exit: 130 after Ctrl-C; the checkpoint can be used, and the next run continues.
        SlotstreamError: The experts cannot be moved, or the model is in use.
    """
    try:
        with shown_progress("undo" if back else "move") as progress:
            report = (undo_repacking if back else move_experts)(model, progress=progress)
    except KeyboardInterrupt:
        click.echo("-- interrupted; the model can be used as it is, and the same command continues", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(f"-- {model}: {_done(model, report)}", err=True)
    if as_json:
        click.echo(json.dumps(move_report_document(report), indent=2))


def _done(model: Path, report: MoveReport) -> str:
    """What was done, in words."""
    size = f"{report.record_bytes / 1e6:,.1f} MB of records"
    if report.direction == "moved":
        return (
            f"{len(report.files)} files of records written and read back, {len(report.shards)} shards written without "
            f"their experts; {size} in {report.directory}"
        )
    if report.direction == "removed":
        if report.directory != model.absolute() / RECORDS_NAME:
            return (
                f"the link to its records removed; {size} stay in {report.directory}, remove them if nothing else does"
            )
        left = f"; what else is in {report.directory} stays" if report.directory.exists() else ""
        return f"{len(report.files)} files of records beside the stacked tensors removed{left}"
    if not report.shards and not report.files:
        return "nothing to undo: its experts are in its stacked tensors alone"
    return f"{len(report.shards)} shards as they were, {len(report.files)} files of records removed"
