"""`slotstream sweep-check`: a prompt read expert by expert leaves the reply alone."""

from __future__ import annotations

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model


@click.command("sweep-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option(
    "--prompt-tokens", default=600, show_default=True, type=click.IntRange(256, 65_536), help="Length of the prompt."
)
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 4096), help="Tokens a comparison.")
@click.option(
    "--experts-per-layer", default=1, show_default=True, type=click.IntRange(1), help="Slots, as a number a layer."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    *, model_name: str | None, prompt_tokens: int, max_tokens: int, experts_per_layer: int, as_json: bool
) -> None:
    """Check that reading a prompt expert by expert leaves its reply alone, with an empty pool and a filled one."""
    from slotstream_core.diagnostics.sweeps import check_sweeps

    directory = choose_model(model_name).directory
    with held_alone(directory):
        report = check_sweeps(
            directory, prompt_tokens=prompt_tokens, max_tokens=max_tokens, experts_per_layer=experts_per_layer
        )
    show_report(report, as_json=as_json)
