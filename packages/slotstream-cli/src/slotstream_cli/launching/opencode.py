"""opencode: one variable with the provider and the models; no file is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotstream_cli.launching.errors import AgentRefused, NotPlainJson
from slotstream_cli.launching.json_text import JsonText
from slotstream_cli.launching.plans import Download, LaunchPlan, ServedModel, Situation

VARIABLE = "OPENCODE_CONFIG_CONTENT"
PROVIDER = "slotstream"
SCHEMA = "https://opencode.ai/config.json"


class OpenCode:
    """opencode; see `Agent`."""

    name = "opencode"
    names: tuple[str, ...] = ("opencode",)
    title = "opencode"
    program = "opencode"
    install = "npm install -g opencode-ai"
    minimum_window = 16_384
    asks_version = False
    api_path = "/v1/chat/completions"

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return nothing."""
        return ()

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return nothing."""
        return ()

    def check(self, situation: Situation) -> None:
        """Refuse an exported configuration that cannot be added to."""
        _exported(situation)

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return the run's configuration, added to an exported one."""
        configuration = _exported(situation)
        try:
            for path, value in _settings(served):
                configuration = configuration.with_value(path, value)
        except NotPlainJson as error:
            raise AgentRefused(f"{VARIABLE} cannot be added to: {error}") from error
        return LaunchPlan(arguments=situation.arguments, variables={VARIABLE: configuration.text})


def _exported(situation: Situation) -> JsonText:
    text = situation.environment.get(VARIABLE, "").strip() or "{}"
    try:
        configuration = JsonText(text)
    except NotPlainJson as error:
        raise AgentRefused(f"{VARIABLE} cannot be added to: {error}; correct or unset it") from error
    if not isinstance(configuration.get(), dict):
        raise AgentRefused(f"{VARIABLE} is not a JSON object; correct or unset it")
    return configuration


def _settings(served: ServedModel) -> list[tuple[list[str], Any]]:
    """Return what is set, by path."""
    provider, model = ["provider", PROVIDER], f"{PROVIDER}/{served.model}"
    described = {
        "name": f"{served.title} (Slotstream)",
        "tool_call": True,
        "attachment": served.vision,
        "limit": {"context": served.window_tokens, "output": served.max_output_tokens},
    }
    return [
        (["$schema"], SCHEMA),
        ([*provider, "npm"], "@ai-sdk/openai-compatible"),
        ([*provider, "name"], "Slotstream"),
        ([*provider, "options", "baseURL"], f"{served.base_url}/v1"),
        ([*provider, "options", "apiKey"], served.token),
        *(([*provider, "models", served.model, key], value) for key, value in described.items()),
        (["model"], model),
        (["small_model"], model),
        (["enabled_providers"], [PROVIDER]),
        (["disabled_providers"], []),
        (["agent", "build", "model"], model),
        (["agent", "plan", "model"], model),
    ]
