"""`slotstream elastic-drill`: the governor over a loaded model, through pressure, cooldown and recovery."""

from __future__ import annotations

from typing import Literal

import click

from slotstream_cli.checking import show_report
from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model
from slotstream_cli.number_options import FiniteRange

_SIZE = FiniteRange(0, 1e6, min_open=True)


@click.command("elastic-drill")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=24, show_default=True, type=click.IntRange(1, 4096), help="Tokens a comparison.")
@click.option("--slots", type=click.IntRange(1), help="Begin with this many, if the plan has more.")
@click.option("--memory-limit-gb", type=_SIZE, help="Load under this adaptive ceiling.")
@click.option("--max-memory-gb", type=_SIZE, help="Load nothing when the plan may use more than this.")
@click.option("--mtp", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True, help="Draft head.")
@click.option("--quick", is_flag=True, help="End after the shrink, before the recovery.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    *,
    model_name: str | None,
    max_tokens: int,
    slots: int | None,
    memory_limit_gb: float | None,
    max_memory_gb: float | None,
    mtp: Literal["auto", "on", "off"],
    quick: bool,
    as_json: bool,
) -> None:
    """Drive the memory governor by hand over a really loaded model and compare its output after every resize."""
    from slotstream_core.diagnostics.elastic import DrillOptions, drill_governor

    directory = choose_model(model_name).directory
    options = DrillOptions(
        max_tokens=max_tokens,
        memory_limit_gb=memory_limit_gb,
        slots=slots,
        max_memory_gb=max_memory_gb,
        mtp=mtp,
        quick=quick,
    )
    with held_alone(directory):
        report = drill_governor(directory, options)
    show_report(report, as_json=as_json)
