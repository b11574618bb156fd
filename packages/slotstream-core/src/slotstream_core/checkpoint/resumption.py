"""What an unfinished conversion left behind, so that the next run finishes it instead of starting over."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotstream_core.checkpoint.headers import CONFIG_NAME, STATE_NAME, list_directory, read_json_object
from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX, Shard, file_digest, write_json
from slotstream_core.errors import CheckpointDamaged, CheckpointError


def fingerprint(settings: Mapping[str, Any], files: Iterable[Path]) -> str:
    """Return a digest of everything that decides the converted bytes: settings, and the source's files.

    A source file counts as changed when its name, length or modification time does.
    """
    listed = [[path.name, (stat := path.stat()).st_size, stat.st_mtime_ns] for path in files]
    text = json.dumps({"settings": settings, "files": listed}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(kw_only=True)
class ConversionState:
    """The finished files of a conversion, kept in the destination until it is complete.

    Attributes:
        directory: The destination.
        identity: Digest of the conversion that fills it.
        finished: File name -> SHA-256 of its bytes.
    """

    directory: Path
    identity: str
    finished: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, directory: Path, identity: str) -> "ConversionState":
        """Take up the conversion of this identity in a directory, or start it in an empty one.

        Raises:
            CheckpointError: The directory holds something else.
        """
        path = directory / STATE_NAME
        present = list_directory(directory)
        if CONFIG_NAME in present and STATE_NAME not in present:
            raise CheckpointError(f"{directory} already holds a model; give a directory that does not exist yet")
        if STATE_NAME not in present:
            if present:
                raise CheckpointError(f"{directory} is not empty; give a directory that does not exist yet")
            state = cls(directory=directory, identity=identity)
            state.save()
            return state
        document = read_json_object(path)
        finished = document.get("finished")
        if not isinstance(finished, dict) or not all(isinstance(digest, str) for digest in finished.values()):
            raise CheckpointDamaged(f"{path} is damaged; remove {directory} and convert again")
        if document.get("identity") != identity:
            raise CheckpointError(
                f"{directory} holds an unfinished conversion of another source or with other options; run that one "
                "again, or remove the directory"
            )
        for leftover in directory.glob(f"*{PARTIAL_SUFFIX}"):
            leftover.unlink()
        return cls(directory=directory, identity=identity, finished=dict(finished))

    def intact(self, shard: Shard) -> bool:
        """Whether a file was finished earlier and its bytes are still the same."""
        path = self.directory / shard.file_name
        digest = self.finished.get(shard.file_name)
        if digest is None or not path.is_file() or path.stat().st_size != shard.file_bytes:
            return False
        return file_digest(path) == digest

    def record(self, file_name: str) -> None:
        """Note a finished file, reading it back from the disk."""
        self.finished[file_name] = file_digest(self.directory / file_name)
        self.save()

    def save(self) -> None:
        """Write the state atomically."""
        write_json(self.directory / STATE_NAME, {"identity": self.identity, "finished": self.finished})

    def discard(self) -> None:
        """Remove the state: the conversion is complete, or nothing of it is worth keeping."""
        (self.directory / STATE_NAME).unlink(missing_ok=True)
