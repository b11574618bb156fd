"""Interruptions: kill -9, Ctrl-C, full disks, damaged and unsafe leftovers, two writers, other formats."""

import dataclasses
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from slotpack.cancellation import Cancellation
from slotpack.catalog import CatalogModel
from slotpack.errors import DirectoryBusy, IntegrityError, NotEnoughSpace, PullCancelled, UnsafeFile
from slotpack.manifest import MANIFEST_NAME, parse_manifest
from slotpack.progress import PullProgress
from slotpack.pulling import PullOptions, TransportName, pull
from slotpack.resume import LOCK_NAME, MAX_STATE_BYTES, STATE_NAME, PackedLedger
from tests.slotpack.clocks import FakeClock
from tests.slotpack.models import Packaged, same_files
from tests.slotpack.server import WITHIN_S, Fault, FileServer, serving

ROOT = pathlib.Path(__file__).resolve().parents[2]

PULL_SCRIPT = """
import dataclasses, sys
from slotpack.catalog import model_from_package
from slotpack.errors import PullCancelled
from slotpack.pulling import PullOptions, pull
import pathlib
package, base, copy, transport = sys.argv[1:]
model = model_from_package(pathlib.Path(package), name="test", directory_name="test", margin_bytes=0)
model = dataclasses.replace(model, package_bases=(base + "/package",), raw_bases=(base + "/model",))
try:
    pull(model, copy, options=PullOptions(transport=transport, connections=1, chunk_bytes=9000))
except PullCancelled:
    sys.exit(130)
"""


@pytest.fixture
def server(packaged: Packaged, tmp_path: pathlib.Path) -> Iterator[FileServer]:
    yield from serving(tmp_path)


def remote(packaged: Packaged, server: FileServer) -> CatalogModel:
    return dataclasses.replace(
        packaged.entry, package_bases=(f"{server.base}/package",), raw_bases=(f"{server.base}/model",)
    )


def options(transport: TransportName = "automatic", **changes: object) -> PullOptions:
    made = PullOptions(transport=transport, connections=1, chunk_bytes=9000, clock=FakeClock())
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def hold_after(server: FileServer, pattern: str, count: int) -> None:
    """Answer `count` matching requests, and keep the next one waiting."""
    answered: list[str] = []

    def watch(seen: "object") -> None:
        if any(part in seen.path for part in pattern.split("|")):  # type: ignore[attr-defined]
            answered.append(seen.path)  # type: ignore[attr-defined]
            if len(answered) == count:
                server.fail(Fault(path=pattern, kind="hold", after_bytes=5))

    server.on_request = watch


def cancel_when_held(server: FileServer, cancel: Cancellation) -> None:
    """Cancel from another thread as soon as the server keeps an answer waiting."""

    def watch() -> None:
        server.held.wait(WITHIN_S)
        cancel.cancel()

    threading.Thread(target=watch, daemon=True).start()


def interrupted(
    packaged: Packaged, server: FileServer, copy: pathlib.Path, count: int, transport: TransportName = "compressed"
) -> int:
    """Pull until `count` objects or chunks were answered, then cancel; return how many of them were recorded."""
    hold_after(server, "objects/" if transport == "compressed" else "/model/", count)
    cancel = Cancellation()
    cancel_when_held(server, cancel)
    with pytest.raises(PullCancelled):
        pull(remote(packaged, server), copy, options=options(transport), cancel=cancel)
    server.release.set()
    server.on_request = None
    return recorded(copy, transport)


def recorded(copy: pathlib.Path, transport: TransportName = "compressed") -> int:
    if transport == "compressed":
        return sum(json.loads((copy / STATE_NAME).read_bytes())["done"])
    return sum(sum(json.loads(path.read_bytes())["done"]) for path in copy.glob("*.partmap"))


def object_count(packaged: Packaged) -> int:
    return len(parse_manifest((packaged.package / MANIFEST_NAME).read_bytes()).objects)


@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_cancellation_keeps_everything_received_and_the_next_run_fetches_only_the_rest(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, transport: TransportName
) -> None:
    done = interrupted(packaged, server, tmp_path / "copy", 4, transport)
    assert done == 4
    server.seen.clear()
    report = pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert report.transport == transport
    assert same_files(packaged.model, tmp_path / "copy")
    if transport == "compressed":
        assert len(server.paths("objects/")) == object_count(packaged) - 4


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)], ids=["kill -9", "ctrl-c"]
)
@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_a_stopped_process_is_resumed_from_its_verified_bytes(
    packaged: Packaged,
    server: FileServer,
    tmp_path: pathlib.Path,
    transport: TransportName,
    number: signal.Signals,
    status: int,
) -> None:
    hold_after(server, "objects/" if transport == "compressed" else "/model/", 5)
    arguments = [str(packaged.package), server.base, str(tmp_path / "copy"), transport]
    process = subprocess.Popen([sys.executable, "-c", PULL_SCRIPT, *arguments])
    try:
        assert server.held.wait(WITHIN_S)
        wait_until(lambda: (tmp_path / "copy").is_dir() and recorded_safely(tmp_path / "copy", transport) >= 4)
        process.send_signal(number)
        assert process.wait(WITHIN_S) == status
    finally:
        process.kill()
        process.wait()
    server.release.set()
    server.on_request = None
    done = recorded(tmp_path / "copy", transport)
    server.seen.clear()
    pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert same_files(packaged.model, tmp_path / "copy")
    if transport == "compressed":
        assert len(server.paths("objects/")) == object_count(packaged) - done


def recorded_safely(copy: pathlib.Path, transport: TransportName) -> int:
    try:
        return recorded(copy, transport) + len([p for p in copy.iterdir() if p.suffix in (".json", ".safetensors")])
    except (OSError, ValueError):
        return 0


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll another process's files; there is nothing else to wait on."""
    turn = threading.Event()
    for _ in range(round(WITHIN_S / 0.01)):
        if condition():
            return
        turn.wait(0.01)
    pytest.fail("the condition did not come true in time")


def test_ctrl_c_in_the_calling_thread_is_a_cancellation(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    def interrupt(progress: PullProgress) -> None:
        if progress.phase == "downloading":
            raise KeyboardInterrupt

    with pytest.raises(PullCancelled):
        pull(remote(packaged, server), tmp_path / "copy", options=options(), progress=interrupt)
    pull(remote(packaged, server), tmp_path / "copy", options=options())
    assert same_files(packaged.model, tmp_path / "copy")


def test_cancellation_while_the_sidecar_is_fetched_is_not_success(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """Fixed by the original in 0.2.26: the fetch swallowed the stop and `pull` reported ready."""
    from tests.slotpack.test_pulling import sidecar

    (server.root / "side" / "lookahead").mkdir(parents=True)
    (server.root / "side" / "lookahead" / "tap.bin").write_bytes(b"correction")
    server.fail(Fault(path="/side/", kind="hold", after_bytes=2))
    cancel = Cancellation()
    cancel_when_held(server, cancel)
    model = dataclasses.replace(remote(packaged, server), sidecars=(sidecar(server, b"correction"),))
    with pytest.raises(PullCancelled):
        pull(model, tmp_path / "copy", options=options(), cancel=cancel)
    assert not (tmp_path / "copy" / "lookahead").exists()


def test_a_second_writer_is_refused_and_the_first_goes_on(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    server.fail(Fault(path="objects/", kind="hold"))
    first: list[object] = []
    work = threading.Thread(
        target=lambda: first.append(pull(remote(packaged, server), tmp_path / "copy", options=options()))
    )
    work.start()
    assert server.held.wait(WITHIN_S)
    with pytest.raises(DirectoryBusy):
        pull(remote(packaged, server), tmp_path / "copy", options=options())
    server.release.set()
    work.join(WITHIN_S)
    assert len(first) == 1
    assert same_files(packaged.model, tmp_path / "copy")


def test_a_damaged_part_file_is_rebuilt_in_the_same_run(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    """The original repairs damaged partial files since 0.2.10."""
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 6)
    for part in copy.glob("*.slotpack.part"):
        data = bytearray(part.read_bytes())
        data[:8] = b"damaged!"[: len(data)]
        part.write_bytes(data[: part.stat().st_size])
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


@pytest.mark.parametrize(
    "damage", [lambda path: os.truncate(path, 3), lambda path: path.unlink()], ids=["shorter", "gone"]
)
def test_a_part_file_of_another_size_starts_over(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, damage: Callable[[pathlib.Path], None]
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 5)
    for part in copy.glob("*.slotpack.part"):
        if part.stat().st_size > 3:
            damage(part)
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"manifest": 1, "done": []}',
        b'{"manifest": "other", "done": [1, 1]}',
        b"[" * 5000,
        b" " * (MAX_STATE_BYTES + 1),
    ],
    ids=lambda state: f"{state[:12]!r}-{len(state)}",
)
def test_a_malformed_state_means_starting_over(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, state: bytes
) -> None:
    """Malformed resume files broke the original's downloader before 0.2.10."""
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 3)
    (copy / STATE_NAME).write_bytes(state)
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


@pytest.mark.parametrize("bits", [[1, 1], [1, 2, 0], [True, False, True], ["1", 0, 0], [1.0, 0, 0], None, {}])
def test_a_state_with_other_bits_is_ignored(tmp_path: pathlib.Path, bits: object) -> None:
    (tmp_path / STATE_NAME).write_text(json.dumps({"manifest": "m", "done": bits}))
    ledger = PackedLedger(tmp_path, "m", 3)
    assert not any(ledger.is_done(index) for index in range(3))


def test_a_state_that_lies_is_found_by_the_file_hash(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 3)
    state = json.loads((copy / STATE_NAME).read_bytes())
    state["done"] = [1] * len(state["done"])
    (copy / STATE_NAME).write_text(json.dumps(state))
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


@pytest.mark.parametrize("text", ["", "{", '{"size": 1}', "[]"])
def test_a_malformed_chunk_map_means_starting_over(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, text: str
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 4, "raw")
    for path in copy.glob("*.partmap"):
        path.write_text(text)
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


@pytest.mark.parametrize(("first", "second"), [("compressed", "raw"), ("raw", "compressed")])
def test_switching_the_transport_keeps_finished_files_and_cleans_up(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, first: TransportName, second: TransportName
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 6, first)
    finished = {path.name for path in copy.iterdir() if (packaged.model / path.name).exists()}
    report = pull(remote(packaged, server), copy, options=options(second))
    assert report.transport == second
    assert set(report.reused_files) == finished
    assert same_files(packaged.model, copy)


SUFFIXES = {"compressed": ".slotpack.part", "raw": ".part"}


@pytest.mark.parametrize("transport", ["compressed", "raw"])
@pytest.mark.parametrize("shape", ["symbolic link", "dangling link", "hard link", "pipe", "directory"])
def test_something_else_in_a_part_files_place_is_refused_and_untouched(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, transport: TransportName, shape: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 300)
    part = copy / f"config.json{SUFFIXES[transport]}"
    if shape == "symbolic link":
        part.symlink_to(victim)
    elif shape == "dangling link":
        part.symlink_to(tmp_path / "nowhere")
    elif shape == "hard link":
        os.link(victim, part)
    elif shape == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    before = part.lstat()
    with pytest.raises(UnsafeFile, match=r"config\.json"):
        pull(remote(packaged, server), copy, options=options(transport))
    assert victim.read_bytes() == b"precious" * 300
    assert part.lstat().st_mode == before.st_mode
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("shape", ["directory", "pipe"])
def test_something_else_in_a_final_files_place_is_refused(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, shape: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    if shape == "pipe":
        os.mkfifo(copy / "config.json")
    else:
        (copy / "config.json").mkdir()
    with pytest.raises(UnsafeFile):
        pull(remote(packaged, server), copy, options=options())
    assert (copy / "config.json").exists()


@pytest.mark.parametrize("shape", ["link", "pipe", "directory"])
def test_an_unsafe_lock_file_is_refused(packaged: Packaged, tmp_path: pathlib.Path, shape: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    lock = copy / LOCK_NAME
    if shape == "link":
        lock.symlink_to(tmp_path / "elsewhere")
    elif shape == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    if shape == "pipe":
        pull(packaged.entry, copy)  # a pipe can be locked, is never written, and harms nobody
    else:
        with pytest.raises(UnsafeFile):
            pull(packaged.entry, copy)
    assert not (tmp_path / "elsewhere").exists()


def test_part_files_are_private_and_at_their_final_size(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 2)
    for part in copy.glob("*.slotpack.part"):
        facts = part.stat()
        assert facts.st_mode & 0o777 == 0o600
        assert facts.st_size == (packaged.model / part.name.removesuffix(".slotpack.part")).stat().st_size


def test_a_disk_without_room_is_refused_before_any_object(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    model = dataclasses.replace(remote(packaged, server), margin_bytes=2 * 10**9)
    needed = model.model_bytes + model.margin_bytes
    with pytest.raises(NotEnoughSpace) as caught:
        pull(model, tmp_path / "copy", options=options(free_space=lambda directory: needed - 1))
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    with pytest.raises(NotEnoughSpace, match=r"needs 2\.0 GB \(2\.0 GB of it spare\) and has 1\.5 MB free"):
        pull(model, tmp_path / "copy", options=options(free_space=lambda directory: 1_500_000))
    assert server.paths("objects/") == []
    pull(model, tmp_path / "copy", options=options(free_space=lambda directory: needed))
    assert same_files(packaged.model, tmp_path / "copy")


def test_resuming_asks_only_for_what_is_not_allocated_yet(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    interrupted(packaged, server, copy, 3)
    pull(remote(packaged, server), copy, options=options(free_space=lambda directory: 0))
    assert same_files(packaged.model, copy)


def test_a_disk_that_fills_up_keeps_progress_and_the_next_run_finishes(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    real, calls = os.pwrite, [0]

    def write(descriptor: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(NotEnoughSpace):
        pull(remote(packaged, server), copy, options=options())
    monkeypatch.undo()
    assert recorded(copy) >= 3
    pull(remote(packaged, server), copy, options=options())
    assert same_files(packaged.model, copy)


def test_a_real_small_disk_is_refused_by_preallocation(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        with pytest.raises(NotEnoughSpace):
            pull(remote(packaged, server), disk / "copy", options=options(free_space=lambda directory: 10**12))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_bytes_that_stay_wrong_fail_and_nothing_wrong_gets_a_final_name(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    server.fail(Fault(path="/model/config.json", kind="wrong bytes", times=99))
    with pytest.raises(IntegrityError):
        pull(remote(packaged, server), tmp_path / "copy", options=options("raw"))
    for path in (tmp_path / "copy").iterdir():
        if (packaged.model / path.name).exists():
            assert path.read_bytes() == (packaged.model / path.name).read_bytes()


def test_other_files_in_the_directory_are_left_alone(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "mine.txt").write_text("keep")
    (copy / "mine.part").write_text("keep")
    pull(remote(packaged, server), copy, options=options())
    assert (copy / "mine.txt").read_text() == (copy / "mine.part").read_text() == "keep"
