"""How Codex is connected."""

import json
from pathlib import Path
from typing import Any

import pytest

from slotstream_cli.launching.codex import Codex
from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.plans import LaunchPlan
from tests.cli.launching.situations import STATE, served, situation

CODEX = Codex()
VERSION = "codex-cli 0.171.0"
PROMPT_FILE = STATE / "codex" / "instructions-0.171.0.md"
PROMPT = "You are Codex. " * 100


def plan(*arguments: str, **server: Any) -> LaunchPlan:
    return CODEX.plan(situation(*arguments, version=VERSION, files={PROMPT_FILE: PROMPT}), served(**server))


def without_settings(words: tuple[str, ...]) -> list[str]:
    """Return the words with our four settings, which are together, as one mark."""
    at = next(at for at, word in enumerate(words) if word.startswith("model="))
    assert all(words[each] == "-c" for each in range(at - 1, at + 7, 2))
    return [*words[: at - 1], "OURS", *words[at + 7 :]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "OURS"),
        ("fix-it", "OURS fix-it"),
        ("exec task", "exec OURS task"),
        ("e task", "e OURS task"),
        ("exec resume --last", "exec resume OURS --last"),
        ("exec fork x", "exec fork OURS x"),
        ("exec --json resume x", "exec --json resume OURS x"),
        ("resume exec", "resume OURS exec"),
        ("-m other exec task", "-m other exec OURS task"),
        ("-c a=1 exec task", "exec OURS -c a=1 task"),
        ("exec -c a=1 resume x", "exec resume OURS -c a=1 x"),
        ("--config=a=1 exec task", "exec OURS --config=a=1 task"),
        ("exec -c a=1 task", "exec OURS -c a=1 task"),
        ("-c a=1 task", "OURS -c a=1 task"),
        ("-i a.png b.png exec", "OURS -i a.png b.png exec"),
        ("-i a.png -m x exec t", "-i a.png -m x exec OURS t"),
        ("--image=a.png exec t", "--image=a.png exec OURS t"),
        ("-s read-only exec t", "-s read-only exec OURS t"),
        ("-- exec", "OURS -- exec"),
        ("exec -", "exec OURS -"),
    ],
)
def test_settings_go_behind_the_deepest_subcommand_and_the_users_own_behind_them(given: str, expected: str) -> None:
    assert without_settings(plan(*given.split()).arguments) == expected.split()


def test_the_settings_name_the_server_the_model_and_the_catalog() -> None:
    words = plan().arguments
    assert words[1] == 'model="qwen3.8-flash-next:4bit"'
    assert words[3] == 'model_provider="slotstream"'
    assert words[5] == f'model_catalog_json="{STATE}/codex/catalog-0.171.0-65536.json"'
    assert words[7] == (
        'model_providers.slotstream={name="Slotstream", base_url="http://127.0.0.1:11434/v1", wire_api="responses", '
        "stream_idle_timeout_ms=1800000}"
    )


def test_the_catalog_has_the_window_the_tools_and_this_versions_instructions() -> None:
    (write,) = plan(window_tokens=40_000).files
    assert write.path == STATE / "codex" / "catalog-0.171.0-40000.json"
    (model,) = json.loads(write.text)["models"]
    assert model["context_window"] == model["max_context_window"] == 40_000
    assert model["base_instructions"] == PROMPT
    assert (model["apply_patch_tool_type"], model["shell_type"]) == ("freeform", "unified_exec")
    assert [level["effort"] for level in model["supported_reasoning_levels"]] == ["low", "medium", "high"]
    assert PROMPT not in write.shown


def test_a_servers_key_is_passed_by_variable_and_never_on_the_command_line() -> None:
    keyed = plan(token="s3cret")
    assert keyed.variables == {"SLOTSTREAM_API_KEY": "s3cret"}
    assert 'env_key="SLOTSTREAM_API_KEY"' in keyed.arguments[7]
    assert "s3cret" not in " ".join(keyed.arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("cloud", "OpenAI's servers"),
        ("-m x cloud list", "OpenAI's servers"),
        ("exec --output-schema s.json task", "JSON schema"),
        ("exec --output-schema=s.json task", "JSON schema"),
    ],
)
def test_what_does_not_run_here_is_refused(arguments: str, words: str) -> None:
    with pytest.raises(AgentRefused, match=words):
        CODEX.check(situation(*arguments.split(), version=VERSION))


@pytest.mark.parametrize("arguments", ["exec cloud", "the-cloud", "-c model_reasoning_effort=low exec x", "-m cloud"])
def test_the_users_own_overrides_and_prompts_pass(arguments: str) -> None:
    CODEX.check(situation(*arguments.split(), version=VERSION))


@pytest.mark.parametrize(
    "text", [None, "", "Codex", "<html>" + PROMPT, "You are something else. " * 100], ids=lambda text: str(text)[:8]
)
def test_instructions_that_are_missing_or_wrong_are_fetched_for_this_version(text: str | None) -> None:
    (download,) = CODEX.downloads(situation(version=VERSION, files={PROMPT_FILE: text}))
    assert "/rust-v0.171.0/codex-rs/models-manager/prompt.md" in download.url
    assert download.path == PROMPT_FILE


def test_instructions_that_are_there_are_not_fetched_again() -> None:
    assert CODEX.downloads(situation(version=VERSION, files={PROMPT_FILE: PROMPT})) == ()


def test_a_codex_without_a_version_is_refused() -> None:
    with pytest.raises(AgentRefused, match="no version"):
        CODEX.reads(situation(version="codex"))


def test_a_version_cannot_lead_out_of_the_directory() -> None:
    (path,) = CODEX.reads(situation(version="codex-cli 1.2.3-alpha.4/../../x"))
    assert path == Path(STATE / "codex" / "instructions-1.2.3-alpha.4.md")
