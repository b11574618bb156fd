"""`slotstream launch`: a coding agent on the local model, with its server, in one command."""

from __future__ import annotations

import os
from pathlib import Path

import click

from slotstream_cli.number_options import FiniteRange
from slotstream_cli.reading_options import mirror_option
from slotstream_serve.defaults import DEFAULT_PORT, MOST_IDLE_MINUTES

_SIZE = FiniteRange(0, 1e6, min_open=True)
_LONGEST = FiniteRange(0, MOST_IDLE_MINUTES)


@click.command("launch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("agent_name", metavar="[claude|codex|pi|opencode|hermes]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=DEFAULT_PORT, show_default=True, help="Where the server listens."
)
@click.option(
    "--model", metavar="NAME|DIR", help="The model of a server this starts.  [default: qwen3.8-flash-next:4bit]"
)
@click.option("--memory-gb", type=_SIZE, help="Memory of a server this starts, in GB.")
@click.option("--memory-limit-gb", type=_SIZE, help="Its adaptive ceiling in GB instead.")
@click.option(
    "--idle-exit",
    type=_LONGEST,
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="How long a server this starts outlives its last agent; 0: until `slotstream stop`.",
)
@mirror_option
@click.option("--no-start", is_flag=True, help="Use a running server only.")
@click.option("--allow-small-window", is_flag=True, help="Start the agent below the window it needs, with a note.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, secrets hidden; start and write nothing.")
def command(
    *,
    agent_name: str | None,
    arguments: tuple[str, ...],
    port: int,
    model: str | None,
    memory_gb: float | None,
    memory_limit_gb: float | None,
    idle_exit: float,
    mirrors: tuple[Path, ...],
    no_start: bool,
    allow_small_window: bool,
    dry_run: bool,
) -> None:
    """Start a coding agent connected to the local model; everything after its name goes to the agent.

    Without a name the installed agents are listed. When no server answers, one is started in the background and stops
    by itself after the last agent has ended.
    """
    if memory_gb is not None and memory_limit_gb is not None:
        raise click.UsageError("--memory-gb fixes the memory and --memory-limit-gb adapts it; give one of them")
    from slotpack.catalog import root_directory
    from slotstream_cli.launching.background import Wishes
    from slotstream_cli.launching.catalog import find_agent
    from slotstream_cli.launching.driving import launch, pick_agent

    agent = find_agent(agent_name or pick_agent(os.environ))
    wishes = Wishes(
        agent=agent,
        model=model,
        memory_gb=memory_gb,
        memory_limit_gb=memory_limit_gb,
        idle_exit_minutes=idle_exit,
        may_start=not no_start,
        any_window=allow_small_window,
        prefix_cache=root_directory().absolute() / "prefix-cache",
        mirrors=tuple(mirror.expanduser().absolute() for mirror in mirrors),
    )
    launch(agent, arguments, wishes, port=port, dry_run=dry_run)
