"""`slotstream prefix-check`: replies are the same with kept conversations and without."""

from __future__ import annotations

from typing import Any

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model
from slotstream_cli.planning_options import make_size_request, size_options


@click.command("prefix-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 256), help="Tokens of a reply.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@size_options
def command(*, model_name: str | None, max_tokens: int, as_json: bool, **sizes: Any) -> None:
    """Hold a conversation with and without what is kept of it, twice, beside others.

    Replies must be the same, later turns must go on from earlier ones, and what is kept must stay inside its budget.
    """
    from slotstream_core.diagnostics.reuse import check_reuse

    request, directory = make_size_request(sizes), choose_model(model_name).directory
    with held_alone(directory):
        report = check_reuse(directory, request, max_tokens=max_tokens)
    show_report(report, as_json=as_json)
