"""How Claude Code is connected."""

import json
from pathlib import Path
from typing import Any

import pytest

from slotstream_cli.launching.claude import PROVIDER_SWITCHES, ClaudeCode
from slotstream_cli.launching.errors import AgentRefused
from tests.cli.launching.situations import HOME, MODEL, served, situation

CLAUDE = ClaudeCode()


def settings_of(*arguments: str, **changes: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    plan = CLAUDE.plan(situation(*arguments, **changes), served())
    assert plan.arguments[0] == "--settings"
    settings: dict[str, Any] = json.loads(plan.arguments[1])
    return settings, plan.arguments[2:]


def test_every_model_name_and_limit_is_the_servers() -> None:
    variables = CLAUDE.plan(situation(), served()).variables
    assert variables["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:11434"
    assert variables["ANTHROPIC_AUTH_TOKEN"] == "slotstream-local"
    assert {value for name, value in variables.items() if name.endswith("_MODEL")} == {MODEL}
    assert sum(name.endswith("_MODEL") for name in variables) == 6
    assert (variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == (
        "65536",
        "8192",
    )
    assert variables["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert variables["API_TIMEOUT_MS"] == variables["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] == "1800000"


def test_what_the_user_exported_of_thinking_and_patience_stays() -> None:
    exported = {"MAX_THINKING_TOKENS": "1", "API_TIMEOUT_MS": "5"}
    plan = CLAUDE.plan(situation(environment=exported), served())
    assert (plan.variables["MAX_THINKING_TOKENS"], plan.variables["API_TIMEOUT_MS"]) == ("1", "5")
    assert json.loads(plan.arguments[1])["env"]["MAX_THINKING_TOKENS"] == "1"


def test_no_settings_file_can_send_the_run_elsewhere() -> None:
    settings, _ = settings_of()
    assert settings["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:11434"
    assert {settings["env"][name] for name in PROVIDER_SWITCHES} == {"0"}
    assert settings["env"]["ANTHROPIC_API_KEY"] == settings["apiKeyHelper"] == ""
    assert settings["permissions"] == {"deny": ["WebSearch"]}
    removed = CLAUDE.plan(situation(), served()).removed
    assert removed == ("ANTHROPIC_API_KEY", *PROVIDER_SWITCHES)
    assert len(PROVIDER_SWITCHES) == 7


def test_the_users_words_follow_and_their_settings_are_merged() -> None:
    own = '{"model": "x", "env": {"A": "1"}, "permissions": {"deny": ["Bash"], "allow": []}, "n": 1.50}'
    settings, rest = settings_of("-p", "hi", f"--settings={own}", "--continue")
    assert rest == ("-p", "hi", "--continue")
    assert settings["model"] == "x"
    assert settings["env"]["A"] == "1"
    assert settings["env"]["ANTHROPIC_MODEL"] == MODEL
    assert settings["permissions"] == {"deny": ["Bash", "WebSearch"], "allow": []}
    text = CLAUDE.plan(situation("--settings", own), served()).arguments[1]
    assert '"n": 1.50' in text


def test_a_denied_tool_is_not_denied_twice() -> None:
    assert settings_of("--settings", '{"permissions": {"deny": ["WebSearch"]}}')[0]["permissions"]["deny"] == [
        "WebSearch"
    ]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("own.json", HOME / "project" / "own.json"),
        ("~/own.json", HOME / "own.json"),
        ("/etc/own.json", Path("/etc/own.json")),
    ],
)
def test_settings_may_be_a_file(given: str, path: Path) -> None:
    asked = situation("--settings", given)
    assert CLAUDE.reads(asked) == (path,)
    settings, rest = settings_of("--settings", given, files={path: '{"theme": "dark"}'})
    assert (settings["theme"], rest) == ("dark", ())


def test_words_after_two_dashes_are_not_options() -> None:
    settings, rest = settings_of("--", "--settings", "{}")
    assert rest == ("--", "--settings", "{}")
    assert "env" in settings


@pytest.mark.parametrize(
    ("arguments", "files", "words"),
    [
        (["--settings"], {}, "needs a value"),
        (["--settings", "{broken"], {}, "not plain JSON"),
        (["--settings", '{"env": []}'], {}, "env is not an object"),
        (["--settings", '{"permissions": 1}'], {}, "permissions is not an object"),
        (["--settings", '{"permissions": {"deny": 1}}'], {}, "cannot be merged"),
        (["--settings", "/none.json"], {Path("/none.json"): None}, "cannot be read"),
        (["--settings", "/list.json"], {Path("/list.json"): "[]"}, "not an object"),
    ],
)
def test_settings_that_cannot_be_merged_are_refused(arguments: list[str], files: Any, words: str) -> None:
    with pytest.raises(AgentRefused, match=words):
        CLAUDE.check(situation(*arguments, files=files))


def test_a_tight_window_is_noted() -> None:
    assert CLAUDE.plan(situation(), served()).notes == ()
    (note,) = CLAUDE.plan(situation(), served(window_tokens=32_768)).notes
    assert "32,768" in note


def test_a_servers_key_is_on_no_command_line() -> None:
    plan = CLAUDE.plan(situation("-p", "hi"), served(token="k3y"))
    (write,) = plan.files
    assert plan.arguments == ("--settings", str(write.path), "-p", "hi")
    assert json.loads(write.text)["env"]["ANTHROPIC_AUTH_TOKEN"] == "k3y"
    assert "k3y" not in write.shown
