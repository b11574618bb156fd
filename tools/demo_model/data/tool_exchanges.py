"""What happens between a request and its answer, and how exchanges become a document.

An exchange is one request, the rounds of calls it leads to, and the final answer.  Generators make exchanges;
``conversation`` declares their tools among others, and writes the turns with or without thinking.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from tools.demo_model.data.documents import (
    ChatDocument,
    Message,
    Split,
    Stage,
    Tool,
    assistant,
    chat_document,
    system,
    tool_call,
    tool_result,
    user,
)
from tools.demo_model.data.tool_values import Json

MAX_CHARACTERS = 3000
"""Longest document, counted by ``length_of``; about 900 tokens."""

HELD_OUT_SHARE = 0.03
"""Share of the documents of a generator that are held out."""

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant with access to tools.",
    "You are a coding assistant. Use the tools to read and change files.",
    "You are a coding agent working in the user's project. Be brief.",
    "Use a tool when the request needs one. Otherwise answer directly.",
    "Answer briefly.",
    "You help the user with everyday tasks. Call the functions you are given when they fit.",
    "You are an agent. Do what the user asks with the tools you have, then report the result in one sentence.",
    "Be concise and correct. Never invent the result of a tool.",
    "You can call functions. If a required value is missing, ask for it.",
)
_PROJECTS = ("project", "shop", "website", "game", "parser", "notes", "api", "demo")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call and what the tool answered."""

    name: str
    arguments: dict[str, Json]
    result: str


@dataclass(frozen=True, kw_only=True)
class Round:
    """Calls made in one assistant turn."""

    calls: tuple[Call, ...]
    thought: str
    remark: str = ""
    """Text before the calls; mostly empty."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request and everything up to its answer; without rounds it is answered directly."""

    request: str
    reply: str
    afterthought: str
    """What is thought before the reply."""
    tools: tuple[Tool, ...] = ()
    """The tools it needs."""
    rounds: tuple[Round, ...] = ()


def draw_split(rng: Random) -> Split:
    """Returns the half that the next document belongs to."""
    return "heldout" if rng.random() < HELD_OUT_SHARE else "train"


def draw_system(rng: Random) -> str:
    """Returns a system prompt, or an empty text for none; some state a date, a folder or a name to be ignored."""
    draw = rng.random()
    if draw < 0.4:
        return ""
    first = rng.choice(_SYSTEM)
    if draw < 0.85:
        return first
    day = f"{rng.randint(2024, 2029)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    notes = (
        f"Today is {day}.",
        f"Current date: {day}",
        f"Working directory: /{rng.choice(('home/user', 'workspace', 'srv', 'tmp'))}/{rng.choice(_PROJECTS)}",
        f"The user is called {rng.choice(('Anna', 'Ben', 'Clara', 'Paul', 'Rosa', 'Omar'))}.",
        f"Platform: {rng.choice(('linux', 'macos', 'windows'))}",
        "Keep answers short.",
        "Paths are relative to the project.",
        "Do not explain what you are going to do, just do it.",
    )
    picked = rng.sample(notes, rng.choice((1, 2, 3)))
    return rng.choice((" ", "\n", "\n\n")).join([first, *picked])


def turns(exchange: Exchange, *, thinks: bool, ends_at_call: bool = False) -> list[Message]:
    """Returns the turns of an exchange.

    Args:
        exchange: what happens.
        thinks: give every assistant turn its reasoning.
        ends_at_call: leave out what comes after the last round of calls.
    """
    messages = [user(exchange.request)]
    for number, step in enumerate(exchange.rounds):
        calls = [tool_call(call.name, dict(call.arguments)) for call in step.calls]
        messages.append(assistant(step.remark, reasoning=step.thought if thinks else None, calls=calls))
        if ends_at_call and number == len(exchange.rounds) - 1:
            return messages
        messages.extend(tool_result(call.result) for call in step.calls)
    messages.append(assistant(exchange.reply, reasoning=exchange.afterthought if thinks else None))
    return messages


def conversation(
    source: str,
    exchanges: Sequence[Exchange],
    *,
    rng: Random,
    split: Split,
    stage: Stage,
    distractors: Iterable[Tool] = (),
    system_text: str = "",
    thinks: bool = False,
    ends_at_call: bool = False,
) -> ChatDocument:
    """Returns exchanges as one document that declares their tools, among ``distractors``, in random order.

    Only the last exchange keeps its reasoning: the chat template drops that of earlier ones.  A tool whose name is
    declared already is left out.
    """
    declared: dict[str, Tool] = {}
    for tool in (*(tool for exchange in exchanges for tool in exchange.tools), *distractors):
        declared.setdefault(tool["function"]["name"], tool)
    tools = list(declared.values())
    rng.shuffle(tools)
    messages: list[Message] = [system(system_text)] if system_text else []
    for exchange in exchanges[:-1]:
        messages.extend(turns(exchange, thinks=False))
    messages.extend(turns(exchanges[-1], thinks=thinks, ends_at_call=ends_at_call))
    return chat_document(source, messages, tools=tools, enable_thinking=thinks, split=split, stage=stage)


def length_of(document: ChatDocument) -> int:
    """Returns the characters of the document as training sees them, give or take its markup."""
    total = sum(len(str(tool)) for tool in document.get("tools", ()))
    for message in document["messages"]:
        total += len(message["content"]) + len(message.get("reasoning_content", "")) + 30
        total += sum(len(str(call["function"])) + 40 for call in message.get("tool_calls", ()))
    return total


def make_tool(name: str, description: str, properties: dict[str, Json], required: Sequence[str]) -> Tool:
    """Returns a declared tool with a JSON schema of type object."""
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
