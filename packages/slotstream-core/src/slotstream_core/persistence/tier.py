"""The disk behind the prefix cache: the longest state a prompt can go on from, and states and replies to keep.

What goes wrong with one file costs a prompt its reuse, never its answer. What is to be written follows the engine on a
thread of its own (`writing.py`); whatever reads the directory waits for it first, so that only one thread ever uses it.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slotstream_core.errors import StateFileDamaged
from slotstream_core.generation.control import StopCheck
from slotstream_core.persistence.container import Container
from slotstream_core.persistence.directory import NewHead, PersistentOptions, PrefixDirectory, SaveOutcome
from slotstream_core.persistence.records import FORMAT, HeadFile
from slotstream_core.persistence.writing import WriteQueue
from slotstream_core.prefixes.boundaries import Ids
from slotstream_core.prefixes.kept import PrefixKey
from slotstream_core.prefixes.transcripts import MOST_TRANSCRIPTS, Transcript
from slotstream_core.state.rows import StateSnapshot

logger = logging.getLogger("slotstream.prefixes")

NAME_DIGITS = 40


def state_names(identity: str, key: PrefixKey, ids: Ids, lengths: Sequence[int]) -> dict[int, str]:
    """Return the file names of the states at some ascending lengths of a prompt.

    A name is the beginning of the SHA-256 of the identity, the pass size and the ids as little-endian 64-bit integers.
    """
    digest = hashlib.sha256(f"{identity} {key.pass_tokens} {' with its draft head' in key.model}\n".encode())
    wide, names, done = ids.astype("<i8"), dict[int, str](), 0
    for length in lengths:
        digest.update(wide[done:length].tobytes())
        names[length] = digest.hexdigest()[:NAME_DIGITS]
        done = length
    return names


class DiskTier:
    """One engine's states on disk.  Used by the engine's thread; `status` and `finish_writing` may be called from any.

    Attributes:
        options: Where and how many.
    """

    def __init__(self, options: PersistentOptions, *, identity: str, build: str) -> None:
        """Open the directory.

        Raises:
            DirectoryInUse: Another process uses it.
            InaccessibleFile: Something in it cannot be read.
        """
        self.options = options
        self._identity = identity
        self._directory = PrefixDirectory(options, identity=identity, build=build)
        self._queue = WriteQueue()
        self._counts = dict.fromkeys(("hits", "writes", "written_bytes", "refused", "damaged", "failures"), 0)
        self._publish()

    def close(self) -> None:
        """Write what is left and give the directory back.  A second call does nothing."""
        self._queue.close()
        self._directory.close()

    def finish_writing(self, stop: StopCheck | None = None) -> None:
        """Wait until everything that was to be written is, or until ``stop`` raises."""
        self._queue.drain(stop)

    def longest(self, ids: Ids, key: PrefixKey, *, above: int, stop: StopCheck | None = None) -> HeadFile | None:
        """Return the longest kept state longer than ``above`` that a prompt can go on from, if there is one.

        Args:
            ids: The prompt.
            key: What it is computed with.
            above: Tokens of a state that is at hand.
            stop: Asked while this waits for what is being written; what it raises ends the waiting.
        """
        self._queue.drain(stop)
        lengths = key.boundaries(ids)
        names = state_names(self._identity, key, ids, lengths)
        for length in reversed(lengths):
            if length <= above:
                break
            head = self._directory.heads.get(names[length])
            if head is not None and (head.tokens, head.pass_tokens) == (length, key.pass_tokens):
                return head
        return None

    def restore(self, head: HeadFile, key: PrefixKey, *, stop: StopCheck | None = None) -> StateSnapshot | None:
        """Read a state; None, after a line in the log, when that is impossible. What ``stop`` raises ends it."""
        self._queue.drain(stop)
        try:
            snapshot = self._directory.restore(head, key.model, stop=stop)
        except StateFileDamaged as error:
            self._counts["damaged"] += 1
            logger.warning("%s", error)
        except OSError as error:
            self._counts["failures"] += 1
            self._directory.forget(head.name)
            logger.warning("a kept state cannot be read and was left as it is: %s", error)
        else:
            self._counts["hits"] += 1
            self._publish()
            return snapshot
        self._publish()
        return None

    def discard(self, head: HeadFile) -> None:
        """Remove a state that the model cannot go on from, although its file is in order."""
        self._counts["damaged"] += 1
        self._directory.discard(head.name)
        self._publish()

    def used(self, ids: Ids, key: PrefixKey) -> None:
        """Note that memory served a state, so that its file stays as recent."""
        name = state_names(self._identity, key, ids, [len(ids)])[len(ids)]
        self._queue.put(partial(self._directory.touch, name), 0)

    def save(
        self,
        ids: Ids,
        key: PrefixKey,
        snapshot: StateSnapshot,
        *,
        shared: bool,
        continued: bool,
        stop: StopCheck | None = None,
    ) -> None:
        """Have a state written, at least the part that is not on disk yet; waits only while too much is to be written.

        Args:
            ids: What the state has seen.
            key: What it was computed with.
            snapshot: The state.
            shared: Whether conversations start with it.
            continued: Whether its prompt went on from an earlier state.
            stop: Asked while this waits; what it raises ends the waiting, and the state is not written.
        """
        lengths = [*key.boundaries(ids), len(ids)]
        names = state_names(self._identity, key, ids, lengths)
        new = NewHead(
            name=names[len(ids)],
            snapshot=snapshot,
            pass_tokens=key.pass_tokens,
            shared=shared,
            continued=continued,
            beginnings=[names[length] for length in lengths[:-1]],
        )
        self._queue.put(partial(self._write, new), snapshot.fixed_bytes + snapshot.row_bytes, stop)

    def _write(self, new: NewHead) -> None:
        """Write a state; on the queue's thread."""
        before = self._directory.byte_count
        outcome: SaveOutcome
        try:
            outcome = self._directory.save(new)
        except OSError as error:
            self._counts["failures"] += 1
            logger.warning("a state of %s tokens could not be written: %s", f"{new.snapshot.length:,}", error)
            outcome = "failed"
        written = max(0, self._directory.byte_count - before)
        self._counts["writes"] += outcome == "saved"
        self._counts["written_bytes"] += written if outcome == "saved" else 0
        self._counts["refused"] += outcome == "no room"
        record = {"event": "prefix_disk", "tokens": new.snapshot.length, "outcome": outcome, "shared": new.shared}
        logger.info("%s", json.dumps(record))
        self._publish()

    def save_reply(self, transcript: Transcript) -> None:
        """Have the ids behind a reply written, so that a restarted process recognises it when it comes back."""
        if len(transcript.prompt) < self.options.minimum_tokens:
            return
        digest = hashlib.sha256(transcript.prompt.tobytes() + transcript.reply.tobytes())
        header = {
            "format": FORMAT,
            "kind": "reply",
            "identity": self._identity,
            "fingerprint": transcript.fingerprint,
            "thinking": transcript.thinking,
        }
        payloads = [each.astype("<i4").tobytes() for each in (transcript.prompt, transcript.reply)]
        name = digest.hexdigest()[:NAME_DIGITS]
        self._queue.put(partial(self._write_reply, name, header, payloads), sum(map(len, payloads)))

    def _write_reply(self, name: str, header: Mapping[str, object], payloads: Sequence[bytes]) -> None:
        """Write a reply's ids; on the queue's thread."""
        try:
            self._directory.save_reply(name, header, payloads)
        except OSError as error:
            self._counts["failures"] += 1
            logger.warning("the ids of a reply could not be written: %s", error)
        self._publish()

    def transcripts(self) -> list[Transcript]:
        """Return the kept replies, oldest first."""
        self._queue.drain()
        found = []
        for container in self._directory.replies()[:MOST_TRANSCRIPTS]:
            transcript = self._transcript(container)
            if transcript is not None:
                found.append(transcript)
        return found[::-1]

    def _transcript(self, container: Container) -> Transcript | None:
        header = container.header
        if header.get("identity") != self._identity:
            self._directory.discard_reply(container.path.stem)
            return None
        try:
            prompt, reply = (np.frombuffer(data, "<i4").astype(np.int32) for data in container.read())
            return Transcript(
                fingerprint=str(header["fingerprint"]), prompt=prompt, reply=reply, thinking=bool(header["thinking"])
            )
        except (StateFileDamaged, ValueError, KeyError):
            self._directory.discard_reply(container.path.stem)
        except OSError as error:
            logger.warning("the ids of a reply cannot be read: %s", error)
        return None

    def clear(self) -> int:
        """Remove every file; return how many."""
        self._queue.drain()
        removed = self._directory.clear()
        self._publish()
        return removed

    def status(self) -> dict[str, Any]:
        """Return the tier's totals."""
        backlog = self._queue.backlog
        return {
            **self._status,
            "waiting_bytes": backlog.waiting_bytes,
            "delayed_writes": backlog.delays,
            "delayed_s": round(backlog.delayed_s, 3),
        }

    def _publish(self) -> None:
        heads = self._directory.heads.values()
        self._status = {
            "directory": str(self.options.directory),
            "states": len(heads),
            "shared_states": sum(head.shared for head in heads),
            "held_bytes": self._directory.byte_count,
            "max_bytes": self.options.quota_bytes,
            "min_tokens": self.options.minimum_tokens,
            **self._counts,
            "removed_at_start": dict(self._directory.removed),
        }
