"""Whole pulls over loopback with injected faults.  Every reconstructed file is compared byte for byte."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import pytest

from slotpack import codec
from slotpack.catalog import CatalogModel, Sidecar
from slotpack.errors import FrameError, IntegrityError, ManifestDigest, PinMismatch, PullError, TransferError
from slotpack.manifest import MANIFEST_NAME, parse_manifest
from slotpack.progress import PullProgress
from slotpack.pulling import PullOptions, PullReport, TransportName, choose_transport, pull, verify_directory
from tests.slotpack.clocks import FakeClock
from tests.slotpack.models import Packaged, same_files
from tests.slotpack.server import Fault, FileServer, Seen, serving


@pytest.fixture
def server(packaged: Packaged, tmp_path: pathlib.Path) -> Iterator[FileServer]:
    """Serve the package below /package and the original files below /model."""
    yield from serving(tmp_path)


def remote(packaged: Packaged, server: FileServer) -> CatalogModel:
    """Return the model with its sources on the server."""
    return dataclasses.replace(
        packaged.entry, package_bases=(f"{server.base}/package",), raw_bases=(f"{server.base}/model",)
    )


def options(transport: TransportName = "automatic", connections: int | None = 2, **changes: object) -> PullOptions:
    made = PullOptions(transport=transport, connections=connections, chunk_bytes=9000, clock=FakeClock())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def objects_of(packaged: Packaged) -> list[str]:
    manifest = parse_manifest((packaged.package / MANIFEST_NAME).read_bytes())
    return [entry.sha256 for entry in manifest.objects]


def fetched_objects(server: FileServer) -> list[str]:
    return [path.rpartition("/")[2].removesuffix(".bin") for path in server.paths(r"/objects/")]


@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_a_pull_restores_every_byte_and_leaves_nothing_else(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, transport: TransportName
) -> None:
    report = pull(remote(packaged, server), tmp_path / "copy", options=options(transport))
    assert same_files(packaged.model, tmp_path / "copy")
    assert report.transport == transport
    assert (report.skipped, report.fallback_objects, report.retries) == ({}, 0, 0)
    if transport == "compressed":
        assert sorted(fetched_objects(server)) == sorted(objects_of(packaged))
        assert server.paths("/model/") == []
    else:
        assert server.paths("/package/") == []


def test_a_second_pull_reuses_every_file_without_the_network(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    pull(remote(packaged, server), tmp_path / "copy", options=options())
    before = len(server.seen)
    report = pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert len(server.seen) == before
    assert set(report.reused_files) == {entry.path for entry in packaged.entry.files}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(path="objects/", kind="status", status=404, times=3),
        Fault(path="objects/", kind="status", status=403, times=2),
        Fault(path="objects/", kind="wrong bytes", times=2),
        Fault(path="objects/", kind="long", times=2),
        Fault(path="objects/", kind="encoded", times=2),
        Fault(path="objects/", kind="status", status=503, times=99),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_missing_or_wrong_object_is_replaced_by_the_original_ranges(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, fault: Fault
) -> None:
    server.fail(fault)
    report = pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert same_files(packaged.model, tmp_path / "copy")
    expected = len(objects_of(packaged)) if fault.times == 99 else fault.times
    assert report.fallback_objects == expected


def test_an_object_that_decodes_wrongly_is_replaced_by_the_original_ranges(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = codec.decode_many
    calls: list[int] = []

    def decode_many(frames: Sequence[codec.Buffer]) -> list[bytes | FrameError]:
        calls.append(len(frames))
        answers = real(frames)
        if len(calls) == 1:
            answers[0] = bytes(len(frames[0]))
        return answers

    monkeypatch.setattr("slotpack.codec.decode_many", decode_many)
    report = pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert same_files(packaged.model, tmp_path / "copy")
    assert report.fallback_objects == 1


def test_an_object_that_no_source_has_fails_with_its_name(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    lost = next(entry for entry in parse_manifest((packaged.package / MANIFEST_NAME).read_bytes()).objects)
    (packaged.package / lost.path).unlink()
    (packaged.model / lost.ranges[0].file).unlink()
    with pytest.raises(TransferError, match=lost.sha256):
        pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert not (tmp_path / "copy" / lost.ranges[0].file).exists()


def test_the_second_raw_source_is_tried(packaged: Packaged, server: FileServer, tmp_path: pathlib.Path) -> None:
    sources = (f"{server.base}/nowhere", f"{server.base}/model")
    report = pull(remote(packaged, server), tmp_path / "copy", options=options(raw_sources=sources))
    assert report.transport == "raw"
    assert same_files(packaged.model, tmp_path / "copy")


@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_drops_and_errors_in_the_middle_are_retried(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, transport: TransportName
) -> None:
    # fewer faults than a request has attempts, should one request meet them all
    server.fail(Fault(path="objects/|/model/", kind="drop", after_bytes=100))
    server.fail(Fault(path="objects/|/model/", kind="status", status=503))
    server.fail(Fault(path="objects/|/model/", kind="status", status=429, headers={"Retry-After": "2"}))
    report = pull(remote(packaged, server), tmp_path / "copy", options=options(transport))
    assert same_files(packaged.model, tmp_path / "copy")
    assert report.retries == 3
    assert report.fallback_objects == 0


@pytest.mark.parametrize(
    ("headers", "wait"),
    [({"Retry-After": "40"}, 40.0), ({"RateLimit": '"r";r=0;t=9'}, 10.0), ({}, 300.0), ({"Retry-After": "x"}, 300.0)],
)
def test_raw_downloads_honour_rate_limits_too(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, headers: dict[str, str], wait: float
) -> None:
    """Fixed by the original in 0.2.26: the raw transport used to retry after seconds."""
    clock = FakeClock()
    server.fail(Fault(path="/model/", kind="status", status=429, headers=headers))
    pull(remote(packaged, server), tmp_path / "copy", options=options("raw", connections=1, clock=clock))
    assert clock.sleeps == [wait]
    assert same_files(packaged.model, tmp_path / "copy")


def test_expiring_redirects_are_renewed_during_a_pull(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    server.sign = 2
    pull(remote(packaged, server), tmp_path / "copy", options=options("raw"))
    assert same_files(packaged.model, tmp_path / "copy")


def test_as_many_connections_are_open_as_are_claimed(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """Fixed by the original in 0.2.1: one HTTP/2 session carried all workers over one connection."""
    server.fail(Fault(path="objects/", kind="hold", after_bytes=1, times=4))
    seen: list[int] = []

    def watch(progress: PullProgress) -> None:
        seen.append(progress.connections)
        if progress.connections == 4:
            server.release.set()

    report = pull(remote(packaged, server), tmp_path / "copy", options=options(connections=4), progress=watch)
    ports = {item.client_port for item in server.seen if "objects/" in item.path}
    assert report.connections == 4
    assert max(seen) == 4
    assert len(ports) == 4


def test_the_report_counts_connections_in_use_and_not_every_reconnect(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """Fixed by the original in 0.2.2: reconnects were added to the connection count."""
    server.fail(Fault(path="objects/", kind="drop", after_bytes=10, times=3))
    report = pull(remote(packaged, server), tmp_path / "copy", options=options(connections=1))
    assert report.connections == 1
    assert len(server.ports()) > 1


def test_progress_never_counts_a_byte_twice_and_ends_at_the_total(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """Fixed by the original in 0.2.10: retries advanced the progress again."""
    server.fail(Fault(path="objects/", kind="drop", after_bytes=200, times=3))
    steps: list[PullProgress] = []
    pull(remote(packaged, server), tmp_path / "copy", options=options(), progress=steps.append)
    numbers = [step.done_bytes for step in steps if step.phase in ("downloading", "verifying")]
    assert numbers == sorted(numbers)
    assert all(step.done_bytes <= step.total_bytes for step in steps)


def test_every_file_is_hashed_once(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed by the original in 0.2.10: files were verified twice."""
    hashed: list[str] = []
    real = __import__("slotpack.resume", fromlist=["PartFile"]).PartFile.hash

    def count(part: "object", before: "object") -> str:
        hashed.append(part.path.name)  # type: ignore[attr-defined]
        digest: str = real(part, before)
        return digest

    monkeypatch.setattr("slotpack.resume.PartFile.hash", count)
    pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert sorted(hashed) == sorted(f"{entry.path}.slotpack.part" for entry in packaged.entry.files)


@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_an_absent_optional_file_is_skipped_and_its_part_removed(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, transport: TransportName
) -> None:
    """The original's draft head: a source without it leaves the pull green (0.2.2)."""
    for entry in parse_manifest((packaged.package / MANIFEST_NAME).read_bytes()).objects:
        if entry.ranges[0].file == "mtp.safetensors":
            (packaged.package / entry.path).unlink()
    (packaged.model / "mtp.safetensors").unlink()
    model = remote(packaged, server)
    report = pull(model, tmp_path / "copy", options=options(transport))
    assert list(report.skipped) == ["mtp.safetensors"]
    assert same_files(packaged.model, tmp_path / "copy")
    found = verify_directory(model, tmp_path / "copy")
    assert found.is_complete
    assert found.absent_optional == ("mtp.safetensors",)


def test_a_corrupt_final_file_is_replaced_only_by_a_verified_one(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    model = remote(packaged, server)
    pull(model, tmp_path / "copy", options=options())
    config = tmp_path / "copy" / "config.json"
    damaged = config.read_bytes()[:-1] + b"?"
    config.write_bytes(damaged)
    unreachable = dataclasses.replace(model, package_bases=(f"{server.base}/no",), raw_bases=(f"{server.base}/no",))
    with pytest.raises(PullError):
        pull(unreachable, tmp_path / "copy", options=options())
    assert config.read_bytes() == damaged
    report = pull(model, tmp_path / "copy", options=options())
    assert same_files(packaged.model, tmp_path / "copy")
    assert "config.json" not in report.reused_files


def test_another_manifest_than_the_pinned_one_is_refused_before_any_object(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    (packaged.package / MANIFEST_NAME).write_bytes(b"{}")
    with pytest.raises(ManifestDigest):
        pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert fetched_objects(server) == []


def test_a_manifest_for_other_files_is_refused_before_any_object(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    model = remote(packaged, server)
    with pytest.raises(PinMismatch):
        pull(dataclasses.replace(model, files=model.files[1:]), tmp_path / "copy", options=options())
    assert fetched_objects(server) == []


def test_without_its_manifest_automatic_takes_the_original_files(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    (packaged.package / MANIFEST_NAME).unlink()
    report = pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert report.transport == "raw"
    assert same_files(packaged.model, tmp_path / "copy")
    with pytest.raises(TransferError):
        pull(remote(packaged, server), tmp_path / "other", options=options("compressed"))


def test_wrong_original_bytes_fail_the_whole_file_and_the_next_run_rebuilds_it(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    server.fail(Fault(path="/model/config.json", kind="wrong bytes"))
    model = remote(packaged, server)
    with pytest.raises(IntegrityError, match=r"config\.json"):
        pull(model, tmp_path / "copy", options=options("raw"))
    assert not (tmp_path / "copy" / "config.json").exists()
    pull(model, tmp_path / "copy", options=options("raw"))
    assert same_files(packaged.model, tmp_path / "copy")


def sidecar(server: FileServer, data: bytes) -> Sidecar:
    digest = hashlib.sha256(data).hexdigest()
    return Sidecar(path="lookahead/tap.bin", size_bytes=len(data), sha256=digest, base=f"{server.base}/side")


def pull_with_sidecar(
    packaged: Packaged, server: FileServer, copy: pathlib.Path, stored: bytes | None, chosen: PullOptions
) -> PullReport:
    if stored is not None:
        place = server.root / "side" / "lookahead"
        place.mkdir(parents=True, exist_ok=True)
        (place / "tap.bin").write_bytes(stored)
    model = dataclasses.replace(remote(packaged, server), sidecars=(sidecar(server, b"correction"),))
    return pull(model, copy, options=chosen)


def test_a_sidecar_is_fetched_once(packaged: Packaged, server: FileServer, tmp_path: pathlib.Path) -> None:
    report = pull_with_sidecar(packaged, server, tmp_path / "copy", b"correction", options())
    assert report.sidecars == {"lookahead/tap.bin": "fetched"}
    assert (tmp_path / "copy" / "lookahead" / "tap.bin").read_bytes() == b"correction"
    again = pull_with_sidecar(packaged, server, tmp_path / "copy", b"correction", options())
    assert again.sidecars == {"lookahead/tap.bin": "present"}
    none = pull_with_sidecar(packaged, server, tmp_path / "bare", b"correction", options(with_sidecars=False))
    assert none.sidecars == {}


@pytest.mark.parametrize("stored", [None, b"corrupti0n", b"short"])
def test_a_sidecar_never_fails_a_pull(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, stored: bytes | None
) -> None:
    report = pull_with_sidecar(packaged, server, tmp_path / "copy", stored, options())
    assert report.sidecars == {"lookahead/tap.bin": "failed"}
    assert not (tmp_path / "copy" / "lookahead" / "tap.bin").exists()
    assert same_files(packaged.model, tmp_path / "copy")


def test_a_symbolic_link_to_a_good_file_is_kept(packaged: Packaged, server: FileServer, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").symlink_to(packaged.model / "config.json")
    report = pull(remote(packaged, server), copy, options=options())
    assert (copy / "config.json").is_symlink()
    assert report.reused_files == ("config.json",)


def test_a_symbolic_link_as_the_directory_works(packaged: Packaged, server: FileServer, tmp_path: pathlib.Path) -> None:
    """Fixed by the original in 0.2.1: a model directory behind a link did not open."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    model = remote(packaged, server)
    pull(model, tmp_path / "link", options=options())
    assert same_files(packaged.model, tmp_path / "real")
    assert verify_directory(model, tmp_path / "link").is_complete


def test_verify_hashes_files_of_the_right_size(packaged: Packaged, server: FileServer, tmp_path: pathlib.Path) -> None:
    model = remote(packaged, server)
    pull(model, tmp_path / "copy", options=options())
    before = len(server.seen)
    path = tmp_path / "copy" / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (tmp_path / "copy" / "config.json").unlink()
    os.truncate(tmp_path / "copy" / "model-00002.safetensors", 5)
    found = verify_directory(model, tmp_path / "copy")
    assert found.missing == ("config.json",)
    assert found.damaged == ("model-00002.safetensors", "tokenizer.json")
    assert len(server.seen) == before


def test_transport_choice(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    files = packaged.entry.files
    assert choose_transport(PullOptions(), tmp_path, files) == "compressed"
    assert choose_transport(PullOptions(raw_sources=("http://x/",)), tmp_path, files) == "raw"
    raw_sources = PullOptions(raw_sources=("http://x/",), transport="compressed")
    assert choose_transport(raw_sources, tmp_path, files) == "compressed"
    (tmp_path / "config.json.part").touch()
    assert choose_transport(PullOptions(), tmp_path, files) == "compressed"
    (tmp_path / "config.json.partmap").touch()
    assert choose_transport(PullOptions(), tmp_path, files) == "raw"
    assert choose_transport(PullOptions(transport="compressed"), tmp_path, files) == "compressed"


@pytest.mark.parametrize(
    "bad",
    [
        {"connections": 0},
        {"connections": 33},
        {"transport": "ftp"},
        {"raw_sources": ("ftp://x/",)},
        {"raw_sources": ("http://[",)},
        {"compressed_sources": ("/tmp/x",)},
        {"compressed_sources": ("",)},
    ],
)
def test_options_that_cannot_be_followed_are_refused(
    packaged: Packaged, tmp_path: pathlib.Path, bad: dict[str, object]
) -> None:
    with pytest.raises(PullError):
        pull(packaged.entry, tmp_path / "copy", options=dataclasses.replace(PullOptions(), **bad))  # type: ignore[arg-type]
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null", "/dev/null/x"])
def test_a_directory_that_cannot_be_made_is_refused(packaged: Packaged, place: str) -> None:
    with pytest.raises(PullError, match=place):
        pull(packaged.entry, place)


def test_an_optional_file_that_fails_while_others_of_its_objects_are_fetched_leaves_nothing(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """Fixed by the original in 0.2.10: a fallback wrote into an optional file that had been given up."""
    for entry in parse_manifest((packaged.package / MANIFEST_NAME).read_bytes()).objects:
        if entry.ranges[0].file == "mtp.safetensors":
            (packaged.package / entry.path).unlink()
    server.fail(Fault(path="/model/mtp", kind="hold", after_bytes=1))
    server.fail(Fault(path="/model/mtp", kind="status", status=404, times=99))

    def watch(seen: Seen) -> None:
        if len(server.paths("/model/mtp")) > 1:
            server.release.set()

    server.on_request = watch
    report = pull(remote(packaged, server), tmp_path / "copy", options=options(connections=2))
    assert list(report.skipped) == ["mtp.safetensors"]
    assert same_files(packaged.model, tmp_path / "copy", without=("mtp.safetensors",))


def test_metadata_names_taken_by_special_files_are_replaced_or_reported(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    os.mkfifo(copy / ".slotpack-state.json")
    (copy / ".slotpack-manifest.json").symlink_to(tmp_path / "elsewhere")
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)
    assert not (tmp_path / "elsewhere").exists()
    (copy / "config.json").unlink()
    (copy / ".slotpack-manifest.json").mkdir()
    with pytest.raises(PullError, match="copy"):
        pull(remote(packaged, server), copy, options=options())
