"""`slotstream serve`: the model behind an HTTP API."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import click

from slotstream_cli.models import DEMO_NAME, PUBLISHED_NAME, PUBLISHED_NAMES, ModelChoice, choose_model
from slotstream_cli.planning_options import make_size_request, size_options
from slotstream_core.engine import load
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.facts import describe_checkpoint, with_plan
from slotstream_serve.governance import governed
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import DEFAULT_PORT, ServeConfig

TERMINATED = 143


@click.command("serve")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --api-key.")
@click.option(
    "--api-key",
    envvar="SLOTSTREAM_API_KEY",
    show_envvar=True,
    metavar="KEY",
    help="What clients must send as a bearer token or x-api-key.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another name clients may use; may be given again.")
@click.option(
    "--max-prefill-wait",
    type=float,
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="From a complete request to its first token; 0: no limit.",
)
@click.option(
    "--idle-exit",
    type=float,
    default=0.0,
    show_default=True,
    metavar="MINUTES",
    help="Stop after this long without requests and clients; 0: never.",
)
@click.option("--no-elastic", is_flag=True, help="Keep the expert cache at its first size, whatever else needs memory.")
@size_options
def command(
    *,
    model_name: str | None,
    port: int,
    host: str,
    api_key: str | None,
    allow_host: tuple[str, ...],
    max_prefill_wait: float,
    idle_exit: float,
    no_elastic: bool,
    **sizes: Any,
) -> None:
    """Serve the model on this machine over HTTP.

    The log goes to stderr, one line a request; it never holds the text of a prompt or a reply.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    log = logging.getLogger("slotstream.serve")
    choice = choose_model(model_name)
    if choice.note:
        log.info("%s", choice.note)
    config = ServeConfig(
        model=describe_checkpoint(choice.directory, name=choice.name, names=other_names(choice)),
        host=host,
        port=port,
        api_key=api_key,
        allowed_hosts=allow_host,
        max_prefill_wait_s=max_prefill_wait * 60,
        idle_exit_s=idle_exit * 60 if idle_exit else None,
    )
    request = make_size_request(sizes)
    with terminated_softly(log), bind(config) as listener:
        runner = Runner(lambda: load(choice.directory, request=request))
        plan = runner.start().plan
        if plan is not None:
            facts = with_plan(config.model, plan, max_prefill_wait_s=config.max_prefill_wait_s)
            config = replace(config, model=facts)
            for note in plan.notes:
                log.info("%s", note)
        service = Service(runner, config, all_dialects())
        with governed(service, elastic=not no_elastic):
            SlotstreamServer(service).run([listener])


def other_names(choice: ModelChoice) -> frozenset[str]:
    """Return the names besides its own that clients may use for a model."""
    if choice.name == PUBLISHED_NAME:
        return PUBLISHED_NAMES
    return frozenset({f"{choice.name}:latest"}) if choice.name == DEMO_NAME or ":" not in choice.name else frozenset()


@contextmanager
def terminated_softly(log: logging.Logger) -> Iterator[None]:
    """Turn SIGTERM into an exit with a line in the log, also while the model loads."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        log.info("stopped by SIGTERM")
        raise SystemExit(TERMINATED)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
