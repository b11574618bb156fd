"""The option that names other directories to read a model's experts from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def mirror_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--mirror` to a command that loads a model; it arrives as the tuple `mirrors`."""
    return click.option(
        "--mirror",
        "mirrors",
        multiple=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Read experts from this copy of the model too, on another disk; may be given again.",
    )(function)
