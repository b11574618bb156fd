"""Small optional files outside the package: fetched after the model, and never a reason for a pull to fail."""

import hashlib
import pathlib
from typing import Literal

from slotpack.cancellation import Cancellation
from slotpack.catalog import Sidecar
from slotpack.errors import TransferError
from slotpack.fetching import fetch_part, join_url
from slotpack.files import hash_file, write_atomically
from slotpack.progress import ProgressSink, PullProgress
from slotpack.transport import Connection, Request

SidecarState = Literal["present", "fetched", "failed"]


def has_sidecar(sidecar: Sidecar, directory: pathlib.Path, cancel: Cancellation | None = None) -> bool:
    """Tell whether a sidecar is there with its size and SHA-256."""
    path = directory / sidecar.path
    try:
        if not path.is_file() or path.stat().st_size != sidecar.size_bytes:
            return False
        return hash_file(path, before_piece=(cancel or Cancellation()).raise_if_cancelled) == sidecar.sha256
    except OSError:
        return False


def ensure_sidecar(
    sidecar: Sidecar,
    directory: pathlib.Path,
    connection: Connection,
    *,
    cancel: Cancellation,
    progress: ProgressSink | None = None,
) -> SidecarState:
    """Fetch a sidecar unless it is there; it appears under its name only once verified.

    Returns:
        `failed` when it could not be had: the model works without it.

    Raises:
        PullCancelled: When stopped, so that a stop is never taken for a failed sidecar.
    """
    cancel.raise_if_cancelled()
    if has_sidecar(sidecar, directory, cancel):
        return "present"
    if progress is not None:
        progress(PullProgress(phase="sidecar", file=sidecar.path, total_bytes=sidecar.size_bytes))
    request = Request(url=join_url(sidecar.base, sidecar.path), size_bytes=sidecar.size_bytes)
    try:
        data = fetch_part(sidecar.base, sidecar.path, connection, request)
        if hashlib.sha256(data).hexdigest() != sidecar.sha256:
            return "failed"
        write_atomically(directory / sidecar.path, bytes(data))
    except (TransferError, OSError):
        return "failed"
    return "fetched"
