"""What `slotstream convert` does, apart from its command line: the conversion with its progress on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from slotstream_cli.failures import INTERRUPTED
from slotstream_core.checkpoint.conversion import ConversionOptions, convert_checkpoint
from slotstream_core.checkpoint.storage import StorageOptions


def convert(source: Path, destination: Path, *, storage: StorageOptions, shard_bytes: int) -> None:
    """Convert a checkpoint, showing how far it is.

    Raises:
        click.exceptions.Exit: 130 after Ctrl-C; what was written is continued by the next conversion.
        SlotstreamError: The checkpoint cannot be converted.
    """
    options = ConversionOptions(storage=storage, shard_bytes=shard_bytes)
    try:
        with shown_progress("convert") as progress:
            report = convert_checkpoint(source, destination, options, progress)
    except KeyboardInterrupt:
        click.echo(f"-- interrupted; the same command continues in {destination}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    kept = f", {len(report.kept_files)} kept from an earlier run" if report.kept_files else ""
    click.echo(
        f"-- {report.directory}: {report.total_bytes / 1e6:,.1f} MB, {len(report.written_files)} files written{kept}",
        err=True,
    )


class FileProgress(Protocol):
    """How far something is that writes one file after the other; see `ConversionProgress`."""

    @property
    def done_bytes(self) -> int:
        """Bytes that are written or were found intact."""

    @property
    def total_bytes(self) -> int:
        """Bytes altogether."""

    @property
    def file_name(self) -> str:
        """The file at hand."""

    @property
    def kept(self) -> bool:
        """Whether that file was finished by an earlier run."""


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[FileProgress], None]]:
    """A bar on a terminal, one line a file anywhere else.

    Args:
        what: What is done, until the first file is named.
    """
    if not sys.stderr.isatty():
        yield _PlainProgress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step: bar.update(
            task, completed=step.done_bytes, total=step.total_bytes, description=step.file_name
        )


class _PlainProgress:
    """One line on stderr when a file is begun or was found finished, with the share that is done."""

    def __init__(self) -> None:
        self._file_name = ""

    def __call__(self, step: FileProgress) -> None:
        if step.file_name != self._file_name:
            self._file_name = step.file_name
            verb = "kept" if step.kept else "writing"
            share = step.done_bytes / max(1, step.total_bytes)
            click.echo(f"-- {share:4.0%} of {step.total_bytes / 1e6:,.1f} MB, {verb} {step.file_name}", err=True)
