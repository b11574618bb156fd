"""How opencode and Hermes are connected."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.hermes import SIDE_TASKS, Hermes
from slotstream_cli.launching.opencode import VARIABLE, OpenCode
from slotstream_cli.launching.plans import LaunchPlan
from tests.cli.launching.situations import HOME, MODEL, served, situation

OPENCODE, HERMES = OpenCode(), Hermes()
CONFIG = HOME / ".hermes-slotstream" / "config.yaml"
FLAGS = f"--provider slotstream --model {MODEL}"


def content(exported: str | None = None) -> dict[str, Any]:
    environment = {} if exported is None else {VARIABLE: exported}
    plan = OPENCODE.plan(situation("run", "x", environment=environment), served())
    assert (plan.arguments, plan.files) == (("run", "x"), ())
    document: dict[str, Any] = json.loads(plan.variables[VARIABLE])
    return document


def test_opencode_gets_one_provider_and_every_model_it_uses() -> None:
    document = content()
    provider = document["provider"]["slotstream"]
    assert provider["options"] == {"baseURL": "http://127.0.0.1:11434/v1", "apiKey": "slotstream-local"}
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["models"][MODEL]["limit"] == {"context": 65_536, "output": 8_192}
    name = f"slotstream/{MODEL}"
    assert document["model"] == document["small_model"] == name
    assert document["agent"] == {"build": {"model": name}, "plan": {"model": name}}
    assert (document["enabled_providers"], document["disabled_providers"]) == (["slotstream"], [])


def test_an_exported_opencode_configuration_is_added_to() -> None:
    own = {"theme": "x", "model": "a/b", "agent": {"build": {"model": "a/b", "color": 1}}, "enabled_providers": ["a"]}
    document = content(json.dumps(own))
    assert document["theme"] == "x"
    assert document["agent"]["build"] == {"model": f"slotstream/{MODEL}", "color": 1}
    assert document["enabled_providers"] == ["slotstream"]


@pytest.mark.parametrize("exported", ["{", "[]", "1", '{"provider": 1}', '{"agent": []}', "// c\n{}"])
def test_an_exported_configuration_of_another_shape_is_refused(exported: str) -> None:
    with pytest.raises(AgentRefused, match=VARIABLE):
        content(exported)


def hermes(*arguments: str, text: str | None = None, **server: Any) -> LaunchPlan:
    return HERMES.plan(situation(*arguments, files={CONFIG: text}), served(**server))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", f"--profile default chat {FLAGS}"),
        ("chat --yolo", f"--profile default chat {FLAGS} --yolo"),
        ("-p work chat -q x", f"-p work chat {FLAGS} -q x"),
        ("--profile=work chat", f"--profile=work chat {FLAGS}"),
        ("-q hi", f"--profile default {FLAGS} -q hi"),
        ("chat --provider other --model x", "--profile default chat --provider other --model x"),
        ("chat -m x", "--profile default chat -m x"),
        ("--provider=slotstream", "--profile default --provider=slotstream"),
    ],
)
def test_hermes_is_told_provider_and_model_where_it_heeds_them(given: str, expected: str) -> None:
    assert hermes(*given.split()).arguments == tuple(expected.split())


def test_a_home_among_profiles_names_its_own_profile() -> None:
    home = HOME / ".hermes" / "profiles" / "work"
    asked = situation(environment={"HERMES_HOME": str(home)}, files={home / "config.yaml": None})
    plan = HERMES.plan(asked, served())
    assert plan.arguments[0] == "chat"
    assert plan.variables["HERMES_HOME"] == str(home)


def test_the_first_launch_writes_a_configuration_with_every_side_task_on_the_model() -> None:
    plan = hermes(window_tokens=70_000)
    assert plan.variables == {"HERMES_HOME": str(CONFIG.parent)}
    (write,) = plan.files
    document = yaml.safe_load(write.text)
    assert document["model"] == {"provider": "slotstream", "default": MODEL, "context_length": 70_000}
    provider = document["providers"]["slotstream"]
    assert provider["base_url"] == "http://127.0.0.1:11434/v1"
    assert (provider["api_key"], provider["extra_body"]) == ("unused", {"max_tokens": 4096})
    assert set(document["auxiliary"]) == set(SIDE_TASKS)
    assert len(SIDE_TASKS) == 18
    assert {task["provider"] for task in document["auxiliary"].values()} == {"main"}
    assert document["auxiliary"]["title_generation"]["extra_body"] == {"max_tokens": 64}
    assert document["agent"]["reasoning_effort"] == "none"


def test_the_documented_configuration_is_the_one_that_is_written() -> None:
    page = (Path(__file__).parents[3] / "docs" / "coding-agents.md").read_text(encoding="utf-8")
    assert page.partition("```yaml\n")[2].partition("```")[0] == written()


def test_a_servers_key_is_written_for_hermes_and_not_shown() -> None:
    (write,) = hermes(token='s"3').files
    assert yaml.safe_load(write.text)["providers"]["slotstream"]["api_key"] == 's"3'
    assert 's"3' not in write.shown


def written(**server: Any) -> str:
    return hermes(**server).files[0].text


def test_a_configuration_that_fits_is_left_alone_without_notes() -> None:
    plan = hermes(text=written())
    assert (plan.files, plan.notes) == ((), ())
    assert hermes(text=written().replace("127.0.0.1", "localhost")).notes == ()


def test_differences_from_the_server_are_noted() -> None:
    (elsewhere,) = hermes(text=written(base_url="http://127.0.0.1:9")).notes
    assert "does not point at port 11434" in elsewhere
    (smaller,) = hermes(text=written(), window_tokens=131_072).notes
    assert "65,536" in smaller
    (loose,) = hermes(text=written().replace("  approval: {provider: main}\n", "")).notes
    assert loose.endswith("approval")


@pytest.mark.parametrize("text", ["{}", "model: {}\n", "", "- 1\n", "providers: [slotstream]\n"])
def test_a_configuration_without_our_provider_is_refused(text: str) -> None:
    with pytest.raises(AgentRefused, match="has no slotstream provider"):
        HERMES.check(situation(files={CONFIG: text}))


@pytest.mark.parametrize("text", ["a: [", "\t- x", "a: !!python/object:os.system x"])
def test_a_configuration_that_is_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(AgentRefused, match="not YAML"):
        HERMES.check(situation(files={CONFIG: text}))


def test_a_window_larger_than_the_servers_is_refused_with_both_numbers() -> None:
    with pytest.raises(AgentRefused, match=r"131,072.*65,536"):
        hermes(text=written(window_tokens=131_072))


def test_hermes_reads_nothing_outside_its_home() -> None:
    assert HERMES.reads(situation()) == (CONFIG,)
    asked = situation(environment={"HERMES_HOME": "own"})
    assert HERMES.reads(asked) == (Path("/home/ada/project/own/config.yaml"),)
