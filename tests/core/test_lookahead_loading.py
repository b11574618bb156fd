"""Loading a model with the lookahead: what the plan charges, what the options leave out, and what a reply reports."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotstream_core import loading
from slotstream_core.checkpoint.corrections import correction_path, write_correction
from slotstream_core.engine import Engine, load
from slotstream_core.errors import PlanError, SettingError
from slotstream_core.events import Finished
from slotstream_core.experts.reading import LanesSwitch
from slotstream_core.experts.slot_memory import HostMemory
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.loading import load_model
from slotstream_core.native.lanes import lane_library
from slotstream_core.options import LOOKAHEAD_VARIABLE, TAP_VARIABLE, EngineOptions
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest
from tests.core.test_lookahead import made_up_correction

SMALL = PlanRequest(experts_per_layer=1, lookahead="on")


@pytest.fixture(scope="module")
def corrected_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_model(tmp_path_factory.mktemp("corrected") / "model")
    write_correction(correction_path(directory), made_up_correction())
    return directory


def reply(engine: Engine) -> Finished:
    *_, last = engine.generate([7, 3, 99, 250], sampling=GREEDY, max_tokens=8)
    assert isinstance(last, Finished)
    return last


def test_a_reply_has_the_same_ids_and_says_what_was_read_ahead(corrected_model: Path) -> None:
    with load(corrected_model, request=replace(SMALL, lookahead="off")) as engine:
        without = reply(engine)
        assert engine.plan.ledger.lookahead_reserve_bytes == 0
    with load(corrected_model, request=SMALL) as engine:
        with_it = reply(engine)
        assert engine.plan.ledger.lookahead_reserve_bytes > 0
    assert with_it.token_ids == without.token_ids
    assert without.experts.ahead_records == 0
    assert with_it.experts.ahead_records > 0
    assert with_it.experts.bytes_read >= with_it.experts.wasted_bytes


def test_a_correction_beside_the_checkpoint_is_used(corrected_model: Path, tiny_model: Path) -> None:
    for directory, corrected in ((corrected_model, True), (tiny_model, False)):
        with load_model(directory, request=SMALL) as loaded:
            assert loaded.forecaster is not None
            assert bool(loaded.forecaster.corrections) is corrected
            at_once = loaded.forecaster.at_once
            assert loaded.forecaster.tap == ("attention" if corrected or at_once else "boundary")
            assert loaded.forecaster.renewed == {0, *loaded.checkpoint.config.ple_layers}


def test_a_damaged_correction_leaves_the_boundary_forecast_and_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_tiny_model(tmp_path / "model")
    path = correction_path(directory)
    write_correction(path, made_up_correction())
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.INFO, "slotstream.core"), load_model(directory, request=SMALL) as loaded:
        assert loaded.forecaster is not None
        assert not loaded.forecaster.corrections
    assert str(path) in caplog.text


def test_the_options_leave_it_out_and_choose_the_tap(corrected_model: Path) -> None:
    with load_model(corrected_model, request=SMALL, options=EngineOptions(lookahead="off")) as loaded:
        assert loaded.forecaster is None
        assert loaded.plan.ledger.lookahead_reserve_bytes == 0
    with load_model(corrected_model, request=SMALL, options=EngineOptions(tap="boundary")) as loaded:
        assert loaded.forecaster is not None
        assert not loaded.forecaster.corrections


def test_the_options_leave_reading_to_python_whatever_is_compiled(
    corrected_model: Path, compiled_code_on: None
) -> None:
    found: dict[LanesSwitch, bytes] = {}
    switches: tuple[LanesSwitch, ...] = ("auto", "python")
    for lanes in switches:
        with load_model(corrected_model, request=SMALL, options=EngineOptions(lanes=lanes)) as loaded:
            compiled = loaded.experts.pool.reader.compiled
            assert compiled == (lanes == "auto" and lane_library(os.environ) is not None)
            found[lanes] = np.array(loaded.model.forward([7, 3, 99, 250], loaded.model.new_state()).logits).tobytes()
    assert found["auto"] == found["python"]


def test_a_plan_that_reserves_too_little_is_refused(corrected_model: Path) -> None:
    with load_model(corrected_model, request=SMALL) as loaded:
        plan = loaded.plan
    short = replace(plan.arrangement, ledger=replace(plan.ledger, lookahead_reserve_bytes=10))
    with pytest.raises(PlanError, match="the plan reserves 10"):
        load_model(corrected_model, replace(plan, arrangement=short))


@pytest.mark.parametrize("apart", [False, True])
def test_lanes_beside_a_device_need_nothing_of_what_the_plan_reserves_there(
    corrected_model: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    memory = HostMemory(apart=apart)
    monkeypatch.setattr(loading, "slot_memory", lambda backend: memory)
    with load_model(corrected_model, request=SMALL) as loaded:
        plan = loaded.plan
        assert loaded.forecaster is not None
        forecasts_bytes = loaded.forecaster.byte_count
    bare = replace(plan.arrangement, ledger=replace(plan.ledger, lookahead_reserve_bytes=forecasts_bytes))
    refused = nullcontext() if apart else pytest.raises(PlanError, match=f"the plan reserves {forecasts_bytes:,}")
    with refused, load_model(corrected_model, replace(plan, arrangement=bare)):
        pass


def test_the_environment_is_read_in_one_place() -> None:
    assert EngineOptions.from_environment({}) == EngineOptions()
    read = EngineOptions.from_environment({LOOKAHEAD_VARIABLE: "0", TAP_VARIABLE: "boundary"})
    assert read == EngineOptions(lookahead="off", tap="boundary")
    with pytest.raises(SettingError, match="SLOTSTREAM_OPT_EXPERT_PREFETCH is 'yes'"):
        EngineOptions.from_environment({LOOKAHEAD_VARIABLE: "yes"})
