"""Render `docs/cli.md` from the click commands."""

import click

from slotstream_cli.main import COMMANDS, main

FILES = """\
## Files

Below `~/.slotstream`, or the directory that `SLOTSTREAM_ROOT_DIR` names:

| Path | What it is |
|---|---|
| `models/` | downloaded and unpacked models |
| `profiles/` | what `slotstream calibrate` measured on this machine, by model |
| `warm/` | which experts were used most, by checkpoint, for the next start ([streaming](streaming.md)) |
| `chat-history` | the lines typed into `slotstream chat` |
| `launch/server-PORT.json` | the server a launch started on a port: its process, when that began, its log |
| `launch/start-PORT.lock` | held while a launch may start a server on that port |
| `launch/codex/` | Codex's instructions and the model catalogs it is given, by version and window |
| `logs/serve.log`, `logs/serve-PORT.log` | the log of a server that a launch started; the one before as `.1` |

`/tmp/slotstream-model-UID.lock` is held while a model of 2 GB or more is loaded: one such model a user at a time.
Agents' own files are listed in [coding agents](coding-agents.md).
"""

VARIABLES = """\
## Environment variables

An option on the command line counts for more than its variable.

| Variable | Meaning |
|---|---|
| `SLOTSTREAM_ROOT_DIR` | where models and state live instead of `~/.slotstream` |
| `SLOTSTREAM_NATIVE` | `0`: nothing compiled; `scalar`, `avx2`, `avx512`, `neon`: these instructions |
| `SLOTSTREAM_BLAS` | `0`: on Linux, leave MLX's dense products to MLX's own BLAS |
| `SLOTSTREAM_API_KEY` | the key that `serve` asks for, and that `launch`, `stop` and the agents send |
| `SLOTSTREAM_PULL_TRANSPORT` | `automatic`, `compressed` or `raw`, as `pull --transport` |
| `SLOTSTREAM_PULL_CONNECTIONS` | fixed number of connections, at most 32, as `pull --connections` |
| `SLOTSTREAM_WEIGHTS_SOURCES` | comma-separated bases of raw files, tried in order |
| `SLOTSTREAM_COMPRESSED_SOURCES` | comma-separated bases of Slotpack packages |
| `SLOTSTREAM_PREFIX_CACHE` | whether `serve` keeps past conversations, as its option |
| `SLOTSTREAM_MTP_EXPERTS` | where the draft head's experts live, as `doctor --mtp-experts` |

Variables for measuring and comparing parts of the engine are described with those parts: [streaming](streaming.md).
"""


def cli_reference() -> str:
    """Return the complete command reference as Markdown, from the help texts themselves."""
    parts = ["# Command reference\n", "Generated from the commands' own help by `make docs`.\n"]
    parts.append(_block("slotstream", main))
    group = click.Context(main, info_name="slotstream")
    for name in COMMANDS:
        command = main.get_command(group, name)
        if command is not None:
            parts.append(f"## `slotstream {name}`\n")
            parts.append(_block(f"slotstream {name}", command))
    return "\n".join([*parts, FILES, VARIABLES])


def _block(title: str, command: click.Command) -> str:
    context = click.Context(command, info_name=title, max_content_width=110, terminal_width=110)
    return f"```text\n{command.get_help(context)}\n```\n"
