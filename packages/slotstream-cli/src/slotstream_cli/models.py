"""Which directory a `--model` value means."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from slotpack import catalog
from slotpack.moved import moved_reason
from slotstream_cli.demo_records import finish_records

DEMO_NAME = catalog.DEMO_MODEL
PUBLISHED_NAME = catalog.DEFAULT_MODEL
PUBLISHED_NAMES = frozenset(
    {PUBLISHED_NAME, "qwen3.8-flash-next", "qwen3.8-flash-next:latest", "qwen38-flash-next-mlx-4bit"}
)


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A model on this machine.

    Attributes:
        name: What to call it in output.
        directory: Its checkpoint directory.
        note: A sentence for the user about the choice, if one is due.
    """

    name: str
    directory: Path
    note: str | None = None


def published_directory() -> Path:
    """Return where the published model is or will be installed."""
    return catalog.default_directory(catalog.find_model(PUBLISHED_NAME))


def is_installed(directory: Path) -> bool:
    """Whether a directory holds a checkpoint, complete or not; loading it tells."""
    return (directory / "config.json").is_file()


def warm_directory() -> Path:
    """Return the directory that keeps, by checkpoint, which experts were used most."""
    return catalog.root_directory() / "warm"


def choose_model(value: str | None) -> ModelChoice:
    """Return the model for a `--model` value: a name, a directory, or nothing.

    The demo is unpacked at its first use; the published model is offered for download on a terminal.

    Raises:
        click.ClickException: The value names no model that is here or can be had.
    """
    if value is None:
        if is_installed(published_directory()):
            return ModelChoice(name=PUBLISHED_NAME, directory=published_directory())
        return ModelChoice(
            name=DEMO_NAME,
            directory=ready(DEMO_NAME),
            note=f"{PUBLISHED_NAME} is not installed, so the demo model answers; `slotstream pull` gets the real one",
        )
    if value == DEMO_NAME:
        return ModelChoice(name=DEMO_NAME, directory=ready(DEMO_NAME))
    if value in PUBLISHED_NAMES:
        return ModelChoice(name=PUBLISHED_NAME, directory=ready(PUBLISHED_NAME))
    directory = Path(value)
    try:
        directory = directory.expanduser()
        is_directory = bool(value) and directory.is_dir()
    except RuntimeError as error:
        raise click.ClickException(f"{value} cannot be found: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{value} cannot be read: {error.strerror}") from error
    if is_directory:
        return ModelChoice(name=directory.resolve().name, directory=directory)
    raise click.ClickException(
        f"{value!r} is neither a directory nor a model name; names are {DEMO_NAME} and {PUBLISHED_NAME}"
    )


def ready(name: str) -> Path:
    """Return the directory of a catalog model, unpacking or offering the download when it is not there.

    Raises:
        click.ClickException: It is not there and cannot be had without asking.
        slotpack.SlotpackError: The model or its package is unknown or broken.
    """
    model = catalog.find_model(name)
    directory = catalog.default_directory(model)
    moved = moved_reason(directory) is not None  # other shards than the package's, and yet complete
    if model.looks_complete(directory) or (is_installed(directory) and (moved or not model.is_bundled)):
        finish_records(model, directory)
        return directory  # loading checks it completely
    from slotstream_cli.downloading import ensure_downloaded, options_from  # brings httpx and rich: only when needed

    return ensure_downloaded(model, options_from(os.environ), directory=directory)
