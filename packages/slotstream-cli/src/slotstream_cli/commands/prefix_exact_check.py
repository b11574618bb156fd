"""`slotstream prefix-exact-check`: a continued conversation computes what a cold one does."""

from __future__ import annotations

from typing import Any

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model
from slotstream_cli.planning_options import make_size_request, size_options


@click.command("prefix-exact-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 256), help="Tokens of a reply.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@size_options
def command(*, model_name: str | None, max_tokens: int, as_json: bool, **sizes: Any) -> None:
    """Compare prompts that go on from kept states with prompts that are read from their beginning.

    Logits must be the same bit for bit, and so must the ids: for a next turn, the same prompt again, an edited history,
    a shared beginning, and a restart from the disk.
    """
    from slotstream_core.diagnostics.reuse import check_exact_reuse

    request, directory = make_size_request(sizes), choose_model(model_name).directory
    with held_alone(directory):
        report = check_exact_reuse(directory, request, max_tokens=max_tokens)
    show_report(report, as_json=as_json)
