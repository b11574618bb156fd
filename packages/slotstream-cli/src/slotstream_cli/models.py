"""Which directory a `--model` value means."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

import slotstream_demo

DEMO_NAME = "demo"
PUBLISHED_NAME = "qwen3.8-flash-next:4bit"
PUBLISHED_DIRECTORY = "qwen38-flash-next-mlx-4bit"
PUBLISHED_NAMES = frozenset({PUBLISHED_NAME, "qwen3.8-flash-next", "qwen3.8-flash-next:latest", PUBLISHED_DIRECTORY})


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


def root_directory() -> Path:
    """Return where models and state live: `SLOTSTREAM_ROOT_DIR`, or `~/.slotstream`."""
    configured = os.environ.get("SLOTSTREAM_ROOT_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".slotstream"


def published_directory() -> Path:
    """Return where the published model is or will be installed."""
    return root_directory() / "models" / PUBLISHED_DIRECTORY


def demo_directory() -> Path:
    """Return the demo model's directory; where it ships as a package, it is unpacked at the first use."""
    from slotpack.catalog import find_bundle

    return slotstream_demo.checkpoint_directory() if find_bundle() is None else _offer_download(DEMO_NAME)


def _offer_download(name: str) -> Path:
    """Return a catalog model's directory, downloading it if a person agrees."""
    from slotpack.catalog import find_model
    from slotstream_cli.downloading import ensure_downloaded, options_from

    return ensure_downloaded(find_model(name), options_from(os.environ))


def choose_model(value: str | None) -> ModelChoice:
    """Return the model for a `--model` value: a name, a directory, or nothing.

    Raises:
        click.ClickException: The value names no model that is here.
    """
    installed = published_directory()
    if value is None:
        if (installed / "config.json").is_file():
            return ModelChoice(name=PUBLISHED_NAME, directory=installed)
        return ModelChoice(
            name=DEMO_NAME,
            directory=demo_directory(),
            note=f"{PUBLISHED_NAME} is not installed, so the demo model answers; `slotstream pull` gets the real one",
        )
    if value == DEMO_NAME:
        return ModelChoice(name=DEMO_NAME, directory=demo_directory())
    if value in PUBLISHED_NAMES:
        if not (installed / "config.json").is_file():
            _offer_download(PUBLISHED_NAME)
        return ModelChoice(name=PUBLISHED_NAME, directory=installed)
    directory = Path(value).expanduser()
    if directory.is_dir():
        return ModelChoice(name=directory.resolve().name, directory=directory)
    raise click.ClickException(
        f"{value!r} is neither a directory nor a model name; names are {DEMO_NAME} and {PUBLISHED_NAME}"
    )
