"""`slotstream launch` from its options to the agent's first instruction."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from slotpack.catalog import root_directory
from slotstream_cli.launching.asking import ServerPort
from slotstream_cli.launching.background import Background, Wishes, serve_arguments
from slotstream_cli.launching.errors import AgentRefused, ServerRefused
from slotstream_cli.launching.plans import LOCAL_TOKEN, Agent, LaunchPlan, ServedModel, Situation
from slotstream_cli.launching.preparing import find_program, installed_agents, look_around, with_downloads, write_files
from slotstream_cli.launching.records import LaunchState
from slotstream_cli.launching.redaction import redacted_arguments, redacted_value, shown_command
from slotstream_cli.locking import already_running, lock_holder, needs_lock

__all__ = ["launch", "pick_agent"]

REGISTER_TRIES = 2


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model a new server would have.

    Attributes:
        value: The value for its `--model`.
        name: Its name.
        directory: Where it is or will be.
        window_tokens: The window a plan for this machine gives it.
        largest_window: Most tokens it can have a window of.
    """

    value: str
    name: str
    directory: Path
    window_tokens: int
    largest_window: int


def pick_agent(environment: Mapping[str, str]) -> str:
    """Ask on the terminal which of the installed agents to start, and return its name.

    Raises:
        AgentRefused: There is no terminal, no agent, or no such agent.
    """
    agents = installed_agents(environment)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise AgentRefused(
            "without a terminal to ask on, name the agent: slotstream launch claude|codex|pi|opencode|hermes"
        )
    if not agents:
        raise AgentRefused("no agent is on your PATH; for example `npm install -g opencode-ai` installs opencode")
    for number, agent in enumerate(agents, 1):
        click.echo(f"  {number}  {agent.title}", err=True)
    answer = click.prompt("Which agent", default="1", show_default=True, err=True).strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(agents):
        return agents[int(answer) - 1].name
    for agent in agents:
        if answer.lower() in (*agent.names, agent.title.lower()):
            return agent.name
    raise AgentRefused(f"{answer!r} is none of them; give a number from 1 to {len(agents)}, or a name")


def launch(agent: Agent, arguments: tuple[str, ...], wishes: Wishes, *, port: int, dry_run: bool) -> None:
    """Start an agent on the local model and become it; with `dry_run` only say what would be done.

    Raises:
        LaunchError: Something is in the way; nothing was started then.
        click.ClickException: The model cannot be had.
        PlannerError: No plan fits this machine.
    """
    api_key = os.environ.get("SLOTSTREAM_API_KEY") or None
    where = ServerPort(port=port, api_key=api_key)
    root = root_directory().absolute()
    background = Background(where, LaunchState(root=root, port=port), say=_say)
    program = find_program(agent, os.environ)
    situation = look_around(agent, arguments, program, root=root)
    agent.check(situation)
    decision, probe = background.decision(wishes)
    if decision.action != "use":
        if dry_run:
            _require_unpacked(wishes.model)
        model = _new_model(wishes)
        wishes = _with_window(wishes, model)
        if dry_run:
            for note in decision.notes:
                _say(note)
            click.echo(f"server: slotstream {shown_command(serve_arguments(wishes, port))}")
            _dry_run(agent, situation, program, _expected(model, wishes, where))
            return
        _require_model(model, is_restart=decision.action == "restart")
    elif dry_run and probe.served is not None:
        for note in decision.notes:
            _say(note)
        click.echo(f"server: running at {where.base_url}")
        _dry_run(agent, situation, program, probe.served)
        return
    situation = with_downloads(agent, situation, say=_say)
    served, notes = _registered(background, where, wishes)
    if not where.answers(agent.api_path):
        raise ServerRefused(
            f"the server on port {port} does not have {agent.api_path}, which {agent.title} needs; update Slotstream "
            "and start it again"
        )
    plan = agent.plan(situation, served)
    write_files(plan)
    for note in (*notes, *plan.notes):
        _say(note)
    _become(program, plan)


def _registered(background: Background, where: ServerPort, wishes: Wishes) -> tuple[ServedModel, tuple[str, ...]]:
    """Return a server that knows this process, which the agent will be, as its client."""
    for _ in range(REGISTER_TRIES):
        served, notes = background.ensure(wishes)
        if where.register(os.getpid()):
            return served, notes
    return served, (*notes, "the server does not count this agent as its client, so it may stop while the agent runs")


def _new_model(wishes: Wishes) -> _Model:
    """Return the model a new server would have; its plan is made for this machine as it is now."""
    from slotstream_cli.machines import geometry_of, this_machine
    from slotstream_cli.models import PUBLISHED_NAME
    from slotstream_planner import PlanRequest, plan

    value = wishes.model or PUBLISHED_NAME
    machine = this_machine()
    name, directory, geometry = geometry_of(value, machine)
    request = PlanRequest(memory_gb=wishes.memory_gb, memory_limit_gb=wishes.memory_limit_gb)
    planned = plan(geometry, machine, request)
    return _Model(
        value=str(Path(value).expanduser().absolute()) if Path(value).expanduser().is_dir() else value,
        name=name,
        directory=directory,
        window_tokens=planned.window_tokens,
        largest_window=int(planned.to_json()["model_context_limit"]),
    )


def _require_unpacked(name: str | None) -> None:
    """Refuse a dry run with a bundled model that would first have to be unpacked, because that writes files.

    Raises:
        AgentRefused: It is not there yet.
    """
    from slotpack.catalog import DEMO_MODEL, default_directory, find_model

    if name == DEMO_MODEL:
        model = find_model(name)
        if not model.looks_complete(default_directory(model)):
            raise AgentRefused(
                f"{name} is not unpacked, and a dry run writes nothing; run `slotstream pull {name}` first"
            )


def _with_window(wishes: Wishes, model: _Model) -> Wishes:
    """Return the wishes with the window to ask for: the automatic one, or the agent's minimum when that is larger.

    Raises:
        AgentRefused: The model cannot have the agent's minimum.
    """
    least, most = wishes.agent.minimum_window, model.largest_window
    if most < least and not wishes.any_window:
        raise AgentRefused(
            f"{wishes.agent.title} needs a context window of at least {least:,} tokens; {model.name} has at most "
            f"{most:,}. --allow-small-window tries it all the same"
        )
    asked = min(least, most) if model.window_tokens < least and not (wishes.any_window and most < least) else None
    return replace(wishes, model=model.value, max_context=asked)


def _require_model(model: _Model, *, is_restart: bool) -> None:
    """Offer the download of a model that is not there, and refuse when another process holds the model lock."""
    from slotstream_cli.models import PUBLISHED_NAMES, ready

    if model.name in PUBLISHED_NAMES:
        ready(model.name)
    if not is_restart and needs_lock(model.directory):
        holder = lock_holder()
        if holder is not None:
            raise ServerRefused(already_running(holder))


def _expected(model: _Model, wishes: Wishes, where: ServerPort) -> ServedModel:
    """Return what a server that is not started would say of itself."""
    window = wishes.max_context or model.window_tokens
    return ServedModel(
        base_url=where.base_url,
        model=model.name,
        window_tokens=window,
        max_output_tokens=max(1, min(8_192, max(256, window // 4), window - 1)),
        token=where.api_key or LOCAL_TOKEN,
    )


def _dry_run(agent: Agent, situation: Situation, program: str, served: ServedModel) -> None:
    """Print what a launch would do; nothing is written, started or downloaded."""
    for download in agent.downloads(situation):
        click.echo(f"download: {download.url} to {download.path}")
    plan = agent.plan(situation, served)
    click.echo(f"command: {shown_command([program, *redacted_arguments(plan.arguments)])}")
    for name, value in plan.variables.items():
        click.echo(f"set: {name}={redacted_value(name, value)}")
    for name in plan.removed:
        click.echo(f"remove: {name}")
    for write in plan.files:
        click.echo(f"write: {write.path}")
        click.echo("\n".join(f"    {line}" for line in write.shown.splitlines()))
    for note in plan.notes:
        _say(note)


def _become(program: str, plan: LaunchPlan) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in plan.removed}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, [program, *plan.arguments], {**environment, **plan.variables})
    except OSError as error:
        raise AgentRefused(f"{program} cannot be run: {error.strerror or error}") from error


def _say(line: str) -> None:
    click.echo(f"-- {line}", err=True)
