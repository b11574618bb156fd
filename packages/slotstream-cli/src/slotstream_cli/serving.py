"""What `slotstream serve` does, apart from its command line, so that its help imports neither engine nor server."""

import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from slotstream_cli.locking import held_alone
from slotstream_cli.models import (
    DEMO_NAME,
    PUBLISHED_NAME,
    PUBLISHED_NAMES,
    ModelChoice,
    choose_model,
    warm_directory,
)
from slotstream_core.engine import Engine, load
from slotstream_core.errors import DirectoryInUse, InaccessibleFile
from slotstream_core.persistence.directory import DAY_S, PersistentOptions
from slotstream_planner import PlanRequest
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.facts import describe_checkpoint, with_plan
from slotstream_serve.governance import governed
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig

TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """Where conversations are kept on disk; see `PersistentOptions`.

    Attributes:
        directory: The directory.
        quota_gb: Most that it may hold, in GB.
        minimum_tokens: Shortest state that is written.
        max_age_days: States unused for longer are removed; 0 for never.
    """

    directory: Path
    quota_gb: float
    minimum_tokens: int
    max_age_days: float

    def persistent(self) -> PersistentOptions:
        """Return the engine's options."""
        return PersistentOptions(
            directory=self.directory,
            quota_bytes=int(self.quota_gb * 1e9),
            minimum_tokens=self.minimum_tokens,
            max_age_s=self.max_age_days * DAY_S if self.max_age_days else None,
        )


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What to serve, where, and for whom; see `ServeConfig`.

    Attributes:
        model: A model's name or directory, or None for the default one.
        request: What the memory plan should achieve.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        api_key: What clients must send, or None.
        allowed_hosts: More names that a `Host` header may carry.
        max_prefill_wait_minutes: Longest time to a first token; 0 for no limit.
        idle_exit_minutes: Stop after this long without requests and clients; 0 for never.
        elastic: Whether the expert cache follows the machine's memory.
        disk: Where conversations are kept on disk, or None.
        mirrors: Other directories with the same model.
    """

    model: str | None
    request: PlanRequest
    host: str
    port: int
    api_key: str | None
    allowed_hosts: tuple[str, ...]
    max_prefill_wait_minutes: float
    idle_exit_minutes: float
    elastic: bool
    disk: DiskOptions | None = None
    mirrors: tuple[Path, ...] = ()


def open_engine(directory: Path, options: ServeOptions, log: logging.Logger) -> Engine:
    """Load the model, with the conversations on disk when there are any and they can be used.

    Without them, after a line in the log, when another process uses their directory or a file cannot be read.

    Raises:
        SlotstreamError: The model cannot be loaded.
    """
    engine = load(directory, request=options.request, warm_directory=warm_directory(), mirrors=options.mirrors)
    if options.disk is None:
        return engine
    try:
        engine.keep_on_disk(options.disk.persistent())
    except DirectoryInUse as error:
        log.warning("%s; until then conversations are kept in memory only", error)
    except InaccessibleFile as error:
        log.warning(
            "%s, or clear the directory (slotstream prefix-cache --dir %s --clear) and restart the server; "
            "until then conversations are kept in memory only",
            error,
            shlex.quote(str(options.disk.directory)),
        )
    except BaseException:
        engine.close()
        raise
    return engine


def serve_model(options: ServeOptions) -> None:
    """Load a model and serve it until a signal or idleness stops the server.

    Raises:
        click.ClickException: The model cannot be had.
        ConfigurationError: The address cannot be listened on, or a value is out of its range.
        SlotstreamError: The model cannot be loaded.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    log = logging.getLogger("slotstream.serve")
    choice = choose_model(options.model)
    if choice.note:
        log.info("%s", choice.note)
    config = ServeConfig(
        model=describe_checkpoint(choice.directory, name=choice.name, names=other_names(choice)),
        host=options.host,
        port=options.port,
        api_key=options.api_key,
        allowed_hosts=options.allowed_hosts,
        max_prefill_wait_s=options.max_prefill_wait_minutes * 60,
        idle_exit_s=options.idle_exit_minutes * 60 if options.idle_exit_minutes else None,
    )
    with terminated_softly(log), bind(config) as listener, held_alone(choice.directory):
        runner = Runner(lambda: open_engine(choice.directory, options, log))
        plan = runner.start().plan
        if plan is not None:
            facts = with_plan(config.model, plan, max_prefill_wait_s=config.max_prefill_wait_s)
            config = replace(config, model=facts)
            for note in plan.notes:
                log.info("%s", note)
        service = Service(runner, config, all_dialects())
        with governed(service, elastic=options.elastic):
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
