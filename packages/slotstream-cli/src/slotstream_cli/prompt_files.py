"""Prompts from a file, and a line on stderr that counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click


def read_prompts(path: Path | None) -> Sequence[str]:
    """Return the lines of a file that are not blank, or the built-in prompts.

    Raises:
        click.ClickException: The file cannot be read, is not UTF-8 text, or holds fewer than eight prompts.
    """
    if path is None:
        from slotstream_core.diagnostics.prompts import PROMPTS

        return PROMPTS
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error
    prompts = [line for line in lines if line]
    if len(prompts) < 8:
        raise click.ClickException(f"{path} holds {len(prompts)} prompts; give at least 8, one a line")
    return prompts


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a callback that rewrites one line on stderr, where that is a terminal."""
    shows = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if shows:
            click.echo(f"\r-- {what} {done:,} of {total:,}", err=True, nl=False)

    try:
        yield show
    finally:
        if shows:
            click.echo(err=True)
