"""`slotstream context-check`: does a prompt of this length run inside its plan on this machine?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from slotstream_cli.locking import held_alone
from slotstream_cli.models import choose_model
from slotstream_cli.number_options import MINUTES, FiniteRange
from slotstream_cli.planning_options import make_size_request, size_options

if TYPE_CHECKING:
    from pathlib import Path

    from slotstream_planner import PlanRequest


TOKENS = 8192
"""Prompt length where nobody says another and the model reads as many."""


@click.command("context-check")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option(
    "--tokens", type=click.IntRange(1), help=f"Prompt length.  [default: {TOKENS}, or what the model's window holds]"
)
@click.option("--reply-tokens", default=16, show_default=True, type=click.IntRange(1), help="Required reply length.")
@click.option("--ladder", is_flag=True, help="Run 2048, 4096, ... up to --tokens; stop at the first failure.")
@click.option("--warm-conversations", default=0, type=click.IntRange(0), help="Run and revisit this many first.")
@click.option("--warm-tokens", default=0, type=click.IntRange(0), help="Prompt length of each of those.")
@click.option("--max-prefill-wait", default=30.0, show_default=True, type=MINUTES, metavar="MINUTES")
@click.option("--wall-seconds", default=7200.0, show_default=True, type=FiniteRange(1, 1e9), help="Limit per rung.")
@click.option("--min-free-gb", type=FiniteRange(0, 1e6), help="Stop when less memory is available.")
@click.option("--plan-only", is_flag=True, help="Print the plan that would be used and load nothing.")
@click.option("--sample-footprint", is_flag=True, help="Report every memory sample, not the largest alone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a rung.")
@size_options
def command(
    *,
    model_name: str | None,
    tokens: int | None,
    reply_tokens: int,
    ladder: bool,
    warm_conversations: int,
    warm_tokens: int,
    max_prefill_wait: float,
    wall_seconds: float,
    min_free_gb: float | None,
    plan_only: bool,
    sample_footprint: bool,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Run a synthetic prompt of a given length and compare the process's memory with its plan.

    Memory is sampled from the kernel throughout. Output that ends early, a budget that is exceeded and missing
    samples fail the check; the whole system's swapping is reported and not judged.
    """
    if ladder and warm_conversations:
        raise click.UsageError("--warm-conversations needs a single length; leave --ladder out")
    if bool(warm_conversations) != bool(warm_tokens):
        raise click.UsageError("--warm-conversations and --warm-tokens belong together; give both")
    request = make_size_request(sizes, max_prefill_wait_minutes=max_prefill_wait)
    directory = choose_model(model_name).directory
    if tokens is None:
        tokens = _default_tokens(directory, reply_tokens)
    if plan_only:
        _print_plan(directory, request, tokens + reply_tokens, as_json=as_json)
        return
    from slotstream_core.diagnostics.context import ContextCheck, check_context, context_rungs

    for rung in context_rungs(tokens) if ladder else [tokens]:
        check = ContextCheck(
            tokens=rung,
            reply_tokens=reply_tokens,
            wait_s=60 * max_prefill_wait,
            wall_s=wall_seconds,
            warm_conversations=warm_conversations,
            warm_tokens=warm_tokens,
            keep_samples="all" if sample_footprint else "peak",
            min_free_bytes=None if min_free_gb is None else round(min_free_gb * 1e9),
        )
        with held_alone(directory):
            report = check_context(directory, check, request)
        click.echo(json.dumps(report.to_json()) if as_json else f"{rung} tokens\n{report.to_text()}")
        if not report.passed:
            raise click.exceptions.Exit(1)


def _default_tokens(directory: Path, reply_tokens: int) -> int:
    """As many tokens as leave room for the reply in the model's largest window, at most `TOKENS`."""
    from slotstream_planner import ModelGeometry
    from slotstream_planner.request import window_limit

    geometry = ModelGeometry.from_checkpoint(directory, compute="bf16")  # which does not matter for the window
    return max(1, min(TOKENS, window_limit(geometry) - reply_tokens))


def _print_plan(directory: Path, request: PlanRequest, needed: int, *, as_json: bool) -> None:
    """Print the plan of this machine for the window the check needs."""
    from slotstream_core.backend import Backend
    from slotstream_core.loading import plan_here
    from slotstream_planner.report import plan_to_text

    wanted = request if request.max_context != "auto" else replace(request, max_context=needed)
    result = plan_here(directory, Backend.detect(), wanted)
    click.echo(json.dumps(result.to_json()) if as_json else plan_to_text(result))
