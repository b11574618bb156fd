"""`slotstream lookahead-fit`: learn what corrects a checkpoint's forecasts."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from slotstream_cli.files import check_writable
from slotstream_cli.models import choose_model
from slotstream_cli.number_options import FiniteRange
from slotstream_cli.planning_options import make_size_request, sizes_alone


@click.command("lookahead-fit")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--prompts", type=click.Path(dir_okay=False, path_type=Path), help="A prompt a line [default: built in].")
@click.option(
    "--texts", type=click.Path(dir_okay=False, path_type=Path), help="Read these too: JSON strings, one a line."
)
@click.option("--reply-tokens", default=96, show_default=True, type=click.IntRange(0, 4096), help="Own reply of each.")
@click.option("--rank", default=128, show_default=True, type=click.IntRange(1, 4096), help="Width of the correction.")
@click.option("--sums-gb", default=2.0, show_default=True, type=FiniteRange(0.001, 1e6), help="Memory for its sums.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here, not beside the model.")
@sizes_alone
def command(
    *,
    model_name: str | None,
    prompts: Path | None,
    texts: Path | None,
    reply_tokens: int,
    rank: int,
    sums_gb: float,
    output: Path | None,
    **sizes: Any,
) -> None:
    """Learn the correction that makes the lookahead's forecasts agree better, and write it beside the checkpoint.

    The model answers the prompts, and reads the texts if there are any, while its routing is recorded. Every fourth
    one is held out: the agreement printed was measured there. The next start of the model uses the file.
    """
    from slotstream_cli.prompt_files import counting, read_prompts, read_texts
    from slotstream_core.checkpoint.corrections import correction_path, write_correction
    from slotstream_core.diagnostics.fitting import fit_correction
    from slotstream_core.diagnostics.lookahead import encode_texts, make_sequences
    from slotstream_core.loading import load_model

    request = replace(make_size_request(sizes), lookahead="off")
    if output is not None:
        check_writable(output, parents_made=True)
    directory = choose_model(model_name).directory
    path = output or correction_path(directory)
    check_writable(path, parents_made=True)
    with counting("answering prompts") as progress:
        sequences = make_sequences(
            directory, read_prompts(prompts), reply_tokens=reply_tokens, request=request, progress=progress
        )
    if texts is not None:
        sequences += encode_texts(directory, read_texts(texts))
    with load_model(directory, request=request) as loaded, counting("recording routing") as progress:
        fit = fit_correction(loaded, sequences, rank=rank, memory_bytes=int(sums_gb * 1e9), progress=progress)
    write_correction(path, fit.correction)
    click.echo(
        f"fitted on {fit.rows:,} tokens, measured on {fit.held_out_rows:,} held-out ones; agreement with routing:"
    )
    click.echo("layer  boundary  after attention  corrected  of those read ahead right")
    for target, corrected in fit.corrected.items():
        boundary, attention = fit.boundary[target].recall, fit.attention[target].recall
        click.echo(
            f"{target:5d}  {boundary:8.3f}  {attention:15.3f}  {corrected.recall:9.3f}  {corrected.precision:26.3f}"
        )
    means = [
        statistics.mean(a.recall for a in found.values()) for found in (fit.boundary, fit.attention, fit.corrected)
    ]
    click.echo(f" mean  {means[0]:8.3f}  {means[1]:15.3f}  {means[2]:9.3f}")
    click.echo(f"rank {fit.correction.rank}, {path.stat().st_size:,} bytes, written to {path}")
