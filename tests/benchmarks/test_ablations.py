"""The engines that ablations compare, and how their answers become figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.offline.ablation_engine import Measured, Opened, Way
from benchmarks.offline.ablations import COPY, Mechanism, judge, write_copy
from slotstream_core.experts.sources import close_files, open_past_cache
from slotstream_core.testing import write_tiny_model

PROMPT = list(range(40, 60))


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Way:
    model = write_tiny_model(tmp_path_factory.mktemp("ablations") / "model")
    return Way(model=str(model), experts_per_layer=8)


def answered(way: Way) -> Measured:
    with Opened(way) as opened:
        opened.answer(PROMPT, 4)
        return opened.answer(PROMPT, 4)


def test_every_way_gives_the_same_ids_and_its_own_counters(way: Way, tmp_path: Path) -> None:
    plain = answered(way)
    ahead = answered(replace(way, lookahead="on"))
    direct = answered(replace(way, direct=True))
    warm = replace(way, warm_directory=str(tmp_path))
    answered(warm)
    warmed = answered(warm)
    write_copy(Path(way.model), tmp_path)
    packed = replace(way, model=str(tmp_path / COPY))
    others = [
        packed,
        replace(packed, records="off"),
        replace(way, mirror=packed.model),
        replace(way, lanes="python"),
    ]
    assert {plain.ids} == {ahead.ids, direct.ids, warmed.ids, *(answered(other).ids for other in others)}
    assert ahead.ahead_records > plain.ahead_records == 0
    assert warmed.warmed > plain.warmed == 0
    assert plain.requests > 0
    assert plain.prompt_tokens == len(PROMPT)


def test_reads_go_past_the_page_cache_only_in_the_way_that_says_so(way: Way) -> None:
    opened = open_past_cache(sorted(Path(way.model).glob("*.safetensors")))
    close_files(list(opened.values()))
    with Opened(way) as cached, Opened(replace(way, direct=True)) as direct:
        assert not cached.direct
        assert direct.direct == bool(opened)


def test_rates_are_of_the_part_that_is_compared_and_counters_a_token_of_it(way: Way) -> None:
    measured = Measured(
        ids=(1, 2, 3, 4, 5),
        prompt_tokens=100,
        prefill_s=2.0,
        decode_s=4.0,
        processor_s=3.0,
        hits=6,
        misses=2,
        wait_s=1.0,
    )
    values: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    mechanism = Mechanism(name="m", on=way, off=way, prompts=["a"], tokens=4)
    judge(mechanism, [(measured, replace(measured, decode_s=8.0))], values, rows)
    assert (values["m on tokens_per_s"], values["m off tokens_per_s"]) == (1.0, 0.5)
    assert values["m on wait_s_per_token"] == 0.25
    assert values["m equal_ids_share"] == 1.0
    assert rows[0][2] == "2.000"
    assert rows[0][4] == "75.0%"
    judge(replace(mechanism, timed="prompt"), [(measured, measured)], values, rows)
    assert values["m on tokens_per_s"] == 50.0
