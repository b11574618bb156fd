"""`slotstream prefix-cache`: what a directory of kept conversations holds, and how to empty it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from slotstream_core.persistence.records import HeadFile
    from slotstream_core.persistence.scanning import DirectoryContent


@click.command("prefix-cache")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory given to serve --prefix-cache-dir [default: ~/.slotstream/prefix-cache].",
)
@click.option("--clear", is_flag=True, help="Remove every state. Refused while a server uses the directory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(*, directory: Path | None, clear: bool, as_json: bool) -> None:
    """Show what a directory of kept conversations holds, or clear it.

    Nothing is loaded; listing works while a server uses the directory.
    """
    from slotpack.catalog import root_directory
    from slotstream_core.persistence.scanning import scan_directory

    if directory is None:
        directory = root_directory() / "prefix-cache"
    else:
        directory = directory.expanduser()
        _require(directory)
    if clear:
        _clear(directory, as_json=as_json)
        return
    content = scan_directory(directory)
    if as_json:
        click.echo(json.dumps(_document(directory, content), indent=2))
    else:
        click.echo(_listing(directory, content))


def _require(directory: Path) -> None:
    """Refuse a directory that was named and is not there; the default one is made by the first server that uses it."""
    try:
        directory.stat()
    except FileNotFoundError as error:
        raise click.BadParameter(
            f"{directory} does not exist; give the directory that serve --prefix-cache-dir was given",
            param_hint="'--dir'",
        ) from error
    except OSError:
        return  # listing it says what is wrong


def _clear(directory: Path, *, as_json: bool) -> None:
    """Remove every state file, and fail when one could not be removed."""
    from slotstream_core.persistence.locking import DirectoryLock
    from slotstream_core.persistence.scanning import clear_directory

    removed, kept = 0, list[tuple[Path, str]]()
    if directory.is_dir():
        with DirectoryLock(directory):
            removed, kept = clear_directory(directory)
    else:
        clear_directory(directory)  # nothing to lock: fails if it is no directory, and is content if it is missing
    if as_json:
        left = [{"path": str(path), "reason": reason} for path, reason in kept]
        click.echo(json.dumps({"directory": str(directory), "removed": removed, "not_removed": left}, indent=2))
    else:
        click.echo(f"removed {removed:,} files from {directory}")
    if kept:
        names = "; ".join(f"{path.name}: {reason}" for path, reason in kept)
        raise click.ClickException(f"files that could not be removed: {names}")


def _ordered(content: DirectoryContent) -> list[HeadFile]:
    return sorted(content.heads.values(), key=lambda head: (-head.used_ns, head.name))


def _document(directory: Path, content: DirectoryContent) -> dict[str, Any]:
    states = [
        {
            "name": head.name,
            "tokens": head.tokens,
            "shared": head.shared,
            "bytes": head.byte_count,
            "row_bytes": head.row_bytes,
            "build": head.build,
            "last_used": _time(head).isoformat(timespec="seconds"),
        }
        for head in _ordered(content)
    ]
    return {
        "directory": str(directory),
        "states": states,
        "shared_states": sum(head.shared for head in content.heads.values()),
        "replies": len(content.replies),
        "row_bytes": sum(content.segments.values()),
        "total_bytes": content.byte_count,
        "damaged": [path.name for path in content.damaged],
        "unfinished": [path.name for path in content.partial],
        "unreadable": [{"name": path.name, "reason": reason} for path, reason in content.inaccessible],
    }


def _listing(directory: Path, content: DirectoryContent) -> str:
    lines = [f"{directory}: {len(content.heads):,} states, {content.byte_count / 1e6:,.1f} MB"]
    lines += [
        f"  {head.tokens:>9,} tokens  {head.byte_count / 1e6:>9,.1f} MB  {_time(head):%Y-%m-%d %H:%M}  "
        f"{'shared prefix' if head.shared else 'conversation '}  {head.build}"
        for head in _ordered(content)
    ]
    if not content.byte_count and not directory.exists():
        lines.append("  not there yet: the first server that keeps conversations here makes it")
    if content.heads:
        shared = sum(head.shared for head in content.heads.values())
        lines.append(
            f"  {sum(content.segments.values()) / 1e6:,.1f} MB of cached tokens, stored once where states share them; "
            f"{shared:,} shared prefixes; ids of {len(content.replies):,} replies"
        )
    lines += [f"  damaged, removed at the next start: {path.name}" for path in content.damaged]
    lines += [f"  unfinished, removed at the next start: {path.name}" for path in content.partial]
    lines += [f"  cannot be read: {path.name} ({reason})" for path, reason in content.inaccessible]
    return "\n".join(lines)


def _time(head: HeadFile) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(head.used_ns / 1e9, tz=datetime.UTC)
