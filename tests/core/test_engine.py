"""The engine as an app uses it: load, generate, stop, fail, go on."""

import gc
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from slotstream_core.backend import Backend
from slotstream_core.engine import load
from slotstream_core.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    ContextLengthExceeded,
    DeviceHung,
    EmptyPrompt,
    EngineBusy,
    ExpertReadError,
    GenerationCancelled,
    PlanError,
    RequestError,
    SlotstreamError,
    TemplateError,
    TokenizerError,
    UnsupportedModel,
)
from slotstream_core.events import Finished, GenerationEvent, PromptProgress, TextDelta, ThinkingDelta
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY, SamplingParams
from slotstream_core.loading import plan_here
from slotstream_core.text.messages import ChatMessage
from slotstream_core.turns import ReplyTurn
from slotstream_planner import InsufficientMemory, InvalidRequest, Machine, ModelGeometry, PlanRequest, plan

PROMPT = "Tell me about slots."


def last(events: Iterable[GenerationEvent]) -> Finished:
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished


def text_of(events: Iterable[GenerationEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_generation_reports_progress_text_and_its_end(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        events = list(engine.generate(PROMPT, sampling=GREEDY, max_tokens=12))
    progress = [event for event in events if isinstance(event, PromptProgress)]
    finished = last(events)
    assert progress[-1].done_tokens == progress[-1].total_tokens == finished.usage.prompt_tokens
    assert finished.usage.completion_tokens == len(finished.token_ids) <= 12
    assert finished.experts.misses > 0
    assert finished.experts.bytes_read > 0
    assert text_of(events) == engine.tokenizer.decode(finished.token_ids)


@pytest.mark.parametrize("per_layer", [8, 9, 12, 16])
def test_ids_do_not_depend_on_how_many_experts_fit(tiny_model: Path, per_layer: int) -> None:
    with load(tiny_model) as engine:
        expected = last(engine.generate(PROMPT, sampling=SamplingParams(seed=5), max_tokens=24)).token_ids
    with load(tiny_model, request=PlanRequest(experts_per_layer=per_layer)) as engine:
        again = last(engine.generate(PROMPT, sampling=SamplingParams(seed=5), max_tokens=24)).token_ids
        warm = last(engine.generate(PROMPT, sampling=SamplingParams(seed=5), max_tokens=24)).token_ids
    assert again == warm == expected


def test_an_app_may_bring_its_own_plan(tiny_model: Path) -> None:
    mine = plan_here(tiny_model, Backend.detect(), PlanRequest(experts_per_layer=16))
    with load(tiny_model, mine) as engine:
        assert engine.plan is mine


def test_a_simulated_plan_is_never_loaded(tiny_model: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(tiny_model, compute="float32")
    invented = plan(geometry, Machine.simulated(ram_gb=64), PlanRequest())
    with pytest.raises(PlanError, match="simulated"):
        load(tiny_model, invented)


def test_a_plan_for_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    from slotstream_core.testing import write_tiny_model

    other = write_tiny_model(tmp_path / "other", {"num_experts": 8})
    wrong = plan(ModelGeometry.from_checkpoint(other, compute="float32"), Machine.current(), PlanRequest())
    with pytest.raises(PlanError, match="plan again"):
        load(tiny_model, wrong)


def test_a_conversation_and_its_text_give_the_same_prompt(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        assert engine.chat_ids("hi") == engine.chat_ids([ChatMessage(role="user", content="hi")])


def test_thinking_is_told_apart_from_the_answer(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        events = list(engine.generate("hi", sampling=GREEDY, max_tokens=8, thinking=True))
    assert any(isinstance(event, ThinkingDelta) for event in events)
    assert text_of(events) == ""  # random weights never close the block
    assert last(events).usage.thinking_tokens == 8


def test_no_tokens_and_too_many_tokens_are_refused_before_anything_runs(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        with pytest.raises(EmptyPrompt):
            engine.generate([])
        with pytest.raises(ContextLengthExceeded, match="4,096") as caught:
            engine.generate([1] * engine.window_tokens)
        assert caught.value.prompt_tokens == engine.window_tokens
        with pytest.raises(RequestError, match="outside the vocabulary"):
            engine.generate([10**6])


def test_what_is_neither_a_message_nor_a_token_id_is_refused_and_not_left_out(tiny_model: Path) -> None:
    message = ChatMessage(role="user", content="Hello")
    with load(tiny_model) as engine:
        rows = np.array([[5, 6, 7]])  # as other libraries hold ids
        for prompt in (
            [{"role": "user", "content": "Hello"}],
            [message, {"role": "user"}],
            [message, 5],
            [5, 1.5],
            rows,
        ):
            with pytest.raises(RequestError, match="of the prompt is a"):
                engine.generate(prompt)  # type: ignore[arg-type]
        ids = np.array([5, 6, 7], np.uint16)
        expected = last(engine.generate([5, 6, 7], sampling=GREEDY, max_tokens=4))
        assert last(engine.generate(list(ids), sampling=GREEDY, max_tokens=4)).token_ids == expected.token_ids


def test_max_tokens_of_zero_means_as_many_as_fit(tiny_model: Path) -> None:
    with load(tiny_model, request=PlanRequest(max_context=40)) as engine:
        finished = last(engine.generate([5] * 30, sampling=SamplingParams(seed=1), max_tokens=0))
    assert finished.usage.prompt_tokens + finished.usage.completion_tokens <= 40
    assert finished.reason in ("length", "stop")


def test_a_cancelled_generation_leaves_the_engine_usable(tiny_model: Path) -> None:
    cancel = CancelToken()
    with load(tiny_model) as engine:
        events = engine.generate(PROMPT, sampling=GREEDY, max_tokens=50, cancel=cancel)
        next(events)
        cancel.cancel()
        with pytest.raises(GenerationCancelled):
            list(events)
        assert last(engine.generate(PROMPT, sampling=GREEDY, max_tokens=3)).usage.completion_tokens == 3


def test_a_reply_that_said_enough_ends_with_its_usage(tiny_model: Path) -> None:
    cancel = CancelToken()
    with load(tiny_model) as engine:
        events = []
        for event in engine.generate(PROMPT, sampling=GREEDY, max_tokens=50, cancel=cancel):
            events.append(event)
            if isinstance(event, TextDelta):
                cancel.finish()
    finished = last(events)
    assert finished.reason == "stop"
    assert finished.usage.completion_tokens == len(finished.token_ids) < 50


def test_a_long_prompt_is_read_in_passes_of_the_planned_size(tiny_model: Path) -> None:
    with load(tiny_model, request=PlanRequest(prefill_chunk=256)) as engine:
        events = list(engine.generate([5] * 700, sampling=GREEDY, max_tokens=1))
    assert [event.done_tokens for event in events if isinstance(event, PromptProgress)] == [0, 256, 512, 700]


def test_a_second_generation_is_refused_until_the_first_is_closed(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        first = engine.generate(PROMPT, max_tokens=5)
        next(first)
        with pytest.raises(EngineBusy):
            next(engine.generate(PROMPT, max_tokens=5))
        first.close()  # type: ignore[attr-defined]
        next(engine.generate(PROMPT, max_tokens=5))


def test_a_device_that_hangs_ends_the_engine_at_once_and_for_good(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def hang(*arguments: object, **options: object) -> Iterator[object]:
        asked.append(1)
        raise DeviceHung("the GPU has not answered for 60 s")

    with load(tiny_model) as engine:
        monkeypatch.setattr(ReplyTurn, "read_prompt", hang)
        for _ in range(2):
            with pytest.raises(DeviceHung, match="not answered for 60 s"):
                list(engine.generate(PROMPT, max_tokens=5))
        for wait in (False, True):  # nobody resizes its pool
            with pytest.raises(DeviceHung):
                engine.held(wait=wait)
    assert len(asked) == 1


def test_a_stop_string_ends_the_reply_before_it(tiny_model: Path) -> None:
    with load(tiny_model) as engine:
        whole = text_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=20))
        stop = whole[5:7]
        events = list(engine.generate(PROMPT, sampling=GREEDY, max_tokens=20, stop=[stop]))
    assert text_of(events) == whole[: whole.index(stop)]
    assert last(events).reason == "stop_string"
    assert last(events).stop_string == stop


def expert_shard(directory: Path) -> Path:
    """The shard of a checkpoint that holds an expert tensor."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return directory / next(file for name, file in names.items() if "switch_mlp" in name)
    return directory / "model.safetensors"


def test_a_failed_read_fails_one_request_and_the_next_one_reads_again(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    shards = sorted(copy.glob("*.safetensors"))
    whole = {shard: shard.read_bytes() for shard in shards}
    with load(copy, request=PlanRequest(experts_per_layer=8)) as engine:
        expected = last(engine.generate(PROMPT, sampling=GREEDY, max_tokens=6)).token_ids
        engine._loaded.experts.resize(engine.plan.pool_slots)
        for shard in shards:
            os.truncate(shard, 4096)  # the file shrinks under the open engine
        with pytest.raises(ExpertReadError, match=r"safetensors"):
            list(engine.generate("other words", sampling=GREEDY, max_tokens=30))
        engine._loaded.experts.pool.check_integrity()
        for shard, content in whole.items():
            with shard.open("r+b") as stream:
                stream.write(content)
        assert last(engine.generate(PROMPT, sampling=GREEDY, max_tokens=6)).token_ids == expected


def damaged(tiny_model: Path, directory: Path) -> Path:
    shutil.copytree(tiny_model, directory)
    return directory


def test_every_way_a_directory_can_be_wrong_is_a_typed_error(tiny_model: Path, tmp_path: Path) -> None:
    cases: list[tuple[type[SlotstreamError], Path]] = [(CheckpointMissing, tmp_path / "nowhere")]
    for number, (kind, spoil) in enumerate(SPOILERS):
        directory = damaged(tiny_model, tmp_path / str(number))
        spoil(directory)
        cases.append((kind, directory))
    for kind, directory in cases:
        with pytest.raises(kind) as caught:
            load(directory)
        assert str(tmp_path) in str(caught.value)


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SPOILERS: list[tuple[type[SlotstreamError], Callable[[Path], object]]] = [
    (CheckpointMissing, lambda d: (d / "config.json").unlink()),
    (CheckpointDamaged, lambda d: (d / "config.json").write_text("{")),
    (UnsupportedModel, lambda d: edit_config(d, model_type="llama")),
    (CheckpointDamaged, lambda d: os.truncate(expert_shard(d), expert_shard(d).stat().st_size - 10)),
    (CheckpointMissing, lambda d: expert_shard(d).unlink()),
    (TokenizerError, lambda d: (d / "tokenizer.json").unlink()),
    (TemplateError, lambda d: (d / "chat_template.jinja").write_text("{% if %}")),
]


def test_a_budget_below_the_floor_names_one_that_works(tiny_model: Path) -> None:
    with pytest.raises(InsufficientMemory, match=r"use --memory-gb [\d.]+ or more") as caught:
        load(tiny_model, request=PlanRequest(memory_gb=0.001))
    named = re.search(r"use --memory-gb ([\d.]+)", str(caught.value))
    assert named is not None
    load(tiny_model, request=PlanRequest(memory_gb=float(named[1]))).close()
    with pytest.raises(InvalidRequest):
        load(tiny_model, request=PlanRequest(memory_gb=math.nan))


def open_files() -> int:
    gc.collect()  # what earlier tests left is not to be closed meanwhile
    return psutil.Process().num_fds()


def test_closing_lets_the_files_go(tiny_model: Path) -> None:
    before = open_files()
    engine = load(tiny_model)
    assert open_files() > before
    engine.close()
    engine.close()
    assert open_files() == before
