"""A conversation with tool calls, put in the order that the model's template needs.

The template pairs results with calls by position.  Clients pair them by id and may send them in any order, so this is
where every dialect's history is matched: each call gets exactly one result before the conversation goes on, and
results come out in the order of their calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.errors import Refused, invalid


@dataclass(frozen=True, kw_only=True)
class MadeCall:
    """A call in the history.

    Attributes:
        call: Name and arguments.
        id: The client's id of it; None where the dialect has none.
        path: Where it is in the request.
    """

    call: ToolCall
    id: str | None
    path: str

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.call.name if self.id is None else self.id


@dataclass(frozen=True, kw_only=True)
class GivenResult:
    """A result in the history.

    Attributes:
        text: What the tool returned.
        id: The id of its call; None where the client names none, which then goes by name or by order.
        name: The tool's name, when the client gives it.
        path: Where it is in the request.
    """

    text: str
    id: str | None
    name: str | None
    path: str


class ToolHistory:
    """Collects the turns of a conversation, oldest first.

    An id may come again in a later turn, but not twice among the calls that wait for results.
    """

    def __init__(self) -> None:
        """Start an empty conversation."""
        self._turns: list[ChatMessage] = []
        self._waiting: list[MadeCall] = []
        self._results: dict[int, GivenResult] = {}

    @property
    def last_role(self) -> str | None:
        """Role of the last turn, if there is one."""
        if self._waiting:
            return "tool" if self._results else "assistant"
        return self._turns[-1].role if self._turns else None

    @property
    def unanswered(self) -> Sequence[MadeCall]:
        """Calls of the last assistant turn that have no result yet."""
        return [call for index, call in enumerate(self._waiting) if index not in self._results]

    def add(self, message: ChatMessage, *, path: str) -> None:
        """Add a system or user turn.

        Raises:
            Refused: A call still waits for its result.
        """
        self._settle(path)
        self._turns.append(message)

    def add_assistant(
        self, content: str, *, path: str, reasoning: str | None = None, calls: Sequence[MadeCall] = ()
    ) -> None:
        """Add an assistant turn.

        Raises:
            Refused: A call of an earlier turn still waits, or two calls of this one have the same id.
        """
        self._settle(path)
        ids = [call.id for call in calls if call.id is not None]
        for call in calls:
            if ids.count(call.id or "") > 1:
                raise invalid(
                    f"{call.path} repeats the call id {call.id}; ids of one turn must differ", param=call.path
                )
        self._turns.append(
            ChatMessage(
                role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(call.call for call in calls)
            )
        )
        self._waiting = list(calls)

    def add_result(self, result: GivenResult) -> None:
        """Add the result of a waiting call.

        Raises:
            Refused: No waiting call has this id or name, it has its result already, or the name is another tool's.
        """
        index = self._index_of(result)
        call = self._waiting[index]
        if result.name is not None and result.name != call.call.name:
            raise invalid(
                f"{result.path} is a result of {result.name}, but the call {call.label} is of {call.call.name}",
                param=result.path,
            )
        self._results[index] = result

    def finish(self) -> tuple[ChatMessage, ...]:
        """Return the conversation.

        Raises:
            Refused: A call still waits for its result.
        """
        self._settle("the end of the conversation")
        return tuple(self._turns)

    def _index_of(self, result: GivenResult) -> int:
        open_calls = [index for index in range(len(self._waiting)) if index not in self._results]
        if result.id is not None:
            matching = [index for index, call in enumerate(self._waiting) if call.id == result.id]
            if matching and matching[0] in self._results:
                raise invalid(f"{result.path} is a second result for the call {result.id}", param=result.path)
            nameless = [index for index in open_calls if self._waiting[index].id is None]
            matching = matching or self._by_name(nameless, result.name)
            if not matching:
                raise self._unmatched(result, f"the call id {result.id}")
            return matching[0]
        matching = self._by_name(open_calls, result.name)
        if not matching:
            raise self._unmatched(result, f"a call of {result.name}" if result.name else "a call")
        return matching[0]

    def _by_name(self, indexes: list[int], name: str | None) -> list[int]:
        return [index for index in indexes if name is None or self._waiting[index].call.name == name]

    def _unmatched(self, result: GivenResult, wanted: str) -> Refused:
        waiting = ", ".join(call.label for call in self.unanswered)
        found = f"waiting for a result: {waiting}" if waiting else "no call waits for a result"
        return invalid(f"{result.path} answers {wanted}, which is not open; {found}", param=result.path)

    def _settle(self, path: str) -> None:
        """Put the results of the last calls in call order; the conversation goes on at `path`."""
        if missing := self.unanswered:
            labels = ", ".join(call.label for call in missing)
            raise invalid(
                f"{path} comes before the result of: {labels}; send one result for every call first",
                param=missing[0].path,
            )
        for index in range(len(self._waiting)):
            self._turns.append(ChatMessage(role="tool", content=self._results[index].text))
        self._waiting, self._results = [], {}
