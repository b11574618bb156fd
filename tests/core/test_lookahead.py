"""The decode lookahead: forecasts change what is read early, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.corrections import (
    CORRECTION_PATH,
    Correction,
    correction_path,
    read_correction,
    write_correction,
)
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CorrectionUnusable, ExpertReadError
from slotstream_core.experts import ExpertLayout, StreamedExperts
from slotstream_core.experts.confidence import Logits
from slotstream_core.experts.lookahead import FOLLOWED_PASSES, Lookahead, LookaheadSettings
from slotstream_core.experts.trials import BLOCK, BLOCKS, KEPT, TURN, Trial
from slotstream_core.models.qwen4_exp.forecasting import Forecaster, TargetCorrection
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from slotstream_core.native.binding import library_path
from slotstream_core.options import Tap
from tests.core.expert_files import ScriptedSource
from tests.core.qwen4_exp_models import exact_backend, open_model
from tests.core.test_tickets import finish_reads

LAYERS, HIDDEN, EXPERTS, TOP = 4, 64, 16, 4
STREAMS = 4
PROMPT = [7, 3, 99, 250, 18, 5]


@contextmanager
def open_ahead(
    directory: Path,
    *,
    slots: int,
    correction: Correction | None = None,
    tap: Tap | None = None,
    reads_ahead: bool = True,
) -> Iterator[tuple[Qwen4ExpModel, StreamedExperts, ScriptedSource]]:
    backend = exact_backend()
    with Checkpoint.open(directory) as checkpoint:
        modules = expert_modules(checkpoint.config)
        source = ScriptedSource(ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name))
        with (
            StreamedExperts(source, slot_count=slots, lane_count=2, ahead_lane_count=1) as experts,
            Qwen4ExpModel(checkpoint, experts, backend) as model,
        ):
            if reads_ahead:
                lookahead = Lookahead(experts.pool, top=TOP, mode="on")
                model.look_ahead(Forecaster(model.layers, lookahead, backend, correction=correction, tap=tap))
            yield model, experts, source
            assert experts.pool.ticket_count == 0
            experts.pool.check_integrity()


@pytest.fixture
def read_ahead_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a forecast names in place before anything else happens, however late the lane runs that reads it."""
    foresee = Lookahead.foresee

    def awaited(self: Lookahead, target: int, logits: Logits, *, distance: int) -> int:
        issued = foresee(self, target, logits, distance=distance)
        finish_reads(self._pool)
        return issued

    monkeypatch.setattr(Lookahead, "foresee", awaited)


def decode(model: Qwen4ExpModel, steps: int) -> tuple[list[int], mx.array]:
    """Greedy ids after the prompt and the logits of every step."""
    state = model.new_state()
    rows = [model.forward(PROMPT, state).logits]
    ids: list[int] = []
    for _ in range(steps):
        ids.append(int(np.argmax(np.asarray(rows[-1][-1]))))
        rows.append(model.forward(ids[-1:], state, decode=True).logits)
    return ids, mx.concatenate(rows)


def made_up_correction(rank: int = 8, seed: int = 0) -> Correction:
    random = np.random.default_rng(seed)
    targets = LAYERS - 1
    return Correction(
        a=random.normal(0, 0.1, (targets, HIDDEN, rank)).astype(np.float16),
        b=random.normal(0, 0.1, (targets, rank, EXPERTS)).astype(np.float16),
        mu=random.normal(0, 0.1, (targets, HIDDEN)).astype(np.float32),
        delta=random.normal(0, 0.1, (targets, EXPERTS)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> tuple[list[int], mx.array]:
    """Ids and logits of the model with every expert in memory."""
    with open_model(tiny_model) as resident:
        return decode(resident, 6)


@pytest.mark.parametrize("slots", [8, 16, 22, 48, 63, 64])
def test_ids_and_logits_are_the_same_with_any_forecast_and_with_none(
    tiny_model: Path, expected: tuple[list[int], mx.array], slots: int
) -> None:
    wanted_ids, wanted = expected
    forecasts: list[tuple[Correction | None, Tap | None]] = [
        (None, None),
        (None, "attention"),
        (made_up_correction(), None),
        (made_up_correction(), "boundary"),
    ]
    for correction, tap in forecasts:
        with open_ahead(tiny_model, slots=slots, correction=correction, tap=tap) as (model, experts, _):
            ids, logits = decode(model, 6)
            assert ids == wanted_ids
            assert mx.array_equal(logits, wanted)
            reads_ahead = 16 <= slots < LAYERS * EXPERTS
            assert not reads_ahead or experts.stats.ahead_records > 0


@pytest.mark.usefixtures("read_ahead_in_time")
def test_a_good_forecast_turns_misses_into_hits(tiny_model: Path) -> None:
    traffic = []
    for reads_ahead in (False, True):
        with open_ahead(tiny_model, slots=24, tap="attention", reads_ahead=reads_ahead) as (model, experts, _):
            decode(model, 12)
            traffic.append(experts.stats)
    without, with_it = traffic
    assert without.ahead_records == 0
    assert with_it.misses < without.misses
    assert with_it.ahead_used + with_it.ahead_joined > 0
    assert with_it.bytes_read >= with_it.ahead_bytes >= with_it.wasted_bytes


def test_nothing_is_read_ahead_while_a_prompt_is_read(tiny_model: Path) -> None:
    with open_ahead(tiny_model, slots=24) as (model, experts, _):
        state = model.new_state()
        for token in PROMPT:
            model.forward([token], state)
        assert experts.stats.ahead_records == 0


def test_a_failed_read_costs_one_pass_and_leaves_no_ticket(
    tiny_model: Path, expected: tuple[list[int], mx.array]
) -> None:
    with open_ahead(tiny_model, slots=24) as (model, experts, source):
        state = model.new_state()
        token = int(np.argmax(np.asarray(model.forward(PROMPT, state).logits[-1])))
        source.short |= {(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)}
        with pytest.raises(ExpertReadError):
            model.forward([token], state, decode=True)
        assert experts.pool.ticket_count == 0
        experts.pool.check_integrity()
        source.short.clear()
        assert decode(model, 6)[0] == expected[0]


def test_a_forecast_that_is_never_right_soon_reads_nothing(tiny_model: Path) -> None:
    with open_ahead(tiny_model, slots=32, reads_ahead=False) as (_, experts, _):
        lookahead = Lookahead(experts.pool, top=TOP, mode="on")
        logits = np.arange(EXPERTS, dtype=np.float32)[None]  # names the last four
        issued = []
        for _ in range(40):
            assert lookahead.begin_pass(1)
            issued.append(lookahead.foresee(1, logits, distance=1))
            lookahead.requested(1, np.arange(TOP))
            lookahead.end_pass(completed=True)
        assert issued[0] == TOP
        assert issued[-1] == 0
        assert experts.stats.ahead_wasted == sum(issued)
        for target, distance in ((1, 0), (2, 1)):  # another kind of forecast, another layer
            assert lookahead.begin_pass(1)
            assert lookahead.foresee(target, logits, distance=distance) == TOP
            lookahead.end_pass(completed=True)


@pytest.mark.skipif(library_path() is None, reason="installed without a compiler")
@pytest.mark.parametrize("tap", ["boundary", "attention"])
@pytest.mark.usefixtures("read_ahead_in_time")
def test_layers_computed_at_once_are_forecast_from_the_first_on(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tap: Tap
) -> None:
    monkeypatch.setenv("SLOTSTREAM_NATIVE", "1")
    forecasts: list[tuple[int, int]] = []
    foresee = Lookahead.foresee

    def noting(self: Lookahead, target: int, logits: np.ndarray, *, distance: int) -> int:
        forecasts.append((target, distance))
        return foresee(self, target, logits, distance=distance)

    with open_ahead(tiny_model, slots=24, tap=tap) as (model, experts, _):
        if not all(layer.at_once for layer in model.layers):
            pytest.skip("the compiled layers do not run here")
        without = decode(model, 3)[0]
        monkeypatch.setattr(Lookahead, "foresee", noting)
        assert decode(model, 3)[0] == without
        wanted = [(0, 0), (1, 1), (2, 1), (3, 1)]
        assert forecasts == wanted * 3
        assert experts.stats.ahead_used + experts.stats.ahead_joined > 0


@pytest.mark.skipif(library_path() is None, reason="installed without a compiler")
def test_a_forecast_in_one_call_says_what_the_layers_parts_say(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTSTREAM_NATIVE", "1")
    random = np.random.default_rng(3)
    with open_ahead(tiny_model, slots=24, correction=made_up_correction()) as (model, _, _):
        if not all(layer.at_once for layer in model.layers):
            pytest.skip("the compiled layers do not run here")
        backend = Backend(kind="cpu", compute_dtype=mx.float32)
        for rows in (1, 3, 40):  # the last goes through the parts itself
            for target, layer in enumerate(model.layers):
                streams = random.normal(size=(rows, STREAMS, HIDDEN)).astype(np.float32)
                mixed = np.asarray(layer.expert_input(mx.array(streams)))
                plain = np.asarray(layer.router_logits(mx.array(mixed)))
                own = layer.forecast_at_once(None)
                assert own is not None
                assert np.allclose(own(streams), plain, atol=1e-5)
                if target:
                    correction = TargetCorrection(made_up_correction(), target - 1, backend)
                    corrected = layer.forecast_at_once(correction)
                    assert corrected is not None
                    assert np.allclose(corrected(streams), correction.apply_on_host(mixed, plain), atol=2e-3)


@pytest.mark.skipif(library_path() is None, reason="installed without a compiler")
@pytest.mark.usefixtures("read_ahead_in_time")
def test_a_large_dense_router_is_read_by_forecasts_as_a_quarter_of_its_bytes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTSTREAM_NATIVE", "1")
    random = np.random.default_rng(3)
    with open_ahead(tiny_model, slots=24) as (model, _, _):
        if not all(layer.at_once for layer in model.layers):
            pytest.skip("the compiled layers do not run here")
        assert [layer.forecast_bytes for layer in model.layers] == [0] * LAYERS
        without, exact = decode(model, 6)
    monkeypatch.setattr("slotstream_core.models.qwen4_exp.eager.forecast.COMPACT_VALUES", EXPERTS * HIDDEN)
    with open_ahead(tiny_model, slots=24) as (model, experts, _):
        assert [layer.forecast_bytes for layer in model.layers] == [EXPERTS * (HIDDEN + 8)] * LAYERS
        for layer in model.layers:
            streams = random.normal(size=(2, STREAMS, HIDDEN)).astype(np.float32)
            plain = np.asarray(layer.router_logits(layer.expert_input(mx.array(streams))))
            forecast = layer.forecast_at_once(None)
            assert forecast is not None
            logits = forecast(streams)
            assert np.allclose(logits, plain, atol=0.02 * np.abs(plain).max())
            assert not np.array_equal(logits, plain)
        ids, logits_of_steps = decode(model, 6)
        assert ids == without
        assert np.array_equal(np.asarray(logits_of_steps), np.asarray(exact))  # decisions are the exact router's
        assert experts.stats.ahead_used + experts.stats.ahead_joined > 0


def test_the_published_settings_are_reproduced_and_scale_down() -> None:
    published = LookaheadSettings.scaled(experts=512, top=10, slots=640)
    assert (published.candidates, published.issue_limit, published.least_share) == (24, 32, 2 / 3)
    assert (published.limits.reserved, published.limits.in_flight, published.limits.spare) == (64, 32, 256)
    small = LookaheadSettings.scaled(experts=64, top=6, slots=64)
    assert (small.candidates, small.limits.reserved, small.limits.spare) == (15, 8, 32)


def test_a_correction_moves_logits_as_documented() -> None:
    correction = made_up_correction()
    random = np.random.default_rng(1)
    m, z = random.normal(size=(3, HIDDEN)).astype(np.float32), random.normal(size=(3, EXPERTS)).astype(np.float32)
    device = Backend(kind="metal", compute_dtype=mx.float32)
    applied = TargetCorrection(correction, 1, device).apply(mx.array(m), mx.array(z))
    u = (m - correction.mu[1]).astype(np.float16).astype(np.float64)
    wanted = z + u @ correction.a[1].astype(np.float64) @ correction.b[1].astype(np.float64) + correction.delta[1]
    assert np.allclose(np.asarray(applied), wanted, atol=2e-3)
    on_host = TargetCorrection(correction, 1, Backend(kind="cpu", compute_dtype=mx.float32)).apply_on_host(m, z)
    assert np.allclose(on_host, wanted, atol=2e-3)


def test_a_correction_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = correction_path(tmp_path)
    correction = made_up_correction()
    write_correction(path, correction)
    assert path == tmp_path / "lookahead" / CORRECTION_PATH.name
    found = read_correction(path, layers=LAYERS, hidden=HIDDEN, experts=EXPERTS)
    for name in ("a", "b", "mu", "delta"):
        assert np.array_equal(getattr(found, name), getattr(correction, name))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        assert file.metadata() == {"schema": "slotstream-tap-correction-v1", "tap": "attention", "first_target": "1"}
        assert file.get_tensor("targets").tolist() == [1, 2, 3]


def damaged(data: bytes, how: str) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    match how:
        case "empty":
            return b""
        case "cut":
            return data[:-1]
        case "header too large":
            return (16 * 2**20).to_bytes(8, "little") + data[8:]
        case "header not JSON":
            return data[:8] + b"[" * size + bytes(body)
        case "header a list":
            return data[:8] + b"[]".ljust(size) + bytes(body)
        case "other tap":
            header["__metadata__"]["tap"] = "boundary"
        case "no metadata":
            del header["__metadata__"]
        case "tensor missing":
            del header["mu"]
        case "other dtype":
            header["a"]["dtype"] = "BF16"
        case "negative shape":
            header["a"]["shape"][0] *= -1
        case "wrong targets":
            start = header["targets"]["data_offsets"][0]
            body[start] = 9
        case "not finite":
            start = header["delta"]["data_offsets"][0]
            body[start : start + 4] = np.float32(np.nan).tobytes()
        case "outside the file":
            header["b"]["data_offsets"] = [offset + 10**9 for offset in header["b"]["data_offsets"]]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


DAMAGE = (
    "empty",
    "cut",
    "header too large",
    "header not JSON",
    "header a list",
    "other tap",
    "no metadata",
    "tensor missing",
    "other dtype",
    "negative shape",
    "wrong targets",
    "not finite",
    "outside the file",
)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_correction_is_refused_with_its_path(tmp_path: Path, how: str) -> None:
    path = correction_path(tmp_path)
    write_correction(path, made_up_correction())
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(CorrectionUnusable, match="lookahead"):
        read_correction(path, layers=LAYERS, hidden=HIDDEN, experts=EXPERTS)


@pytest.mark.parametrize(("name", "value"), [("layers", 5), ("hidden", 32), ("experts", 8)])
def test_a_correction_for_another_model_is_refused(tmp_path: Path, name: str, value: int) -> None:
    path = correction_path(tmp_path)
    write_correction(path, made_up_correction())
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "experts": EXPERTS, name: value}
    with pytest.raises(CorrectionUnusable, match="this model needs"):
        read_correction(path, **sizes)


def run_trial(trial: Trial, *, on_s: float, off_s: float, passes: int) -> list[bool]:
    arms = []
    for _ in range(passes):
        arms.append(trial.next_arm())
        trial.record(on_s if arms[-1] else off_s, on=arms[-1])
    return arms


@pytest.mark.parametrize(("on_s", "verdict"), [(0.90, True), (0.99, False), (1.1, False)])
def test_a_trial_keeps_reading_ahead_only_where_it_is_faster(on_s: float, verdict: bool) -> None:
    trial = Trial()
    first = run_trial(trial, on_s=on_s, off_s=1.0, passes=BLOCK * BLOCKS)
    assert first.count(True) == first.count(False)
    assert trial.verdict is verdict
    assert run_trial(trial, on_s=on_s, off_s=1.0, passes=KEPT) == [verdict] * KEPT
    again = run_trial(trial, on_s=1.0, off_s=on_s, passes=BLOCK * BLOCKS)  # things changed
    assert set(again) == {True, False}
    assert trial.verdict is (on_s > 1.02)


@pytest.mark.parametrize(("on_s", "verdict"), [(0.5, True), (1.5, False)])
def test_a_trial_ends_early_where_one_way_is_clearly_slower(on_s: float, verdict: bool) -> None:
    trial = Trial()
    tried = run_trial(trial, on_s=on_s, off_s=1.0, passes=BLOCK * TURN)
    assert tried.count(True) == tried.count(False)
    assert trial.verdict is verdict
    assert run_trial(trial, on_s=on_s, off_s=1.0, passes=KEPT) == [verdict] * KEPT
    assert set(run_trial(trial, on_s=1.0, off_s=1.0, passes=BLOCK * TURN)) == {True, False}


def test_a_single_slow_pass_ends_no_trial() -> None:
    trial = Trial()
    run_trial(trial, on_s=1.0, off_s=1.0, passes=1)
    trial.record(100.0, on=True)
    run_trial(trial, on_s=1.0, off_s=1.0, passes=BLOCK * TURN - 2)
    assert trial.verdict is None


def test_passes_of_other_numbers_of_rows_follow_the_first_trial_and_are_tried_when_they_are_many(
    tiny_model: Path,
) -> None:
    now = iter(float(n) for n in range(10**6))
    with open_ahead(tiny_model, slots=24, reads_ahead=False) as (_, experts, _):
        lookahead = Lookahead(experts.pool, top=TOP, clock=lambda: next(now))

        def passes(rows: int, count: int) -> list[tuple[bool, bool]]:
            seen = []
            for _ in range(count):
                active = lookahead.begin_pass(rows)
                seen.append((active, lookahead.trying))
                lookahead.end_pass(completed=True)
            return seen

        assert passes(1, 8) == [(True, True)] * 4 + [(False, False)] * 4
        assert passes(3, FOLLOWED_PASSES) == [(False, False)] * FOLLOWED_PASSES
        assert lookahead.verdicts == {1: None}
        assert passes(3, 1) == [(True, True)]
        assert lookahead.verdicts == {1: None, 3: None}
