"""Replies that come back in a conversation become the ids that were made, or are left alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slotstream_core.prefixes.boundaries import Ids
from slotstream_core.prefixes.memory import ConversationMemory, prompt_array
from slotstream_core.prefixes.transcripts import MOST_TRANSCRIPTS, ChatSettings, Transcripts, fingerprints
from slotstream_core.text.messages import ChatMessage, JsonObject, ToolCall
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import Machine, ModelGeometry, PlanRequest, plan

QUESTION = ChatMessage(role="user", content="Where is the fox?")
NEXT = ChatMessage(role="user", content="And the owl?")
TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"times": {"type": "integer"}}}},
}
CALL = "<tool_call>\n<function=look>\n<parameter=times>\n2\n</parameter>\n</function>\n</tool_call>"


def said(content: str, *calls: ToolCall) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, tool_calls=calls)


class Conversation:
    """A memory with the tiny model's tokenizer and template, and an imagined model behind it."""

    def __init__(self, directory: Path) -> None:
        geometry = ModelGeometry.from_checkpoint(directory, compute="float32")
        self.tokenizer = Tokenizer.from_directory(directory, vocabulary=geometry.vocabulary, eos_ids=[258])
        self.memory = ConversationMemory(plan(geometry, Machine.current(), PlanRequest()), self.tokenizer)
        template = ChatTemplate.from_directory(directory)
        assert template is not None
        self.template = template

    def ids(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        thinking: bool = False,
        window: int = 4096,
    ) -> list[int]:
        return self.memory.chat_ids(
            self.template, messages, tools=tools, thinking=thinking, effort=None, window_tokens=window
        )

    def plain(self, messages: Sequence[ChatMessage]) -> list[int]:
        return self.tokenizer.encode(self.template.render(messages))

    def reply(self, prompt: Sequence[int], text: str, end: str = "<|im_end|>") -> list[int]:
        """Let the model have answered a prompt; return prompt and reply as they must come back."""
        made = self.tokenizer.encode(text + end)
        self.memory.transcripts.note_reply(prompt_array(prompt), made)
        return [*prompt, *self.tokenizer.encode(text)]


@pytest.fixture
def chat(tiny_model: Path) -> Conversation:
    return Conversation(tiny_model)


def begins(ids: Sequence[int], beginning: Sequence[int]) -> bool:
    return list(ids[: len(beginning)]) == list(beginning)


def test_reasoning_that_a_client_dropped_stays_in_the_prompt(chat: Conversation) -> None:
    made = chat.reply(chat.ids([QUESTION], thinking=True), "It ran off.</think>\n\nIn the wood. ")
    second = chat.ids([QUESTION, said("In the wood."), NEXT], thinking=True)
    assert begins(second, made)
    rest = chat.tokenizer.encode(
        "<|im_end|>\n<|im_start|>user\nAnd the owl?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert second == [*made, *rest]


def test_every_turn_is_kept_word_for_word_as_the_conversation_grows(chat: Conversation) -> None:
    first = chat.reply(chat.ids([QUESTION], thinking=True), "hm</think>\n\nIn the wood.")
    turns = [QUESTION, said("In the wood."), NEXT]
    prompt = chat.ids(turns, thinking=True)
    second = chat.reply(prompt, "so</think>\n\nAsleep.")
    third = chat.ids([*turns, said("Asleep."), QUESTION], thinking=True)
    assert begins(prompt, first)
    assert begins(third, second)


@pytest.mark.parametrize("sent", ["In the wood!", "", "in the wood."])
def test_a_turn_that_says_something_else_is_rendered_as_sent(chat: Conversation, sent: str) -> None:
    chat.reply(chat.ids([QUESTION]), "In the wood.")
    turns = [QUESTION, said(sent), NEXT]
    assert chat.ids(turns) == chat.plain(turns)


def test_an_edited_question_is_another_conversation(chat: Conversation) -> None:
    chat.reply(chat.ids([QUESTION]), "In  the wood.")
    turns = [replace(QUESTION, content="Where was the fox?"), said("In  the wood."), NEXT]
    assert chat.ids(turns) == chat.plain(turns)


def test_a_longer_branch_that_does_not_fit_hides_no_shorter_one(chat: Conversation) -> None:
    """0.2.24: only the longest kept transcript was tried."""
    first = chat.reply(chat.ids([QUESTION], thinking=True), "one</think>\n\nIn the wood.")
    turns = [QUESTION, said("In the wood."), NEXT]
    chat.reply(chat.ids(turns, thinking=True), "two</think>\n\nAsleep.")
    edited = chat.ids([*turns, said("Awake."), QUESTION], thinking=True)
    assert begins(edited, first)
    assert "Awake." in chat.tokenizer.decode(edited)


def test_of_two_replies_to_one_prompt_the_one_that_was_sent_back_is_used(chat: Conversation) -> None:
    prompt = chat.ids([QUESTION], thinking=True)
    first = chat.reply(prompt, "one</think>\n\nIn the wood.")
    second = chat.reply(prompt, "two</think>\n\nAt home.")
    assert begins(chat.ids([QUESTION, said("In the wood."), NEXT], thinking=True), first)
    assert begins(chat.ids([QUESTION, said("At home."), NEXT], thinking=True), second)


def test_calls_are_compared_by_name_and_arguments(chat: Conversation) -> None:
    made = chat.reply(chat.ids([QUESTION], tools=[TOOL]), f"I look.\n\n{CALL}\n")
    call = ToolCall(name="look", arguments={"times": 2})
    result = ChatMessage(role="tool", content="nothing")
    assert begins(chat.ids([QUESTION, said("I look.", call), result], tools=[TOOL]), made)
    other = ToolCall(name="look", arguments={"times": 3})
    for turn in (said("I look.", other), said("I look."), said("I look.", call, call), said("", call)):
        assert not begins(chat.ids([QUESTION, turn, result], tools=[TOOL]), made)


def test_other_tools_or_another_thinking_mode_change_the_prompt_from_its_beginning(chat: Conversation) -> None:
    settings = ChatSettings(tools=[TOOL])
    names = {fingerprints([QUESTION], each)[1] for each in (settings, ChatSettings(), ChatSettings(thinking=True))}
    assert len(names) == 3


def test_a_reply_that_its_budget_cut_off_is_closed(chat: Conversation) -> None:
    made = chat.reply(chat.ids([QUESTION], thinking=True), "hm</think>\n\nIn the", end="")
    second = chat.ids([QUESTION, said("In the"), NEXT], thinking=True)
    assert begins(second, [*made, *chat.tokenizer.encode("<|im_end|>")])


def test_a_conversation_that_only_fits_without_old_reasoning_drops_it(chat: Conversation) -> None:
    chat.reply(chat.ids([QUESTION], thinking=True), "a" * 300 + "</think>\n\nIn the wood.")
    turns = [QUESTION, said("In the wood."), NEXT]
    assert "aaaa" in chat.tokenizer.decode(chat.ids(turns, thinking=True))
    assert "aaaa" not in chat.tokenizer.decode(chat.ids(turns, thinking=True, window=200))


def test_a_prompt_that_no_conversation_made_is_not_remembered(chat: Conversation) -> None:
    chat.reply(chat.tokenizer.encode("raw text"), "In the wood.")
    turns = [QUESTION, said("In the wood."), NEXT]
    assert chat.ids(turns) == chat.plain(turns)


def test_text_that_looks_like_the_stand_in_is_rendered_as_sent(chat: Conversation) -> None:
    odd = ChatMessage(role="user", content="\ue000remembered turn\ue001")
    chat.reply(chat.ids([odd]), "In the wood. ")
    turns = [odd, said("In the wood."), NEXT]
    assert chat.ids(turns) == chat.plain(turns)


def test_only_recent_replies_are_remembered(chat: Conversation) -> None:
    transcripts: Transcripts = chat.memory.transcripts
    first: Ids | None = None
    for number in range(MOST_TRANSCRIPTS + 1):
        prompt = chat.ids([replace(QUESTION, content=f"Question {number}")])
        first = prompt_array(prompt) if first is None else first
        chat.reply(prompt, "Yes. ")
    oldest = [replace(QUESTION, content="Question 0"), said("Yes."), NEXT]
    newest = [replace(QUESTION, content="Question 5"), said("Yes."), NEXT]
    assert transcripts.find(oldest, ChatSettings()) is None
    assert transcripts.find(newest, ChatSettings()) is not None
