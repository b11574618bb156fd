"""Codex's command line: where its deepest subcommand is, because it heeds `-c` only there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CodexLine", "read_line"]

CONFIG = ("-c", "--config")
IMAGES = ("-i", "--image")
VALUES = frozenset(
    {
        *CONFIG,
        *("-m", "--model", "-p", "--profile", "-s", "--sandbox", "-a", "--ask-for-approval", "-C", "--cd"),
        *("--add-dir", "--enable", "--disable", "--local-provider", "--remote", "--color", "--output-schema"),
        *("-o", "--output-last-message", "--remote-auth-token-env", "--base", "--commit", "--title"),
        *("--thread-source", "--cyber-access-program"),
    }
)
"""Options that take the next word."""
COMMANDS = frozenset(
    {
        *("exec", "e", "review", "login", "logout", "mcp", "plugin", "mcp-server", "app-server", "app", "completion"),
        *("sandbox", "debug", "execpolicy", "apply", "a", "resume", "fork", "cloud", "cloud-tasks", "features", "help"),
        *("responses-api-proxy", "stdio-to-uds", "exec-server", "archive", "delete", "unarchive", "update", "doctor"),
        *("agents", "queue", "remote-control", "migrate-rollouts", "migrate-nfs-db"),
    }
)
NESTED = {"exec": frozenset({"resume", "fork", "review"}), "e": frozenset({"resume", "fork", "review"})}


@dataclass(frozen=True, kw_only=True)
class CodexLine:
    """A command line for Codex, read.

    Attributes:
        before: Words up to and with the deepest subcommand, without the settings among them.
        after: The words behind it.
        settings: The `-c` words that stood in `before`, with their values.
        commands: The subcommands, outermost first.
        options: Every option by its name, values left out.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    settings: tuple[str, ...]
    commands: tuple[str, ...]
    options: frozenset[str]


def read_line(arguments: Sequence[str]) -> CodexLine:
    """Return where the subcommands and options of a command line are."""
    words = _words(arguments)
    commands: list[str] = []
    depth = 0
    choices: frozenset[str] = COMMANDS
    for start, end, is_option in words:
        if is_option:
            continue
        if arguments[start] not in choices:
            break
        commands.append(arguments[start])
        depth = end
        choices = NESTED.get(arguments[start], frozenset())
    before: list[str] = []
    settings: list[str] = []
    for start, end, is_option in words:
        if start >= depth:
            break
        into = settings if is_option and _name(arguments[start]) in CONFIG else before
        into.extend(arguments[start:end])
    return CodexLine(
        before=tuple(before),
        after=tuple(arguments[depth:]),
        settings=tuple(settings),
        commands=tuple(commands),
        options=frozenset(_name(arguments[start]) for start, _end, is_option in words if is_option),
    )


def _words(arguments: Sequence[str]) -> list[tuple[int, int, bool]]:
    """Return the options, with what belongs to them, and the other words: start, end, whether it is an option."""
    found: list[tuple[int, int, bool]] = []
    at = 0
    while at < len(arguments) and arguments[at] != "--":
        word, end = arguments[at], at + 1
        if word in IMAGES:
            while end < len(arguments) and not arguments[end].startswith("-"):
                end += 1
        elif word in VALUES:
            end = min(end + 1, len(arguments))
        found.append((at, end, word.startswith("-") and word != "-"))
        at = end
    return found


def _name(word: str) -> str:
    if word.startswith("--"):
        return word.partition("=")[0]
    return word[:2]
