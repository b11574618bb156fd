"""`slotstream mtp-check`: drafting leaves the output alone, and what it brings."""

from __future__ import annotations

from typing import Any

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model
from slotstream_cli.planning_options import budget_options, make_size_request


@click.command("mtp-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=32, show_default=True, type=click.IntRange(4, 4096), help="Tokens of a reply.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@budget_options
def command(*, model_name: str | None, max_tokens: int, as_json: bool, **sizes: Any) -> None:
    """Answer a question greedily with drafts, 1, 2 and 4 a pass, and without; ids must be the same.

    The draft head's experts are streamed, then held in memory. The share of drafts accepted and the speeds are shown,
    and a pass over drafts, cut anywhere, must go on as a shorter one.
    """
    from slotstream_core.diagnostics.drafts import check_drafts

    request, directory = make_size_request(sizes), choose_model(model_name).directory
    with held_alone(directory):
        report = check_drafts(directory, request, max_tokens=max_tokens)
    if left_out := report.facts.get("left_out"):
        click.echo(f"-- left out: {left_out}", err=True)
    show_report(report, as_json=as_json)
