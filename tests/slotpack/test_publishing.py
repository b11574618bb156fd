"""Publishing against a local fake of the host, and against the real client library with its HTTP calls faked."""

import pathlib
from collections.abc import Sequence

import pytest

from slotpack.errors import ConflictingObject, PublishError
from slotpack.files import hash_file
from slotpack.manifest import MANIFEST_NAME
from slotpack.publishing import HuggingFaceRepository, RemoteFile, package_prefix, publish_package
from slotpack.unpacking import read_package
from tests.slotpack.models import Packaged


class FakeRepository:
    """A repository in a dictionary; it can lose its connection after some commits."""

    def __init__(self, commits_before_failure: int = 10**6) -> None:
        self.files: dict[str, bytes] = {"README.md": b"existing"}
        self.commits: list[list[str]] = []
        self._left = commits_before_failure

    def list_files(self, prefix: str) -> Sequence[RemoteFile]:
        import hashlib

        return [
            RemoteFile(path=p, size_bytes=len(d), sha256=hashlib.sha256(d).hexdigest(), blob_sha1=None)
            for p, d in self.files.items()
            if p.startswith(prefix)
        ]

    def commit(self, files: Sequence[tuple[str, pathlib.Path]], message: str) -> str:
        if self._left == 0:
            raise PublishError("the connection was lost")
        self._left -= 1
        self.files.update({target: local.read_bytes() for target, local in files})
        self.commits.append([target for target, _local in files])
        return f"commit{len(self.commits)}"


def test_everything_is_uploaded_once_with_the_manifest_last(packaged: Packaged) -> None:
    repository = FakeRepository()
    steps: list[tuple[int, int]] = []
    report = publish_package(
        packaged.package, repository, batch_files=4, progress=lambda done, total: steps.append((done, total))
    )
    prefix = package_prefix(hash_file(packaged.package / MANIFEST_NAME))
    assert report.prefix == prefix
    assert report.revision == f"commit{len(repository.commits)}"
    assert repository.commits[-1][-1] == f"{prefix}/{MANIFEST_NAME}"
    for entry in read_package(packaged.package).objects:
        assert repository.files[f"{prefix}/{entry.path}"] == (packaged.package / entry.path).read_bytes()
    assert repository.files["README.md"] == b"existing"
    assert steps[-1] == (report.uploaded_files, report.uploaded_files)
    again = publish_package(packaged.package, repository)
    assert (again.uploaded_files, again.revision) == (0, None)


def test_an_interrupted_upload_resumes_from_what_was_committed(packaged: Packaged) -> None:
    repository = FakeRepository(commits_before_failure=2)
    with pytest.raises(PublishError):
        publish_package(packaged.package, repository, batch_files=3)
    kept = FakeRepository()
    kept.files = repository.files
    report = publish_package(packaged.package, kept, batch_files=3)
    assert report.present_files == 6
    assert len(kept.files) == 1 + report.present_files + report.uploaded_files


@pytest.mark.parametrize("content", [b"other bytes", None])
def test_other_bytes_at_an_immutable_path_are_a_conflict(packaged: Packaged, content: bytes | None) -> None:
    repository = FakeRepository()
    prefix = package_prefix(hash_file(packaged.package / MANIFEST_NAME))
    path = read_package(packaged.package).objects[0].path
    original = (packaged.package / path).read_bytes()
    repository.files[f"{prefix}/{path}"] = content if content is not None else original[:-1] + b"?"
    with pytest.raises(ConflictingObject, match="never overwritten"):
        publish_package(packaged.package, repository)
    assert repository.commits == []


def test_a_damaged_local_object_is_not_uploaded(packaged: Packaged) -> None:
    path = packaged.package / read_package(packaged.package).objects[0].path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(PublishError, match="pack the model again"):
        publish_package(packaged.package, FakeRepository())


def test_without_the_extra_publishing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(PublishError, match=r"slotpack\[publish\]"):
        HuggingFaceRepository("owner/name")
