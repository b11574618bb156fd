"""Directories of kept states that were tampered with, or that the system refuses: no wrong state, and no crash."""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.engine import load
from slotstream_core.errors import InaccessibleFile, StateFileDamaged
from slotstream_core.events import Finished
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.persistence.container import PARTIAL_SUFFIX, read_container, write_container
from slotstream_core.persistence.directory import PrefixDirectory
from slotstream_core.persistence.scanning import scan_directory
from slotstream_core.testing import write_tiny_model
from slotstream_core.text.messages import ChatMessage
from slotstream_planner import PlanRequest
from tests.core.kept_states import head, named, opened, options, state

DAY_NS = 86_400 * 10**9


def two_states(directory: Path) -> list[Path]:
    """Keep states 1 and 2 of the same length, and return their files."""
    kept = opened(directory)
    for number in (1, 2):
        kept.save(head(number, state(100)))
    kept.close()
    return [directory / f"{named(number)}.slotprefix" for number in (1, 2)]


def swap(one: Path, other: Path) -> None:
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def test_a_state_in_the_place_of_another_is_damage(tmp_path: Path) -> None:
    swap(*two_states(tmp_path))
    kept = opened(tmp_path)
    assert (list(kept.heads), kept.removed["damaged"]) == ([], 2)
    kept.close()


def test_rows_in_the_place_of_others_are_damage(tmp_path: Path) -> None:
    two_states(tmp_path)
    one, other = tmp_path.glob("*.slotseg")
    swap(one, other)
    kept = opened(tmp_path)
    for number in (1, 2):
        with pytest.raises(StateFileDamaged, match="it was written as"):
            kept.restore(kept.heads[named(number)], "m")
    assert not kept.heads
    kept.close()


def test_a_state_that_is_replaced_while_the_directory_is_used_is_damage(tmp_path: Path) -> None:
    first, _ = two_states(tmp_path)
    kept = opened(tmp_path)
    container = read_container(first)
    header = {key: each for key, each in container.header.items() if key != "payloads"}
    write_container(first, {**header, "arrays": [["1/memory", "float32", [500, 2]]]}, container.read())
    with pytest.raises(StateFileDamaged, match="another state"):
        kept.restore(kept.heads[named(1)], "m")
    assert list(kept.heads) == [named(2)]
    kept.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
@pytest.mark.parametrize("suffix", [".slotprefix", ".slotseg", ".slotreply", ".slotseg.partial", ".slotprefix.partial"])
def test_what_is_no_file_is_never_waited_for(tmp_path: Path, suffix: str, make: Callable[[Path], None]) -> None:
    two_states(tmp_path)
    odd = tmp_path / f"{named(9)}{suffix}"
    make(odd)
    if make is os.mkfifo and suffix.endswith(".partial"):
        opened(tmp_path).close()
        assert not odd.exists()  # an unfinished file is removed, whatever it is, if the system can
        return
    with pytest.raises(InaccessibleFile, match=f"{named(9)}.* it was left as it is"):
        opened(tmp_path)
    assert odd.exists()
    odd.rmdir() if odd.is_dir() else odd.unlink()
    opened(tmp_path).close()  # the directory was given back


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", ["tokens", "pass_tokens", "row_bytes", "written_ns"])
def test_numbers_without_end_are_damage(tmp_path: Path, place: str, number: float) -> None:
    path, _ = two_states(tmp_path)
    container = read_container(path)
    header = {key: each for key, each in container.header.items() if key != "payloads"}
    write_container(path, {**header, place: number}, container.read())
    kept = opened(tmp_path)
    assert (list(kept.heads), kept.removed["damaged"]) == ([named(2)], 1)
    kept.close()


def test_an_unfinished_file_that_leads_elsewhere_is_not_written_through(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("not a state")
    path = tmp_path / "x.slotseg"
    (tmp_path / "x.slotseg.partial").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic link"):
        write_container(path, {}, [b"state"])
    assert mine.read_text() == "not a state"


def test_a_directory_that_cannot_be_locked_is_not_said_to_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("slotstream_core.persistence.locking.fcntl.flock", refuse)
    with pytest.raises(InaccessibleFile, match="No locks available"):
        opened(tmp_path)


def test_a_file_that_cannot_be_removed_ends_with_its_name_and_the_directory_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that became read-only."""
    two_states(tmp_path)
    (tmp_path / "x.slotseg.partial").write_bytes(b"")
    plain = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InaccessibleFile, match=r"x\.slotseg\.partial.*Read-only file system"):
        opened(tmp_path)
    monkeypatch.setattr(Path, "unlink", plain)
    kept = opened(tmp_path)
    assert len(kept.heads) == 2
    kept.close()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = time.time_ns()

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("slotstream_core.persistence.directory.time.time_ns", clock)
    return clock


def test_the_order_of_uses_survives_a_clock_that_is_set_back(tmp_path: Path, clock: Clock) -> None:
    kept = opened(tmp_path, quota_bytes=600_000)
    for number in (1, 2, 3):
        kept.save(head(number, state(100, fixed_bytes=100_000)))
        clock.now_ns -= DAY_NS
    for number in (1, 2, 3, 1):
        kept.touch(named(number))
        clock.now_ns -= DAY_NS
    kept.save(head(4, state(100, fixed_bytes=200_000)))
    assert sorted(int(name, 16) for name in kept.heads) == [1, 3, 4]
    kept.close()


def test_states_from_a_time_to_come_grow_old_like_others(tmp_path: Path, clock: Clock) -> None:
    clock.now_ns += 3650 * DAY_NS
    two_states(tmp_path)
    clock.now_ns -= 3650 * DAY_NS
    monthly = replace(options(tmp_path, minimum_tokens=1), max_age_s=30 * 86_400.0)
    kept = PrefixDirectory(monthly, identity="me", build="test 1")
    assert {each.used for each in kept.heads.values()} == {False}
    clock.now_ns += 31 * DAY_NS
    kept.save(head(3, state(100)))
    assert list(kept.heads) == [named(3)]
    kept.close()


def ids(length: int, seed: int = 0) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 256, length)]


def ask(directory: Path, model: Path, prompt: list[int], request: PlanRequest | None = None) -> tuple[int, int, str]:
    """Return a reply's token, how much of its prompt was kept, and whose logits came out, from a new engine."""
    with load(model, request=request) as engine:
        engine.keep_on_disk(options(directory))
        *_, finished = engine.generate(prompt, sampling=GREEDY, max_tokens=1)
        assert isinstance(finished, Finished)
        logits = [each.logits for each in engine.memory.cache.states() if each.logits is not None]
        return finished.token_ids[0], finished.usage.cached_tokens, str(hash(logits[0].tobytes()))


def test_a_state_that_the_model_cannot_go_on_from_is_removed_and_the_prompt_read(
    tiny_model: Path, tmp_path: Path
) -> None:
    cold = ask(tmp_path, tiny_model, ids(600))
    (path,) = tmp_path.glob("*.slotprefix")
    container = read_container(path)
    header = {key: each for key, each in container.header.items() if key != "payloads"}
    name, dtype, shape = header["arrays"][0]
    header["arrays"][0] = [name, dtype, [int(np.prod(shape)), 1]]
    write_container(path, header, container.read())
    assert ask(tmp_path, tiny_model, ids(600)) == cold
    assert ask(tmp_path, tiny_model, ids(600))[1] == 512  # it was written again


def test_a_state_for_another_draft_mode_leaves_the_shared_one_and_the_replies(tmp_path: Path) -> None:
    """0.2.26: a state written again for another setting lost its shared flag and the ids recorded with it."""
    model, kept = write_tiny_model(tmp_path / "model", draft=True), tmp_path / "kept"
    question = [ChatMessage(role="user", content="Where is the fox? " * 50)]
    settings = [PlanRequest(mtp="off"), PlanRequest(mtp="on"), PlanRequest(mtp="off")]
    cached, replies = [], []
    for request in settings:
        with load(model, request=request) as engine:
            engine.keep_on_disk(options(kept))
            prompt = engine.chat_ids(question)
            shared = len(prompt) - 10
            for _ in range(2):  # the second time memory has it, and the file is there
                engine.memory.cache.clear()
                *_, finished = engine.generate(prompt, sampling=GREEDY, max_tokens=2, shared_tokens=shared)
                assert isinstance(finished, Finished)
                engine.memory.finish_writing()
                cached.append(finished.usage.cached_tokens)
        replies.append(len(scan_directory(kept).replies))
    assert [each > 0 for each in cached] == [False, True, False, True, True, True]  # neither goes on from the other's
    content = scan_directory(kept)
    assert [each.shared for each in content.heads.values()] == [True, True]
    assert replies == sorted(replies)
    assert replies[0] > 0


def test_a_state_that_becomes_shared_keeps_everything_else(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    first = state(100)
    kept.save(head(1, first))
    second = state(200, first.segments)
    kept.save(head(2, second, 1, continued=True))
    before = kept.heads[named(2)]
    for shared in (True, False):  # a later turn that does not call it shared takes nothing back
        assert kept.save(head(2, second, 1, shared=shared)) == "present"
    kept.close()
    kept = opened(tmp_path)
    after = kept.heads[named(2)]
    assert after == replace(before, shared=True, used_ns=after.used_ns, byte_count=after.byte_count)
    found = kept.restore(after, "m")
    assert np.array_equal(found.fixed["1/memory"].values, second.fixed["1/memory"].values)
    kept.close()


@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(b"damaged"), Path.unlink], ids=["damaged", "gone"])
def test_a_state_that_becomes_shared_is_written_anew_where_its_file_is_of_no_use(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    kept, own = opened(tmp_path), head(1, state(100))
    kept.save(own)
    harm(tmp_path / f"{named(1)}.slotprefix")
    assert kept.save(replace(own, shared=True)) == "saved"
    assert kept.heads[named(1)].shared
    assert kept.restore(kept.heads[named(1)], "m").length == 100
    kept.close()


def test_a_pipe_where_a_file_is_written_first_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"state{PARTIAL_SUFFIX}")
    with pytest.raises(OSError):
        write_container(tmp_path / "state", {}, [b"bytes"])
    assert not (tmp_path / "state").exists()
