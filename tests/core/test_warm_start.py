"""The warm start: what a run leaves for the next, and what the next reads before it is asked."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.errors import SettingError
from slotstream_core.events import Finished
from slotstream_core.experts.slot_memory import Bytes
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.experts.uses import RecordUses, read_uses, uses_path, write_uses
from slotstream_core.experts.warming import THREADS, Warming
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.loading import load_model
from slotstream_core.options import WARM_VARIABLE, EngineOptions
from slotstream_planner import PlanRequest
from tests.core.expert_files import ExpertFile, ScriptedSource
from tests.core.test_pool import assert_slots_hold

pytestmark = pytest.mark.usefixtures("lanes")

ALWAYS = EngineOptions.from_environment({WARM_VARIABLE: "1"})
SMALL = PlanRequest(experts_per_layer=2, lookahead="off")


class HeldSource(ScriptedSource):
    """Lets no read after the first `free` go on before `opened` is set."""

    def __init__(self, stored: ExpertFile, *, free: int) -> None:
        super().__init__(stored.layout())
        self.opened = threading.Event()
        self.reached = threading.Event()
        self._left = free
        self._guard = threading.Lock()

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._guard:
            self._left -= 1
            waits = self._left < 0
        if waits:
            self.reached.set()
            self.opened.wait()
        return super().read(fd, buffers, offset)


def test_records_are_there_before_anybody_asks(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=4, lane_count=2) as experts:
        experts.warm([(0, 1), (1, 4), (0, 5)], budget_s=3600)
        experts.finish_warming()
        assert set(experts.pool.contents()) == {(0, 1), (1, 4), (0, 5)}
        experts.pool.check_integrity()
        lease = experts.request(0, [5, 1])
        lease.wait()
        assert_slots_hold(stored, experts.pool, 0, [5, 1], lease)
        lease.release()
        stats = experts.stats
        assert (stats.hits, stats.misses, stats.bytes_read) == (2, 0, 0)
        assert (stats.warmed, stats.warm_used) == (3, 2)
        assert stats.warm_bytes == 3 * experts.layout.record_bytes


def test_a_warm_start_that_is_told_to_stop_begins_no_read_and_keeps_nobody_waiting(stored: ExpertFile) -> None:
    source = HeldSource(stored, free=0)
    with StreamedExperts(source, slot_count=8, lane_count=2) as experts:
        experts.warm([(layer, expert) for layer in range(2) for expert in range(4)], budget_s=3600)
        source.reached.wait()
        experts.stop_warming()  # while its reads are held
        source.opened.set()
        experts.finish_warming()
        assert experts.stats.warmed < 8
        experts.pool.check_integrity()


def test_the_most_used_records_fill_the_pool_and_go_last(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=3, lane_count=2) as experts:
        experts.warm([(0, 0), (0, 1), (0, 2), (0, 3)], budget_s=3600)
        experts.finish_warming()
        assert set(experts.pool.contents()) == {(0, 0), (0, 1), (0, 2)}
        for expert in (4, 5):
            lease = experts.request(1, [expert])
            lease.wait()
            lease.release()
        assert (0, 0) in experts.pool.contents()
        assert experts.stats.warm_used == 0
        experts.pool.check_integrity()


def test_no_read_begins_after_it_is_stopped(stored: ExpertFile) -> None:
    source = HeldSource(stored, free=0)
    with StreamedExperts(source, slot_count=12, lane_count=2) as experts:
        warming = Warming(experts.pool, [(layer, expert) for layer in range(2) for expert in range(6)], budget_s=3600)
        assert source.reached.wait(240)
        warming.stop()
        source.opened.set()
        warming.settle()
        assert source.read_count <= THREADS
        assert experts.pool.resident_count < 12
        assert experts.pool.lent_count == 0
        experts.pool.check_integrity()


@pytest.mark.parametrize("possible", [0, 1])
def test_threads_that_cannot_be_started_keep_no_slot(
    stored: ExpertFile, possible: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, left = threading.Thread.start, [possible]

    def begin(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=4, lane_count=2) as experts:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(threading.Thread, "start", begin)
            experts.warm([(0, 1), (1, 4), (0, 5)], budget_s=3600)
        experts.finish_warming()
        assert f"filled by {possible} threads instead of 2: can't start new thread" in caplog.text
        assert experts.pool.lent_count == 0
        assert experts.pool.resident_count == (3 if possible else 0)
        lease = experts.request(1, [0, 1, 2, 3])  # every slot can be used
        lease.wait()
        assert_slots_hold(stored, experts.pool, 1, [0, 1, 2, 3], lease)
        lease.release()
        experts.pool.check_integrity()


def test_scratch_that_cannot_be_had_keeps_no_slot(stored: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=4, lane_count=2) as experts:

        def none_left(count: int) -> list[Bytes]:
            raise MemoryError

        monkeypatch.setattr(experts.pool.reader, "extra_scratch", none_left)
        with pytest.raises(MemoryError):
            experts.warm([(0, 1)], budget_s=3600)
        assert experts.pool.lent_count == 0


def test_a_request_meanwhile_gets_its_record(stored: ExpertFile) -> None:
    source = HeldSource(stored, free=0)
    with StreamedExperts(source, slot_count=12, lane_count=2) as experts:
        experts.warm([(layer, expert) for layer in range(2) for expert in range(6)], budget_s=3600)
        assert source.reached.wait(240)
        release = threading.Thread(target=source.opened.set)
        release.start()
        lease = experts.request(1, [3])
        release.join()
        lease.wait()
        assert_slots_hold(stored, experts.pool, 1, [3], lease)
        lease.release()
        assert experts.pool.lent_count == 0
        experts.pool.check_integrity()


def test_no_read_begins_when_the_time_is_over(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=4, lane_count=2) as experts:
        experts.warm([(0, 1), (1, 4)], budget_s=0)
        experts.finish_warming()
        assert source.read_count == 0
        assert experts.pool.resident_count == experts.pool.lent_count == 0
        experts.pool.check_integrity()


def test_a_resident_record_is_not_read_again(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=4, lane_count=2) as experts:
        lease = experts.request(0, [1])
        lease.wait()
        lease.release()
        experts.warm([(0, 1), (0, 2), (0, 2)], budget_s=3600)
        experts.finish_warming()
        assert experts.stats.warmed == 1
        assert set(experts.pool.contents()) == {(0, 1), (0, 2)}


def test_a_pool_that_is_being_filled_can_be_resized_and_closed(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=4, lane_count=2) as experts:
        experts.warm([(0, 1), (1, 4)], budget_s=3600)
        experts.resize(6)
        experts.pool.check_integrity()
        experts.warm([(0, 2)], budget_s=3600)
    experts.pool.check_integrity()


def test_older_uses_count_half_and_equal_ones_go_by_id(stored: ExpertFile, tmp_path: Path) -> None:
    layout = stored.layout()
    path = uses_path(tmp_path / "warm", layout)
    earlier = RecordUses(counts=(0, 9, 0, 2, *[0] * 8))
    assert write_uses(path, earlier.plus([0, 0, 0, 3, *[0] * 7, 4]))
    kept = read_uses(path, layout)
    assert kept is not None
    assert kept.most_used(layout.expert_count) == [(0, 1), (0, 3), (1, 5)]
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"format": 2, "uses": []}',
        b'{"format": 1, "uses": 3}',
        b'{"format": 1, "uses": [[12, 1]]}',
        b'{"format": 1, "uses": [[0, -1]]}',
        b'{"format": 1, "uses": [[0, true]]}',
        b'{"format": 1, "uses": [[0]]}',
        b" " * (1 << 22),
        b"\xff\xfe",
    ],
    ids=range(12),
)
def test_a_damaged_file_is_no_file_and_a_line_in_the_log(
    content: bytes, stored: ExpertFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "uses.json"
    path.write_bytes(content)
    with caplog.at_level(logging.INFO, logger="slotstream.experts"):
        assert read_uses(path, stored.layout()) is None
    assert "is damaged" in caplog.text


def test_a_file_that_cannot_be_written_is_a_line_in_the_log(
    stored: ExpertFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "warm").write_text("a file where the directory belongs")
    with caplog.at_level(logging.INFO, logger="slotstream.experts"):
        assert not write_uses(tmp_path / "warm" / "uses.json", RecordUses(counts=(1,) * 12))
    assert "cannot be written" in caplog.text


def reply(engine: Engine) -> Finished:
    *_, last = engine.generate([7, 3, 99, 250], sampling=GREEDY, max_tokens=8)
    assert isinstance(last, Finished)
    return last


def test_the_next_start_has_what_the_last_used_and_answers_the_same(tiny_model: Path, tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    with load(tiny_model, request=SMALL, warm_directory=warm) as engine:
        cold = reply(engine)
    (file,) = warm.iterdir()
    assert json.loads(file.read_text())["uses"]
    with load_model(tiny_model, request=SMALL, options=ALWAYS, warm_directory=warm) as loaded:
        loaded.experts.finish_warming()
        assert loaded.experts.stats.warmed == loaded.experts.pool.slot_count
    with load(tiny_model, request=SMALL, warm_directory=warm) as engine:
        assert reply(engine).token_ids == cold.token_ids


def test_nothing_is_kept_without_use_or_when_switched_off(tiny_model: Path, tmp_path: Path) -> None:
    with load_model(tiny_model, request=SMALL, warm_directory=tmp_path / "unused"):
        pass
    assert not (tmp_path / "unused").exists()
    off = EngineOptions.from_environment({WARM_VARIABLE: "0"})
    assert off.warm_start == "off"
    with load_model(tiny_model, request=SMALL, options=off, warm_directory=tmp_path / "off") as loaded:
        lease = loaded.experts.request(0, [0])
        lease.wait()
        lease.release()
    assert not (tmp_path / "off").exists()
    with pytest.raises(SettingError, match=f"{WARM_VARIABLE} is 'no'"):
        EngineOptions.from_environment({WARM_VARIABLE: "no"})


def test_a_pool_of_less_than_half_the_experts_starts_cold_unless_told(tiny_model: Path, tmp_path: Path) -> None:
    for options, warms in ((EngineOptions(), False), (ALWAYS, True)):
        warm = tmp_path / options.warm_start
        for _ in range(2):
            with load_model(tiny_model, request=SMALL, options=options, warm_directory=warm) as loaded:
                loaded.experts.finish_warming()
                assert 2 * loaded.experts.pool.slot_count < loaded.experts.layout.record_count
                brought = loaded.experts.stats.warmed
                lease = loaded.experts.request(0, [0])
                lease.wait()
                lease.release()
        assert bool(brought) is warms
