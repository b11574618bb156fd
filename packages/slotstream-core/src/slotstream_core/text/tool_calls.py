"""The family's tool-call grammar, scanned while it streams.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

The scanner is pure: the same text gives the same concatenated events however it is cut.  Nothing that could begin a tag
is shown before it is decided, and white space between the answer and a call belongs to the grammar, not to the answer.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slotstream_core.text.argument_types import Schema, compact_json, convert_argument, declared_type
from slotstream_core.text.stop_strings import held_suffix

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_CLOSE, PARAMETER_CLOSE = "</function>", "</parameter>"
FUNCTION_OPEN = re.compile(r"<function=([^<>\s][^<>\n]*)>")
PARAMETER_OPEN = re.compile(r"<parameter=([^<>\s][^<>\n]*)>")
LONGEST_NAME = 512

Malformation = Literal["unterminated", "duplicate_parameter", "unexpected_text", "undeclared_function"]


@dataclass(frozen=True, kw_only=True)
class AnswerText:
    """Text outside every call."""

    text: str


@dataclass(frozen=True, kw_only=True)
class CallStarted:
    """A call has named its function; `index` counts calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """More of a call's arguments: fragments join to one compact JSON object."""

    index: int
    fragment: str


@dataclass(frozen=True, kw_only=True)
class CallFinished:
    """A call is complete."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class CallMalformed:
    """What was announced as a call is none.

    Attributes:
        index: The call's index when it had started, else None.
        raw: Its text, from the opening tag on.
        reason: What is wrong with it.
    """

    index: int | None
    raw: str
    reason: Malformation


ScanEvent = AnswerText | CallStarted | CallArguments | CallFinished | CallMalformed


def declared_functions(tools: Sequence[Mapping[str, object]]) -> dict[str, Schema]:
    """Return the parameter schema of every declared function by its name.

    Args:
        tools: As the chat template takes them: `{"type": "function", "function": {"name", "parameters"}}`.
    """
    schemas: dict[str, Schema] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            schemas[name] = parameters if isinstance(parameters, Mapping) else {}
    return schemas


class ToolCallScanner:
    """Turns a stream of answer text into answer text and tool calls.

    Declared string arguments are emitted while they arrive; values of other types when they are complete.
    """

    def __init__(self, functions: Mapping[str, Schema]) -> None:
        """Prepare for the functions of one request; `functions` maps a name to its parameters' schema."""
        self._functions = functions
        self._pending = ""
        self._call: _Call | None = None
        self._started = 0

    def feed(self, text: str) -> list[ScanEvent]:
        """Return the events that this text completes."""
        self._pending += text
        events: list[ScanEvent] = []
        while self._advance(events):
            pass
        return events

    def finish(self) -> list[ScanEvent]:
        """Return what the end of the reply decides: held text, or a call that never ended."""
        events: list[ScanEvent] = []
        if self._call is not None:
            events.append(self._malformed(self._call, self._pending, "unterminated"))
        elif self._pending:
            events.append(AnswerText(text=self._pending))
        self._pending, self._call = "", None
        return events

    def _advance(self, events: list[ScanEvent]) -> bool:
        """Consume one piece of the pending text; return whether there may be more to do."""
        if self._call is None:
            return self._advance_text(events)
        return self._advance_call(self._call, events)

    def _advance_text(self, events: list[ScanEvent]) -> bool:
        at = self._pending.find(CALL_OPEN)
        if at >= 0:
            if shown := self._pending[:at].rstrip():
                events.append(AnswerText(text=shown))
            self._pending = self._pending[at + len(CALL_OPEN) :]
            self._call = _Call()
            return True
        keep = len(self._pending) - held_suffix(self._pending, [CALL_OPEN])
        cut = len(self._pending[:keep].rstrip())
        if cut:
            events.append(AnswerText(text=self._pending[:cut]))
            self._pending = self._pending[cut:]
        return False

    def _advance_call(self, call: "_Call", events: list[ScanEvent]) -> bool:
        if call.broken is not None:
            return self._skip_broken(call, events)
        if call.parameter is not None:
            return self._advance_value(call, call.parameter, events)
        self._pending = call.take_space(self._pending)
        if self._pending.startswith(CALL_CLOSE):
            self._close(call, events)
            return True
        if call.name is None:
            return self._advance_opening(call, events)
        if not call.function_closed:
            return self._advance_parameters(call, events)
        return self._wait_or_break(call, [CALL_CLOSE])

    def _advance_opening(self, call: "_Call", events: list[ScanEvent]) -> bool:
        found = FUNCTION_OPEN.match(self._pending)
        if found is None:
            return self._wait_or_break(call, [CALL_CLOSE], opening="<function=")
        call.name = found[1].strip()
        self._take(call, found.end())
        if call.name not in self._functions:
            call.broken = "undeclared_function"
            return True
        call.index = self._started
        self._started += 1
        events.append(CallStarted(index=call.index, name=call.name))
        return True

    def _advance_parameters(self, call: "_Call", events: list[ScanEvent]) -> bool:
        if self._pending.startswith(FUNCTION_CLOSE):
            self._take(call, len(FUNCTION_CLOSE))
            call.function_closed = True
            return True
        found = PARAMETER_OPEN.match(self._pending)
        if found is None:
            return self._wait_or_break(call, [FUNCTION_CLOSE, CALL_CLOSE], opening="<parameter=")
        key = found[1].strip()
        self._take(call, found.end())
        if key in call.keys:
            call.broken = "duplicate_parameter"
            return True
        schema = self._functions[call.name or ""]
        properties = schema.get("properties")
        declared = properties.get(key) if isinstance(properties, Mapping) else None
        streams = declared_type(declared, schema)[0] == "string"
        call.parameter = _Parameter(schema=declared, streams=streams)
        opening = ("," if call.keys else "{") + compact_json(key) + ":" + ('"' if streams else "")
        call.keys.add(key)
        self._emit(call, opening, events)
        return True

    def _advance_value(self, call: "_Call", parameter: "_Parameter", events: list[ScanEvent]) -> bool:
        if not parameter.begun:
            if not self._pending:
                return False
            parameter.begun = True
            if self._pending[0] == "\n":
                self._take(call, 1)
        at = self._pending.find(PARAMETER_CLOSE)
        if at < 0:
            held = held_suffix(self._pending, [PARAMETER_CLOSE, "\n" + PARAMETER_CLOSE])
            self._take_value(call, parameter, len(self._pending) - held, events)
            return False
        end = at - 1 if at and self._pending[at - 1] == "\n" else at
        self._take_value(call, parameter, end, events)
        self._take(call, at - end + len(PARAMETER_CLOSE))
        if parameter.streams:
            self._emit(call, '"', events)
        else:
            value = convert_argument(parameter.text, parameter.schema, self._functions[call.name or ""])
            self._emit(call, compact_json(value), events)
        call.parameter = None
        return True

    def _take_value(self, call: "_Call", parameter: "_Parameter", count: int, events: list[ScanEvent]) -> None:
        piece = self._pending[:count]
        self._take(call, count)
        if not piece:
            return
        if parameter.streams:
            self._emit(call, json.dumps(piece, ensure_ascii=False)[1:-1], events)
        else:
            parameter.text += piece

    def _close(self, call: "_Call", events: list[ScanEvent]) -> None:
        self._take(call, len(CALL_CLOSE))
        self._call = None
        if call.name is None or call.index is None:
            return  # an empty block
        self._emit(call, "}" if call.keys else "{}", events)
        events.append(CallFinished(index=call.index, name=call.name, arguments=call.arguments))

    def _wait_or_break(self, call: "_Call", tags: Sequence[str], opening: str | None = None) -> bool:
        """Wait while the pending text can still become one of the tags; otherwise the call is malformed."""
        pending = self._pending
        if any(tag.startswith(pending) for tag in tags):
            return False
        if opening is not None:
            unfinished = pending.startswith(opening) and ">" not in pending and "\n" not in pending
            if opening.startswith(pending) or (unfinished and len(pending) <= LONGEST_NAME):
                return False
        call.broken = "unexpected_text"
        return True

    def _skip_broken(self, call: "_Call", events: list[ScanEvent]) -> bool:
        at = self._pending.find(CALL_CLOSE)
        if at < 0:
            self._take(call, len(self._pending) - held_suffix(self._pending, [CALL_CLOSE]))
            return False
        self._take(call, at + len(CALL_CLOSE))
        events.append(self._malformed(call, "", call.broken or "unexpected_text"))
        self._call = None
        return True

    def _malformed(self, call: "_Call", rest: str, reason: Malformation) -> CallMalformed:
        return CallMalformed(index=call.index, raw=call.raw + rest, reason=call.broken or reason)

    def _emit(self, call: "_Call", fragment: str, events: list[ScanEvent]) -> None:
        call.arguments += fragment
        events.append(CallArguments(index=call.index or 0, fragment=fragment))

    def _take(self, call: "_Call", count: int) -> None:
        call.raw += self._pending[:count]
        self._pending = self._pending[count:]


class _Parameter:
    """The parameter whose value is arriving."""

    def __init__(self, *, schema: object, streams: bool) -> None:
        self.schema = schema
        self.streams = streams
        self.begun = False
        self.text = ""


class _Call:
    """The call that is arriving."""

    def __init__(self) -> None:
        self.raw = CALL_OPEN
        self.name: str | None = None
        self.index: int | None = None
        self.keys: set[str] = set()
        self.arguments = ""
        self.parameter: _Parameter | None = None
        self.function_closed = False
        self.broken: Malformation | None = None

    def take_space(self, text: str) -> str:
        """Move leading white space to the raw text and return the rest."""
        rest = text.lstrip()
        self.raw += text[: len(text) - len(rest)]
        return rest
