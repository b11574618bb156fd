"""`slotstream run`: one prompt, one reply, no server."""

from pathlib import Path
from typing import Any

import click

from slotstream_cli.number_options import MIN_P, MINUTES, PENALTY, TEMPERATURE, TOP_K, TOP_P
from slotstream_cli.planning_options import make_size_request, size_options
from slotstream_cli.reading_options import mirror_option
from slotstream_cli.text_only import image_option, vision_option


@click.command()
@click.option("--prompt", default="Why is the sky blue?", show_default=True, help="The prompt; - reads it from stdin.")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--max-tokens", default=128, show_default=True, help="Tokens to make; 0 or less: as many as fit.")
@click.option("--greedy", is_flag=True, help="Always take the most likely token.")
@click.option("--raw", is_flag=True, help="Send the prompt without the chat template.")
@click.option("--think", is_flag=True, help="Let the model think first; its thoughts go to stderr.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Name the random stream; the default draws a new one.")
@click.option("--temperature", type=TEMPERATURE, help="Spread of the choice; 0 is greedy.")
@click.option("--top-p", type=TOP_P, help="Keep the likeliest tokens up to this probability.")
@click.option("--top-k", type=TOP_K, help="Keep this many of the likeliest tokens; 0 keeps all.")
@click.option("--min-p", type=MIN_P, help="Drop tokens below this share of the likeliest one.")
@click.option("--presence-penalty", type=PENALTY, help="Lower the logit of every token already in the reply.")
@click.option("--stop", multiple=True, help="End the reply before this text; may be given again.")
@click.option("--stats-json", type=click.Path(dir_okay=False, path_type=Path), help="Write the measurements here.")
@click.option(
    "--max-prefill-wait",
    type=MINUTES,
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="Longest reading of the prompt; 0: no limit.",
)
@mirror_option
@click.option("--sample-footprint", is_flag=True, help="Sample memory during the generation, and report that peak too.")
@image_option
@vision_option
@size_options
def command(
    *,
    prompt: str,
    model_name: str | None,
    max_tokens: int,
    raw: bool,
    think: bool,
    stop: tuple[str, ...],
    stats_json: Path | None,
    max_prefill_wait: float,
    mirrors: tuple[Path, ...],
    sample_footprint: bool,
    **options: Any,
) -> None:
    """Answer one prompt and stop."""
    if raw and think:
        raise click.UsageError("--think needs the chat template, so it cannot be combined with --raw")
    from slotstream_cli.running import RunOptions, answer_once, read_prompt, sampling_params

    answer_once(
        RunOptions(
            prompt=read_prompt(prompt),
            model=model_name,
            request=make_size_request(options, prefix_cache="off"),  # one prompt has no next turn
            sampling=sampling_params(options, think=think),
            max_tokens=max_tokens,
            raw=raw,
            think=think,
            stop=stop,
            stats_json=stats_json,
            max_prefill_wait_minutes=max_prefill_wait,
            mirrors=mirrors,
            sample_footprint=sample_footprint,
        )
    )
