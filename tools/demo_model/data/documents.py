"""The shape of a training document, its constructors and its checker.

A document is a JSON object, one a line.  It is either plain text::

    {"kind": "text", "source": "stories", "text": "...", "split": "train", "stage": "pretrain"}

or a chat, in the form that the chat template takes::

    {"kind": "chat", "source": "tool_calls", "messages": [...], "tools": [...], "enable_thinking": true,
     "split": "train", "stage": "finish"}

``split`` is drawn by template and by vocabulary, so that a held-out document asks for something that no
training document contains.  ``stage`` says when a document is read: ``pretrain`` in the first part of
training only, ``finish`` in the first part and again in the last fifth.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal, NotRequired, Protocol, TypedDict

from tools.demo_model.data.errors import DocumentError

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "heldout"]
Stage = Literal["pretrain", "finish"]


class CalledFunction(TypedDict):
    """Name and arguments of one call; the arguments are an object, not its JSON text."""

    name: str
    arguments: dict[str, object]


class ToolCall(TypedDict):
    """One call as the assistant message carries it."""

    type: Literal["function"]
    function: CalledFunction


class FunctionSchema(TypedDict):
    """What a declared tool says about itself; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, object]


class Tool(TypedDict):
    """One declared tool."""

    type: Literal["function"]
    function: FunctionSchema


class Message(TypedDict):
    """One turn of a chat.  ``content`` may be empty where ``tool_calls`` is given."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class TextDocument(TypedDict):
    """Running text, trained on as it stands."""

    kind: Literal["text"]
    source: str
    text: str
    split: Split
    stage: Stage


class ChatDocument(TypedDict):
    """A conversation that ends with an assistant turn."""

    kind: Literal["chat"]
    source: str
    messages: list[Message]
    tools: NotRequired[list[Tool]]
    enable_thinking: NotRequired[bool]
    split: Split
    stage: Stage


Document = TextDocument | ChatDocument


class Generator(Protocol):
    """What a generator module exports under the name ``generate``."""

    def __call__(self, rng: Random, count: int) -> Iterator[Document]:
        """Yields ``count`` documents that depend on ``rng`` alone."""
        ...


def text_document(source: str, text: str, *, split: Split = "train", stage: Stage = "pretrain") -> TextDocument:
    """Returns running text as a document."""
    return {"kind": "text", "source": source, "text": text, "split": split, "stage": stage}


def chat_document(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    enable_thinking: bool | None = None,
    split: Split = "train",
    stage: Stage = "finish",
) -> ChatDocument:
    """Returns a conversation as a document; ``tools`` and ``enable_thinking`` are left out when not given."""
    document: ChatDocument = {
        "kind": "chat",
        "source": source,
        "messages": list(messages),
        "split": split,
        "stage": stage,
    }
    if tools:
        document["tools"] = list(tools)
    if enable_thinking is not None:
        document["enable_thinking"] = enable_thinking
    return document


def system(content: str) -> Message:
    """Returns a system turn."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """Returns a user turn."""
    return {"role": "user", "content": content}


def assistant(content: str, *, reasoning: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    """Returns an assistant turn, with its reasoning and its tool calls where it has any."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def tool_result(content: str) -> Message:
    """Returns the turn that carries what a tool answered."""
    return {"role": "tool", "content": content}


def tool_call(name: str, arguments: dict[str, object]) -> ToolCall:
    """Returns a call of the tool ``name``."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def check_document(document: Document) -> None:
    """Checks the shape of a document.

    Raises:
        DocumentError: the kind, split or stage is unknown, a text is empty, or the turns are out of order.
    """
    if document["split"] not in ("train", "heldout"):
        raise DocumentError(f"split is {document['split']!r}; it must be 'train' or 'heldout'")
    if document["stage"] not in ("pretrain", "finish"):
        raise DocumentError(f"stage is {document['stage']!r}; it must be 'pretrain' or 'finish'")
    if not document["source"]:
        raise DocumentError("source is empty; give the name of the generator or of the corpus")
    if document["kind"] == "text":
        if not document["text"].strip():
            raise DocumentError(f"a text of {document['source']!r} is empty")
    elif document["kind"] == "chat":
        _check_turns(document["source"], document["messages"])
    else:
        raise DocumentError(f"kind is {document['kind']!r}; it must be 'text' or 'chat'")


# Which roles may follow which; None is the start of a chat.
_FOLLOWERS: dict[Role | None, tuple[Role, ...]] = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant"),
}


def _check_turns(source: str, messages: Sequence[Message]) -> None:
    previous: Message | None = None
    for index, message in enumerate(messages):
        role = message["role"]
        allowed = _FOLLOWERS[previous["role"] if previous else None]
        where = f"message {index} of a {source!r} chat"
        if role not in allowed:
            raise DocumentError(f"{where} has role {role!r}; here it must be one of {', '.join(allowed)}")
        if role == "tool" and previous and previous["role"] == "assistant" and not previous.get("tool_calls"):
            raise DocumentError(f"{where} answers a tool, but the turn before it calls none")
        if not message["content"].strip() and not message.get("tool_calls"):
            raise DocumentError(f"{where} is empty")
        previous = message
    if previous is None or previous["role"] != "assistant":
        raise DocumentError(f"a {source!r} chat must end with an assistant turn")
