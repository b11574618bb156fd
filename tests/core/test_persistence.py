"""Conversations on disk: exact after a restart, bounded, in order after any end, and never in the way of an answer."""

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.errors import DirectoryInUse, GenerationCancelled, InaccessibleFile, StateFileDamaged
from slotstream_core.events import Finished
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.persistence import directory as directory_module
from slotstream_core.persistence.container import read_container, write_container
from slotstream_core.persistence.directory import PersistentOptions, PrefixDirectory
from slotstream_core.persistence.identity import build_name
from slotstream_core.persistence.scanning import scan_directory
from slotstream_core.testing import write_tiny_model
from slotstream_core.text.messages import ChatMessage
from slotstream_planner import PlanRequest
from tests.core.kept_states import KB, head, named, opened, options, rows, state
from tests.core.leaving import CancelledAtThirdCheck


def ids(length: int, seed: int = 0) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 256, length)]


@contextmanager
def engine_on(model: Path, kept: PersistentOptions) -> Iterator[Engine]:
    with load(model) as engine:
        engine.keep_on_disk(kept)
        yield engine


def ask(engine: Engine, prompt: Sequence[int], tokens: int = 3, *, persist: bool = True) -> Finished:
    *_, finished = engine.generate(prompt, sampling=GREEDY, max_tokens=tokens, persist=persist)
    assert isinstance(finished, Finished)
    engine.memory.finish_writing()
    return finished


def prompt_logits(engine: Engine, prompt: Sequence[int]) -> bytes:
    """The bits of the logits after a prompt that was read to its end."""
    found = [state.logits for state in engine.memory.cache.states() if state.ids.tolist() == list(prompt)]
    assert found[0] is not None
    return found[0].tobytes()


@pytest.mark.parametrize("draft", [False, True], ids=["without a draft head", "with one"])
def test_prompt_logits_are_the_same_cold_from_memory_and_after_a_restart(tmp_path: Path, *, draft: bool) -> None:
    model = write_tiny_model(tmp_path / "model", draft=draft)
    first = ids(600)
    second = [*first, *ids(300, seed=1)]
    found: dict[str, tuple[int, bytes, tuple[int, ...]]] = {}
    with load(model) as engine:
        cold = ask(engine, second, 6)
        found["cold"] = (cold.usage.cached_tokens, prompt_logits(engine, second), cold.token_ids)
    with engine_on(model, options(tmp_path / "kept")) as engine:
        ask(engine, first)
        warm = ask(engine, second, 6, persist=False)
        found["memory"] = (warm.usage.cached_tokens, prompt_logits(engine, second), warm.token_ids)
    with engine_on(model, options(tmp_path / "kept")) as engine:
        restarted = ask(engine, second, 6)
        found["disk"] = (restarted.usage.cached_tokens, prompt_logits(engine, second), restarted.token_ids)
    assert {how: cached for how, (cached, _, _) in found.items()} == {"cold": 0, "memory": 512, "disk": 512}
    assert len({(logits, reply) for _, logits, reply in found.values()}) == 1


def test_a_closed_engine_has_written_everything_and_left_no_thread(tiny_model: Path, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with engine_on(tiny_model, options(tmp_path)) as engine:
        *_, finished = engine.generate(ids(900), sampling=GREEDY, max_tokens=1)
    assert isinstance(finished, Finished)
    assert set(threading.enumerate()) <= before
    assert [head.tokens for head in scan_directory(tmp_path).heads.values()] == [768]
    opened(tmp_path).close()  # given back


def test_a_restarted_process_goes_on_with_the_same_ids(tiny_model: Path, tmp_path: Path) -> None:
    first = ids(600)
    second = [*first, *ids(300, seed=1)]
    with engine_on(tiny_model, options(tmp_path)) as engine:
        ask(engine, first)
        unbroken = ask(engine, second, 8)
    with engine_on(tiny_model, options(tmp_path)) as engine:
        resumed = ask(engine, [*second, 5], 8)
        status = engine.prefix_status()
    with load(tiny_model, request=PlanRequest(prefill_chunk=256, prefix_cache="off")) as engine:
        assert ask(engine, second, 8).token_ids == unbroken.token_ids
        assert ask(engine, [*second, 5], 8).token_ids == resumed.token_ids
    assert resumed.usage.cached_tokens == 768
    assert (status["persistent_hits"], status["persistent"]["states"]) == (1, 2)


def test_later_turns_write_only_new_rows_and_keep_the_turn_before(tiny_model: Path, tmp_path: Path) -> None:
    prompt = ids(600)
    with engine_on(tiny_model, options(tmp_path)) as engine:
        sizes = []
        for turn in range(1, 4):
            ask(engine, prompt, 1)
            content = scan_directory(tmp_path)
            sizes.append(sum(content.segments.values()))
            prompt = [*prompt, *ids(256, seed=turn)]
        assert sorted(head.tokens for head in content.heads.values()) == [768, 1024]
        assert sorted(content.segments.values()) != []
        assert sizes[2] - sizes[1] < 0.7 * sizes[0]
        assert len(content.segments) == 3
    with engine_on(tiny_model, options(tmp_path)) as engine:
        assert ask(engine, prompt[: 600 + 256], 1).usage.cached_tokens == 768  # the reply made again
        assert ask(engine, prompt, 1).usage.cached_tokens == 1024


def test_a_system_message_serves_other_conversations_after_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    with engine_on(tiny_model, options(tmp_path)) as engine:
        end = engine.tokenizer.encode("<|im_end|>")
        system = [*engine.tokenizer.encode("<|im_start|>system\n"), *ids(650, seed=9), *end]
        ask(engine, [*system, *ids(20)], 1)  # both in one pass: kept once, and as shared
        content = scan_directory(tmp_path)
        assert [(head.tokens, head.shared) for head in content.heads.values()] == [(512, True)]
        for turn in range(3):
            ask(engine, [*system, *ids(300 * (turn + 1), seed=2)], 1)
    with engine_on(tiny_model, options(tmp_path)) as engine:
        assert ask(engine, [*system, *ids(300, seed=5)], 1).usage.cached_tokens == 512


def test_a_state_too_long_for_memory_is_kept_on_disk(tiny_model: Path, tmp_path: Path) -> None:
    prompt = ids(600)
    for cached in (0, 512):
        with load(tiny_model, request=PlanRequest(prefix_cache="off")) as engine:
            engine.keep_on_disk(options(tmp_path))
            assert ask(engine, prompt, 1).usage.cached_tokens == cached
            assert engine.prefix_status()["conversations"] == 0
            prompt = [*prompt, *ids(300, seed=1)]
    assert sorted(head.tokens for head in scan_directory(tmp_path).heads.values()) == [512, 768]


def test_a_caller_may_leave_while_the_disk_is_read_and_the_state_stays(tiny_model: Path, tmp_path: Path) -> None:
    prompt = ids(600)
    with engine_on(tiny_model, options(tmp_path)) as engine:
        expected = ask(engine, prompt).token_ids
    with engine_on(tiny_model, options(tmp_path)) as engine:
        with pytest.raises(GenerationCancelled):
            next(engine.generate(prompt, sampling=GREEDY, max_tokens=3, cancel=CancelledAtThirdCheck()))  # reads only
        assert engine.prefix_status()["conversations"] == 0
        again = ask(engine, prompt)
        assert again.token_ids == expected
        assert again.usage.cached_tokens == 512


def test_requests_that_opt_out_and_short_ones_write_nothing(tiny_model: Path, tmp_path: Path) -> None:
    with engine_on(tiny_model, options(tmp_path, minimum_tokens=512)) as engine:
        ask(engine, ids(400), 1)
        ask(engine, ids(900), 1, persist=False)
        assert scan_directory(tmp_path).byte_count == 0
        assert engine.prefix_status()["conversations"] > 0


def test_the_ids_of_replies_survive_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    question = [ChatMessage(role="user", content="Where is the fox? " * 20)]
    with engine_on(tiny_model, options(tmp_path)) as engine:
        prompt = engine.chat_ids(question, thinking=True)
        reply = ask(engine, prompt, 6).token_ids
    turns = [*question, ChatMessage(role="assistant", content=""), ChatMessage(role="user", content="And now?")]
    with engine_on(tiny_model, options(tmp_path)) as engine:
        again = engine.chat_ids(turns, thinking=True)
    assert again[: len(prompt) + 6] == [*prompt, *reply]


def test_another_model_or_build_uses_nothing_and_removes_what_it_cannot_use(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(tiny_model, options(tmp_path)) as engine:
        ask(engine, ids(600), 1)
    monkeypatch.setattr("slotstream_core.persistence.identity.build_name", lambda: "slotstream-core 99")
    with engine_on(tiny_model, options(tmp_path)) as engine:
        assert engine.prefix_status()["persistent"]["removed_at_start"]["foreign"] == 1
        assert ask(engine, ids(600), 1).usage.cached_tokens == 0


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("suffix", [".slotprefix", ".slotseg"])
def test_a_damaged_file_costs_the_reuse_and_is_removed(
    tiny_model: Path, tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = ids(600)
    with engine_on(tiny_model, options(tmp_path)) as engine:
        expected = ask(engine, prompt, 4).token_ids
    (path,) = tmp_path.glob(f"*{suffix}")
    flip(path, 40)  # inside the first payload
    with engine_on(tiny_model, options(tmp_path)) as engine:
        again = ask(engine, prompt, 4)
        assert (again.token_ids, again.usage.cached_tokens) == (expected, 0)
        assert "is damaged" in caplog.text
        assert engine.prefix_status()["persistent"]["damaged"] == 1
        assert len(scan_directory(tmp_path).heads) == 1  # written anew


def numbers(kept: PrefixDirectory) -> list[int]:
    return sorted(int(name, 16) for name in kept.heads)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    first = state(300)
    second = state(500, first.segments)
    assert [kept.save(head(1, first)), kept.save(head(2, second, 1))] == ["saved", "saved"]
    kept.close()
    kept = opened(tmp_path)
    found = kept.restore(kept.heads[named(2)], "m")
    assert [(each.start, each.end) for each in found.segments] == [(0, 300), (300, 500)]
    for mine, theirs in zip(found.segments, second.segments, strict=True):
        assert np.array_equal(mine.rows["0/keys"].values, theirs.rows["0/keys"].values)
    assert np.array_equal(found.fixed["1/memory"].values, second.fixed["1/memory"].values)
    kept.close()


def test_files_and_directory_are_for_their_owner_only(tmp_path: Path) -> None:
    kept = opened(tmp_path / "states")
    kept.save(head(1, state(300)))
    kept.close()
    assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "states").iterdir()} == {0o600}


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        opened(tmp_path)
    kept.close()
    opened(tmp_path).close()


def test_many_small_turns_are_joined_into_one_segment(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    snapshot = state(10)
    for number in range(1, 41):
        kept.save(head(number, snapshot, *range(1, number)))
        snapshot = state(10 * (number + 1), snapshot.segments)
    last = kept.heads[named(40)]
    assert len(last.extents) == 1
    found = kept.restore(last, "m")
    assert np.array_equal(found.segments[0].rows["0/keys"].values[0, :10], rows(0, 10).rows["0/keys"].values[0])
    assert len(found.segments[0].rows["0/keys"].values[0]) == 400
    assert numbers(kept) == [39, 40]
    kept.close()


def test_states_nobody_continued_go_first_and_shared_ones_last(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    shared = state(100, fixed_bytes=100 * KB)
    kept.save(head(1, shared, shared=True))
    first = state(200, shared.segments, fixed_bytes=100 * KB)
    kept.save(head(2, first, 1, continued=True))
    kept.save(head(3, state(300, first.segments, fixed_bytes=100 * KB), 1, 2, continued=True))
    kept.save(head(4, state(200, shared.segments, fixed_bytes=100 * KB), 1, continued=True))
    kept.save(head(5, state(100, fixed_bytes=100 * KB)))
    gone: list[int] = []
    size = kept.byte_count
    while kept.heads:
        before = numbers(kept)
        kept.close()
        size -= 10 * KB
        kept = opened(tmp_path, quota_bytes=max(0, size))
        gone += [number for number in before if number not in numbers(kept)]
    kept.close()
    assert gone[:3] == [5, 2, 3]
    assert gone[-1] in (1, 4)
    assert scan_directory(tmp_path).byte_count == 0


def test_the_least_recently_used_goes_first_within_a_class(tmp_path: Path) -> None:
    kept = opened(tmp_path, quota_bytes=600 * KB)
    for number in (1, 2, 3):
        kept.save(head(number, state(100, fixed_bytes=100 * KB)))
    kept.touch(named(1))
    kept.touch(named(2))
    kept.touch(named(3))
    kept.touch(named(1))
    kept.save(head(4, state(100, fixed_bytes=200 * KB)))
    assert numbers(kept) == [1, 3, 4]
    kept.close()


def test_a_thousand_conversations_stay_inside_their_quota(tmp_path: Path) -> None:
    quota = 2000 * KB
    kept = opened(tmp_path, quota_bytes=quota)
    for number in range(1, 1001):
        kept.save(head(number, state(100, fixed_bytes=40 * KB)))
        assert kept.byte_count <= quota
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk == kept.byte_count <= quota
    assert len(kept.heads) == len(list(tmp_path.glob("*.slotseg"))) > 10
    kept.close()


def test_what_cannot_fit_evicts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = opened(tmp_path, quota_bytes=500 * KB)
    kept.save(head(1, state(100)))
    assert kept.save(head(2, state(100, fixed_bytes=600 * KB))) == "no room"
    monkeypatch.setattr(directory_module, "disk_usage", lambda path: FullDisk())
    assert kept.save(head(3, state(100))) == "no room"
    assert numbers(kept) == [1]
    kept.close()


class FullDisk:
    free = 0


def test_states_unused_for_long_are_removed(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    kept.save(head(1, state(100)))
    kept.save(head(2, state(100)))
    kept.close()
    old = 10**9
    os.utime(tmp_path / f"{named(1)}.slotprefix", ns=(old, old))
    kept = PrefixDirectory(replace(options(tmp_path), max_age_s=86_400.0), identity="me", build="test 1")
    assert (numbers(kept), kept.removed["expired"]) == ([2], 1)
    kept.close()
    os.utime(tmp_path / f"{named(2)}.slotprefix", ns=(old, old))
    kept = PrefixDirectory(replace(options(tmp_path), max_age_s=None), identity="me", build="test 1")
    assert numbers(kept) == [2]
    kept.close()


def test_unfinished_orphaned_incomplete_and_damaged_files_are_removed(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    for number in (1, 2, 3):
        kept.save(head(number, state(100)))
    missing = kept.heads[named(1)].extents[0].segment
    kept.close()
    (tmp_path / f"{missing}.slotseg").unlink()
    (tmp_path / f"{named(2)}.slotprefix").unlink()
    (tmp_path / "x.slotseg.partial").write_bytes(b"SLOTPFX1")
    (tmp_path / f"{named(9)}.slotprefix").write_bytes(b"SLOTPFX1 and then nothing that makes sense" * 3)
    (tmp_path / "mine.txt").write_text("not a state")
    kept = opened(tmp_path)
    assert numbers(kept) == [3]
    assert kept.removed == {
        "damaged": 1,
        "partial": 1,
        "foreign": 0,
        "expired": 0,
        "incomplete": 1,
        "orphans": 1,
        "over quota": 0,
    }
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".slotprefix", ".slotseg", ".txt"]
    kept.close()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("tokens", 10**30),
        ("tokens", -1),
        ("arrays", [["1/memory", "float32", [10**12, 10**12]]]),
        ("arrays", [["1/memory", "complex64", [1000]]]),
        ("arrays", [["1/memory", "float32", [-1000]]]),
        ("extents", [{"segment": "a", "start": 0, "end": 10**20}]),
        ("extents", [{"segment": "a", "start": 5, "end": 100}]),
        ("extents", "none"),
        ("ancestors", 7),
        ("format", 3),
    ],
)
def test_impossible_numbers_in_a_header_are_damage_not_a_crash(tmp_path: Path, change: str, value: object) -> None:
    """0.2.26: an impossible array length or row range ended the process at every start."""
    kept = opened(tmp_path)
    kept.save(head(1, state(100)))
    kept.close()
    path = tmp_path / f"{named(1)}.slotprefix"
    container = read_container(path)
    header = {key: each for key, each in container.header.items() if key != "payloads"}
    write_container(path, {**header, change: value}, container.read())
    kept = opened(tmp_path)
    assert (numbers(kept), kept.removed["damaged"]) == ([], 1)
    kept.close()


def test_code_that_is_not_installed_has_a_name_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("slotstream_core.persistence.identity.version", missing)
    assert build_name() == "slotstream-core, not installed"
    monkeypatch.setattr("slotstream_core.persistence.identity.version", lambda name: "1.2.3")
    assert "1.2.3" in build_name()


def test_rows_that_a_segment_does_not_have_are_damage(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    kept.save(head(1, state(100)))
    kept.close()
    (path,) = tmp_path.glob("*.slotseg")
    container = read_container(path)
    header = {key: each for key, each in container.header.items() if key != "payloads"}
    write_container(path, {**header, "end": 90}, container.read())
    kept = opened(tmp_path)
    with pytest.raises(StateFileDamaged, match="rows instead of"):
        kept.restore(kept.heads[named(1)], "m")
    assert (numbers(kept), list(tmp_path.glob("*.slot*"))) == ([], [])
    kept.close()


def test_a_file_the_system_refuses_to_read_is_left_alone(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    kept.save(head(1, state(100)))
    kept.close()
    blocked = tmp_path / f"{named(2)}.slotprefix"
    blocked.mkdir()  # reading it fails, for every user
    (tmp_path / "x.slotseg.partial").write_bytes(b"")
    with pytest.raises(InaccessibleFile, match=f"{named(2)}.* it was left as it is") as caught:
        opened(tmp_path)
    assert caught.value.path == blocked
    assert len(list(tmp_path.iterdir())) == 5  # nothing was removed, also not the unfinished file
    blocked.rmdir()
    opened(tmp_path).close()


def test_a_state_that_becomes_unreadable_is_left_alone_too(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_on(tiny_model, options(tmp_path)) as engine:
        ask(engine, ids(600), 1)
        engine.memory.cache.clear()
        (path,) = tmp_path.glob("*.slotprefix")
        path.rename(tmp_path / "aside")
        path.mkdir()
        assert ask(engine, ids(600), 1, persist=False).usage.cached_tokens == 0
        assert "was left as it is" in caplog.text
        assert path.is_dir()


WRITER = """
import sys
from pathlib import Path
from tests.core.kept_states import head, opened, state
kept = opened(Path(sys.argv[1]), quota_bytes=600_000)
print("ready", flush=True)
snapshot = state(50)
for number in range(1, 100_000):
    kept.save(head(number, snapshot, number - 1, continued=True))
    snapshot = state(50 + (number % 20) * 10, snapshot.segments if number % 20 else ())
    print(number, flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_a_directory_that_opens(memory_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for round_number in range(5):
        command = [sys.executable, "-c", WRITER, str(memory_path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert writer.stdout is not None
        for _ in range(2 + 11 * round_number):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        kept = opened(memory_path, quota_bytes=600_000)
        for name in list(kept.heads):
            assert kept.restore(kept.heads[name], "m").length == kept.heads[name].tokens
        used = {f"{extent.segment}.slotseg" for each in kept.heads.values() for extent in each.extents}
        expected = used | {f"{name}.slotprefix" for name in kept.heads} | {".lock"}
        assert {path.name for path in memory_path.iterdir()} == expected
        kept.close()


def test_a_payload_that_changed_or_was_cut_off_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.slotseg"
    payloads = [bytes([number]) * 300_000 for number in range(4)]
    write_container(path, {"kind": "test"}, payloads)
    container = read_container(path)
    assert container.read() == payloads
    assert container.read([2, 0]) == [payloads[2], payloads[0]]
    with path.open("r+b") as file:
        file.seek(container.payloads[2].offset + 5)
        file.write(b"x")
    with pytest.raises(StateFileDamaged, match="payload 2"):
        container.read()
    assert container.read([1]) == [payloads[1]]
    os.truncate(path, container.payloads[1].offset + 9)
    with pytest.raises(StateFileDamaged, match="payload 1"):
        container.read()


def test_writing_that_fails_costs_the_file_only(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slotstream.prefixes")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with engine_on(tiny_model, options(tmp_path)) as engine:
        monkeypatch.setattr(directory_module, "write_container", full)
        assert len(ask(engine, ids(600), 2).token_ids) == 2
        assert "No space left on device" in caplog.text
        outcomes = [json.loads(record.getMessage()) for record in caplog.records if record.levelno == logging.INFO]
        assert [each["outcome"] for each in outcomes if each["event"] == "prefix_disk"] == ["failed"]
    assert scan_directory(tmp_path).byte_count == 0
