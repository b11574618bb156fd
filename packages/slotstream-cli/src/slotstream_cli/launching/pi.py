"""Pi: a provider in its models file, where everything else stays as written, and the model on its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slotstream_cli.launching.errors import AgentRefused, NotPlainJson
from slotstream_cli.launching.json_text import ABSENT, JsonText
from slotstream_cli.launching.plans import LOCAL_TOKEN, Download, FileWrite, LaunchPlan, ServedModel, Situation
from slotstream_cli.launching.redaction import redacted_json
from slotstream_cli.launching.words import has_option, option_value

PROVIDER = "slotstream"
COMMANDS = frozenset({"install", "remove", "uninstall", "update", "list", "config", "auth"})


class Pi:
    """Pi; see `Agent`."""

    name = "pi"
    names: tuple[str, ...] = ("pi",)
    title = "Pi"
    program = "pi"
    install = "npm install -g @earendil-works/pi-coding-agent"
    minimum_window = 16_384
    asks_version = False
    api_path = "/v1/chat/completions"

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return the models file."""
        return (models_file(situation),)

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return nothing."""
        return ()

    def check(self, situation: Situation) -> None:
        """Refuse another provider without a model, and a models file that cannot be edited."""
        _arguments(situation.arguments, "model")
        _document(situation)

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return the provider's entry and the model's arguments."""
        path, document = models_file(situation), _document(situation)
        before = situation.files[path]
        if before is None:
            text = json.dumps({"providers": {PROVIDER: _provider(served)}}, indent=2) + "\n"
        else:
            try:
                text = _with_provider(document, served).text
            except NotPlainJson as error:
                raise _unusable(path, str(error)) from error
        entry = redacted_json({PROVIDER: JsonText(text).get("providers", PROVIDER)})
        write = FileWrite(path=path, text=text, shown=json.dumps(entry, indent=2, ensure_ascii=False))
        return LaunchPlan(
            arguments=_arguments(situation.arguments, served.model),
            files=() if text == before else (write,),
        )


def models_file(situation: Situation) -> Path:
    """Return where Pi reads its providers from."""
    chosen = situation.environment.get("PI_CODING_AGENT_DIR")
    if not chosen:
        return situation.home / ".pi" / "agent" / "models.json"
    directory = situation.home / chosen[2:] if chosen.startswith("~/") else Path(chosen)
    return situation.directory / directory / "models.json"


def _document(situation: Situation) -> JsonText:
    path = models_file(situation)
    text = situation.files[path]
    try:
        document = JsonText("{}" if text is None else text)
    except NotPlainJson as error:
        raise _unusable(path, str(error)) from error
    for names in ((), ("providers",), ("providers", PROVIDER)):
        value = document.get(*names)
        if value is not ABSENT and not isinstance(value, dict):
            raise _unusable(path, f"{'.'.join(names) or 'the document'} is not an object")
    return document


def _unusable(path: Path, reason: str) -> AgentRefused:
    return AgentRefused(f"Pi's models file {path} cannot be edited in place: {reason}; add the provider by hand")


def _model(served: ServedModel) -> dict[str, Any]:
    return {
        "id": served.model,
        "name": f"{served.title} (Slotstream)",
        "reasoning": True,
        "thinkingLevelMap": {"minimal": None, "xhigh": None, "max": None},
        "input": ["text", "image"] if served.vision else ["text"],
        "contextWindow": served.window_tokens,
        "maxTokens": served.max_output_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }


def _provider(served: ServedModel) -> dict[str, Any]:
    return {
        "baseUrl": f"{served.base_url}/v1",
        "api": "openai-completions",
        "apiKey": served.token,
        "compat": {"supportsStore": False, "supportsStrictMode": False},
        "models": [_model(served)],
    }


def _with_provider(document: JsonText, served: ServedModel) -> JsonText:
    """Return the models file with the provider's address and limits; what else the user put there stays."""
    here = ["providers", PROVIDER]
    fresh = _provider(served)
    document = document.with_value([*here, "baseUrl"], fresh["baseUrl"]).with_value([*here, "api"], fresh["api"])
    if document.get(*here, "apiKey") in (ABSENT, LOCAL_TOKEN):  # a key that the user put there stays
        document = document.with_value([*here, "apiKey"], fresh["apiKey"])
    for name, value in fresh["compat"].items():
        document = document.with_value([*here, "compat", name], value)
    models = document.get(*here, "models")
    if models is not ABSENT and not isinstance(models, list):
        raise NotPlainJson(f"providers.{PROVIDER}.models is not an array")
    for at, entry in enumerate(models if isinstance(models, list) else []):
        if isinstance(entry, dict) and entry.get("id") == served.model:
            place: list[str | int] = [*here, "models", at]
            document = document.with_value([*place, "contextWindow"], served.window_tokens)
            return document.with_value([*place, "maxTokens"], served.max_output_tokens)
    return document.with_element([*here, "models"], _model(served))


def _arguments(given: tuple[str, ...], model: str) -> tuple[str, ...]:
    if given and given[0] in COMMANDS:
        return given
    added: list[str] = []
    if not has_option(given, "--model", "--models"):
        provider = option_value(given, "--provider")
        if provider is None:
            added += ["--provider", PROVIDER, "--model", model]
        elif provider == PROVIDER:
            added += ["--model", model]
        else:
            raise AgentRefused(
                f"Pi uses `--provider` only together with `--model`; name a model of {provider!r}, "
                "or run `pi` directly to use another provider"
            )
    if not has_option(given, "--thinking"):
        added += ["--thinking", "off"]
    return (*added, *given)
