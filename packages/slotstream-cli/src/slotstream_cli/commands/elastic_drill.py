"""`slotstream elastic-drill`: the governor over a loaded model, through pressure, cooldown and recovery."""

from __future__ import annotations

import json

import click

from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model


@click.command("elastic-drill")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 4096), help="Tokens a comparison.")
@click.option("--memory-limit-gb", type=float, help="Load under this adaptive ceiling.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, model_name: str | None, max_tokens: int, memory_limit_gb: float | None, as_json: bool) -> None:
    """Drive the memory governor by hand over a really loaded model and compare its output after every resize."""
    from slotstream_core.diagnostics.elastic import drill_governor

    directory = choose_model(model_name).directory
    with held_alone(directory):
        report = drill_governor(directory, max_tokens=max_tokens, memory_limit_gb=memory_limit_gb)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
    if not report.passed:
        raise click.exceptions.Exit(1)
