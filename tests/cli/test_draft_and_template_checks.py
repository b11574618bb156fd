"""`slotstream mtp-check` and `slotstream template-check` over tiny models."""

import json
from pathlib import Path

import pytest

from slotstream_core.diagnostics import drafts
from slotstream_core.loading import LoadedModel
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest
from tests.cli.conftest import Invoke

FAMILY = Path(__file__).parents[2] / "tools" / "demo_model" / "chat_template.jinja"


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a draft head and a template of the family."""
    directory = write_tiny_model(tmp_path_factory.mktemp("drafting") / "model", draft=True)
    (directory / "chat_template.jinja").write_text(FAMILY.read_text(encoding="utf-8"), encoding="utf-8")
    return directory


def test_drafting_is_checked_in_the_memory_that_is_asked_for(
    invoke: Invoke, drafting_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, load = list[PlanRequest](), drafts._load

    def noted(directory: Path, request: PlanRequest) -> LoadedModel:
        requests.append(request)
        return load(directory, request)

    monkeypatch.setattr(drafts, "_load", noted)
    result = invoke("mtp-check", "--model", drafting_model, "--max-tokens", "6", "--experts-per-layer", "2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["name"], report["passed"], len(report["facts"]["ids"])) == ("mtp-check", True, 6)
    assert [(each.mtp, each.mtp_experts, each.experts_per_layer) for each in requests] == [
        ("off", "automatic", 2),
        ("on", "streamed", 2),
        ("on", "resident", 2),
    ]


@pytest.mark.usefixtures("without_memory_for_a_resident_head")
def test_what_there_is_no_memory_for_is_said_beside_the_report(invoke: Invoke, drafting_model: Path) -> None:
    result = invoke("mtp-check", "--model", drafting_model, "--max-tokens", "4")
    assert result.exit_code == 0, result.output
    assert result.stderr == "-- left out: a resident head: it needs 2 GB more\n"
    assert "drafts accepted" in result.stdout
    assert "tokens/s" in result.stdout


def test_a_model_without_a_draft_head_is_one_sentence(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("mtp-check", "--model", tiny_model)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no draft head (mtp.safetensors)" in result.stderr


def test_the_template_s_text_and_ids_are_printed_before_what_was_checked(invoke: Invoke, drafting_model: Path) -> None:
    report = json.loads(invoke("template-check", "--model", drafting_model, "--json").stdout)
    result = invoke("template-check", "--model", drafting_model)
    assert result.exit_code == 0, result.output
    text, ids = report["facts"]["text"], " ".join(map(str, report["facts"]["ids"]))
    assert result.stdout.startswith(f"{text}\n\n{ids}\n\npass  the ids decode to the text")
    assert result.stdout.endswith("template-check: passed\n")


def test_think_renders_for_a_reply_that_thinks(invoke: Invoke, drafting_model: Path) -> None:
    result = invoke("template-check", "--model", drafting_model, "--think", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["facts"]["text"].endswith("<|im_start|>assistant\n<think>\n")


def test_a_template_without_tools_ends_with_exit_code_1(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("template-check", "--model", tiny_model)
    assert result.exit_code == 1
    assert "FAIL  a declared tool is described to the model" in result.stdout
    assert result.stdout.endswith("template-check: failed\n")
