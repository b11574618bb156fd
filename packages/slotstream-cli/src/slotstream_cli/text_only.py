"""Options about pictures, where the engine has no vision tower: said before anything is loaded, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["NO_PICTURES", "image_option", "vision_option"]

NO_PICTURES = "this engine has no vision tower and reads text only"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _refuse_images(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    if values:
        raise click.BadParameter(f"{NO_PICTURES}; leave out --image {values[0]}")


def _refuse_vision(_context: click.Context, _parameter: click.Parameter, value: str) -> None:
    if value == "on":
        raise click.BadParameter(f"{NO_PICTURES}; auto and off run without pictures")


def vision_option(function: _Function) -> _Function:
    """Add `--vision`, of which `on` is refused; the command is not given it."""
    option = click.option(
        "--vision",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_refuse_vision,
        help="Pictures are refused whatever this says: there is no vision tower; on is an error.",
    )
    return option(function)


def image_option(function: _Function) -> _Function:
    """Add `--image`, which is refused; the command is not given it."""
    option = click.option(
        "--image",
        multiple=True,
        metavar="FILE",
        expose_value=False,
        callback=_refuse_images,
        help="Refused: there is no vision tower.",
    )
    return option(function)
