"""Does a model's chat template write conversations as this engine reads and keeps them?

No weights are needed: the settings, the tokenizer and the template of a checkpoint are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.errors import TemplateError
from slotstream_core.prefixes.boundaries import turn_starts
from slotstream_core.prefixes.memory import prompt_array
from slotstream_core.prefixes.splicing import rest_after
from slotstream_core.prefixes.transcripts import TURN_END, ChatSettings, Transcripts, fingerprints
from slotstream_core.text.messages import ChatMessage, JsonObject, ToolCall
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.thinking import CLOSING_TAG
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_core.text.tool_calls import (
    CALL_CLOSE,
    CALL_OPEN,
    CallFinished,
    ToolCallScanner,
    declared_functions,
)

__all__ = ["check_template"]

TURN_START: Final = "<|im_start|>"
THINKING_TAG: Final = "<think>"

CALL: Final = ToolCall(name="forecast_weather", arguments={"city": "Zürich", "days": 2})
TOOL: Final[JsonObject] = {
    "type": "function",
    "function": {
        "name": CALL.name,
        "description": "Return the weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ANSWER: Final = "It will rain on both days."
CONVERSATION: Final = (
    ChatMessage(role="system", content="You are a helpful assistant. Answer in one sentence."),
    ChatMessage(role="user", content="What will the weather be like in Zürich → tomorrow, and the day after?"),
    ChatMessage(role="assistant", content="", tool_calls=(CALL,)),
    ChatMessage(role="tool", content='{"forecast": ["rain, 9 °C", "rain, 11 °C"]}'),
    ChatMessage(role="user", content="Do I need an umbrella?"),
)
"""What is rendered: a question, a call, its result, and another question."""

FOLLOW_UP: Final = (
    *CONVERSATION,
    ChatMessage(role="assistant", content=ANSWER),
    ChatMessage(role="user", content="Thank you! And on Sunday?"),
)
QUESTION, RESULT, SECOND_QUESTION = 2, 4, 5
"""How many messages come up to and with the first question, the tool's result and the second question."""


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """Renders conversations with one model's template, for replies that think or do not."""

    template: ChatTemplate
    tokenizer: Tokenizer
    thinking: bool
    tools: tuple[JsonObject, ...] = (TOOL,)

    def prompt(self, messages: Sequence[ChatMessage]) -> str:
        return self.template.render(messages, tools=self.tools, thinking=self.thinking)

    def turns(self, messages: Sequence[ChatMessage]) -> str:
        """Return the conversation without the opening of a reply."""
        return self.template.render(messages, tools=self.tools, thinking=self.thinking, generation_prompt=False)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)


def check_template(directory: Path, *, thinking: bool = False) -> CheckReport:
    """Render a fixed conversation with a tool and look at its text and ids.

    Args:
        directory: The checkpoint; its weights are not read.
        thinking: Whether the reply is to begin inside a thinking block.

    Returns:
        The report; its facts hold the `text` and the `ids` of the prompt.

    Raises:
        CheckpointError: The settings cannot be used.
        TokenizerError: The tokenizer cannot be used.
        TemplateError: There is no template, or it refuses the conversation.
    """
    config = Qwen4ExpConfig.from_file(directory / "config.json")
    tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
    template = ChatTemplate.from_directory(directory)
    if template is None:
        raise TemplateError(
            f"{directory} has no chat template, so there is none to check; add the original's chat_template.jinja"
        )
    writer = _Writer(template=template, tokenizer=tokenizer, thinking=thinking)
    text = writer.prompt(CONVERSATION)
    ids = writer.ids(text)
    return CheckReport(
        name="template-check",
        items=(
            CheckItem(
                name="the ids decode to the text",
                passed=tokenizer.decode(ids, markers=True) == text,
                detail=f"{len(ids)} ids, {len(text)} characters",
            ),
            _check_turns(text),
            _check_tools(writer),
            _check_call(writer),
            _check_opening(writer, ids),
            _check_thinking(writer, text),
            _check_beginning(writer),
            _check_follow_up(writer, "a call", CONVERSATION, QUESTION, RESULT, _written_call(writer)),
            _check_follow_up(writer, "an answer", FOLLOW_UP, SECOND_QUESTION, len(FOLLOW_UP), ANSWER),
        ),
        facts={"text": text, "ids": ids, "thinking": thinking},
    )


def _check_turns(text: str) -> CheckItem:
    """Look for what every turn says."""
    said = [
        part
        for message in CONVERSATION
        for part in (message.content, *(piece for call in message.tool_calls for piece in (call.name, *_values(call))))
        if part
    ]
    missing, place = list[str](), 0
    for part in said:
        found = text.find(part, place)
        if found < 0:
            missing.append(part)
        else:
            place = found + len(part)
    detail = f"not there, or not in its place: {', '.join(map(repr, missing))}" if missing else f"{len(said)} texts"
    return CheckItem(name="what every turn says is in the text, in order", passed=not missing, detail=detail)


def _values(call: ToolCall) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in call.arguments.values()]


def _check_tools(writer: _Writer) -> CheckItem:
    """Look for the declared tool, with nothing else that would name it."""
    text = writer.turns(CONVERSATION[:QUESTION])
    function = TOOL["function"]
    expected = [function["name"], function["description"], *function["parameters"]["properties"]]
    missing = [part for part in expected if part not in text]
    detail = f"without {', '.join(missing)}" if missing else CALL.name
    return CheckItem(name="a declared tool is described to the model", passed=not missing, detail=detail)


def _call_turn(writer: _Writer) -> str:
    """Return how the turn with the call is written, behind its opening marker."""
    return writer.turns(CONVERSATION[: QUESTION + 1]).rpartition(TURN_START)[2]


def _written_call(writer: _Writer) -> str | None:
    """Return how the template writes the call."""
    turn = _call_turn(writer)
    start, end = turn.find(CALL_OPEN), turn.rfind(CALL_CLOSE)
    return turn[start : end + len(CALL_CLOSE)] if 0 <= start < end else None


def _check_call(writer: _Writer) -> CheckItem:
    """Read a call back as a reply's would be."""
    scanner = ToolCallScanner(declared_functions(writer.tools))
    events = [*scanner.feed(_call_turn(writer)), *scanner.finish()]
    found = [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, CallFinished)]
    detail = f"{len(found)} calls found, 1 written" if len(found) != 1 else f"{found[0][0]} {found[0][1]}"
    passed = found == [(CALL.name, dict(CALL.arguments))]
    return CheckItem(
        name="a call in the conversation is written as replies' calls are read", passed=passed, detail=detail
    )


def _check_opening(writer: _Writer, ids: Sequence[int]) -> CheckItem:
    """Look at what the generation prompt adds, and where."""
    before = writer.ids(writer.turns(CONVERSATION))
    starts = turn_starts(prompt_array(ids), writer.tokenizer.token_id(TURN_START))
    at = starts[-1] if starts else None
    passed = list(ids[: len(before)]) == before and at == len(before)
    where = f"the last of {len(starts)} turns begins at id {at}" if starts else f"no {TURN_START} in the ids"
    return CheckItem(
        name="the prompt ends with the opening of the reply's turn",
        passed=passed and writer.tokenizer.token_id(TURN_END) is not None,
        detail=f"{where}, the conversation ends at {len(before)}",
    )


def _check_thinking(writer: _Writer, text: str) -> CheckItem:
    """Look whether the reply begins where the engine expects it to."""
    opening = text[text.rfind(TURN_START) :]
    inside = opening.rfind(THINKING_TAG) > opening.rfind(CLOSING_TAG)
    where = "inside" if writer.thinking else "outside"
    return CheckItem(
        name=f"the reply begins {where} a thinking block", passed=inside == writer.thinking, detail=repr(opening)
    )


def _check_beginning(writer: _Writer) -> CheckItem:
    """Compare the ids of conversations up to a question with those of what they became."""
    pairs = ((CONVERSATION, QUESTION), (FOLLOW_UP, SECOND_QUESTION))
    compared, same = list[int](), True
    for messages, count in pairs:
        beginning, whole = writer.ids(writer.turns(messages[:count])), writer.ids(writer.turns(messages))
        compared.append(len(beginning))
        same = same and whole[: len(beginning)] == beginning
    return CheckItem(
        name="a conversation begins with the ids it had up to an earlier question",
        passed=same,
        detail=f"{' and '.join(map(str, compared))} ids",
    )


def _check_follow_up(
    writer: _Writer, what: str, messages: Sequence[ChatMessage], asked: int, now: int, written: str | None
) -> CheckItem:
    """Answer the first ``asked`` messages and go on with the first ``now``, as an engine that keeps conversations."""
    name = f"a turn after {what} goes on from the ids of the reply"
    if written is None:
        return CheckItem(name=name, passed=False, detail="the template writes no call")
    settings = ChatSettings(tools=writer.tools, thinking=writer.thinking)
    transcripts = Transcripts(writer.tokenizer)
    prompt = writer.ids(writer.prompt(messages[:asked]))
    reply = writer.ids(f"A short thought.\n{CLOSING_TAG}\n\n{written}" if writer.thinking else written)
    transcripts.note_prompt(prompt, fingerprints(messages[:asked], settings)[-1], thinking=writer.thinking)
    transcripts.note_reply(prompt_array(prompt), reply)
    splice = transcripts.find(messages[:now], settings)
    rest = None if splice is None else rest_after(splice, messages[:now], writer.prompt)
    if splice is None or rest is None:
        return CheckItem(name=name, passed=False, detail="the whole conversation would be read again")
    detail = f"{len(splice.ids)} ids kept, {len(writer.ids(rest))} new"
    return CheckItem(name=name, passed=messages[now - 1].content in rest, detail=detail)
