"""`slotstream chat`: a conversation at the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slotstream_cli.number_options import TEMPERATURE, TOP_K, TOP_P
from slotstream_cli.planning_options import make_size_request, size_options
from slotstream_cli.reading_options import mirror_option
from slotstream_cli.text_only import vision_option


@click.command("chat")
@click.option("--model", "model_name", metavar="NAME|DIR", help="A model's name or its directory.")
@click.option("--system", default="", metavar="TEXT", help="The system message.")
@click.option("--max-tokens", default=0, show_default=True, help="Tokens of a reply; 0 or less: as many as fit.")
@click.option("--think", is_flag=True, help="Let the model think first; its thoughts go to stderr.")
@click.option("--greedy", is_flag=True, help="Always take the most likely token.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Name the random stream; the default draws a new one.")
@click.option("--temperature", type=TEMPERATURE, help="Spread of the choice; 0 is greedy.")
@click.option("--top-p", type=TOP_P, help="Keep the likeliest tokens up to this probability.")
@click.option("--top-k", type=TOP_K, help="Keep this many of the likeliest tokens; 0 keeps all.")
@mirror_option
@vision_option
@size_options
def command(
    *,
    model_name: str | None,
    system: str,
    max_tokens: int,
    think: bool,
    mirrors: tuple[Path, ...],
    **options: Any,
) -> None:
    """Talk with the model. Ctrl-C stops a reply, Ctrl-D leaves, /help lists commands.

    Lines are remembered in ~/.slotstream/chat-history. A follow-up reads only what is new of the conversation.
    """
    from slotstream_cli.chatting import ChatOptions, chat_at_terminal
    from slotstream_cli.running import sampling_params

    chat_at_terminal(
        ChatOptions(
            model=model_name,
            request=make_size_request(options),
            sampling=sampling_params({**options, "min_p": None, "presence_penalty": None}, think=think),
            max_tokens=max_tokens,
            think=think,
            system=system,
            mirrors=mirrors,
        )
    )
