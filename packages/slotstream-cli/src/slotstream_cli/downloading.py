"""Downloads from the command line: options from flags and environment, the live display, stopping, first use.

`pull` and every command that offers a download on first use go through `download`, so that all of them fetch the same
files, show the same display and end with the same exit status when stopped.
"""

import contextlib
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slotpack.cancellation import Cancellation
from slotpack.catalog import CatalogModel, default_directory
from slotpack.errors import PullCancelled, SlotpackError
from slotpack.progress import PullProgress
from slotpack.pulling import TRANSPORTS, PullOptions, PullReport, TransportName, pull
from slotpack.tuning import MAX_CONNECTIONS
from slotstream_cli.demo_records import begin_records, finish_records
from slotstream_cli.failures import INTERRUPTED

TERMINATED = 143
_STEP_PERCENT = 5


def split_sources(value: str) -> tuple[str, ...]:
    """Return the addresses of a comma-separated list; blanks are ignored."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def options_from(
    environment: Mapping[str, str],
    *,
    transport: TransportName | None = None,
    connections: int | None = None,
) -> PullOptions:
    """Combine flags and environment variables; a flag wins, and `automatic` leaves the choice to the environment.

    Args:
        environment: Normally `os.environ`: SLOTSTREAM_PULL_TRANSPORT, SLOTSTREAM_PULL_CONNECTIONS,
            SLOTSTREAM_WEIGHTS_SOURCES and SLOTSTREAM_COMPRESSED_SOURCES.
        transport: The --transport flag.
        connections: The --connections flag.

    Raises:
        click.UsageError: When a variable cannot be understood.
    """
    chosen: TransportName = transport or "automatic"
    if chosen == "automatic":
        wanted = environment.get("SLOTSTREAM_PULL_TRANSPORT", "") or "automatic"
        matches = [name for name in TRANSPORTS if name == wanted]
        if not matches:
            raise click.UsageError(f"SLOTSTREAM_PULL_TRANSPORT is {wanted!r}; use one of {', '.join(TRANSPORTS)}")
        chosen = matches[0]
    text = environment.get("SLOTSTREAM_PULL_CONNECTIONS", "")
    if connections is None and text:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            raise click.UsageError(f"SLOTSTREAM_PULL_CONNECTIONS is {text!r}; use a number from 1 to {MAX_CONNECTIONS}")
        connections = min(MAX_CONNECTIONS, int(text))
    return PullOptions(
        transport=chosen,
        connections=connections,
        raw_sources=split_sources(environment.get("SLOTSTREAM_WEIGHTS_SOURCES", "")),
        compressed_sources=split_sources(environment.get("SLOTSTREAM_COMPRESSED_SOURCES", "")),
    )


def shown_seconds(seconds: float | None) -> str:
    """Return a duration as h:mm:ss or m:ss, or dashes while it is unknown."""
    if seconds is None:
        return "--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe(progress: PullProgress) -> str:
    """Return one line for a moment of a pull: bytes, rate, time left, connections."""
    if progress.phase == "checking":
        return f"checking {progress.file}"
    if progress.phase == "sidecar":
        return f"fetching {progress.file} ({progress.total_bytes / 1e6:.1f} MB)"
    if progress.phase == "verifying":
        return "verifying the last files"
    share = 100 * progress.done_bytes // max(1, progress.total_bytes)
    unit, scale = ("GB", 1e9) if progress.total_bytes >= 10**9 else ("MB", 1e6)
    return (
        f"{share:3d}%  {progress.done_bytes / scale:.2f} of {progress.total_bytes / scale:.2f} {unit}  "
        f"{progress.rate_bytes_per_s / 1e6:.1f} MB/s  {shown_seconds(progress.eta_s)} left  "
        f"{progress.connections} connections"
    )


class PlainDisplay:
    """A line for every file checked and every twentieth of the transfer; for logs and pipes."""

    def __init__(self) -> None:
        self._last: tuple[str, str, int] | None = None

    def __call__(self, progress: PullProgress) -> None:
        """Show a moment unless the last line already said as much."""
        step = 100 * progress.done_bytes // max(1, progress.total_bytes) // _STEP_PERCENT
        key = (progress.phase, progress.file, step)
        if key != self._last:
            self._last = key
            click.echo(f"-- {describe(progress)}", err=True)


class QuietDisplay:
    """One line for a model that came with the installation: unpacking takes a moment and no network."""

    def __init__(self, name: str) -> None:
        click.echo(f"-- unpacking the model {name}", err=True)

    def __call__(self, progress: PullProgress) -> None:
        """Show nothing more."""


@contextlib.contextmanager
def display(*, unpacking: str | None = None) -> Iterator["PlainDisplay | LiveDisplay | QuietDisplay"]:
    """A live bar on a terminal, plain lines anywhere else; one line when a model of that name is only unpacked."""
    if unpacking is not None:
        yield QuietDisplay(unpacking)
        return
    if not sys.stderr.isatty():
        yield PlainDisplay()
        return
    with Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        yield LiveDisplay(bar)


class LiveDisplay:
    """One bar that is redrawn in place."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def __call__(self, progress: PullProgress) -> None:
        """Redraw."""
        total = progress.total_bytes if progress.phase in ("downloading", "verifying") else None
        self._bar.update(self._task, completed=progress.done_bytes, total=total, description=describe(progress))


@contextlib.contextmanager
def stopping_on_sigterm(cancel: Cancellation) -> Iterator[threading.Event]:
    """Turn SIGTERM into a cancellation while the block runs, so that progress is kept; the event tells it came."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, frame: FrameType | None) -> None:
        came.set()
        cancel.cancel()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def is_interactive() -> bool:
    """Tell whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def download(model: CatalogModel, directory: pathlib.Path, options: PullOptions) -> PullReport:
    """Pull a model with a display; the demo's experts are written as records, too.

    Raises:
        click.exceptions.Exit: 130 after Ctrl-C, 143 after SIGTERM; progress is kept.
        click.ClickException: When the model cannot be completed.
    """
    cancel = Cancellation()
    is_local = model.is_bundled and not (options.compressed_sources or options.raw_sources)
    unpacking = model.name if is_local else None
    begin_records(model, directory)
    try:
        with stopping_on_sigterm(cancel) as terminated, display(unpacking=unpacking) as show:
            report = pull(model, directory, options=options, progress=show, cancel=cancel)
    except (PullCancelled, KeyboardInterrupt):
        click.echo("-- stopped; the same command continues from the verified bytes", err=True)
        raise click.exceptions.Exit(TERMINATED if terminated.is_set() else INTERRUPTED) from None
    except SlotpackError as error:
        raise click.ClickException(str(error)) from error
    for line in describe_report(model, report):
        click.echo(f"-- {line}", err=True)
    finish_records(model, directory)
    return report


def describe_report(model: CatalogModel, report: PullReport) -> list[str]:
    """Return what a person should know about a finished pull."""
    lines = [
        f"left out the optional file {path}: {reason}; the model works without it"
        for path, reason in report.skipped.items()
    ]
    lines += [
        f"{path} could not be fetched; replies are slower without it, run `slotstream pull` again to get it"
        for path, state in report.sidecars.items()
        if state == "failed"
    ]
    if report.fallback_objects:
        lines.append(f"{report.fallback_objects} objects were missing or wrong and came from the original files")
    if report.received_bytes:
        lines.append(
            f"received {report.received_bytes / 1e6:,.1f} MB over {report.connections} connections in use at once"
        )
    lines.append(f"{model.name} is ready in {report.directory}")
    return lines


def ensure_downloaded(
    model: CatalogModel, options: PullOptions, *, directory: pathlib.Path | None = None
) -> pathlib.Path:
    """Return the model's directory, offering the download when it is not there.

    The demo model is unpacked without a question, since it came with the installation.  Anything else is asked for on a
    terminal and never downloaded without one.

    Raises:
        click.ClickException: Without a terminal, with the command to run; or when the person declines.
        click.exceptions.Exit: 130 when the download is stopped.
    """
    target = directory if directory is not None else default_directory(model)
    if model.looks_complete(target):
        return target
    if not model.is_bundled:
        advice = f"run `slotstream pull {model.name}` first"
        if not is_interactive():
            raise click.ClickException(f"{model.name} is not in {target}; {advice}")
        question = (
            f"{model.name} is not downloaded yet. Download {model.transfer_bytes / 1e9:.1f} GB "
            f"({model.model_bytes / 1e9:.1f} GB on disk) into {target}?"
        )
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort:
            raise click.exceptions.Exit(INTERRUPTED) from None
        if not agreed:
            raise click.ClickException(f"nothing was downloaded; {advice}")
    return download(model, target, options).directory
