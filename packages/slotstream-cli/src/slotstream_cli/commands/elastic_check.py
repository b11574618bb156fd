"""`slotstream elastic-check`: greedy output is the same across a live growth and shrink of the pool."""

from __future__ import annotations

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model


@click.command("elastic-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 4096), help="Tokens a comparison.")
@click.option("--big-slots", default=960, show_default=True, type=click.IntRange(1), help="Slots to grow to.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, model_name: str | None, max_tokens: int, big_slots: int, as_json: bool) -> None:
    """Check that resizing the expert pool of a loaded model leaves its greedy output alone."""
    from slotstream_core.diagnostics.elastic import check_elastic

    directory = choose_model(model_name).directory
    with held_alone(directory):
        report = check_elastic(directory, max_tokens=max_tokens, big_slots=big_slots)
    show_report(report, as_json=as_json)
