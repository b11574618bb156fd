"""`slotstream template-check`: the chat template writes conversations as they are read and kept here."""

from __future__ import annotations

import click

from slotstream_cli.checking import show_report
from slotstream_cli.models import choose_model


@click.command("template-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--think", is_flag=True, help="Render for a reply that thinks first.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, the text and the ids as JSON.")
def command(*, model_name: str | None, think: bool, as_json: bool) -> None:
    """Render the model's chat template for a fixed conversation, print the text and its token ids, and check both.

    The conversation has a system message, a question, a tool call with its result, and another question. No weights
    are loaded.
    """
    from slotstream_core.diagnostics.templates import check_template

    report = check_template(choose_model(model_name).directory, thinking=think)
    if not as_json:
        click.echo(f"{report.facts['text']}\n\n{' '.join(map(str, report.facts['ids']))}\n")
    show_report(report, as_json=as_json)
