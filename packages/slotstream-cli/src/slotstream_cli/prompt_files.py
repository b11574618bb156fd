"""Prompts from a file, and a line on stderr that counts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

LEAST = 8
"""Every fourth is held out, and those are divided once more."""


def read_prompts(path: Path | None) -> Sequence[str]:
    """Return the lines of a file that are not blank, or the built-in prompts.

    Raises:
        click.ClickException: The file cannot be read, is not UTF-8 text, or holds fewer than eight prompts.
    """
    if path is None:
        from slotstream_core.diagnostics.prompts import PROMPTS

        return PROMPTS
    lines = [line.strip() for line in read_text(path).splitlines()]
    prompts = [line for line in lines if line]
    if len(prompts) < LEAST:
        raise click.ClickException(f"{path} holds {len(prompts)} prompts; give at least {LEAST}, one a line")
    return prompts


def read_texts(path: Path) -> Sequence[str]:
    """Return the texts of a file that holds one JSON string a line.

    Raises:
        click.ClickException: The file cannot be read, a line is no JSON string, or there are fewer than eight.
    """
    texts: list[str] = []
    lines = read_text(path).splitlines()
    try:
        for number, line in enumerate(lines, 1):
            text = json.loads(line) if line.strip() else ""
            if not isinstance(text, str):
                raise click.ClickException(f"{path}: line {number} is not a JSON string")
            texts += [text] if text else []
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} does not hold one JSON string a line: {error}") from error
    if len(texts) < LEAST:
        raise click.ClickException(f"{path} holds {len(texts)} texts; give at least {LEAST}, a JSON string a line")
    return texts


def read_text(path: Path) -> str:
    """Return the text of a file that the user named.

    Raises:
        click.ClickException: It cannot be read, is no file, or is not UTF-8 text.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise click.ClickException(f"{path} is a pipe, a socket or a device; write its content to a file")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


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
