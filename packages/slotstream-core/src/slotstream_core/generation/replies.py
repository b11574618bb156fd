"""From a decoder's tokens to a reply's events: when it ends, and why."""

from collections.abc import Collection, Iterator
from contextlib import closing

from slotstream_core.events import FinishReason
from slotstream_core.generation.assembly import ReplyAssembler, TextEvent
from slotstream_core.generation.control import CancelToken, StopCheck
from slotstream_core.generation.decoding import Decoder, Row


class ReplyLoop:
    """Takes tokens from a decoder until an end token, a stop string, the budget or the caller ends the reply.

    Attributes:
        generated: Every token taken so far, an end token included.
        reason: Why the reply ended; final once `events` is exhausted.
    """

    def __init__(
        self,
        assembler: ReplyAssembler,
        *,
        eos_ids: Collection[int],
        budget: int,
        cancel: CancelToken,
        ends_with_thinking: bool = False,
    ) -> None:
        self._assembler = assembler
        self._eos_ids = eos_ids
        self._budget = budget
        self._cancel = cancel
        self._ends_with_thinking = ends_with_thinking
        self.generated: list[int] = []
        self.reason: FinishReason = "length"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._assembler.stop_string

    @property
    def thinking_tokens(self) -> int:
        """Tokens taken inside a thinking block."""
        return self._assembler.thinking_tokens

    def events(self, decoder: Decoder, row: Row, stop: StopCheck) -> Iterator[TextEvent]:
        """Yield what the reply's tokens complete, held-back text at the end included.

        Args:
            decoder: Continues the sequence; afterwards its state holds every token taken but the last.
            row: Logits after the prompt, float32 [vocabulary].
            stop: Asked between two tokens; what it raises ends the reply there.

        Raises:
            ExpertReadError: Expert bytes could not be read.
        """
        with closing(decoder.tokens(row, limit=self._budget)) as tokens:
            for token in tokens:
                self.generated.append(token)
                if token in self._eos_ids:
                    self.reason = "stop"
                    break
                yield from self._assembler.feed(token)
                if self._ends_with_thinking and not self._assembler.thinking:
                    self.reason = "stop"
                    break
                if self._assembler.stop_string is not None or len(self.generated) == self._budget:
                    break
                stop.check()
                if self._cancel.enough:
                    self.reason = "stop"
                    break
        yield from self._assembler.finish()
        if self._assembler.stop_string is not None:
            self.reason = "stop_string"
