"""The words of a launch: what is known before it, and what it will do.

An agent's module is pure: from a `Situation` and the server's facts to a `LaunchPlan`.  Reading files and running
programs is `preparing`'s work, the server is `background`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Agent", "Download", "FileWrite", "LaunchPlan", "ServedModel", "Situation"]

LOCAL_TOKEN = "slotstream-local"
"""What agents that insist on a key are given when the server asks for none."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What a running server says of itself.

    Attributes:
        base_url: Its address without a path, `http://127.0.0.1:PORT`.
        model: The model's id.
        window_tokens: Most tokens a prompt and its reply share.
        max_output_tokens: Longest reply, 1 to `window_tokens - 1`.
        token: What clients send as their key.
        vision: Whether the model reads images.
    """

    base_url: str
    model: str
    window_tokens: int
    max_output_tokens: int
    token: str = field(default=LOCAL_TOKEN, repr=False)
    vision: bool = False

    @property
    def title(self) -> str:
        """The model's name for people."""
        return "Qwen3.8-Flash-Next" if self.model.startswith("qwen3.8-flash-next") else self.model

    @property
    def port(self) -> int:
        """The port of `base_url`."""
        return int(self.base_url.rpartition(":")[2])


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a launch starts from.

    Attributes:
        arguments: The user's words for the agent.
        environment: The variables the agent would inherit.
        home: The user's home directory.
        directory: The working directory.
        state: Where launches keep their files, `~/.slotstream/launch`.
        version: What the agent calls its version, for agents that `asks_version`.
        files: The text of the files an agent `reads`; None for one that does not exist.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    home: Path
    directory: Path
    state: Path
    version: str = ""
    files: Mapping[Path, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileWrite:
    """A file that a launch writes when its content differs.

    Attributes:
        path: Where.
        text: The complete content.
        shown: What a dry run prints of it.
    """

    path: Path
    text: str
    shown: str


@dataclass(frozen=True, kw_only=True)
class Download:
    """A text that is fetched once.

    Attributes:
        url: From where.
        path: Where it is kept.
        what: What it is, for messages.
    """

    url: str
    path: Path
    what: str


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How to start an agent.

    Attributes:
        arguments: Its arguments, without the program.
        variables: Variables to set.
        removed: Variables to remove.
        files: Files to write first.
        notes: Sentences for the user.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    files: tuple[FileWrite, ...] = ()
    notes: tuple[str, ...] = ()


class Agent(Protocol):
    """A coding agent that can be started on the local model.

    Attributes:
        name: What the command calls it.
        names: Every name the command takes for it.
        title: Its name for people.
        program: Its executable.
        install: How to install it.
        minimum_window: Fewest tokens of window it can work with.
        asks_version: Whether `Situation.version` is needed.
        api_path: A path that its server must answer.
    """

    name: str
    names: tuple[str, ...]
    title: str
    program: str
    install: str
    minimum_window: int
    asks_version: bool
    api_path: str

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return the files that `check` and `plan` need to see."""

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return the texts it needs that are not there yet."""

    def check(self, situation: Situation) -> None:
        """Refuse what cannot run, before any server is started.

        Raises:
            AgentRefused: The arguments or files cannot be used.
        """

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return how to start it.

        Raises:
            AgentRefused: The arguments or files cannot be used, or do not fit the server.
        """
