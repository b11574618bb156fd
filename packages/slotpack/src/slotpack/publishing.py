"""Uploading a package to a Hugging Face repository: resumable, and never over other bytes.

A package goes below `slotpack/v1/<manifest sha256>/`, a path that names its content: what is there already is kept, and
a different file in its place is a conflict.  Objects go first and the manifest last, so that a reader who finds the
manifest finds every object.  Nothing else in the repository is touched, and no credential is written anywhere.
"""

import dataclasses
import hashlib
import importlib
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from slotpack.errors import ConflictingObject, PublishError
from slotpack.files import hash_file
from slotpack.manifest import MANIFEST_NAME, Manifest
from slotpack.unpacking import read_package

BATCH_FILES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of the repository: its size, and its SHA-256 or git blob SHA-1, whichever the host gives."""

    path: str
    size_bytes: int
    sha256: str | None
    blob_sha1: str | None


class Repository(Protocol):
    """The few things a publisher needs from a host."""

    def list_files(self, prefix: str) -> Sequence[RemoteFile]:
        """Return the committed files below a prefix."""
        ...

    def commit(self, files: Sequence[tuple[str, pathlib.Path]], message: str) -> str:
        """Add files (repository path, local path) in one commit and return the commit's id."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishReport:
    """What was uploaded: the prefix, the number of new and of already present files, and the last commit."""

    prefix: str
    uploaded_files: int
    present_files: int
    revision: str | None


def package_prefix(manifest_sha256: str) -> str:
    """Return where a package lives inside a repository."""
    return f"slotpack/v1/{manifest_sha256}"


def _local_files(package: pathlib.Path, manifest: Manifest) -> Iterable[tuple[str, int, str]]:
    """Yield (path, size, SHA-256) of the objects, then of the manifest."""
    seen: set[str] = set()
    for entry in manifest.objects:
        if entry.sha256 not in seen:
            seen.add(entry.sha256)
            yield entry.path, entry.size_bytes, entry.sha256
    path = package / MANIFEST_NAME
    yield MANIFEST_NAME, path.stat().st_size, hash_file(path)


def _blob_sha1(path: pathlib.Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_same(remote: RemoteFile, local: pathlib.Path, size_bytes: int, sha256: str) -> bool:
    if remote.size_bytes != size_bytes:
        return False
    if remote.sha256 is not None:
        return remote.sha256 == sha256
    return remote.blob_sha1 is None or remote.blob_sha1 == _blob_sha1(local)


def publish_package(
    package: str | os.PathLike[str],
    repository: Repository,
    *,
    progress: Callable[[int, int], None] | None = None,
    batch_files: int = BATCH_FILES,
) -> PublishReport:
    """Upload what the repository does not have yet.

    Args:
        package: The package directory; every file's digest is checked before it is uploaded.
        repository: The host.
        progress: Called with files present and all files, after every commit.
        batch_files: Files a commit.

    Raises:
        ConflictingObject: When the repository holds other bytes at one of the paths; nothing is uploaded.
        PublishError: When a local file is wrong, or the host refuses.
    """
    directory = pathlib.Path(package)
    manifest = read_package(directory)
    files = list(_local_files(directory, manifest))
    prefix = package_prefix(files[-1][2])
    present = {item.path: item for item in repository.list_files(prefix)}
    missing: list[tuple[str, pathlib.Path, str]] = []
    for path, size, sha256 in files:
        remote = present.get(f"{prefix}/{path}")
        if remote is None:
            missing.append((f"{prefix}/{path}", directory / path, sha256))
        elif not _is_same(remote, directory / path, size, sha256):
            raise ConflictingObject(
                f"{prefix}/{path} already exists with other bytes; a published package is never overwritten"
            )
    revision = None
    for start in range(0, len(missing), batch_files):
        batch = missing[start : start + batch_files]
        for _target, local, sha256 in batch:
            if not local.is_file() or hash_file(local) != sha256:
                raise PublishError(f"{local} is missing or does not have its SHA-256; pack the model again")
        number = start // batch_files + 1
        message = f"Add Slotpack package {prefix.rpartition('/')[2][:12]}, part {number}"
        revision = repository.commit([(target, local) for target, local, _sha256 in batch], message)
        if progress is not None:
            progress(len(files) - len(missing) + start + len(batch), len(files))
    return PublishReport(
        prefix=prefix, uploaded_files=len(missing), present_files=len(files) - len(missing), revision=revision
    )


class HuggingFaceRepository:
    """A model repository on the Hugging Face Hub; needs the extra `slotpack[publish]` and HF_TOKEN.

    Args:
        name: OWNER/NAME.
        endpoint: Another Hub address, for mirrors and tests.
    """

    def __init__(self, name: str, *, endpoint: str | None = None) -> None:
        try:
            self._hub: Any = importlib.import_module("huggingface_hub")
            self._tree: Any = importlib.import_module("huggingface_hub.hf_api")
            errors: Any = importlib.import_module("huggingface_hub.errors")
        except ImportError as error:
            raise PublishError("publishing needs huggingface_hub; install slotpack[publish]") from error
        self._name = name
        self._api: Any = self._hub.HfApi(endpoint=endpoint)
        self._missing: type[Exception] = errors.EntryNotFoundError
        # The client's connection errors share the base class of its HTTP error, whichever HTTP library it uses.
        self._failures: tuple[type[Exception], ...] = (errors.HfHubHTTPError.__bases__[0], OSError, ValueError)

    def list_files(self, prefix: str) -> Sequence[RemoteFile]:
        """Return the committed files below a prefix."""
        try:
            entries = list(self._api.list_repo_tree(self._name, path_in_repo=prefix, recursive=True))
        except self._missing:
            return []
        except self._failures as error:
            raise PublishError(f"{self._name} cannot be listed: {error}") from error
        return [
            RemoteFile(
                path=entry.path,
                size_bytes=entry.size,
                sha256=entry.lfs.sha256 if entry.lfs is not None else None,
                blob_sha1=entry.blob_id if entry.lfs is None else None,
            )
            for entry in entries
            if isinstance(entry, self._tree.RepoFile)
        ]

    def commit(self, files: Sequence[tuple[str, pathlib.Path]], message: str) -> str:
        """Add files in one commit."""
        operations = [self._hub.CommitOperationAdd(path_in_repo=t, path_or_fileobj=str(p)) for t, p in files]
        try:
            info = self._api.create_commit(self._name, operations=operations, commit_message=message)
        except self._failures as error:
            raise PublishError(f"{self._name} refused the upload: {error}; run it again to resume") from error
        return str(info.oid)
