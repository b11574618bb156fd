"""The exact ids behind replies, so that a conversation sent back without its reasoning is still the same prompt.

Clients send a reply back as they understood it: without its reasoning, its white space trimmed, its calls parsed. The
template would render that into other ids than the model wrote, and nothing kept for the conversation would fit it any
more. So the ids of recent replies are remembered under a fingerprint of the conversation they answered, and put in the
place of the turn that describes them.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slotstream_core.prefixes.boundaries import Ids
from slotstream_core.text.argument_types import Schema
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.thinking import ThinkingSplitter
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_core.text.tool_calls import AnswerText, CallFinished, ToolCallScanner, declared_functions

MOST_TRANSCRIPTS: Final = 128
MOST_TRANSCRIPT_TOKENS: Final = 2**21
"""Prompt and reply ids remembered together: 8 MiB."""

TURN_END: Final = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """What a prompt depends on besides its messages.

    Attributes:
        tools: As declared to the template.
        thinking: Whether the reply starts inside a thinking block.
        effort: How much to think.
    """

    tools: Sequence[JsonObject] = ()
    thinking: bool = False
    effort: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """A prompt and what the model wrote after it.

    Attributes:
        fingerprint: Of the conversation that the prompt renders.
        prompt: Its ids.
        reply: The generated ids up to, without, the end of the turn.
        thinking: Whether the reply starts inside a thinking block.
    """

    fingerprint: str
    prompt: Ids
    reply: Ids
    thinking: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Splice:
    """Where remembered ids replace the beginning of a conversation.

    Attributes:
        index: The assistant's message that they end with.
        ids: Everything up to and with the end of that turn.
    """

    index: int
    ids: tuple[int, ...]


def fingerprints(messages: Sequence[ChatMessage], settings: ChatSettings) -> list[str]:
    """Return the fingerprint of the conversation before each message, and of the whole one as the last item.

    Reasoning and the white space around an assistant's text do not count: clients change them.
    """
    head = [list(map(dict, settings.tools)), settings.thinking, settings.effort]
    digest = hashlib.sha256(json.dumps(head, default=repr).encode("utf-8", "surrogatepass"))
    found = [digest.hexdigest()]
    for message in messages:
        digest.update(json.dumps(_described(message), default=repr).encode("utf-8", "surrogatepass"))
        found.append(digest.hexdigest())
    return found


def _described(message: ChatMessage) -> list[object]:
    if message.role != "assistant":
        return [message.role, message.content]
    return ["assistant", message.content.strip(), [[call.name, dict(call.arguments)] for call in message.tool_calls]]


class Transcripts:
    """Remembers recent replies by their conversation.  Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turn_end = tokenizer.token_id(TURN_END)
        self._lock = threading.Lock()
        self._prompts: OrderedDict[bytes, tuple[str, bool]] = OrderedDict()
        self._kept: OrderedDict[tuple[str, bytes], Transcript] = OrderedDict()

    def note_prompt(self, ids: Sequence[int], fingerprint: str, *, thinking: bool) -> None:
        """Remember which conversation a prompt renders, in case it is answered."""
        with self._lock:
            self._prompts[_digest(np.asarray(ids, np.int32))] = (fingerprint, thinking)
            while len(self._prompts) > MOST_TRANSCRIPTS:
                self._prompts.popitem(last=False)

    def note_reply(self, prompt: Ids, reply: Sequence[int]) -> Transcript | None:
        """Remember a complete reply; return it when its prompt came from a conversation."""
        with self._lock:
            known = self._prompts.get(_digest(prompt))
        if known is None or self._turn_end is None:
            return None
        ids = np.asarray(reply, np.int32)
        ends = np.flatnonzero(np.isin(ids, np.asarray(sorted(self._tokenizer.eos_ids), np.int32)))
        ids = ids[: int(ends[0])] if ends.size else ids
        transcript = Transcript(fingerprint=known[0], prompt=prompt, reply=ids, thinking=known[1])
        self.add(transcript)
        return transcript

    def add(self, transcript: Transcript) -> None:
        """Remember a transcript; the ones not used for longest go when there are too many."""
        name = (transcript.fingerprint, _digest(transcript.reply))
        with self._lock:
            self._kept[name] = transcript
            self._kept.move_to_end(name)
            held = sum(len(each.prompt) + len(each.reply) for each in self._kept.values())
            while len(self._kept) > 1 and (len(self._kept) > MOST_TRANSCRIPTS or held > MOST_TRANSCRIPT_TOKENS):
                _, gone = self._kept.popitem(last=False)
                held -= len(gone.prompt) + len(gone.reply)

    def clear(self) -> None:
        """Forget every reply."""
        with self._lock:
            self._prompts.clear()
            self._kept.clear()

    def find(self, messages: Sequence[ChatMessage], settings: ChatSettings) -> Splice | None:
        """Return the ids of the longest beginning of a conversation that this model wrote the end of, if any."""
        if self._turn_end is None:
            return None
        prints = fingerprints(messages, settings)
        with self._lock:
            kept = list(self._kept.values())
        functions = declared_functions(settings.tools) if settings.tools else None
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].role != "assistant":
                continue
            for transcript in reversed(kept):
                if transcript.fingerprint == prints[index] and self._describes(messages[index], transcript, functions):
                    ids = (*transcript.prompt.tolist(), *transcript.reply.tolist(), self._turn_end)
                    return Splice(index=index, ids=ids)
        return None

    def _describes(self, message: ChatMessage, transcript: Transcript, functions: Mapping[str, Schema] | None) -> bool:
        """Whether a client's turn says what a reply said; reasoning is ignored."""
        splitter = ThinkingSplitter(inside=transcript.thinking)
        pieces = [*splitter.feed(self._tokenizer.decode(transcript.reply.tolist())), *splitter.finish()]
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        calls: list[tuple[str, object]] = []
        if functions is not None:
            scanner = ToolCallScanner(functions)
            events = [*scanner.feed(text), *scanner.finish()]
            text = "".join(event.text for event in events if isinstance(event, AnswerText))
            calls = [(event.name, json.loads(event.arguments)) for event in events if isinstance(event, CallFinished)]
        sent = [(call.name, dict(call.arguments)) for call in message.tool_calls]
        return text.strip() == message.content.strip() and calls == sent


def _digest(ids: Ids) -> bytes:
    return hashlib.sha256(ids.tobytes()).digest()
