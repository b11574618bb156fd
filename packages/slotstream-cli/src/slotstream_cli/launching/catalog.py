"""The agents that can be started, in the order the picker shows."""

from __future__ import annotations

from slotstream_cli.launching.claude import ClaudeCode
from slotstream_cli.launching.codex import Codex
from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.hermes import Hermes
from slotstream_cli.launching.opencode import OpenCode
from slotstream_cli.launching.pi import Pi
from slotstream_cli.launching.plans import Agent

__all__ = ["AGENTS", "find_agent"]

AGENTS: tuple[Agent, ...] = (ClaudeCode(), Codex(), Pi(), OpenCode(), Hermes())


def find_agent(name: str) -> Agent:
    """Return the agent of a name.

    Raises:
        AgentRefused: There is none of that name.
    """
    for agent in AGENTS:
        if name in agent.names:
            return agent
    raise AgentRefused(f"{name!r} is not an agent; agents are {', '.join(agent.name for agent in AGENTS)}")
