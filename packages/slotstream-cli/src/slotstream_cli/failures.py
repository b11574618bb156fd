"""How whatever stops a command is shown: one sentence on stderr and an exit code, never a traceback.

What our packages raise on purpose, what the system refuses, Ctrl-C and a full memory end a command this way.  Anything
else is a mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["INTERRUPTED", "shown_failures", "system_sentence"]

INTERRUPTED = 130
OUR_PACKAGES = frozenset({"slotpack", "slotstream_planner", "slotstream_core", "slotstream_serve", "slotstream_cli"})
ADVICE = {
    errno.ENOSPC: "free some space, or name another disk",
    errno.EDQUOT: "free some space, or name another disk",
    errno.EACCES: "check its permissions, or name another path",
    errno.EPERM: "check its permissions, or name another path",
    errno.EROFS: "name a path on a disk that can be written",
    errno.ENOTDIR: "a file stands where a directory belongs",
    errno.EMFILE: "raise the limit with `ulimit -n 1024`",
    errno.ENFILE: "end programs that hold many files",
    errno.EIO: "the disk or the file system reports damage; look at the system's log",
}


@contextmanager
def shown_failures() -> Iterator[None]:
    """Turn what ends a command into what click shows.

    Raises:
        click.ClickException: A sentence, for errors raised on purpose, by the system, or for want of memory.
        click.exceptions.Exit: 130 after Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        click.echo("-- interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except MemoryError as error:
        raise click.ClickException("this process got no more memory; give a smaller --memory-gb") from error
    except UnicodeEncodeError as error:
        raise click.ClickException(
            f"the output's encoding, {error.encoding}, has no {error.object[error.start]!a}; use a UTF-8 terminal, or "
            "set PYTHONIOENCODING=utf-8"
        ) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read the output has left: click ends quietly
            raise
        raise click.ClickException(system_sentence(error)) from error
    except Exception as error:
        shown = _ours(error)
        if shown is None:
            raise
        raise shown from error


def system_sentence(error: OSError) -> str:
    """Return what the system refused, where, with its name for the reason, and what to do about it."""
    number = error.errno
    reason = error.strerror or str(error) or type(error).__name__
    name = errno.errorcode.get(number, str(number)) if number is not None else ""
    paths = " to ".join(str(path) for path in (error.filename, error.filename2) if path is not None)
    advice = ADVICE.get(number, "") if number is not None else ""
    subject = f"{paths}: " if paths else "the output cannot be written: " if number == errno.ENOSPC else ""
    return f"{subject}{reason}{f' ({name})' if name else ''}{f'; {advice}' if advice else ''}"


def _ours(error: Exception) -> click.ClickException | None:
    """Return what to show for an error of our packages' error trees, whose texts are fit to show; None for others."""
    package, _, module = type(error).__module__.partition(".")
    if package not in OUR_PACKAGES or module.rpartition(".")[2] != "errors":
        return None
    if package == "slotstream_planner":
        from slotstream_cli.planning_options import planner_failure

        return planner_failure(error)
    return click.ClickException(str(error))
