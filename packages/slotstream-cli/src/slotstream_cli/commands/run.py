"""`slotstream run`: one prompt, one reply, no server."""

import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from slotstream_cli.files import write_text_atomically
from slotstream_cli.models import choose_model
from slotstream_cli.planning_options import make_size_request, size_options
from slotstream_cli.report import RunReport
from slotstream_core.engine import load
from slotstream_core.errors import GenerationCancelled
from slotstream_core.events import Finished, GenerationEvent, PromptProgress, TextDelta, ThinkingDelta
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY, ORDINARY, THINKING, SamplingParams

INTERRUPTED = 130


@click.command()
@click.option("--prompt", default="Why is the sky blue?", show_default=True, help="The prompt; - reads it from stdin.")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=128, show_default=True, help="Tokens to make; 0 or less: as many as fit.")
@click.option("--greedy", is_flag=True, help="Always take the most likely token.")
@click.option("--raw", is_flag=True, help="Send the prompt without the chat template.")
@click.option("--think", is_flag=True, help="Let the model think first; its thoughts go to stderr.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Name the random stream; the default draws a new one.")
@click.option("--temperature", type=float, help="Spread of the choice; 0 is greedy.")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability.")
@click.option("--top-k", type=int, help="Keep this many of the likeliest tokens; 0 keeps all.")
@click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest one.")
@click.option("--presence-penalty", type=float, help="Lower the logit of every token already in the reply by this.")
@click.option("--stop", multiple=True, help="End the reply before this text; may be given again.")
@click.option("--stats-json", type=click.Path(dir_okay=False, path_type=Path), help="Write the measurements here.")
@size_options
def command(
    *,
    prompt: str,
    model_name: str | None,
    max_tokens: int,
    raw: bool,
    think: bool,
    stop: tuple[str, ...],
    stats_json: Path | None,
    **options: Any,
) -> None:
    """Answer one prompt and stop."""
    if raw and think:
        raise click.UsageError("--think needs the chat template, so it cannot be combined with --raw")
    text = read_prompt(prompt)
    choice = choose_model(model_name)
    if choice.note:
        click.echo(f"-- {choice.note}", err=True)
    request = make_size_request(options)
    sampling = sampling_params(options, think=think)
    cancel = CancelToken()
    with cancelled_by_interrupt(cancel) as interrupts, load(choice.directory, request=request) as engine:
        report = RunReport(model=choice.name, engine=engine)
        report.opening()
        ids = engine.tokenizer.encode(text) if raw else engine.chat_ids(text, thinking=think)
        events = engine.generate(
            ids, sampling=sampling, max_tokens=max_tokens, stop=stop, thinking=think, cancel=cancel
        )
        try:
            interrupts.wait_for_tokens()
            finished = stream(events, report)
        except GenerationCancelled:
            click.echo()
            report.interrupted()
            raise click.exceptions.Exit(INTERRUPTED) from None
        report.closing(finished)
        if stats_json is not None:
            write_text_atomically(stats_json, json.dumps(report.statistics(finished), indent=2) + "\n")


def read_prompt(prompt: str) -> str:
    """Return the prompt's text; `-` stands for what stdin holds.

    Raises:
        click.ClickException: It is empty, or stdin is closed or cannot be read.
    """
    if prompt == "-":
        if sys.stdin is None:
            raise click.ClickException("--prompt - reads stdin, which is closed; give the prompt itself")
        try:
            prompt = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise click.ClickException(f"stdin is not UTF-8 text: {error.reason} at byte {error.start:,}") from error
        except OSError as error:
            raise click.ClickException(f"stdin cannot be read: {error.strerror or error}") from error
    if not prompt:
        raise click.ClickException("the prompt is empty; write something to answer")
    return prompt


def sampling_params(options: dict[str, Any], *, think: bool) -> SamplingParams:
    """Return the profile for the mode with the values given on the command line in their place."""
    profile = GREEDY if options["greedy"] else THINKING if think else ORDINARY
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "seed")
    given = {name: options[name] for name in names if options[name] is not None}
    return dataclasses.replace(profile, **given)


def stream(events: Iterator[GenerationEvent], report: RunReport) -> Finished:
    """Print a generation as it is made and return its last event."""
    for event in events:
        match event:
            case TextDelta(text=text):
                click.echo(text, nl=False)
            case ThinkingDelta(text=text):
                click.secho(text, nl=False, err=True, dim=True)
            case PromptProgress():
                report.progress(event)
            case Finished():
                click.echo()
                return event
    raise click.ClickException("the generation ended without its last event; please report this")


class InterruptHandler:
    """What Ctrl-C does: before generating it stops the command at once, later it asks the generation to end.

    The token is cancelled either way, so that an interrupt is not lost where Python discards exceptions.
    """

    def __init__(self, cancel: CancelToken) -> None:
        self._cancel = cancel
        self._generating = False

    def wait_for_tokens(self) -> None:
        """From now on let the generation stop by itself, between two tokens; a second Ctrl-C kills it."""
        self._generating = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        self._cancel.cancel()
        if not self._generating:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def cancelled_by_interrupt(cancel: CancelToken) -> Iterator[InterruptHandler]:
    """Handle Ctrl-C with an `InterruptHandler` while the context is open, if this is the main thread."""
    handler = InterruptHandler(cancel)
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        signal.signal(signal.SIGINT, previous)
