"""`slotstream lookahead-report`: what reading ahead does for a model on this machine."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slotstream_cli.models import choose_model
from slotstream_cli.planning_options import make_size_request, sizes_alone

if TYPE_CHECKING:
    from slotstream_core.diagnostics.lookahead import LookaheadReport


@click.command("lookahead-report")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--prompts", type=click.Path(dir_okay=False, path_type=Path), help="A prompt a line [default: built in].")
@click.option("--reply-tokens", default=48, show_default=True, type=click.IntRange(0, 4096), help="Own reply of each.")
@click.option(
    "--tokens", default=64, show_default=True, type=click.IntRange(1, 4096), help="Decoded in each timed run."
)
@click.option("--timed-prompts", default=4, show_default=True, type=click.IntRange(1), help="Prompts that are timed.")
@click.option(
    "--rounds", default=1, show_default=True, type=click.IntRange(1), help="On, off, off, on for each prompt."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@sizes_alone
def command(
    *,
    model_name: str | None,
    prompts: Path | None,
    reply_tokens: int,
    tokens: int,
    timed_prompts: int,
    rounds: int,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Print how well forecasts agree with the routing, what reading ahead wastes, and speed with and without it.

    Agreement is measured on every fourth prompt, those that `lookahead-fit` holds out. Runs with and without the
    lookahead alternate in one process and must make the same tokens.
    """
    from slotstream_cli.prompt_files import counting, read_prompts
    from slotstream_core.diagnostics.fitting import is_held_out
    from slotstream_core.diagnostics.lookahead import make_sequences, report_lookahead

    request = make_size_request(sizes)
    directory = choose_model(model_name).directory
    held_out = [prompt for index, prompt in enumerate(read_prompts(prompts)) if is_held_out(index)]
    with counting("answering prompts") as progress:
        sequences = make_sequences(
            directory,
            held_out,
            reply_tokens=reply_tokens,
            request=replace(request, lookahead="off"),
            progress=progress,
        )
    with counting("timing") as progress:
        report = report_lookahead(
            directory,
            sequences,
            request=replace(request, lookahead="on"),
            tokens=tokens,
            prompts=timed_prompts,
            rounds=rounds,
            progress=progress,
        )
    click.echo(json.dumps(report.to_json()) if as_json else _text(report))
    if not report.same_ids:
        raise click.ClickException("the tokens differ with and without the lookahead; please report this")


def _text(report: LookaheadReport) -> str:
    lines = ["agreement of forecasts with the routing (share of the chosen experts foreseen), by layer:"]
    for kind, found in report.agreement.items():
        recalls = [agreement.recall for agreement in found.values()]
        right = statistics.mean(agreement.precision for agreement in found.values())
        lines.append(
            f"  {kind:<10} {' '.join(f'{recall:.2f}' for recall in recalls)}   mean {statistics.mean(recalls):.3f}, "
            f"{right:.3f} of what would be read ahead is right"
        )
    on, off = report.with_it, report.without
    traffic = on.traffic
    lines += [
        f"pool: {report.slots:,} of {report.total_experts:,} experts in slots",
        f"read ahead: {traffic.ahead_records:,} records, {traffic.ahead_used:,} complete and {traffic.ahead_joined:,} "
        f"under way when asked for, {traffic.wasted_bytes / 1e6:,.1f} MB wasted",
        f"read in all: {traffic.bytes_read / 1e6:,.1f} MB with it, {off.traffic.bytes_read / 1e6:,.1f} MB without; "
        f"waited {traffic.wait_s:.2f} s and {off.traffic.wait_s:.2f} s",
        f"decode: {on.tokens_per_s:.2f} tok/s with it, {off.tokens_per_s:.2f} without; median gain over prompts "
        f"{statistics.median(report.gains):.3f} ({min(report.gains):.3f} to {max(report.gains):.3f})",
        f"same tokens: {'yes' if report.same_ids else 'NO'}",
    ]
    return "\n".join(lines)
