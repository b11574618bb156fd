"""`slotstream prefill-schedule`: the passes a prompt is read in, and the wait they imply."""

from __future__ import annotations

import itertools
import json

import click

_POSITION = click.IntRange(0, 2**24)


@click.command("prefill-schedule")
@click.option("--chunk", type=int, default=4096, show_default=True, help="Largest pass, 64 to 4096 tokens.")
@click.option("--tokens", type=_POSITION, default=32_768, show_default=True, help="Tokens to read.")
@click.option("--from", "start", type=_POSITION, default=0, show_default=True, help="Tokens already read before them.")
@click.option("--json", "as_json", is_flag=True, help="Print every pass, and where state may be saved, as JSON.")
def command(*, chunk: int, tokens: int, start: int, as_json: bool) -> None:
    """Show how a prompt is cut into passes and how long they take on the reference machine.

    A pass of c tokens at position p multiplies c queries with p + c keys; the product is bounded, so passes get
    smaller as the prompt grows. Nothing is loaded.
    """
    from slotstream_planner.calibration import COST_MODEL
    from slotstream_planner.prefill import estimate_passes, resume_boundaries, schedule_passes
    from slotstream_planner.units import format_wait
    from slotstream_planner.workspace import group_read_scopes

    passes = list(schedule_passes(tokens, chunk, start=start))
    boundaries = resume_boundaries(tokens, chunk, start=start)
    seconds = estimate_passes(passes)
    if as_json:
        document = {
            "chunk": chunk,
            "tokens": tokens,
            "from": start,
            "passes": [
                {
                    "start": each.start,
                    "tokens": each.tokens,
                    "canonical_tokens": each.full_tokens,
                    "query_rows": each.tokens,  # nothing is padded by this engine
                    "key_extent": each.start + each.tokens,
                }
                for each in passes
            ],
            "read_scopes": [scope.tokens for scope in group_read_scopes(passes)],
            "resume_boundaries": boundaries,
            "est_prefill_s": seconds,
            "speed_evidence": COST_MODEL,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{len(passes)} passes read {tokens} tokens from position {start}")
    for size, group in itertools.groupby(passes, key=lambda each: each.tokens):
        members = list(group)
        click.echo(f"  {len(members):>5} x {size:<5} from position {members[0].start}")
    click.echo(f"reference envelope ({COST_MODEL}): {format_wait(seconds)}")
