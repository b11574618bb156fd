"""How every check command ends: its report, and exit code 1 where something did not hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slotstream_core.diagnostics.reporting import CheckReport


def show_report(report: CheckReport, *, as_json: bool) -> None:
    """Print a report on stdout, as lines or as one JSON object.

    Raises:
        click.exceptions.Exit: 1 when the check did not pass.
    """
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
    if not report.passed:
        raise click.exceptions.Exit(1)
