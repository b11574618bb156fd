"""A conversation at the terminal: lines in, streamed replies out, and a few commands that begin with a slash."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import click

from slotpack.catalog import root_directory
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model, warm_directory
from slotstream_cli.report import rate
from slotstream_cli.running import cancelled_by_interrupt
from slotstream_cli.text_only import NO_PICTURES
from slotstream_core.engine import load
from slotstream_core.errors import ContextLengthExceeded, GenerationCancelled
from slotstream_core.events import Finished, GenerationEvent, PromptProgress, TextDelta, ThinkingDelta
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.text.messages import ChatMessage
from slotstream_planner import PlanRequest

__all__ = ["Chat", "ChatEngine", "ChatOptions", "chat_at_terminal"]

PROMPT = "> "
MOST_HISTORY = 1_000
SILENT_PROMPT_S = 2.0
COMMANDS = {
    "/help": "show this list",
    "/system TEXT": "set the system message, and begin anew; alone it shows the one in use",
    "/new": "forget the conversation and begin anew",
    "/stats": "show tokens and speeds of the last reply and of the session",
    "/image PATH": "says that there is no vision tower for pictures",
    "/quit": "leave; so does Ctrl-D",
}


class ChatEngine(Protocol):
    """What a chat needs of an engine; `slotstream_core.engine.Engine` has it."""

    @property
    def window_tokens(self) -> int:
        """Most tokens a prompt and its reply may have together."""

    def chat_ids(
        self, conversation: Sequence[ChatMessage], *, thinking: bool = False, within_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt ids of a conversation; raises `ContextLengthExceeded` of one far too long for a window."""

    def generate(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = ...,
        max_tokens: int = 0,
        thinking: bool = False,
        cancel: CancelToken | None = None,
    ) -> Iterator[GenerationEvent]:
        """Return the events of one reply."""


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How to chat.

    Attributes:
        model: A model's name or directory, or None for the default one.
        request: What the memory plan should achieve.
        sampling: How to choose tokens.
        max_tokens: Most tokens of a reply; 0 or less means as many as fit.
        think: Whether the model thinks first.
        system: The system message, or an empty text.
        mirrors: Other directories with the same model.
    """

    model: str | None
    request: PlanRequest
    sampling: SamplingParams
    max_tokens: int
    think: bool
    system: str
    mirrors: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Sums over a session."""

    replies: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def plus(self, finished: Finished) -> _Totals:
        usage, timings = finished.usage, finished.timings
        return _Totals(
            replies=self.replies + 1,
            prompt_tokens=self.prompt_tokens + usage.prompt_tokens,
            cached_tokens=self.cached_tokens + usage.cached_tokens,
            reply_tokens=self.reply_tokens + usage.completion_tokens,
            prefill_s=self.prefill_s + timings.prefill_s,
            decode_s=self.decode_s + timings.decode_s,
        )

    def line(self) -> str:
        read = self.prompt_tokens - self.cached_tokens
        return (
            f"{self.prompt_tokens:,} prompt tokens, {self.cached_tokens:,} of them kept from before, "
            f"{rate(read, self.prefill_s):,.1f} tok/s; {self.reply_tokens:,} reply tokens, "
            f"{rate(self.reply_tokens, self.decode_s):,.1f} tok/s"
        )


class Chat:
    """One session: a conversation that grows, and the commands about it."""

    def __init__(self, engine: ChatEngine, options: ChatOptions) -> None:
        """Begin with an empty conversation."""
        self._engine = engine
        self._options = options
        self._turns: list[ChatMessage] = []
        self._last: _Totals | None = None
        self._session = _Totals()

    @property
    def turns(self) -> tuple[ChatMessage, ...]:
        """The conversation so far, without the system message."""
        return tuple(self._turns)

    def take(self, line: str) -> bool:
        """Obey a command or answer a message; returns whether the session goes on."""
        text = line.strip()
        if not text:
            return True
        if not _is_unicode(text):
            _say("that line is not UTF-8 text; it was not sent")
            return True
        if text.startswith("/") and not text.startswith("//"):
            name, _, rest = text.partition(" ")
            return self._obey(name, rest.strip())
        self._answer(text.removeprefix("/") if text.startswith("//") else text)
        return True

    def _obey(self, name: str, rest: str) -> bool:
        match name:
            case "/quit" | "/exit" | "/bye":
                return False
            case "/help" | "/?":
                for command, meaning in COMMANDS.items():
                    click.echo(f"  {command:<14}{meaning}", err=True)
                click.echo("  Ctrl-C stops a reply; a message that begins with a slash is written with two", err=True)
            case "/new":
                self._turns.clear()
                _say("a new conversation")
            case "/system":
                self._set_system(rest)
            case "/stats":
                self._show_statistics()
            case "/image":
                _say(f"{NO_PICTURES}; the picture was not added")
            case _:
                _say(f"there is no command {name}; /help lists them")
        return True

    def _set_system(self, text: str) -> None:
        if not text:
            _say(f"system message: {self._options.system}" if self._options.system else "there is no system message")
            return
        self._options = replace(self._options, system=text)
        self._turns.clear()
        _say("system message set; a new conversation")

    def _show_statistics(self) -> None:
        if self._last is None:
            _say("nothing has been answered yet")
            return
        _say(f"last reply: {self._last.line()}")
        _say(f"session, {self._session.replies} replies: {self._session.line()}")
        used = self._last.prompt_tokens + self._last.reply_tokens
        _say(f"window: {used:,} of {self._engine.window_tokens:,} tokens used")

    def _answer(self, text: str) -> None:
        """Stream a reply; a reply that was stopped stays in the conversation as far as it came."""
        cancel = CancelToken()
        said: list[str] = []
        self._turns.append(ChatMessage(role="user", content=text))
        try:
            with cancelled_by_interrupt(cancel) as interrupts:
                interrupts.wait_for_tokens()
                self._stream(said, cancel)
        except GenerationCancelled:
            click.echo()
            _say("stopped")
        except ContextLengthExceeded as error:
            self._turns.pop()
            _say(f"{error}; /new begins a new conversation")
            return
        except BaseException:
            self._turns.pop()
            raise
        self._turns.append(ChatMessage(role="assistant", content="".join(said)))

    def _stream(self, said: list[str], cancel: CancelToken) -> None:
        options = self._options
        system = [ChatMessage(role="system", content=options.system)] if options.system else []
        window = self._engine.window_tokens
        ids = self._engine.chat_ids([*system, *self._turns], thinking=options.think, within_tokens=window)
        for event in self._engine.generate(
            ids, sampling=options.sampling, max_tokens=options.max_tokens, thinking=options.think, cancel=cancel
        ):
            match event:
                case TextDelta(text=text):
                    said.append(text)
                    click.echo(text, nl=False)
                    sys.stdout.flush()
                case ThinkingDelta(text=text):
                    click.secho(text, nl=False, err=True, dim=True)
                case PromptProgress() if event.elapsed_s > SILENT_PROMPT_S and event.done_tokens < event.total_tokens:
                    _say(f"prompt {event.done_tokens:,} of {event.total_tokens:,} tokens")
                case Finished():
                    click.echo()
                    self._last = _Totals().plus(event)
                    self._session = self._session.plus(event)
                    if event.reason == "length":
                        _say("the reply ends here because its limit of tokens or the window is reached")


def chat_at_terminal(options: ChatOptions) -> None:
    """Load a model and talk with it until the user leaves.

    Raises:
        click.ClickException: The model cannot be had, stdin cannot be read, or stdout is closed.
        SlotstreamError: What loading and generating raise.
    """
    if sys.stdout is None:
        raise click.ClickException("stdout is closed, so replies have nowhere to go; leave it open or redirect it")
    choice = choose_model(options.model)
    if choice.note:
        _say(choice.note)
    with (
        held_alone(choice.directory),
        load(
            choice.directory, request=options.request, warm_directory=warm_directory(), mirrors=options.mirrors
        ) as engine,
    ):
        _say(f"{choice.name}, window {engine.window_tokens:,} tokens; /help lists commands, Ctrl-D leaves")
        chat = Chat(engine, options)
        with _history(root_directory() / "chat-history"):
            converse(chat)


def converse(chat: Chat, read: Callable[[str], str] = input) -> None:
    """Give a chat every line of stdin; Ctrl-C at the prompt drops the line.

    Raises:
        click.ClickException: Stdin is closed or no text.
    """
    prompt = PROMPT if sys.stdin is not None and sys.stdin.isatty() else ""
    while True:
        try:
            line = read(prompt)
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo()
            _say("Ctrl-D or /quit leaves")
            continue
        except UnicodeDecodeError as error:
            raise click.ClickException(f"stdin is not UTF-8 text: {error.reason}") from error
        except RuntimeError as error:
            raise click.ClickException(f"stdin cannot be read: {error}") from error
        if not chat.take(line):
            return


@contextmanager
def _history(path: Path) -> Iterator[None]:
    """Edit lines with the keys of the shell, and remember them between sessions, for their owner only."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python that was built without it
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        readline.read_history_file(path)
    except OSError as error:
        _say(f"lines are not remembered: {path}: {error.strerror or error}")
        yield
        return
    readline.set_history_length(MOST_HISTORY)
    try:
        yield
    finally:
        try:
            readline.write_history_file(path)
        except OSError as error:
            _say(f"lines were not remembered: {path}: {error.strerror or error}")


def _is_unicode(text: str) -> bool:
    """Whether a line has no bytes that a terminal sent outside UTF-8, which stand in it as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _say(line: str) -> None:
    click.echo(f"-- {line}", err=True)
