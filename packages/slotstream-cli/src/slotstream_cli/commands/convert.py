"""`slotstream convert`: a Hugging Face checkpoint into the layout that is streamed."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from slotstream_core.checkpoint.conversion import ConversionOptions, ConversionProgress, convert_checkpoint
from slotstream_core.checkpoint.storage import StorageOptions
from slotstream_core.errors import SlotstreamError

_INTERRUPTED = 130
_WIDTHS = click.Choice(["4", "8"])


@click.command("convert")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("destination", metavar="DST", type=click.Path(path_type=Path))
@click.option("--bits", type=_WIDTHS, help="Bits of a quantised value.  [default: 4]")
@click.option("--dense-bits", type=_WIDTHS, help="Bits of everything but experts and n-grams.  [default: --bits]")
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), help="Values that share a scale.  [default: 64]")
@click.option("--no-quantize", is_flag=True, help="Keep every tensor in its own floating type.")
@click.option(
    "--shard-gb",
    default=5.0,
    type=click.FloatRange(min=0, max=1e6, min_open=True),
    show_default=True,
    help="File size.",
)
def command(
    *,
    source: Path,
    destination: Path,
    bits: str | None,
    dense_bits: str | None,
    group_size: str | None,
    no_quantize: bool,
    shard_gb: float,
) -> None:
    """Convert the Hugging Face checkpoint SRC into a new directory DST.

    Memory stays small whatever the model's size. An interrupted conversion continues when the command is run again.
    """
    if no_quantize and (bits or dense_bits or group_size):
        raise click.UsageError(
            "--no-quantize keeps every tensor as it is; leave out --bits, --dense-bits, --group-size"
        )
    if math.isnan(shard_gb):
        raise click.UsageError("--shard-gb is nan; give a size in GB above 0, for example 5")
    storage = StorageOptions(
        bits=None if no_quantize else int(bits or 4),
        dense_bits=int(dense_bits) if dense_bits else None,
        group_size=int(group_size or 64),
    )
    options = ConversionOptions(storage=storage, shard_bytes=max(1, int(shard_gb * 1e9)))
    try:
        with _shown_progress() as progress:
            report = convert_checkpoint(source, destination, options, progress)
    except KeyboardInterrupt:
        click.echo(f"-- interrupted; the same command continues in {destination}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except SlotstreamError as error:
        raise click.ClickException(str(error)) from error
    kept = f", {len(report.kept_files)} kept from an earlier run" if report.kept_files else ""
    click.echo(
        f"-- {report.directory}: {report.total_bytes / 1e6:,.1f} MB, {len(report.written_files)} files written{kept}",
        err=True,
    )


@contextmanager
def _shown_progress() -> Iterator[Callable[[ConversionProgress], None]]:
    """A bar on a terminal, one line a file anywhere else."""
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
        task = bar.add_task("convert", total=None)
        yield lambda step: bar.update(
            task, completed=step.done_bytes, total=step.total_bytes, description=step.file_name
        )


class _PlainProgress:
    """One line on stderr when a file is begun or was found finished, with the share that is done."""

    def __init__(self) -> None:
        self._file_name = ""

    def __call__(self, step: ConversionProgress) -> None:
        if step.file_name != self._file_name:
            self._file_name = step.file_name
            verb = "kept" if step.kept else "writing"
            share = step.done_bytes / max(1, step.total_bytes)
            click.echo(f"-- {share:4.0%} of {step.total_bytes / 1e6:,.1f} MB, {verb} {step.file_name}", err=True)
