"""What `slotstream run` does, apart from its command line, so that its help imports no engine."""

import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click

from slotstream_cli.failures import INTERRUPTED
from slotstream_cli.files import check_writable, write_text_atomically
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model, warm_directory
from slotstream_cli.report import RunReport
from slotstream_core.diagnostics.footprints import FootprintSampler
from slotstream_core.engine import load
from slotstream_core.errors import DeadlineExceeded, GenerationCancelled
from slotstream_core.events import Finished, GenerationEvent, PromptProgress, TextDelta, ThinkingDelta
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY, ORDINARY, THINKING, SamplingParams
from slotstream_planner import PlanRequest


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One prompt and how to answer it.

    Attributes:
        prompt: Its text.
        model: A model's name or directory, or None for the default one.
        request: What the memory plan should achieve.
        sampling: How to choose tokens.
        max_tokens: Most tokens to make; 0 or less means as many as fit.
        raw: Whether the prompt goes without the chat template.
        think: Whether the model thinks first.
        stop: Texts that end the reply.
        stats_json: Where to write the measurements, or None.
        max_prefill_wait_minutes: Longest reading of the prompt; 0 for no limit.
        mirrors: Other directories with the same model.
        sample_footprint: Whether the process's memory is sampled while it generates.
    """

    prompt: str
    model: str | None
    request: PlanRequest
    sampling: SamplingParams
    max_tokens: int
    raw: bool
    think: bool
    stop: tuple[str, ...]
    stats_json: Path | None
    max_prefill_wait_minutes: float
    mirrors: tuple[Path, ...] = ()
    sample_footprint: bool = False


def answer_once(options: RunOptions) -> None:
    """Load a model, answer one prompt on stdout and report on stderr.

    Raises:
        click.ClickException: The model cannot be had or the measurements cannot be written.
        click.exceptions.Exit: 130 after Ctrl-C.
        SlotstreamError: What loading and generating raise.
    """
    if options.stats_json is not None:
        check_writable(options.stats_json)
    choice = choose_model(options.model)
    if choice.note:
        click.echo(f"-- {choice.note}", err=True)
    think = options.think
    cancel = CancelToken()
    sampler = FootprintSampler() if options.sample_footprint else None
    with (
        held_alone(choice.directory),
        cancelled_by_interrupt(cancel) as interrupts,
        load(
            choice.directory, request=options.request, warm_directory=warm_directory(), mirrors=options.mirrors
        ) as engine,
    ):
        report = RunReport(model=choice.name, engine=engine)
        report.opening()
        text, window = options.prompt, engine.window_tokens
        if options.raw:
            ids = engine.tokenizer.encode(text, within_tokens=window)
        else:
            ids = engine.chat_ids(text, thinking=think, within_tokens=window)
        events = engine.generate(
            ids,
            sampling=options.sampling,
            max_tokens=options.max_tokens,
            stop=options.stop,
            thinking=think,
            cancel=cancel,
            first_token_s=options.max_prefill_wait_minutes * 60 or None,
        )
        try:
            interrupts.wait_for_tokens()
            with sampler or nullcontext():
                finished = stream(events, report)
        except DeadlineExceeded as error:
            raise click.ClickException(f"{error} (--max-prefill-wait, in minutes; 0: no limit)") from error
        except GenerationCancelled:
            click.echo()
            report.interrupted()
            raise click.exceptions.Exit(INTERRUPTED) from None
        samples = sampler.samples if sampler else None
        report.closing(finished, samples)
        if options.stats_json is not None:
            write_text_atomically(options.stats_json, json.dumps(report.statistics(finished, samples), indent=2) + "\n")


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


def sampling_params(options: Mapping[str, Any], *, think: bool) -> SamplingParams:
    """Return the profile for the mode with the values given on the command line in their place."""
    profile = GREEDY if options["greedy"] else THINKING if think else ORDINARY
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "seed")
    given = {name: options[name] for name in names if options[name] is not None}
    return dataclasses.replace(profile, **given)


def stream(events: Iterator[GenerationEvent], report: RunReport) -> Finished:
    """Print a generation as it is made and return its last event.

    Args:
        events: The generation.
        report: Where its progress goes.

    Raises:
        click.ClickException: It ended without its last event.
    """
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
