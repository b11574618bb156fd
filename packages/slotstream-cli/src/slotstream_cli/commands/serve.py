"""`slotstream serve`: the model behind an HTTP API."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from slotstream_cli.number_options import MINUTES, FiniteRange
from slotstream_cli.planning_options import make_size_request, size_options
from slotstream_cli.reading_options import mirror_option
from slotstream_cli.text_only import vision_option
from slotstream_serve.defaults import DEFAULT_PORT, MOST_IDLE_MINUTES


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
    type=MINUTES,
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="From a complete request to its first token; 0: no limit.",
)
@click.option(
    "--idle-exit",
    type=FiniteRange(0, MOST_IDLE_MINUTES),
    default=0.0,
    show_default=True,
    metavar="MINUTES",
    help="Stop after this long without requests and clients; 0: never.",
)
@click.option("--no-elastic", is_flag=True, help="Keep the expert cache at its first size, whatever else needs memory.")
@click.option(
    "--prefix-cache/--no-prefix-cache",
    default=True,
    envvar="SLOTSTREAM_PREFIX_CACHE",
    show_envvar=True,
    help="Keep conversations in memory, so that their next turn reads only what is new.",
)
@click.option(
    "--prefix-cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep conversations on disk too, so that a restarted server goes on with them.",
)
@click.option(
    "--prefix-cache-disk-gb",
    type=FiniteRange(min=0, max=1e6, min_open=True),
    default=20.0,
    show_default=True,
    metavar="GB",
    help="Most that --prefix-cache-dir may hold.",
)
@click.option(
    "--prefix-cache-min-tokens",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="N",
    help="Shortest state written to --prefix-cache-dir.",
)
@click.option(
    "--prefix-cache-max-age-days",
    type=FiniteRange(min=0, max=1e5),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="Remove states from --prefix-cache-dir that were not used for so long; 0: never.",
)
@mirror_option
@vision_option
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
    prefix_cache: bool,
    prefix_cache_dir: Path | None,
    prefix_cache_disk_gb: float,
    prefix_cache_min_tokens: int,
    prefix_cache_max_age_days: float,
    mirrors: tuple[Path, ...],
    **sizes: Any,
) -> None:
    """Serve the model on this machine over HTTP.

    The log goes to stderr, one line a request; it never holds the text of a prompt or a reply.
    """
    from slotstream_cli.serving import DiskOptions, ServeOptions, serve_model

    if prefix_cache_dir is not None and not prefix_cache:
        if click.get_current_context().get_parameter_source("prefix_cache") is not ParameterSource.ENVIRONMENT:
            raise click.UsageError("--prefix-cache-dir keeps conversations and --no-prefix-cache keeps none; give one")
        click.echo(f"nothing is kept in {prefix_cache_dir}: SLOTSTREAM_PREFIX_CACHE switches it off", err=True)
        prefix_cache_dir = None
    disk = None
    if prefix_cache_dir is not None:
        disk = DiskOptions(
            directory=prefix_cache_dir.expanduser(),
            quota_gb=prefix_cache_disk_gb,
            minimum_tokens=prefix_cache_min_tokens,
            max_age_days=prefix_cache_max_age_days,
        )
    serve_model(
        ServeOptions(
            model=model_name,
            request=make_size_request(sizes, prefix_cache="on" if prefix_cache else "off"),
            host=host,
            port=port,
            api_key=api_key,
            allowed_hosts=allow_host,
            max_prefill_wait_minutes=max_prefill_wait,
            idle_exit_minutes=idle_exit,
            elastic=not no_elastic,
            disk=disk,
            mirrors=mirrors,
        )
    )
