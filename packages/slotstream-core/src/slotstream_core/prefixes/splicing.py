"""Rendering a conversation whose beginning is made of remembered ids."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from slotstream_core.prefixes.transcripts import TURN_END, Splice
from slotstream_core.text.messages import ChatMessage

_MARK: Final = "\ue000remembered turn\ue001"
"""Stands for the turn while the template renders what follows it; private-use characters, trimmed by no template."""


def rest_after(
    splice: Splice, messages: Sequence[ChatMessage], render: Callable[[list[ChatMessage]], str]
) -> str | None:
    """Return the text that follows a spliced turn.

    Args:
        splice: The turn.
        messages: The conversation.
        render: The chat template with the conversation's own settings.

    Returns:
        The rendered text behind the turn's end marker, or None when the template does not write the turn once and
        end it with its marker.

    Raises:
        TemplateError: The template refused the conversation.
    """
    if any(_MARK in message.content for message in messages):
        return None
    standing_in = [*messages]
    standing_in[splice.index] = replace(messages[splice.index], content=_MARK, reasoning=None, tool_calls=())
    _, marked, rest = render(standing_in).partition(_MARK)
    if not marked or _MARK in rest or not rest.startswith(TURN_END):
        return None
    return rest.removeprefix(TURN_END)
